"""Numbers of rows with their intervals, and columns that show them."""

import typing
from collections.abc import Callable

from specjax.reports.markdown import Columns, number, with_interval
from specjax.stats import metrics
from specjax.stats.row import BATCHES, PREDICTED, RUN, Fields

FIELDS: Fields = {**PREDICTED, **RUN}


def units(row: dict, name: str = '') -> int:
  """Returns how many units the interval of a field was made from."""
  timed = name in FIELDS and FIELDS[name].over == BATCHES
  return row['prompts'] // (row.get('batch', 1) if timed else 1)


def trusted(row: dict, ends: list | None, name: str = '') -> list[float] | None:
  """Returns ends that a row stores; None if its units are too few.

  Rows of older programs store an interval of few units, too.
  """
  if not ends or None in ends or not metrics.enough(units(row, name)):
    return None
  return ends


def stored(row: dict, name: str) -> list[float] | None:
  """Returns the interval of a field of a row, or None."""
  return trusted(row, row.get(f'{name}_ci'), name)


def shown(row: dict, name: str, form: str = '.2f', scale: float = 1.0) -> str:
  """Returns a field of a row with its interval; '-' if it has no value."""
  return with_interval(row.get(name), stored(row, name), form, scale=scale)


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
