"""The turns of conversations, one by one."""

from typing import Any

from specjax.reports.markdown import Columns, Table, with_interval

_NOTE = """
The turns of conversations apart. Everywhere else a conversation counts as one
prompt, with the tokens and calls of all its turns.
""".strip()


def _column(name: str):
  def show(row):
    return with_interval(row.get(name), row.get(f'{name}_ci'))

  return name.replace('speedup', 'speed-up'), show


def tables(rows: list[dict], columns: Columns) -> list[Table]:
  """What each turn adds; no table where prompts have one.

  Args:
    rows: of a run.
    columns: that say which method a row is of.
  """
  lines: list[dict[str, Any]] = [
    row | dict.fromkeys(('speedup', 'speedup_ci')) | turn
    for row in rows
    if len(row.get('by_turn') or ()) > 1
    for turn in row['by_turn']
  ]
  shown: Columns = (
    ('domain', lambda row: row['domain']),
    ('temperature', lambda row: f'{row["temperature"]:g}'),
    *columns,
    ('turn', lambda row: str(row['turn'])),
    ('texts', lambda row: str(row['texts'])),
    *map(_column, ('speedup', 'tau', 'alpha')),
  )
  return [Table.of('Turn by turn', _NOTE, shown, lines)] if lines else []
