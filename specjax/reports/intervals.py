"""Intervals that rows store: whether they are known, and where they lie."""

from specjax.reports.markdown import with_interval
from specjax.stats import metrics

# Their units are batches of prompts, as they were timed.
_TIMED = (
  'speedup',
  'speedup_of_rates',
  'predicted_speedup',
  'measured_over_predicted',
  'predicted_static_speedup',
  'measured_over_predicted_static',
  'row_seconds_per_token',
  'speedup_at_work',
  'predicted_over_measured',
  'baseline_row_seconds_per_token',
)


def units(row: dict, name: str = '') -> int:
  """How many units the interval of a field was made from."""
  return row['prompts'] // (row.get('batch', 1) if name in _TIMED else 1)


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
