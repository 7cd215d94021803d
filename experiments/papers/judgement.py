"""What a cell says of a claim: an estimate and a verdict."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from experiments.measuring.results import Rows as Rows
from experiments.reports import paired
from experiments.reports.paired import SPEED, Statistic, show
from specjax import metrics

HOLDS, FAILS, UNDECIDED = 'holds', 'does not hold', 'undecided'


@dataclasses.dataclass(frozen=True)
class Evidence:
  """One cell of a claim.

  Attributes:
    where: the cell, for the reader.
    found: what was estimated; the claim is that it is above `boundary`.
    boundary: see there.
    within: for a claim of equality: that `found` is this near to the boundary.
    prompts: digests of the prompts of each sample that `found` is made from.
    exact: whether nothing was estimated.
    kind: what is estimated, where a claim has several kinds of cells.
  """

  where: str
  found: metrics.Estimate
  boundary: float = 0.0
  within: float | None = None
  prompts: tuple[str, ...] = ()
  exact: bool = False
  kind: str = ''

  @property
  def verdict(self) -> str:
    return self.judge(self.found)

  def judge(self, found: metrics.Estimate) -> str:
    """What an estimate says of the cell's claim."""
    if found.interval is None:
      return UNDECIDED
    low, high = found.low - self.boundary, found.high - self.boundary
    if self.within is not None:
      if max(abs(low), abs(high)) <= self.within:
        return HOLDS
      return FAILS if low > self.within or high < -self.within else UNDECIDED
    if low > 0:
      return HOLDS
    return FAILS if high < 0 else UNDECIDED


def pick(rows: list[dict], **cell: Any) -> list[dict]:
  return [r for r in rows if all(r.get(k) == v for k, v in cell.items())]


def places(rows: list[dict], *names: str) -> list[dict]:
  """The values that some fields take together."""
  found = dict.fromkeys(tuple(r[n] for n in names) for r in rows)
  return [dict(zip(names, values, strict=True)) for values in found]


def on(*rows: dict) -> dict:
  """The field `prompts` of evidence from rows, one for each sample."""
  return {'prompts': tuple(row['prompts_hash'] for row in rows)}


def where_of(place: dict, more: str = '') -> str:
  parts = []
  for name, value in place.items():
    word = {'temperature': 'T ', 'gamma': 'gamma '}.get(name, '')
    parts.append(f'{word}{show(value)}')
  return ', '.join([*parts, *([more] if more else [])])


def steps(
  rows: list[dict],
  axis: str,
  order: tuple,
  statistic: Statistic,
  fixed: tuple[str, ...],
  more: str = '',
  kind: str = '',
) -> Iterator[Evidence]:
  """Evidence that a statistic rises along an axis, from value to value.

  Args:
    rows: of one folder.
    axis: field of a row.
    order: its values.
    statistic: what rises.
    fixed: fields that are the same on both sides.
    more: said of the step.
    kind: see `Evidence`.
  """
  for place in places(rows, *fixed):
    for a, b in itertools.pairwise(order):
      one = pick(rows, **place, **{axis: a})
      other = pick(rows, **place, **{axis: b})
      if not (one and other):
        continue
      found = paired.difference(one[0], other[0], statistic)
      if found is not None:
        step = f'{more}{show(a)} to {show(b)}'
        yield Evidence(where_of(place, step), found, **on(one[0]), kind=kind)


def apart(one: dict, other: dict, statistic: Statistic) -> metrics.Estimate:
  """`other` less `one` on different prompts."""
  return metrics.combine(
    lambda n, d, m, e: m / e - n / d,
    *(metrics.Sums(*(row[k] for k in statistic)) for row in (one, other)),
  )


def faster(one: dict, other: dict) -> metrics.Estimate:
  """Speed of `other` over that of `one`, less 1; alone where times lack."""
  found = paired.difference(one, other, SPEED, relative=True)
  if found is None:
    return metrics.Estimate(other['speedup'] / one['speedup'] - 1)
  return found.scaled(0.01)


def exactly(where: str, same: bool) -> Evidence:
  """Evidence that is no estimate: something is so, or it is not."""
  value = 1.0 if same else -1.0
  return Evidence(where, metrics.Estimate(value, value, value), exact=True)
