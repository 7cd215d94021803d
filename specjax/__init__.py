"""Speculative decoding in JAX: exact, measured, explained.

  import specjax

  target = specjax.load(specjax.pair.path('target'))
  draft = specjax.drafters.lm.load(target, specjax.pair.path('draft-128'))
  out = specjax.decode(target, draft, ['def fib(n):'], gamma=3, temperature=0.7)
  print(out.texts[0], out.tau)

These names are the door; `specjax.types` is the contract page behind it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from specjax import constraints as constraints
  from specjax import drafters as drafters
  from specjax import pair as pair
  from specjax import sampling as sampling
  from specjax import types as types
  from specjax import verify as verify
  from specjax.api.decoding import Decoded as Decoded
  from specjax.api.decoding import decode as decode
  from specjax.api.decoding import load as load
  from specjax.api.request import Request as Request
  from specjax.api.streaming import Piece as Piece
  from specjax.api.streaming import stream as stream
  from specjax.checkpoints.loading import from_pytree as from_pytree
  from specjax.models.check import check_model as check_model
  from specjax.models.own import Sizes as Sizes
  from specjax.models.own import adapt as adapt
  from specjax.models.transformer import Model as Model
  from specjax.models.transformer import Output as Output
  from specjax.native import claim_cores as claim_cores
  from specjax.requests import goodput as goodput
  from specjax.requests.rollouts import RolloutBatch as RolloutBatch
  from specjax.requests.rollouts import Rollouts as Rollouts
  from specjax.types import KV as KV
  from specjax.types import Draft as Draft
  from specjax.types import Drafter as Drafter
  from specjax.types import LoadedDrafter as LoadedDrafter
  from specjax.types import Target as Target

__version__ = '0.1.0'

# The module of each name: `import specjax` imports none, nor JAX.
_MODULES = {
  name: module
  for module, names in {
    'api.decoding': ('Decoded', 'decode', 'load'),
    'api.request': ('Request',),
    'api.streaming': ('Piece', 'stream'),
    'checkpoints.loading': ('from_pytree',),
    'models.check': ('check_model',),
    'models.own': ('Sizes', 'adapt'),
    'models.transformer': ('Model', 'Output'),
    'native': ('claim_cores',),
    'requests.rollouts': ('RolloutBatch', 'Rollouts'),
    'types': ('Draft', 'Drafter', 'KV', 'LoadedDrafter', 'Target'),
  }.items()
  for name in names
}
_PACKAGES = {
  **{n: n for n in ('constraints', 'drafters', 'pair', 'sampling', 'verify')},
  'types': 'types',
  'goodput': 'requests.goodput',
}


def __getattr__(name: str) -> Any:
  if name in _PACKAGES:
    return importlib.import_module(f'{__name__}.{_PACKAGES[name]}')
  if name in _MODULES:
    module = importlib.import_module(f'{__name__}.{_MODULES[name]}')
    globals()[name] = value = getattr(module, name)
    return value
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return [*globals(), *_MODULES, *_PACKAGES]
