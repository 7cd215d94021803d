"""Measures the seconds of a step of each draft length, once."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specjax.loop import generate
from specjax.models import sharding
from specjax.requests import mixed_lengths
from specjax.types import Params, Spec, SpecState

_FEW, _MANY, _TURNS = 2, 8, 10  # steps, and turns, of a measurement
_MOST = 0.75  # of many steps: what a chunk may take besides them


@dataclasses.dataclass(frozen=True)
class Table:
  """Seconds of a step, measured once.

  Attributes:
    reach: lengths of the longest text that were measured, rising.
    seconds: of a step more, for each of them, by draft length.
    reading: of the draft that reads all texts again, for each of them.
    begin: of what a chunk takes besides its steps, for each of them.
  """

  reach: tuple[int, ...]
  seconds: Mapping[int, tuple[float, ...]]
  reading: tuple[float, ...]
  begin: tuple[float, ...]

  def place(self, longest: int) -> int:
    """Which of `reach` a text of this length belongs to."""
    place = int(np.searchsorted(self.reach, longest))
    return min(place, len(self.reach) - 1)


def typical(took: Mapping[Any, Sequence[float]]) -> dict[Any, float]:
  """Seconds of each of several things that took turns.

  A machine that is slower for a while is so for a whole turn: each is compared
  with all others of its turn, and the median of that is multiplied by the
  median turn.
  """
  seconds = np.array([*took.values()])  # [things, turns]
  turns = np.exp(np.log(np.maximum(seconds, 1e-9)).mean(0))
  shares = np.median(seconds / turns, axis=1)
  return dict(zip(took, (shares * np.median(turns)).tolist(), strict=True))


def measure(ways: Mapping[int, tuple[Params, Spec]], state: SpecState) -> Table:
  """Times steps of every draft length, on rows of a state; it stays as it is.

  Args:
    ways: parameters and spec by draft length; the state is laid out for the
      longest.
    state: of rows; what they hold does not matter.
  """
  longest, rows = max(ways), len(state.done)
  room = (_MANY + 2) * (longest + 1)
  last = max(2, state.tokens.shape[1] - room)
  reach = tuple(sorted({max(2, last // 4), max(2, last // 2), last}))
  found: dict[int, list[float]] = {n: [] for n in ways}
  reading, begin = [], []
  for length in reach:
    asked = [(draft, steps) for draft in ways for steps in (_FEW, _MANY)]
    took: dict[tuple | None, list[float]] = {n: [] for n in [*asked, None]}
    for turn in range(_TURNS + 1):
      for what, seconds in took.items():
        draft, steps = what or (longest, 0)
        params, spec = ways[draft]
        placement = spec.target.placement
        filled = sharding.laid(placement, mixed_lengths.filled(state, length))
        jax.block_until_ready(filled)
        before = jax.device_get(filled.counts.target_calls)
        began = time.perf_counter()
        if steps:
          filled, _ = mixed_lengths.run(
            params,
            filled,
            sharding.numbers(placement, generate.stop_when(steps, rows)),
            spec=spec,
          )
        elif 0 in ways:  # Only then texts are read again.
          filled = mixed_lengths.read_again(params, filled, spec=spec)
        jax.block_until_ready(filled)
        end = time.perf_counter()
        # Fewer steps where all texts ended.
        calls = jax.device_get(filled.counts.target_calls)
        taken = int((calls - before).max())
        if turn:  # The first compiles.
          seconds.append((end - began) * max(steps, 1) / max(taken, 1))
    medians = typical(took)
    few, many = (
      np.array([medians[draft, steps] for draft in ways])
      for steps in (_FEW, _MANY)
    )
    # What a chunk takes besides is alike for all lengths, and found by all.
    besides = few - _FEW * (many - few) / (_MANY - _FEW)
    begin.append(float(np.clip(np.median(besides), 0.0, _MOST * many.min())))
    for draft, seconds_of in zip(ways, many.tolist(), strict=True):
      found[draft].append((seconds_of - begin[-1]) / _MANY)
    reading.append(medians[None])
  costs = {n: tuple(v) for n, v in found.items()}
  return Table(reach, costs, tuple(reading), tuple(begin))
