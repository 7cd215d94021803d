"""Fills the marked parts of documents from committed rows.

  <!-- section: quickstart / code, temperature 0 -->  a heading and its text
  <!-- table: rules / Rules on the same prompts -->   the first table below one
  <!-- say: parity -->                                a sentence of `sentences`

Each part ends at `<!-- end -->`; what lies between is written by
`python -m experiments.tables results` and by nobody else.
"""

import functools
import pathlib
import re
from collections.abc import Callable

from experiments.errors import UserError
from experiments.measuring.results import Rows
from experiments.reports import sentences, summaries

_PART = re.compile(r'(<!-- (\w+): (.+?) -->\n)(.*?)(<!-- end -->)', re.DOTALL)
_HEADING = re.compile(r'^(#+) (.*)$', re.MULTILINE)


def _section(text: str, heading: str, where: str) -> str:
  """A heading that begins so, and what follows up to the next.

  Raises:
    UserError: there is none.
  """
  found = list(_HEADING.finditer(text))
  for i, match in enumerate(found):
    if match[2].startswith(heading):
      end = found[i + 1].start() if i + 1 < len(found) else len(text)
      return f'#### {match[2]}{text[match.end() : end].rstrip()}\n'
  titles = ', '.join(repr(m[2]) for m in found)
  raise UserError(
    f'{where}: no heading begins with {heading!r}; there are {titles}'
  )


def _table(section: str) -> str:
  lines = section.splitlines()
  first = next(i for i, line in enumerate(lines) if line.startswith('|'))
  rest = lines[first:]
  end = next(
    (i for i, line in enumerate(rest) if not line.startswith('|')), len(rest)
  )
  return '\n'.join(rest[:end]) + '\n'


def _made(
  kind: str, name: str, rows: Rows, summary: Callable[[str], str]
) -> str:
  """What belongs between two markers.

  Args:
    kind: section, table or say.
    name: of the part.
    rows: by folder.
    summary: of the rows of a folder.

  Raises:
    UserError: names the marker and what is wrong with it.
  """
  where = f'<!-- {kind}: {name} -->'
  if kind == 'say':
    if not hasattr(sentences, name):
      raise UserError(
        f'{where}: experiments/reports/sentences.py has no {name}'
      )
    try:
      return getattr(sentences, name)(rows) + '\n'
    except KeyError as error:
      raise UserError(
        f'{where}: no rows or no field in results: {error.args[0]}'
      ) from error
    except (LookupError, TypeError, ValueError) as error:
      raise UserError(f'{where}: its rows lack something: {error!r}') from error
  folder, _, heading = name.partition(' / ')
  if kind not in ('section', 'table'):
    raise UserError(f'{where}: a part is a section, a table or say')
  if folder not in rows:
    raise UserError(f'{where}: no rows in results/{folder}')
  section = _section(summary(folder), heading, where)
  return f'\n{section if kind == "section" else _table(section)}\n'


def fill(text: str, rows: Rows, root: str = '') -> tuple[str, list[str]]:
  """A document with its marked parts made anew.

  Args:
    text: the document.
    rows: by folder.
    root: of the checkout, as links of the document have it.

  Returns:
    The document, and what could not be made: such a part stays as it was.
  """
  warnings = []

  @functools.cache
  def summary(folder: str) -> str:
    return summaries.of(rows[folder]) or ''

  def part(match: re.Match) -> str:
    begin, kind, name, old, end = match.groups()
    if '<!-- ' in old:  # That of another part.
      warnings.append(f'{begin.strip()} has no end: put <!-- end --> below it')
      return match[0]
    try:
      made = _made(kind, name, rows, summary)
      made = made.replace('](results/', f']({root}results/')
      return f'{begin}{made}{end}'
    except ValueError as error:
      warnings.append(str(error))
      return f'{begin}{old}{end}'

  return _PART.sub(part, text), warnings


def documents(root: pathlib.Path) -> list[pathlib.Path]:
  """The README of a checkout, and its pages."""
  found = [root / 'README.md', *sorted((root / 'docs').glob('*.md'))]
  return [path for path in found if path.exists()]


def root_of(path: pathlib.Path) -> str:
  """The checkout of one of the `documents`, as its links have it."""
  return '../' if path.parent.name == 'docs' else ''


def fill_file(path: pathlib.Path, rows: Rows) -> list[str]:
  """The same of a file; returns what could not be made."""
  text, warnings = fill(path.read_text(), rows, root_of(path))
  path.write_text(text)
  return warnings
