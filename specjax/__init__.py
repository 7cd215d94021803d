"""Speculative decoding in JAX: exact, measured, explained.

  import specjax

  target = specjax.load(specjax.pair.path('target'))
  draft = specjax.drafters.lm.load(target, specjax.pair.path('draft-128'))
  out = specjax.decode(target, draft, ['def fib(n):'], gamma=3, temperature=0.7)
  print(out.texts[0], out.tau)

These names are the door; `specjax.types` is the contract page behind it.
"""

from specjax import constraints as constraints
from specjax import drafters as drafters
from specjax import goodput as goodput
from specjax import pair as pair
from specjax import sampling as sampling
from specjax import verify as verify
from specjax.decoding import Decoded as Decoded
from specjax.decoding import decode as decode
from specjax.decoding import load as load
from specjax.native import claim_cores as claim_cores
from specjax.streaming import Piece as Piece
from specjax.streaming import stream as stream
from specjax.types import Draft as Draft
from specjax.types import Drafter as Drafter
from specjax.types import LoadedDrafter as LoadedDrafter
from specjax.types import Target as Target

__version__ = '0.1.0'
