"""Tables of a summary as LaTeX, with the rules of booktabs."""

import re
from collections.abc import Iterator

from specjax.reports.markdown import Table

_HEAD = """\
% Made by `python -m experiments.tables FOLDER --format=latex`. The preamble
% needs \\usepackage{booktabs} and, for pdfLaTeX, \\usepackage[T1]{fontenc}.
"""
_ESCAPES = {
  **{c: f'\\{c}' for c in '&%$#_{}'},
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
  '\\': r'\textbackslash{}',
  '<': r'\textless{}',
  '>': r'\textgreater{}',
  '|': r'\textbar{}',
}
_MARKED = re.compile(r'\*\*(.+?)\*\*|`(.+?)`')
_NUMBER = re.compile(r'[-+]?\d[\d.,]*%?( \[.*\])?|-|')


def find(text: str) -> Iterator[Table]:
  """Finds the tables of a markdown text; a title is the heading above one."""
  title, table = '', []
  for line in [*text.splitlines(), '']:
    if line.startswith('|'):
      table.append([cell.strip() for cell in line.strip('| ').split(' | ')])
      continue
    if table:
      head, _, *lines = table
      yield Table(title, '', head, lines)
      table = []
    if line.startswith('#'):
      title = line.lstrip('# ')


def _plain(text: str) -> str:
  return ''.join(_ESCAPES.get(c, c) for c in text)


def escape(text: str) -> str:
  """Markdown of one line as LaTeX: bold, code, and characters as they are."""
  parts, end = [], 0
  for found in _MARKED.finditer(text):
    bold, code = found.groups()
    parts.append(_plain(text[end : found.start()]))
    command = 'textbf' if bold else 'texttt'
    parts.append(f'\\{command}{{{_plain(bold or code)}}}')
    end = found.end()
  return ''.join([*parts, _plain(text[end:])])


def _row(cells: list[str]) -> str:
  text = ' & '.join(map(escape, cells))
  # Either would be an argument of the command that ends the row above.
  before = '{}' if text.startswith(('[', '*')) else ''
  return f'{before}{text} \\\\'


def table(found: Table) -> str:
  """One table; columns of numbers are set flush right."""
  columns = zip(*found.lines, strict=True)
  numbers = [all(map(_NUMBER.fullmatch, column)) for column in columns]
  places = ''.join('r' if x else 'l' for x in numbers or [0] * len(found.head))
  lines = [
    '\\begin{table}[htbp]',
    '\\centering',
    '\\small',
    f'\\caption{{{escape(found.title)}}}',
    f'\\begin{{tabular}}{{{places}}}',
    '\\toprule',
    _row(found.head),
    '\\midrule',
    *map(_row, found.lines),
    '\\bottomrule',
    '\\end{tabular}',
    '\\end{table}',
  ]
  return '\n'.join(lines) + '\n'


def tables(text: str) -> str:
  """Writes all tables of a markdown text."""
  return '\n'.join([_HEAD, *map(table, find(text))])
