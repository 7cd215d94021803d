"""Lays records out in the formats that structured text comes in.

What is hard to draft in structured text is the content of a field, and what is
easy is all around it: keys, quotes, separators. How much of each there is
depends on the format, so the same kind of record is written in several.
"""

import csv
import io
import json
import zlib
from collections.abc import Sequence

Value = str | int | float | bool | None | list[str]
Rows = Sequence[dict[str, Value]]

# JSON and CSV are listed twice since they are the most common in practice.
EXTENSIONS = ('json', 'csv', 'jsonl', 'md', 'json', 'toml', 'csv', 'txt')


def choose_extension(name: str) -> str:
  """Picks one of EXTENSIONS for a document by its name, in every process."""
  return EXTENSIONS[zlib.crc32(name.encode()) % len(EXTENSIONS)]


def _render_json(title: str, rows: Rows) -> str:
  document = {'title': title, 'count': len(rows), 'records': list(rows)}
  return json.dumps(document, indent=2) + '\n'


def _render_json_lines(title: str, rows: Rows) -> str:
  del title  # Every line is a record.
  return ''.join(json.dumps(row) + '\n' for row in rows)


def _render_csv(title: str, rows: Rows) -> str:
  del title  # A comment would break the columns.
  buffer = io.StringIO()
  writer = csv.writer(buffer, lineterminator='\n')
  writer.writerow(rows[0])
  for row in rows:
    writer.writerow(_flatten_value(value) for value in row.values())
  return buffer.getvalue()


def _render_markdown(title: str, rows: Rows) -> str:
  lines = [
    f'# {title}',
    '',
    '| ' + ' | '.join(rows[0]) + ' |',
    '|' + ' --- |' * len(rows[0]),
  ]
  for row in rows:
    cells = (
      _flatten_value(value).replace('|', '\\|') for value in row.values()
    )
    lines.append('| ' + ' | '.join(cells) + ' |')
  return '\n'.join(lines) + '\n'


def _render_toml(title: str, rows: Rows) -> str:
  lines = [f'title = {json.dumps(title)}']
  for row in rows:
    lines.extend(['', '[[record]]'])
    # TOML has no null: a key without a value is left out.
    lines.extend(
      f'{key} = {json.dumps(value)}'
      for key, value in row.items()
      if value is not None
    )
  return '\n'.join(lines) + '\n'


def _render_table(title: str, rows: Rows) -> str:
  table = [list(rows[0])]
  table.extend(
    [_flatten_value(value) for value in row.values()] for row in rows
  )
  # Cut to keep a long cell from widening the column for all others.
  table = [
    [cell if len(cell) <= 48 else cell[:45] + '...' for cell in line]
    for line in table
  ]
  widths = [max(map(len, column)) for column in zip(*table, strict=True)]
  table.insert(1, ['-' * width for width in widths])
  lines = ['  '.join(map(str.ljust, line, widths)).rstrip() for line in table]
  return '\n'.join([title, '=' * len(title), '', *lines]) + '\n'


def _flatten_value(value: Value) -> str:
  if isinstance(value, list):
    return ', '.join(value)
  if isinstance(value, bool):
    return 'yes' if value else 'no'
  return '' if value is None else str(value)


# The writer of each extension: (what the records are, for formats that have a
# place to say it; records with the keys of the first) -> text.
RENDERERS = {
  'csv': _render_csv,
  'json': _render_json,
  'jsonl': _render_json_lines,
  'md': _render_markdown,
  'toml': _render_toml,
  'txt': _render_table,
}
