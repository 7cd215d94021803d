"""Rows become tables, headlines and figures: one module for each program.

A row names the program that made it. The module of that name has

  headline(rows) -> str    where and how, and a verdict, as markdown
  summary(rows) -> str     the headline, and below it the tables
  figures(rows) -> tuple   functions rows -> figure, named as their files;
                           a module without figures does not have it

and all of it is true for any rows of the program: few, lost or undecided. The
fields of a row are declared in `specjax.stats.row`. A study of a checkout
declares those of its own rows in its report:

  fields(row) -> dict      types by name; ? behind the name of one that may be
                           missing
"""

import importlib
import importlib.util
import pathlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from specjax.errors import need
from specjax.stats import row as declared

if TYPE_CHECKING:
  from matplotlib.figure import Figure

Draw = Callable[[list[dict]], 'Figure']
_PROGRAMS = ('run', 'predict', 'explain', 'certify', 'parity', 'probe')


def _module(program: str) -> ModuleType | None:
  """Returns the report of a program; None where it has none."""
  if program in _PROGRAMS:
    return importlib.import_module(f'{__name__}.{program}')
  if program.isidentifier() and importlib.util.find_spec('experiments'):
    name = f'experiments.{program}'
    if importlib.util.find_spec(name) is not None:
      module = importlib.import_module(name)
      if hasattr(module, 'fields'):
        return module
  return None


def of(rows: list[dict]) -> ModuleType:
  """Returns the report of the program that made rows.

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
  """Returns the headline of rows and their tables, as markdown."""
  return of(rows).summary(rows)


def figures(rows: list[dict]) -> tuple[Draw, ...]:
  """Returns functions that draw what rows show, named as their files."""
  draw = getattr(of(rows), 'figures', None)
  return draw(rows) if draw else ()


def save(draw: Draw, rows: list[dict], folder: pathlib.Path) -> None:
  """Writes a figure into a folder, under the name of its function."""
  draw(rows).savefig(folder / f'{draw.__name__}.png', dpi=100)


def fault(row: dict) -> str:
  """Says which field of a row is wrong, and the remedy; '' if none.

  Rows of a program without a report are not looked at.
  """
  fields = declared.of(row)
  if fields is None:
    module = _module(str(row.get('program')))
    fields = declared.declared(module.fields(row)) if module else {}
  problem = declared.fault(row, fields)
  again = 'remove it, and the command that made it measures it again'
  return problem and f'{problem}: {again}'
