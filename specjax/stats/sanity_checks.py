"""Numbers that cannot be true: they say that a measurement went wrong.

A step scores one token or more, so it takes a plain step's time at least: v is
1 or more, c is 0 or more, and the speed-up is tau at most. Probabilities lie in
[0, 1], and a step that drafts K tokens emits 1 to K + 1.

What is counted is exact. Times are not: a bound is broken where the interval
lies beyond it by a twentieth (two programs that do the same work differ by a
few per cent). Where there is no interval, it takes a quarter: on an idle
machine single turns of one measurement had a spread of a tenth (standard
deviation; the committed runs), their median of three or more some 7%.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from specjax.stats import metrics
from specjax.stats.row import by_batch

_ROUNDING = 1e-3  # of sums of probabilities in single precision
_SLACK, _MARGIN = 0.05, 0.25  # with an interval, and without
_PROBABILITIES = (
  'alpha', 'alpha_of_rule', 'alpha_mle', 'acceptance', 'coverage',
  'acceptance_by_position', 'acceptance_by_position_conditional',
)  # fmt: skip
_SUMS = ('unit_overlap', 'unit_overlap_of_rule')
_SPEEDS = ('tokens_per_second', 'baseline_tokens_per_second', 'speedup')
_CHECK = (
  'check that the drafter and the rule return distributions and what they '
  'drafted (specjax certify)'
)
_AGAIN = (
  'measure again in another folder (--results), with nothing else on '
  'the machine'
)


def find(row: dict) -> list[str]:
  """Says which numbers of a row cannot be true, each with a remedy."""
  return [*_outside(row), *_tau(row), *_not_finite(row), *_times(row)]


def noise(row: dict) -> str:
  """Says that costs of a row that cannot be are noise; '' where they can be.

  A cost beyond its bound by no more than noise is not called impossible.
  """
  bounds = {'v': 1, 'c': 0}
  found = [
    f'{name} {row[name]:.2f}'
    for name, least in bounds.items()
    if row.get(name) is not None and round(row[name], 2) < least
  ]
  if not found:
    return ''
  return (
    f'{" and ".join(found)} can only be noise, as v is at least 1 and c at '
    f'least 0: {_AGAIN}.'
  )


def of(rows: list[dict]) -> list[str]:
  """Returns what rows say is impossible, each sentence with its cell."""
  names = ('domain', 'temperature', 'drafter', 'verifier', 'gamma')
  sentences = []
  for row in rows:
    known = [f'{n} {row[n]}' for n in names if row.get(n) is not None]
    sentences += [
      f'{", ".join(known)}: {x}' for x in row.get('impossible') or ()
    ]
  return sentences


def warn(rows: list[dict]) -> None:
  """Says what of rows cannot be."""
  for sentence in of(rows):
    print(f'warning: {sentence}', file=sys.stderr)


def without(rows: list[dict]) -> list[dict]:
  """Returns the rows whose numbers can be true."""
  return [row for row in rows if not row.get('impossible')]


def _numbers(value: Any) -> np.ndarray:
  """Numbers of a field; NaN for null, as rows have it."""
  return np.atleast_1d(np.array(value, float))


def _outside(row: dict) -> Iterator[str]:
  for name in _PROBABILITIES:
    values = _numbers(row.get(name))
    worst = values[(values < -_ROUNDING) | (values > 1 + _ROUNDING)]
    if len(worst):
      yield f'{name} is {worst[0]:.4g}, outside [0, 1]: {_CHECK}'


def _tau(row: dict) -> Iterator[str]:
  """Checks tau; a replay has several lengths, each with its tau."""
  taus = _numbers(row.get('tau'))
  depths = _numbers(row.get('gammas') or row.get('gamma'))
  for tau, depth in zip(taus, depths, strict=True):
    if tau < 1 - 1e-9 or tau > depth + 1 + 1e-9:
      yield (
        f'tau is {tau:.4g}, outside [1, {depth + 1:g}] of drafts {depth:g} '
        f'deep: {_CHECK}'
      )


def _not_finite(row: dict) -> Iterator[str]:
  names = [n for n in _SUMS if row.get(n) is not None]
  if 'alpha' in row and any(row.get('unit_prefixes') or [1]):
    names.append('alpha')
  if 'tau' in row:
    names.append('tau')
  for name in names:
    if not np.isfinite(_numbers(row[name])).all():
      yield f'{name} is not finite: {_CHECK}'


def _above(value: float, interval: list[float] | None, bound: float) -> bool:
  """Returns whether a value is above a bound by more than noise."""
  if interval is None:
    return value > bound + _MARGIN
  return interval[0] > bound + _SLACK


def _times(row: dict) -> Iterator[str]:
  if row.get('timed') or row.get('speedup') is not None:
    for name in (n for n in _SPEEDS if n in row):
      (value,) = _numbers(row[name])
      if not (np.isfinite(value) and value > 0):
        yield f'{name} is {row[name]}, not above 0: {_AGAIN}'
        return
    if _above(row['speedup'] / row['tau'], _over_a_step(row), 1):
      yield (
        f'the speed-up {row["speedup"]:.2f} is more than tau {row["tau"]:.2f} '
        'allows: a step took less time than a plain one, though it scores as '
        f'many tokens or more. The baseline was slow: {_AGAIN}'
      )
  if row.get('v') is not None:
    yield from _costs(row)


def _over_a_step(row: dict) -> list[float] | None:
  """Interval of a plain step's seconds over a step's: speed-up over tau.

  The rows of a batch take their steps together, as many as the slowest needs.
  """
  if row.get('unit_baseline_seconds') is None:  # Rows of older programs.
    ends = row.get('speedup_ci')
    return ends and [end / row['tau'] for end in ends]

  def steps(name):
    return by_batch(row, name, np.maximum)

  return metrics.speedup(
    row['unit_baseline_seconds'],
    steps('unit_baseline_tokens'),
    row['unit_seconds'],
    steps('unit_target_calls'),
  ).interval


def _costs(row: dict) -> Iterator[str]:
  """Checks the costs of steps that were measured in turns."""
  v, c, gamma = row['v'], row['c'], row['gamma']
  faster = undrafted = None
  if row.get('seconds_per_step'):
    plain, scored, whole = (
      np.array(row['seconds_per_step'][name])
      for name in ('plain', 'scored', 'whole')
    )
    faster = metrics.ratio(plain, scored).interval
    undrafted = metrics.estimate(np.divide, scored - whole, plain).interval
  if v <= 0 or (v < 1 and _above(1 / v, faster, 1)):
    yield (
      f'v is {v:.2f}, below 1: scoring {gamma + 1} tokens took less time than '
      f'a plain step. The baseline was slow: {_AGAIN}'
    )
  if c < 0 and _above(-c * gamma, undrafted, 0):
    yield (
      f'c is {c:.3f}, below 0: a step took less time with its draft than '
      f'without: {_AGAIN}'
    )
