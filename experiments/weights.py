"""What a drafter brings along: its own weights, and what training them cost."""

import dataclasses
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import jax

from experiments import results
from experiments.settings import Candidate

_SUMS = ('seconds', 'tokens', 'steps')


def _configs(candidate: Candidate) -> Iterator[dict]:
  """The config.json of a candidate, and of those inside it.

  An empty one where a path has no such file.
  """
  if candidate.path:
    file = pathlib.Path(candidate.path) / 'config.json'
    yield json.loads(file.read_text()) if file.is_file() else {}
  for option in candidate.options.values():
    if isinstance(option, Candidate):
      yield from _configs(option)


def training(candidate: Candidate) -> dict | None:
  """Seconds, tokens, steps and machine of the training of all its weights.

  Returns:
    Their sums, as the config.json of each says; None where one says nothing.
  """
  costs = [config.get('training') for config in _configs(candidate)]
  if not costs or not all(costs):
    return None
  sums = {name: sum(cost[name] for cost in costs) for name in _SUMS}
  machines = dict.fromkeys(cost['machine'] for cost in costs)
  return sums | {'machine': ' and '.join(machines)}


def guesses(candidate: Candidate) -> list[list[float]] | None:
  """Share [K, R] of held-out places that the i-th guess of head k got right.

  None where the weights are no heads, or do not say it.
  """
  config = next(_configs(candidate), {})
  if 'hits' not in config:
    return None
  heads = zip(config['hits'], config['counted'], strict=True)
  return [[hit / counted for hit in hits] for hits, counted in heads]


def describe(candidate: Candidate, params: Any) -> dict[str, Any]:
  """The fields of a row that a drafter decides, whatever it is run on.

  Args:
    candidate: how it was loaded.
    params: its own, as they are run: what it takes from the target's weights
      is not among them.

  Returns:
    `load`, `options`, `parameters` (numbers in its arrays), `bytes` of these,
    `training`, and `guesses`: of heads, see there.
  """
  leaves = jax.tree.leaves(params)
  return {
    'load': candidate.load,
    'options': results.portable(dataclasses.asdict(candidate)['options']),
    'parameters': sum(leaf.size for leaf in leaves),
    'bytes': sum(leaf.nbytes for leaf in leaves),
    'training': training(candidate),
    'guesses': guesses(candidate),
  }
