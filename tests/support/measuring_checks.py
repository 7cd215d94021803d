"""Checks of the code that measures, which planted bugs must fail.

Each check returns how far a number is from what is known of it: from what was
worked out by hand, from a sum that must agree, or from the coverage that an
interval promises.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from specjax.bench import row_fields
from specjax.bench.costs import Costs
from specjax.reports import paired
from specjax.stats import metrics
from specjax.types import Counts
from tests.support import expected_row, scripted_run

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


def apart(row: dict, names, batch: int, timed: bool = True) -> float:
  """The largest deviation of some fields of the run's row."""
  right = expected_row.row(batch, timed)
  return max(_field(row, name, right[name]) for name in names)


def _field(row: dict, name: str, right: Any) -> float:
  """Deviation of a field; an interval may be one that holds the value."""
  value = row.get(name)
  if name == 'autocorrelation' and right is not None:
    if value is None or len(value) != len(right):
      return 1.0
    return max(off(a[0], b[0]) for a, b in zip(value, right, strict=True))
  if right is not expected_row.HOLDS:
    return off(value, right)
  if value is None:
    return 0.0
  return float(not value[0] <= row[name.removesuffix('_ci')] <= value[1])


def _typed(*names: str) -> Callable[[], float]:
  """Fields against what was worked out, in batches of one and of two."""

  def check() -> float:
    made = ((batch, scripted_run.make(batch).row) for batch in (1, 2))
    return max(apart(row, names, batch) for batch, row in made)

  return check


def _fields() -> float:
  """How many fields have no known value, or are missing."""
  return max(
    float(
      len(scripted_run.make(b, t).row.keys() ^ expected_row.row(b, t).keys())
    )
    for b in (1, 2)
    for t in (False, True)
  )


def _filled() -> float:
  """Counts in batches of three: the last one has room for one prompt more."""
  names = [*expected_row.COUNTS, *expected_row.ACCEPTANCE, 'prompts']
  return apart(scripted_run.make(3).row, names, 1)


def _wide() -> float:
  """Alpha where a mesh wants two rows more than there are prompts."""
  row = scripted_run.make(rows=scripted_run.PROMPTS + 2).row
  return apart(row, expected_row.ALPHA, 1)


def _along() -> float:
  """What needs a log of the steps."""
  names = ('acceptance_by_context', 'autocorrelation')
  return max(
    apart(scripted_run.make(batch, timed=False).row, names, batch, False)
    for batch in (1, 2)
  )


def _keys() -> float:
  """How many prompts were decoded with the key of another one."""
  return float(max(scripted_run.make(batch).strays for batch in (1, 2)))


def _replays() -> float:
  """Whether a replayed step accepts what the step of the method did."""
  return max(
    off(scripted_run.make(batch).replays, expected_row.REPLAYS[batch])
    for batch in (1, 2)
  )


def _leftover(row: dict):
  """Tokens of steps that are not whole: one at least, K + 1 at most."""
  columns = ('tokens', 'accepted', 'steps', 'target_calls')
  units = zip(*(row[f'unit_{name}'] for name in columns), strict=True)
  for tokens, accepted, steps, calls in units:
    rest, cut = tokens - accepted - steps, calls - steps
    yield rest, cut * len(row['histogram'])
    if tokens >= row['new_tokens']:  # No end of a text cut a step.
      yield cut, rest


def _conserved() -> float:
  """Sums that agree in every row, whatever was drafted."""
  row = scripted_run.make(2, timed=False).row
  steps, histogram = sum(row['histogram']), row['histogram']
  places = range(len(histogram))
  tried = row['accepted'] / row['alpha_mle']
  positions = row['acceptance_by_position']
  equal = (
    (sum(i * n for i, n in enumerate(histogram)), row['accepted']),
    (sum(row['unit_accepted']), row['accepted']),
    (sum(row['unit_steps']), steps),
    (sum(row['unit_tokens']), row['tokens']),
    (sum(row['unit_target_calls']), row['target_calls']),
    (np.sum(row['unit_histogram'], 0).tolist(), histogram),
    (sum(b['steps'] for b in row['acceptance_by_context']), steps),
    (row['tau'] * row['target_calls'], row['tokens']),
    (row['tau_without_bonus'] * steps, row['accepted']),
    (row['tau_without_bonus'], sum(positions)),
    ([sum(histogram[i + 1 :]) / steps for i in places[:-1]], positions),
    (row['alpha'] * sum(row['unit_prefixes']), sum(row['unit_overlap'])),
  )
  at_most = (
    *_leftover(row),
    (row['accepted'], tried),
    (tried, row['drafted']),
    # A step ends with one rejection, or with none.
    (tried - row['accepted'], steps),
    ((1 - row['coverage']) * steps, histogram[0]),
    (row['target_calls'], row['steps'] * row['batch']),
    (row['steps'], row['target_calls']),
  )
  wrong = [off(*pair) for pair in equal]
  wrong += [max(0.0, a - b) for a, b in at_most]
  return max(wrong)


def _intervals() -> float:
  """Intervals of a row against those of its units."""
  return max(
    apart(scripted_run.make(batch).row, expected_row.intervals(batch), batch)
    for batch in (1, 2)
  )


def _coverage(units: np.ndarray, mean: float) -> float:
  """Share of intervals of the mean of units [RUNS, n] that hold it."""
  ones = np.ones(units.shape[1])
  estimates = [metrics.ratio(x, ones) for x in units]
  return float(np.mean([e.low <= mean <= e.high for e in estimates]))


def _normal() -> float:
  """Distance of the coverage from 95%, for normal units."""
  units = np.random.default_rng(0).normal(3.0, 1.0, (RUNS, MANY))
  return abs(_coverage(units, 3.0) - 0.95)


def _skewed() -> float:
  """How far coverage falls below 95%, for skewed units: chi-square of 8."""
  units = np.random.default_rng(1).chisquare(8, (RUNS, FEW))
  return max(0.0, 0.95 - _coverage(units, 8.0))


def _paired() -> float:
  """A gain of a tenth on each prompt is certain, however prompts differ."""
  tokens = [10, 20, 30, 40, 50, 60, 70, 80]
  common = {'prompts_hash': 'a', 'prompts': 8, 'unit_target_calls': [10] * 8}
  one = common | {'unit_tokens': tokens}
  other = common | {'unit_tokens': [1.1 * t for t in tokens]}
  gain = paired.difference(one, other, paired.TAU, relative=True)
  return off([gain.value, gain.low, gain.high], [10.0] * 3)


def _resampled() -> float:
  """How much the interval of a prediction lacks of the costs' own spread.

  Every prompt has the same tau, so that costs alone make the interval; c and v
  vary over the repetitions, first the one and then the other.
  """
  ones = np.ones(9)
  varied = np.linspace(1.0, 2.0, 9)
  lacks = 0.0
  for cost in (
    Costs(2, ones, varied, varied + 0.5),
    Costs(2, ones, ones, ones + varied),
  ):
    runs = [_run(8, 4, 4.0) for _ in range(FEW)]
    base = [_run(8, 8, 8.0) for _ in range(FEW)]
    interval = row_fields.speed(runs, base, cost)['predicted_speedup_ci']
    if interval is None:
      return 1.0
    low, high = interval
    ends = [2 / (cost.v + 2 * cost.c + x) for x in (0.1, -0.1)]
    lacks = max(lacks, low - ends[0], ends[1] - high)
  return lacks


def _run(tokens: int, calls: int, seconds: float):
  """A run of one prompt whose drafts do not matter."""
  none = np.zeros((1, 1), int)
  counts = Counts(
    histogram=np.full((1, 1), calls), tried=none, accepted=none,
    drafted=none[0], tokens=np.array([tokens]), target_calls=np.array([calls]),
    overlap=0.0 * none[0], misses=none[0],
  )  # fmt: skip
  return row_fields.Run([[]], counts, seconds, 0.0, 0)


def _lengths() -> float:
  """Sampled texts may differ in length: times are compared per token."""
  cost = Costs(1, np.ones(3), np.ones(3), np.ones(3))
  runs = [_run(5, 5, 1.0), _run(10, 10, 2.0)]
  base = [_run(10, 10, 4.0), _run(20, 20, 8.0)]
  return off(float(row_fields.speed(runs, base, cost)['speedup']), 2.0)


@dataclasses.dataclass(frozen=True)
class Check:
  """A comparison of the measuring code with something that is known.

  Attributes:
    deviation: () -> how far the measuring code is from it.
    bound: the largest deviation that passes.
  """

  deviation: Callable[[], float]
  bound: float = EXACT


CHECKS = {
  'every field has a known value': Check(_fields),
  'counts': Check(_typed(*expected_row.COUNTS, 'steps')),
  'acceptance': Check(_typed(*expected_row.ACCEPTANCE)),
  'alpha': Check(_typed(*expected_row.ALPHA)),
  'counts of a batch that is filled up': Check(_filled),
  'alpha on more rows than prompts': Check(_wide),
  'tau': Check(_typed(*expected_row.TAU)),
  'texts': Check(_typed(*expected_row.FIELDS, *expected_row.TEXTS)),
  'replays': Check(_replays, 1e-6),  # Means are kept in float32.
  'costs': Check(_typed(*expected_row.COSTS[1])),
  'speed': Check(_typed(*expected_row.SPEED[1])),
  'speed of texts of other lengths': Check(_lengths),
  'steps along the text': Check(_along),
  'keys': Check(_keys),
  'sums that agree': Check(_conserved),
  'intervals are those of the units': Check(_intervals),
  'interval of a prediction': Check(_resampled),
  'coverage, normal units': Check(_normal, 0.005 + _ERROR),
  'coverage, skewed units': Check(_skewed, 0.02 + _ERROR),
  'differences are paired': Check(_paired),
}
