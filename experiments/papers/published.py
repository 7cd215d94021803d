"""Published tables: their rows, and what is found here in the same cells.

The rows lie in experiments/papers, one file a paper, each row with its source
and how it was read. A number of ours is measured or calculated, or the cell
says what it needs; none is ever made up.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from specjax.bench import row_fields
from specjax.bench.config import Checkpoint, Experiment
from specjax.bench.selecting import pick
from specjax.errors import UserError
from specjax.reports import intervals
from specjax.reports.markdown import markdown, with_interval
from specjax.reports.paired import show
from specjax.stats import metrics

_PAPERS = pathlib.Path(__file__).parent
# Metrics that may be taken over several rows together, from their units.
_POOLED = {
  'tau': (metrics.ratio, 'unit_tokens', 'unit_target_calls'),
  'tau_per_request': (
    metrics.tau_per_request,
    'unit_tokens',
    'unit_target_calls',
  ),
  'tau_per_step': (metrics.tau_per_step, 'unit_accepted', 'unit_steps'),
  'alpha': (metrics.ratio, 'unit_overlap', 'unit_prefixes'),
}
_SPEEDS = {
  'speedup': metrics.speedup,
  'speedup_of_rates': metrics.speedup_of_rates,
}
# How numbers of ours are defined that papers define in several ways.
_DEFINED = {
  'tau_per_request': "the mean of the prompts' tokens per target call",
  'tau_per_step': 'the mean of accepted tokens + 1 over steps',
  'speedup_of_rates': "the ratio of means of the prompts' tokens per second",
}


@dataclasses.dataclass
class Metric:
  """A published number and the field of a row that is the same here.

  Attributes:
    published: name in the file of the paper.
    ours: field of a row; '' where nothing of ours is the same.
    cell: fields of our cell that the setting does not decide; a tuple of
      values takes the cells of all together.
    scale: what ours is multiplied with; 100 where the paper has percent.
    place: of `unit_histogram`: acceptance at this place of a chain, of the
      steps that accepted all before it.
  """

  published: str
  ours: str = ''
  cell: dict[str, Any] = dataclasses.field(default_factory=dict)
  scale: float = 1.0
  place: int | None = None


@dataclasses.dataclass
class Published(Experiment):
  """An experiment of a paper, and the table that it fills.

  Attributes:
    paper: file of experiments/papers.
    table: which of its tables.
    part: settings of the rows that are meant; all when empty.
    axes: setting -> field of a row that says the same.
    names: setting -> what its values are called in our rows, by their text;
      a value without a name has no cell here.
    compared: the numbers.
    needs: what has to be there for a run, for the reader.
    missing: the method, where the project does not have it yet.
  """

  name: str = ''
  target: Checkpoint = dataclasses.field(default_factory=Checkpoint)
  candidates: dict = dataclasses.field(default_factory=dict)
  paper: str = ''
  table: str = ''
  part: dict[str, Any] = dataclasses.field(default_factory=dict)
  axes: dict[str, str] = dataclasses.field(default_factory=dict)
  names: dict[str, dict] = dataclasses.field(default_factory=dict)
  compared: tuple[Metric, ...] = ()
  needs: tuple[str, ...] = ()
  missing: str = ''


@dataclasses.dataclass
class Calculated:
  """A table of a paper that follows from its formulas.

  Attributes:
    table: which of the paper's tables.
    formulas: published number -> function of a row's settings and numbers.
    part: settings of the rows that are meant; all when empty.
    tolerance: by how much the rounding of what goes in may move what comes out;
      0 where the printed digits must agree.
    paper: file of experiments/papers.
    name: of the config.
  """

  table: str
  formulas: dict[str, Callable]
  part: dict[str, Any] = dataclasses.field(default_factory=dict)
  tolerance: float = 0.0
  paper: str = ''
  name: str = ''


@functools.cache
def read(paper: str) -> dict:
  """A paper's file.

  Raises:
    UserError: there is none.
  """
  file = _PAPERS / f'{paper}.json'
  if not file.exists():
    known = ', '.join(sorted(p.stem for p in _PAPERS.glob('*.json')))
    raise UserError(f'paper: there is no {paper!r}; choose from {known}')
  return json.loads(file.read_text())


def rows_of(x: Published | Calculated) -> list[dict]:
  """The paper's rows that a table is about.

  Raises:
    UserError: there are none.
  """
  paper = read(x.paper)
  rows = [
    row
    for row in pick(paper['rows'], table=x.table)
    if all(row['setting'].get(k) == v for k, v in x.part.items())
  ]
  if not rows:
    tables = ', '.join(dict.fromkeys(r['table'] for r in paper['rows']))
    raise UserError(
      f'table: {x.paper} has no rows of {x.table!r} with {x.part}; its tables '
      f'are {tables}'
    )
  return rows


def decimals(value: float | str) -> int:
  """Digits behind the point that a number is printed with."""
  return len(str(value).partition('.')[2])


def calculate(x: Calculated) -> list[dict]:
  """The paper's rows with `calculated` numbers, where they can be made.

  Raises:
    UserError: the file of the paper has no such rows.
  """
  calculated = []
  for row in rows_of(x):
    known = row['setting'] | row['metrics']
    ours = {name: formula(known) for name, formula in x.formulas.items()}
    calculated.append(row | {'calculated': ours})
  return calculated


def agrees(x: Calculated, row: dict, name: str) -> bool:
  """Whether a calculated number is the printed one."""
  printed, ours = row['metrics'][name], row['calculated'][name]
  if x.tolerance:
    return abs(ours - printed) <= x.tolerance
  return round(ours, decimals(printed)) == printed


def cell_of(x: Published, setting: dict, metric: Metric) -> dict | None:
  """The fields of our cell for a row of a paper; None where it has none."""
  cell = dict(metric.cell)
  for name, field in x.axes.items():
    value = setting.get(name)
    if name in x.names:
      value = x.names[name].get(str(value))
      if value is None:
        return None
    cell[field] = value
  return cell


def measured(rows: list[dict], cell: dict, metric: Metric) -> str:
  """What our rows say in a cell; '-' where they say nothing."""
  ours = pick(rows, **cell)
  joined = [name for name, value in cell.items() if isinstance(value, tuple)]
  if any({r.get(name) for r in ours} != {*cell[name]} for name in joined):
    return '-'  # Not all of them were run.
  values = [r for r in ours if r.get(metric.ours) is not None]
  if not values:
    return '-'
  if metric.place is None and len(ours) == 1:
    row = ours[0]
    return intervals.shown(row, metric.ours, scale=metric.scale)
  if metric.ours in _SPEEDS:
    if any(r.get('unit_baseline_seconds') is None for r in ours):
      return '-'
    times = zip(*(row_fields.units_of(r)[:4] for r in ours), strict=True)
    pooled = _SPEEDS[metric.ours](*map(np.concatenate, times))
    return with_interval(pooled.value, pooled.interval, scale=metric.scale)
  if metric.place is not None:
    pairs = [metrics.at_place(r[metric.ours], metric.place) for r in values]
    pooled = metrics.ratio(*np.concatenate(pairs, 1))
  else:
    pool, *columns = _POOLED.get(metric.ours, (None,))
    if pool is None or any(r.get(c) is None for r in ours for c in columns):
      return '-'
    pooled = pool(*([u for r in ours for u in r[name]] for name in columns))
  return with_interval(pooled.value, pooled.interval, scale=metric.scale)


def _settings(rows: list[dict]) -> list[str]:
  """Settings that differ between rows, and those of some only."""
  names = dict.fromkeys(k for row in rows for k in row['setting'])
  return [
    name
    for name in names
    if len({str(row['setting'].get(name, '-')) for row in rows}) > 1
  ]


def _sources(rows: list[dict]) -> str:
  """Where the numbers of the paper come from."""
  sources = dict.fromkeys(
    f'{row["source"]}, read {row["read"]}'
    + (f' ({row["note"]})' if 'note' in row else '')
    for row in rows
  )
  return '\n'.join(f'Source: {source}.' for source in sources)


def table_calculated(x: Calculated) -> str:
  """paper | ours, from the formulas."""
  rows, names = calculate(x), _settings(rows_of(x))
  lines = []
  for row in rows:
    line = [show(row['setting'].get(name, '-')) for name in names]
    for name in x.formulas:
      printed = row['metrics'][name]
      digits = max(2, decimals(printed))
      line += [
        str(printed),
        f'{row["calculated"][name]:.{digits}f}',
        'yes' if agrees(x, row, name) else 'NO',
      ]
    lines.append(line)
  head = [*names]
  for name in x.formulas:
    head += [f'{name}, paper', 'ours', 'agrees']
  return f'{markdown(head, lines)}\n\n{_sources(rows)}\n'


def table_published(x: Published, ours: list[dict]) -> str:
  """paper | ours, from the rows of a run of the same config."""
  rows, lines = rows_of(x), []
  names = _settings(rows)
  unknown = False
  for row in rows:
    line = [show(row['setting'].get(name, '-')) for name in names]
    for metric in x.compared:
      cell = cell_of(x, row['setting'], metric)
      value = '-'
      if cell is None:
        unknown = True
      elif metric.ours:
        value = measured(ours, cell, metric)
      printed = row['metrics'].get(metric.published)
      line += ['-' if printed is None else str(printed), value]
    lines.append(line)
  head = [*names]
  for metric in x.compared:
    head += [f'{metric.published}, paper', 'ours']
  text = f'{markdown(head, lines)}\n\n{_sources(rows)}\n'
  for name in dict.fromkeys(metric.ours for metric in x.compared):
    if name in _DEFINED:
      text += f'Ours is {name} where the paper has it: {_DEFINED[name]}.\n'
  if unknown:
    text += 'Rows without a number of ours are of methods not in the project.\n'
  return f'{text}\n{status(x, ours)}\n'


def status(x: Published | Calculated, ours: list[dict]) -> str:
  """One sentence: run, calculated, or what is missing."""
  if isinstance(x, Calculated):
    rows = calculate(x)
    cells = [(row, name) for row in rows for name in x.formulas]
    same = sum(agrees(x, *cell) for cell in cells)
    how = f'within {x.tolerance:g}' if x.tolerance else 'to the printed digits'
    return f'calculated: {same} of {len(cells)} numbers agree {how}'
  if x.missing:
    return f'not run: the project has no {x.missing} yet'
  if not ours:
    return f'not run: needs {"; ".join(x.needs)}'
  return f'run: {len(ours)} cells, commit {ours[0]["commit"]}'
