"""Checks of the code that measures, and planted bugs that they must find.

Each check returns how far a number is from what was worked out by hand. That
intervals hold what they promise is simulated in `test_coverage`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from specjax.bench import costs, measure, row_fields, runner
from specjax.bench.costs import Costs
from specjax.reports import paired
from specjax.stats import metrics
from specjax.types import Counts
from tests.support import expected_row, scripted_run

EXACT = 1e-9  # what rounding may add to a number
FEW = 8  # units


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


def _filled() -> float:
  """Counts in batches of three: the last one has room for one prompt more."""
  names = [*expected_row.COUNTS, *expected_row.ACCEPTANCE, 'prompts']
  return apart(scripted_run.make(3).row, names, 1)


def _wide() -> float:
  """Alpha where a mesh wants two rows more than there are prompts."""
  row = scripted_run.make(rows=scripted_run.PROMPTS + 2).row
  return apart(row, expected_row.ALPHA, 1)


def _keys() -> float:
  """How many prompts were decoded with the key of another one."""
  return float(max(scripted_run.make(batch).strays for batch in (1, 2)))


def _replays() -> float:
  """Whether a replayed step accepts what the step of the method did."""
  return max(
    off(scripted_run.make(batch).replays, expected_row.REPLAYS[batch])
    for batch in (1, 2)
  )


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
    histogram=np.full((1, 1), calls),
    tried=none,
    accepted=none,
    drafted=none[0],
    tokens=np.array([tokens]),
    target_calls=np.array([calls]),
    overlap=0.0 * none[0],
    misses=none[0],
  )
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
  'a batch that is filled up': Check(_filled),
  'alpha on more rows than prompts': Check(_wide),
  'replays': Check(_replays, 1e-6),  # Means are kept in float32.
  'speed of texts of other lengths': Check(_lengths),
  'keys': Check(_keys),
  'interval of a prediction': Check(_resampled),
  'differences are paired': Check(_paired),
}


# Planted bugs

_run_of, _accepted = measure._run, costs._accepted
_whole, _units = runner.Runner.whole, runner.Runner.units
_speed, _ratio, _difference = row_fields.speed, metrics.ratio, paired.difference


def _turned(items) -> list:
  """The same items, with the first one last."""
  return [*items[1:], *items[:1]]


def _every_row(params, state, job, *rest):
  return _run_of(params, state, dataclasses.replace(job, live=None), *rest)


def _other_order(self, domain, temperature):
  job = _whole(self, domain, temperature)
  order = _turned(range(len(job.prompts)))
  texts = [job.prompts[i] for i in order]
  return dataclasses.replace(job, prompts=texts, indices=job.indices[order])


def _first_keys(self, domain, temperature):
  jobs = _units(self, domain, temperature)
  return [dataclasses.replace(j, indices=jobs[0].indices) for j in jobs]


def _without_spread(runs, base, cost):
  """Costs as if they were known."""
  ones = np.ones(len(cost.plain))
  step = cost.v + cost.depth * cost.c
  return _speed(runs, base, Costs(cost.depth, ones, cost.v * ones, step * ones))


def _unpaired(one, other, statistic, relative=False):
  """As if the rows were of different prompts."""
  moved = {name: _turned(other[name]) for name in statistic}
  return _difference(one, other | moved, statistic, relative)


# The check that finds each bug, what has the function, and what replaces it.
WRONG_NUMBERS = {
  'rows that fill up a batch are counted':
    ('a batch that is filled up', measure, '_run', _every_row),
  'alpha of prompts in another order':
    ('alpha on more rows than prompts', runner.Runner, 'whole', _other_order),
  'a replay accepts the bonus, too':
    ('replays', costs, '_accepted', lambda run: _accepted(run) + 1),
  'every batch has the keys of the first':
    ('keys', runner.Runner, 'units', _first_keys),
  'c and v are taken as known':
    ('interval of a prediction', row_fields, 'speed', _without_spread),
  'speed-up of seconds, not of times per token':
    ('speed of texts of other lengths', metrics, 'speedup',
     lambda base, _, seconds, __: _ratio(base, seconds)),
  'differences of other prompts':
    ('differences are paired', paired, 'difference', _unpaired),
}  # fmt: skip
