"""Checks of the code that measures, which planted bugs must fail.

Each check returns true if numbers are what is known of them: what was worked
out by hand, or the coverage that an interval promises.
"""

from typing import Any

import numpy as np

from specjax.bench import row_fields
from specjax.bench.costs import Costs
from specjax.reports import paired
from specjax.stats import metrics
from tests.support import expected_row, rows, scripted_run

EXACT = 1e-9  # what rounding may add to a number
RUNS = 4000  # simulated experiments
FEW, MANY = 8, 40  # units of them
_ERROR = 3 * np.sqrt(0.05 * 0.95 / RUNS)  # of a simulated coverage, 0.010


def off(value: Any, right: Any) -> float:
  """How far a value is from the right one; 1 where it is of another kind."""
  if isinstance(right, dict):
    if not isinstance(value, dict) or value.keys() != right.keys():
      return 1.0
    return max((off(value[k], right[k]) for k in right), default=0.0)
  if isinstance(right, list):
    if not isinstance(value, list) or len(value) != len(right):
      return 1.0
    return max(map(off, value, right), default=0.0)
  if right is None or value is None or isinstance(right, str | bool):
    return float(value != right)
  return abs(value - right) / max(1.0, abs(right))


def wrong_fields(row: dict, batch: int, timed: bool = True, names=None) -> set:
  """The fields that are not what they should be, of all or of some names."""
  right = expected_row.row(batch, timed)
  unknown = row.keys() ^ right.keys() if names is None else set()
  known = {*(names or right)} - unknown
  return unknown | {n for n in known if _is_wrong(row, n, right[n])}


def _is_wrong(row: dict, name: str, right: Any) -> bool:
  """Returns true if a field is off; an interval may hold the value."""
  value = row[name]
  if name == 'autocorrelation' and right is not None:
    value, right = ([x[0] for x in y] for y in (value or (), right))
  if right is not expected_row.HOLDS:
    return off(value, right) > EXACT
  of = row[name.removesuffix('_ci')]
  return value is not None and not value[0] <= of <= value[1]


def _fields() -> bool:
  return not any(
    wrong_fields(scripted_run.make(batch, timed).row, batch, timed)
    for batch in (1, 2)
    for timed in (True, False)
  )


def _filled() -> bool:
  """Counts in batches of three: the last one has room for one prompt more."""
  names = [*expected_row.COUNTS, *expected_row.ACCEPTANCE, 'prompts']
  return not wrong_fields(scripted_run.make(3).row, 1, names=names)


def _wide() -> bool:
  """Alpha where a mesh wants two rows more than there are prompts."""
  row = scripted_run.make(rows=scripted_run.PROMPTS + 2).row
  return not wrong_fields(row, 1, names=expected_row.ALPHA)


def _keys() -> bool:
  """No prompt is decoded with the key of another one."""
  return not any(scripted_run.make(batch).strays for batch in (1, 2))


def _replays() -> bool:
  """A replayed step accepts what the step of the method did, in float32."""
  return all(
    off(scripted_run.make(batch).replays, right) < 1e-6
    for batch, right in expected_row.REPLAYS.items()
  )


def _coverage(units: np.ndarray, mean: float) -> float:
  """Share of intervals of the mean of units [RUNS, n] that hold it."""
  ones = np.ones(units.shape[1])
  estimates = [metrics.ratio(x, ones) for x in units]
  return float(np.mean([e.low <= mean <= e.high for e in estimates]))


def _normal() -> bool:
  """Normal units: 95% of the intervals hold the mean."""
  units = np.random.default_rng(0).normal(3.0, 1.0, (RUNS, MANY))
  return abs(_coverage(units, 3.0) - 0.95) <= 0.005 + _ERROR


def _skewed() -> bool:
  """Skewed units, chi-square of 8: hardly fewer than 95% hold the mean."""
  units = np.random.default_rng(1).chisquare(8, (RUNS, FEW))
  return 0.95 - _coverage(units, 8.0) <= 0.02 + _ERROR


def _paired() -> bool:
  """A gain of a tenth on each prompt is certain, however prompts differ."""
  tokens = [10, 20, 30, 40, 50, 60, 70, 80]
  common = {'prompts_hash': 'a', 'prompts': 8, 'unit_target_calls': [10] * 8}
  one = common | {'unit_tokens': tokens}
  other = common | {'unit_tokens': [1.1 * t for t in tokens]}
  gain = paired.difference(one, other, paired.TAU, relative=True)
  return off([gain.value, gain.low, gain.high], [10.0] * 3) <= EXACT


def _resampled() -> bool:
  """The interval of a prediction has the costs' own spread.

  Every prompt has the same tau, so that costs alone make the interval; c and v
  vary over the repetitions, first the one and then the other.
  """
  ones = np.ones(9)
  varied = np.linspace(1.0, 2.0, 9)
  for cost in (
    Costs(2, ones, varied, varied + 0.5),
    Costs(2, ones, ones, ones + varied),
  ):
    runs = [rows.run([8], [4], 4.0) for _ in range(FEW)]
    base = [rows.run([8], [8], 8.0) for _ in range(FEW)]
    interval = row_fields.speed(runs, base, cost)['predicted_speedup_ci']
    low, high = (2 / (cost.v + 2 * cost.c + x) for x in (0.1, -0.1))
    if interval is None or interval[0] > low or interval[1] < high:
      return False
  return True


def _lengths() -> bool:
  """Sampled texts may differ in length: times are compared per token."""
  cost = Costs(1, np.ones(3), np.ones(3), np.ones(3))
  runs = [rows.run([5], [5], 1.0), rows.run([10], [10], 2.0)]
  base = [rows.run([10], [10], 4.0), rows.run([20], [20], 8.0)]
  speedup = float(row_fields.speed(runs, base, cost)['speedup'])
  return off(speedup, 2.0) <= EXACT


CHECKS = {
  'fields': _fields,
  'a batch that is filled up': _filled,
  'more rows than prompts': _wide,
  'replays': _replays,
  'keys': _keys,
  'texts of other lengths': _lengths,
  'interval of a prediction': _resampled,
  'coverage, normal units': _normal,
  'coverage, skewed units': _skewed,
  'differences are paired': _paired,
}
