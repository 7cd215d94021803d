"""Facts of a drafter for a row: its own weights, and their cost of training."""

import json
import pathlib
from typing import Any

import jax
import numpy as np

from specjax.bench.plan import PlannedDrafter
from specjax.checkpoints.vocabularies.reading import Spelled
from specjax.models import transformer
from specjax.models.low_bits import is_low_bits
from specjax.types import LoadedDrafter

_SUMS = ('seconds', 'tokens', 'steps')


def _read(path: str, name: str) -> dict:
  """Reads a JSON file of a directory; {} if there is none."""
  file = pathlib.Path(path) / name
  return json.loads(file.read_text()) if file.is_file() else {}


def training(planned: PlannedDrafter) -> dict | None:
  """Returns what the training of all its weights cost.

  Returns:
    Sums of `seconds`, `tokens` and `steps`, the `machine`, and how many models
    were trained `together` in that time, at most; None where one says nothing.
  """
  every = [one.path for one in planned.levels() if one.path]
  costs = [
    _read(path, 'training.json') or _read(path, 'config.json').get('training')
    for path in every
  ]
  if not costs or not all(costs):
    return None
  sums = {name: sum(cost[name] for cost in costs) for name in _SUMS}
  machines = dict.fromkeys(cost['machine'] for cost in costs)
  return sums | {
    'together': max(cost.get('together', 1) for cost in costs),
    'machine': ' and '.join(machines),
  }


def guesses(planned: PlannedDrafter) -> dict | None:
  """Returns how often guesses of heads were right on held-out text.

  Returns:
    `hits` [K, R] of the i-th guess of head k in `counted` [K] places, in all
    and by `domains`; None where the weights are no heads, or do not say it.
  """
  config = _read(planned.path, 'config.json') if planned.path else {}
  if 'hits' not in config:
    return None
  return {k: config[k] for k in ('hits', 'counted', 'domains') if k in config}


def dtype_of(loaded: LoadedDrafter) -> str | None:
  """Returns the type of a drafter's weights; None if it has none.

  Of few bits are matrices alone: the type is that of the other weights.
  """
  if loaded.draft is not None:
    return transformer.dtype_of(loaded.draft[1]).name
  floats = [
    leaf.dtype
    for leaf in jax.tree.leaves(loaded.params, is_leaf=is_low_bits)
    if not is_low_bits(leaf)
    and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
  ]
  return floats[0].name if floats else None


def describe(
  planned: PlannedDrafter, params: Any, pairing: str = ''
) -> dict[str, Any]:
  """Returns the fields of a row that a drafter decides.

  Args:
    planned: how it was loaded.
    params: its own, as they are run: what it takes from the target's weights
      is not among them.
    pairing: see `types.LoadedDrafter`; a row has it where it is not empty.

  Returns:
    `load`, `options`, `parameters` (numbers in its arrays), `bytes` of these,
    `training` and `guesses`, see there, and `draft_revision`: the commits of
    the models that draft, where they are of the Hub. Of a draft that has
    another one also `vocabulary`: how many `of` the target's tokens it shares.
  """
  vocabulary = {}
  if isinstance(params, Spelled):
    places = np.asarray(params.tables.places)
    # What has no place shares one, behind the others.
    last = (places == places.max()).sum()
    shared = len(places) - (last if last > 1 else 0)
    vocabulary = {'vocabulary': {'shared': int(shared), 'of': len(places)}}
    params = params.weights
  leaves = jax.tree.leaves(params)
  matrices = jax.tree.leaves(params, is_leaf=is_low_bits)
  return {
    'load': planned.load,
    'options': planned.stored,
    'draft_revision': planned.draft_revision,
    'parameters': sum(x.size for x in matrices),
    'bytes': sum(leaf.nbytes for leaf in leaves),
    'training': training(planned),
    'guesses': guesses(planned),
    **vocabulary,
    **({'pairing': pairing} if pairing else {}),
  }
