"""Rows become tables, headlines and figures: one module for each program.

A row names the program that made it. The module of that name has

  headline(rows) -> str    where and how, and a verdict, as markdown
  summary(rows) -> str     the headline, and below it the tables
  fields(row) -> dict      the fields that the row must have, and their types;
                           one that may be missing has ? behind its name
  figures(rows) -> tuple   functions rows -> figure, named as its file;
                           a module without figures does not have it

and all of it is true for any rows of the program: few, lost or undecided. A new
kind of row is a program and the module of its name, and nothing else.
"""

import importlib
import importlib.util
import pathlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from matplotlib.figure import Figure

from specjax.cli import fields as types
from specjax.errors import need

Draw = Callable[[list[dict]], Figure]


def _module(program: str) -> ModuleType | None:
  """The report of a program; None where it has none."""
  places = __name__, 'experiments'  # Studies lie in a checkout alone.
  names = [f'{p}.{program}' for p in places if importlib.util.find_spec(p)]
  if program.isidentifier():
    for name in [*names, f'experiments.{program}_report']:
      if importlib.util.find_spec(name) is not None:
        module = importlib.import_module(name)
        if hasattr(module, 'fields'):
          return module
  return None


def of(rows: list[dict]) -> ModuleType:
  """The report of the program that made rows.

  Raises:
    UserError: they do not name one and the same program that has a report.
  """
  programs = sorted({str(row.get('program', 'none')) for row in rows})
  module = _module(programs[0]) if len(programs) == 1 else None
  need(
    module,
    f'program is {" and ".join(programs)}, which has no report in '
    'specjax/reports: remove the rows, or add the module of that name',
  )
  assert module is not None
  return module


def summary(rows: list[dict]) -> str:
  """The headline of rows and their tables, as their program writes them."""
  return of(rows).summary(rows)


def figures(rows: list[dict]) -> tuple[Draw, ...]:
  """Functions that draw what rows show, named as the figure's file."""
  draw = getattr(of(rows), 'figures', None)
  return draw(rows) if draw else ()


def save(draw: Draw, rows: list[dict], folder: pathlib.Path) -> None:
  """Writes a figure into a folder, under the name of its function."""
  draw(rows).savefig(folder / f'{draw.__name__}.png', dpi=100)


def wrong(row: dict, declared: dict[str, Any]) -> str:
  """What a row lacks, or has of another type; '' if nothing.

  Args:
    row: of any program.
    declared: see `fields` above.
  """
  missing = [name for name in declared if name[-1] != '?' and name not in row]
  if missing:
    return f'has no {", ".join(missing)}'
  for name, kind in ((n.rstrip('?'), kind) for n, kind in declared.items()):
    if name in row and not types.fits(row[name], kind):
      value = types.shown(row[name])
      return f'has the {name} {value}, which must be {types.in_words(kind)}'
  return ''


def fault(row: dict) -> str:
  """The same by what its program declares, with the remedy.

  Rows of a program without a report are not looked at.
  """
  module = _module(str(row.get('program')))
  problem = wrong(row, module.fields(row)) if module else ''
  again = 'remove it, and the command that made it measures it again'
  return problem and f'{problem}: {again}'
