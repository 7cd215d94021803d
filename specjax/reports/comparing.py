"""Two runs beside each other: which cells differ beyond chance.

Cells are paired prompt by prompt where both runs saw the same prompts, and are
independent samples elsewhere. Many cells are looked at, so the chance that any
of them is called different though none is stays that of one interval (Holm
1979), for each statistic.
"""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from specjax.reports import intervals, paired
from specjax.reports.markdown import (
  Table,
  blocks,
  bullets,
  estimated,
  markdown,
  number,
  paragraph,
)
from specjax.reports.paired import Statistic
from specjax.stats import fit_tests, metrics
from specjax.stats.row import KEY

SPEED_NOTE = (
  'Speed-ups are over the plain decoding of the same run. Whatever slowed the '
  'one run and not the other for as long as it took is no noise between '
  'prompts, so an interval here is too narrow where the machines or their '
  'load differ.'
)


STATISTICS: dict[str, Statistic] = {
  'alpha': paired.ALPHA,
  'tau': paired.TAU,
  'speedup': paired.SPEEDUP,
}


class Cell(NamedTuple):
  """One cell in two runs."""

  name: tuple  # values of the fields that both runs have in common
  one: dict
  other: dict


class Compared(NamedTuple):
  """A statistic of a cell in both runs.

  Attributes:
    cell: which one.
    ratio: that of the second run over that of the first.
    shared: prompts (of speeds: batches) that both saw, 0 where the samples
      are treated as independent.
    units: prompts (or batches) of the run that has fewer.
    chance: of so large a difference where there is none.
    differs: whether it is beyond chance, all cells considered.
  """

  cell: Cell
  ratio: metrics.Estimate
  shared: int
  units: int
  chance: float
  differs: bool = False


def matched(
  a: Sequence[dict], b: Sequence[dict]
) -> tuple[tuple[str, ...], list[Cell]]:
  """Returns the cells that both runs have.

  A field that has one value in each run, and not the same, does not tell cells
  apart.

  Returns:
    The fields that tell cells apart, and the cells, in the order of the first.
  """

  def values(rows, key):
    return {row.get(key) for row in rows}

  def apart(key):
    one, other = values(a, key), values(b, key)
    return len(one) == len(other) == 1 and one != other

  keys = tuple(k for k in KEY if not apart(k))
  there = {tuple(row.get(k) for k in keys): row for row in b}
  named = ((tuple(row.get(k) for k in keys), row) for row in a)
  return keys, [
    Cell(name, row, there[name]) for name, row in named if name in there
  ]


def _common(cell: Cell, sizes: tuple[int, int]) -> tuple[list, list] | None:
  """Returns places of the units that both runs saw; None if they are too few.

  A run names its prompts. Batches, and rows without names, are shared all or
  not at all.
  """
  one, other = cell.one, cell.other
  names = one.get('unit_prompts') or [], other.get('unit_prompts') or []
  if tuple(map(len, names)) == sizes:
    places = collections.defaultdict(list)
    for place, name in enumerate(names[1]):
      places[name].append(place)
    first, second = [], []
    for place, name in enumerate(names[0]):
      if places[name]:
        first.append(place)
        second.append(places[name].pop(0))
    return (first, second) if metrics.enough(len(first)) else None
  if paired.same_prompts(one, other) and sizes[0] == sizes[1]:
    return list(range(sizes[0])), list(range(sizes[0]))
  return None


def chance(ratio: metrics.Estimate) -> float:
  """Returns the chance of a ratio so far from 1, two-sided, or NaN."""
  if ratio.error == 0:
    return float(ratio.value == 1)
  if ratio.interval is None:
    return np.nan
  # The error of a positive estimate is that of its logarithm, times it.
  distance = abs(np.log(ratio.value)) / (ratio.error / ratio.value)
  return 2 * float(special.stdtr(ratio.freedom, -distance))


def compare_cell(cell: Cell, statistic: Statistic) -> Compared | None:
  """Compares one statistic of a cell; None if a run does not have it."""
  a, b = (paired.columns(row, statistic) for row in (cell.one, cell.other))
  if a is None or b is None:
    return None
  common = _common(cell, (a.shape[1], b.shape[1]))
  if common:
    a, b = a[:, common[0]], b[:, common[1]]
    samples = [metrics.Sums(*a, *b)]
  else:
    samples = [metrics.Sums(*a), metrics.Sums(*b)]
  n = len(statistic)
  ratio = metrics.combine(
    lambda *sums: paired.of_sums(*sums[n:]) / paired.of_sums(*sums[:n]),
    *samples,
    positive=True,
  )
  shared = len(common[0]) if common else 0
  units = min(sample.size for sample in samples)
  return Compared(cell, ratio, shared, units, chance(ratio))


def compare(cells: Sequence[Cell], statistic: Statistic) -> list[Compared]:
  """Compares a statistic of all cells that have it, judged together."""
  made = [compare_cell(cell, statistic) for cell in cells]
  known = [one for one in made if one is not None]
  judged = fit_tests.holm([one.chance for one in known], 1 - metrics.LEVEL)
  return [
    one._replace(differs=differs)
    for one, differs in zip(known, judged, strict=True)
  ]


def _prompts(one: Compared) -> str:
  """Says whether prompts are paired, or that there are too few."""
  if not metrics.enough(one.units):
    return f'{one.units}, too few: an interval needs {metrics.FEWEST}'
  return f'{one.shared} paired' if one.shared else 'independent'


def table(
  keys: Sequence[str],
  compared: Sequence[Compared],
  name: str,
  names: tuple[str, str],
) -> Table:
  """Shows a statistic of every cell in both runs, and its change."""
  lines = []
  for one in compared:
    change = one.ratio.scaled(100, -100)
    both = one.cell.one, one.cell.other
    lines.append(
      [
        *map(paired.show, one.cell.name),
        *(intervals.shown(r, name, '.3f') for r in both),
        estimated(change, '+.1f', '%'),
        _prompts(one),
        number(None if np.isnan(one.chance) else one.chance, '.2g'),
        'yes' if one.differs else 'no',
      ]
    )
  note = (
    f'{sum(one.differs for one in compared)} of {len(compared)} cells differ '
    f'beyond chance (false alarms in at most {1 - metrics.LEVEL:.0%} of such '
    'tables).'
  )
  if name == 'speedup':
    note = f'{note} {SPEED_NOTE}'
  head = [*keys, *names, 'change', 'prompts', 'p', 'beyond chance']
  return Table(name, paragraph(note), head, lines)


def differences(
  names: tuple[str, str], a: Any, b: Any, field: str = ''
) -> list[str]:
  """Returns fields of two objects that differ, each with both values."""
  if not isinstance(a, dict) or not isinstance(b, dict):
    return [] if a == b else [f'`{field}`: {a} | {b}']
  alone = [
    f'only {n}: {", ".join(sorted(one.keys() - other.keys()))}'
    for n, one, other in ((names[0], a, b), (names[1], b, a))
    if one.keys() - other.keys()
  ]
  found = [f'`{field or "fields"}`: {" | ".join(alone)}'] if alone else []
  for name in sorted(a.keys() & b.keys()):
    inner = f'{field}.{name}' if field else name
    found += differences(names, a[name], b[name], inner)
  return found


def conditions(rows: Sequence[dict], *names: str) -> dict:
  """Returns fields of the rows of a run; a list where they do not agree."""
  found = {}
  for name in names:
    values = [row.get(name) for row in rows]
    distinct = [v for i, v in enumerate(values) if v not in values[:i]]
    found[name] = distinct[0] if len(distinct) == 1 else distinct
  return found


def page(
  names: tuple[str, str],
  settings: tuple[dict, dict],
  rows: tuple[list[dict], list[dict]],
) -> tuple[str, dict]:
  """Compares two runs.

  Args:
    names: of the runs.
    settings: of each.
    rows: of each, all of `specjax run`.

  Returns:
    The page in markdown, and what the last line of the program says.
  """
  keys, cells = matched(*rows)
  apart = [k for k in KEY if k not in keys and k != 'batch']
  of_rows = ('target', 'draft', 'dtype', 'device', 'versions', 'commit')
  made = [conditions(r, *of_rows, 'batch', *apart) for r in rows]
  unlike = differences(names, *settings) + differences(names, *made)
  found: dict[str, Any] = {'cells': len(cells)}
  found['unmatched'] = [len(r) - len(cells) for r in rows]
  tables = []
  for name, statistic in STATISTICS.items():
    compared = compare(cells, statistic)
    found[name] = {
      'cells': len(compared),
      'paired': sum(one.shared > 0 for one in compared),
      'higher': sum(one.differs and one.ratio.value > 1 for one in compared),
      'lower': sum(one.differs and one.ratio.value < 1 for one in compared),
    }
    if compared:
      tables.append(table(keys, compared, name, names).markdown())
  head = ['statistic', 'cells', 'paired', 'higher', 'lower']
  lines = [
    [name, *map(str, found[name].values())]
    for name in STATISTICS
    if found[name]['cells']
  ]
  verdict = f'{names[1]} over {names[0]}, beyond chance.'
  if any(found['unmatched']):
    left = zip(found['unmatched'], names, strict=True)
    text = ' and '.join(f'{n} of {name}' for n, name in left if n)
    verdict += f' Cells without a partner: {text}.'
  return blocks(
    f'## {names[0]} and {names[1]}',
    paragraph(verdict),
    markdown(head, lines) if lines else '',
    'What differs in how they were made:' if unlike else 'Made alike.',
    bullets(unlike),
    *tables,
  ), found
