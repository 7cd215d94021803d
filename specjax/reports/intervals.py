"""Intervals that rows store: whether they are known, and where they lie."""

from specjax.reports.markdown import with_interval
from specjax.stats import metrics
from specjax.stats.row import BATCHES, CHECK, RUN


def units(row: dict, name: str = '') -> int:
  """Returns how many units the interval of a field was made from."""
  field = RUN.get(name, CHECK.get(name))
  timed = field is not None and field.over == BATCHES
  return row['prompts'] // (row.get('batch', 1) if timed else 1)


def trusted(row: dict, ends: list | None, name: str = '') -> list[float] | None:
  """Ends that a row stores; None where there are none, or too few units.

  Rows of older programs store an interval of few units, too.
  """
  if not ends or None in ends or not metrics.enough(units(row, name)):
    return None
  return ends


def stored(row: dict, name: str) -> list[float] | None:
  """The interval of a field of a row, or None."""
  return trusted(row, row.get(f'{name}_ci'), name)


def shown(row: dict, name: str, form: str = '.2f', scale: float = 1.0) -> str:
  """A field of a row with its interval; '-' where there is no value."""
  return with_interval(row[name], stored(row, name), form, scale=scale)


def meets(row: dict, name: str, low: float, high: float) -> bool:
  """Whether the interval of a field has a value of some others."""
  ends = stored(row, name)
  return ends is not None and ends[0] <= high and ends[1] >= low
