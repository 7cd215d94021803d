"""Claims of papers, and what the cells of a claim find.

A claim is declared where the function stands that looks at its rows:

  @claim('Trees give more tokens than chains', 'arXiv:2401.15077, Table 5',
         'difference of tau')
  def trees_over_chains(rows): ...

The function gives a finding for each cell where rows speak to the claim.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator

from specjax.bench.results import Rows
from specjax.bench.selecting import group, pick
from specjax.reports import paired
from specjax.reports.paired import SPEED, TAU, Statistic, show
from specjax.stats import metrics

HOLDS, FAILS, UNDECIDED = 'holds', 'does not hold', 'undecided'
# How near is equal, where a claim says that two numbers are.
MARGIN = 0.1
PLACE = ('domain', 'temperature')
# Folders of all drafters: many prompts without times, fewer with them.
ACCEPTANCE, TIMED = 'drafters/acceptance', 'drafters/timed'


@dataclasses.dataclass(frozen=True)
class Finding:
  """What one cell says of a claim.

  Attributes:
    cell: which it is, for the reader.
    estimate: the claim is that it is above 0.
    within: for a claim of equality: that `estimate` is this near to 0.
    prompts: digests of the prompts of each sample that it is made from.
    exact: whether nothing was estimated.
    kind: what is estimated, where a claim has several kinds of cells.
  """

  cell: str
  estimate: metrics.Estimate
  within: float | None = None
  prompts: tuple[str, ...] = ()
  exact: bool = False
  kind: str = ''

  @property
  def outcome(self) -> str:
    return self.judge(self.estimate)

  def judge(self, estimate: metrics.Estimate) -> str:
    """What an estimate says of the cell's claim."""
    if estimate.interval is None:
      return UNDECIDED
    low, high = estimate.low, estimate.high
    if self.within is not None:
      if max(abs(low), abs(high)) <= self.within:
        return HOLDS
      return FAILS if low > self.within or high < -self.within else UNDECIDED
    if low > 0:
      return HOLDS
    return FAILS if high < 0 else UNDECIDED


@dataclasses.dataclass(frozen=True)
class Claim:
  """A sentence of a paper, and how rows speak to it.

  Attributes:
    text: the claim.
    source: of it.
    quantity: what is estimated in each cell.
    look: rows by folder -> the findings.
    missing: why nothing here can speak to it, where that is so.
  """

  text: str
  source: str
  quantity: str = ''
  look: Callable[[Rows], Iterable[Finding]] = lambda rows: ()
  missing: str = ''

  def __call__(self, rows: Rows) -> list[Finding]:
    return list(self.look(rows))


def claim(text: str, source: str, quantity: str) -> Callable[..., Claim]:
  """Declares the claim that a function looks at; see `Claim`."""
  return lambda look: Claim(text, source, quantity, look)


def places(rows: list[dict], *names: str) -> list[dict]:
  """The values that some fields take together."""
  return [dict(zip(names, v, strict=True)) for v in group(rows, *names)]


def exact_rules(rows: Rows, folder: str = ACCEPTANCE) -> list[dict]:
  """Rows of the plain exact rules, one of which every drafter has."""
  rules = ('token', 'recursive')
  return [r for r in rows.get(folder, []) if r['verifier'] in rules]


def matched(
  rows: list[dict], fixed: tuple[str, ...], *groups: Iterable[dict]
) -> Iterator[tuple[dict, list[dict]]]:
  """Rows that are the same in some fields, and differ in others.

  Args:
    rows: of one folder.
    fixed: the fields that are the same.
    *groups: what the others are, one cell after the other.

  Yields:
    The fixed fields, and the row of each cell of a group that has them all.
  """
  for place in places(rows, *fixed):
    for cells in groups:
      matches = [pick(rows, **place | cell) for cell in cells]
      if all(matches):
        yield place, [first for first, *_ in matches]


def cell_of(place: dict, step: str = '') -> str:
  """A place and what is compared there, for the reader."""
  words = {'temperature': 'T ', 'gamma': 'gamma '}
  parts = [f'{words.get(k, "")}{show(value)}' for k, value in place.items()]
  return ', '.join([*parts, *([step] if step else [])])


def finding(
  place: dict, step: str, estimate: metrics.Estimate, *rows: dict, **fields
) -> Finding:
  """The finding at a place.

  Args:
    place: fields that say where.
    step: what is compared there.
    estimate: see `Finding`.
    *rows: one for each sample of prompts that it is made from.
    **fields: see there, too.
  """
  prompts = tuple(row['prompts_hash'] for row in rows)
  return Finding(cell_of(place, step), estimate, prompts=prompts, **fields)


def rises(
  rows: list[dict],
  axis: str,
  *orders: Iterable,
  statistic: Statistic = TAU,
  fixed: tuple[str, ...] = PLACE,
  label: str = '',
  kind: str = '',
) -> Iterator[Finding]:
  """Whether a statistic rises along an axis, from value to value.

  Args:
    rows: of one folder.
    axis: field of a row.
    *orders: its values, from low to high.
    statistic: what rises; the speed relative to that of the lower value.
    fixed: fields that are the same on both sides.
    label: said before the values.
    kind: see `Finding`.
  """
  timed = statistic is SPEED
  rows = [r for r in rows if r['speedup']] if timed else rows
  for order in orders:
    steps = itertools.pairwise({axis: value} for value in order)
    for place, pair in matched(rows, fixed, *steps):
      estimate = faster(*pair) if timed else paired.difference(*pair, statistic)
      if estimate is not None:
        step = ' to '.join(show(row[axis]) for row in pair)
        yield finding(place, f'{label}{step}', estimate, pair[0], kind=kind)


def drafters_rise(
  text: str, source: str, *orders: Iterable[str], statistic: Statistic = TAU
) -> Claim:
  """The claim that tau, or alpha, rises from drafter to drafter."""
  quantity = f'difference of {"tau" if statistic is TAU else "alpha"}'

  def look(rows: Rows) -> Iterator[Finding]:
    return rises(exact_rules(rows), 'drafter', *orders, statistic=statistic)

  return Claim(text, source, quantity, look)


def apart(one: dict, other: dict, statistic: Statistic) -> metrics.Estimate:
  """`other` less `one` on different prompts."""
  return metrics.combine(
    lambda n, d, m, e: m / e - n / d,
    *(metrics.Sums(*(row[k] for k in statistic)) for row in (one, other)),
  )


def faster(one: dict, other: dict) -> metrics.Estimate:
  """Speed of `other` over that of `one`, less 1; alone where times lack."""
  difference = paired.difference(one, other, SPEED, relative=True)
  if difference is None:
    return metrics.Estimate(other['speedup'] / one['speedup'] - 1)
  return difference.scaled(0.01)


def exactly(cell: str, same: bool) -> Finding:
  """A finding that is no estimate: something is so, or it is not."""
  value = 1.0 if same else -1.0
  return Finding(cell, metrics.Estimate(value, value, value), exact=True)
