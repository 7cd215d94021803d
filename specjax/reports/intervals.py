"""Numbers of rows with their intervals, and columns that show them."""

import typing
from collections.abc import Callable

from specjax.reports.markdown import Columns, number, with_interval
from specjax.stats.row import PREDICTED, RUN, Fields

FIELDS: Fields = {**PREDICTED, **RUN}


def stored(row: dict, name: str) -> list[float] | None:
  """Returns the interval of a field of a row, or None."""
  ends = row.get(f'{name}_ci')
  return None if not ends or None in ends else ends


def shown(row: dict, name: str, form: str = '.2f', scale: float = 1.0) -> str:
  """Returns a field of a row with its interval; '-' if it has no value."""
  return with_interval(row.get(name), row.get(f'{name}_ci'), form, scale=scale)


def meets(row: dict, name: str, low: float, high: float) -> bool:
  """Returns whether the interval of a field overlaps another one."""
  ends = stored(row, name)
  return ends is not None and ends[0] <= high and ends[1] >= low


def column(
  name: str, title: str = '', alone: bool = False
) -> tuple[str, Callable[[dict], str]]:
  """Returns the column of a field: its heading, and what it shows of a row.

  Args:
    name: of the field.
    title: its heading, if not that of its declaration.
    alone: leaves out the interval.
  """
  field = FIELDS[name]
  is_number = float in (field.kind, *typing.get_args(field.kind))

  def show(row: dict) -> str:
    value = row.get(name)
    if value is None or not is_number:
      return '-' if value is None else str(value)
    form = field.form
    return number(value, form) if alone else shown(row, name, form)

  return title or field.title or name.replace('_', ' '), show


def columns(*names: str) -> Columns:
  """Returns the columns of some fields."""
  return tuple(map(column, names))
