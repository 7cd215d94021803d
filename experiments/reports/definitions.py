"""Acceptance length and speed-up, as the field defines them."""

from experiments.reports import intervals
from experiments.reports.markdown import Columns, Table

_NOTE = """
A published number is one of these. **tau** is over all calls together (vLLM,
aiperf), **tau per request** the mean of the prompts' own (specdec_bench),
**tau per step** the mean of accepted + 1 over the whole steps (mean accepted
tokens of Spec-Bench). **speed-up** is the ratio of the times per token of all
prompts together, **speed-up of rates** that of the means of the prompts' tokens
per second (Spec-Bench).
""".strip()
_NUMBERS = (
  'tau',
  'tau_per_request',
  'tau_per_step',
  'speedup',
  'speedup_of_rates',
)


def _column(name: str):
  title = name.replace('_', ' ').replace('speedup', 'speed-up')
  return title, lambda row: intervals.shown(row, name)


def tables(rows: list[dict], columns: Columns) -> list[Table]:
  """All definitions of each row; no table of rows of older programs.

  Args:
    rows: of a run.
    columns: that say which method a row is of.
  """
  rows = [row for row in rows if row.get('tau_per_request') is not None]
  where: Columns = (
    ('domain', lambda row: row['domain']),
    ('temperature', lambda row: f'{row["temperature"]:g}'),
  )
  shown = (*where, *columns, *map(_column, _NUMBERS))
  return [Table.of('By definition', _NOTE, shown, rows)] if rows else []
