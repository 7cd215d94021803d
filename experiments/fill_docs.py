"""Fills the marked parts of documents from committed rows.

  <!-- headline: quickstart -->                       where, how and a verdict:
                                                      what a summary begins with
  <!-- section: quickstart / code, temperature 0 -->  a heading and its text
  <!-- table: rules / Rules on the same prompts -->   the first table below one

Each part is one of the summary of a folder below results, and ends at
`<!-- end -->`. What lies between is written by `python -m experiments.tables
results` and by nobody else.
"""

import pathlib
import re
from collections.abc import Mapping

from specjax.errors import UserError, need

_PART = re.compile(r'(<!-- (\w+): (.+?) -->\n)(.*?)(<!-- end -->)', re.DOTALL)
_HEADING = re.compile(r'^(#+) (.*)$', re.MULTILINE)


def _headline(text: str) -> str:
  """All before the first heading."""
  first = _HEADING.search(text)
  end = first.start() if first else len(text)
  return f'{text[:end].strip()}\n'


def _section(text: str, heading: str, where: str) -> str:
  """A heading that begins so, and what follows up to the next.

  Raises:
    UserError: there is none.
  """
  headings = list(_HEADING.finditer(text))
  for i, match in enumerate(headings):
    if match[2].startswith(heading):
      end = headings[i + 1].start() if i + 1 < len(headings) else len(text)
      return f'#### {match[2]}{text[match.end() : end].rstrip()}\n'
  titles = ', '.join(repr(m[2]) for m in headings)
  raise UserError(
    f'{where}: no heading begins with {heading!r}; there are {titles}'
  )


def _table(section: str, where: str) -> str:
  """The first table of a section.

  Raises:
    UserError: it has none.
  """
  match = re.search(r'^\|.*(\n\|.*)*$', section, re.MULTILINE)
  if match is None:
    raise UserError(f'{where}: no table below that heading')
  return f'{match[0]}\n'


def _made(kind: str, name: str, summaries: Mapping[str, str]) -> str:
  """What belongs between two markers.

  Args:
    kind: headline, section or table.
    name: of the part: a folder, and a heading behind ' / '.
    summaries: by folder.

  Raises:
    UserError: names the marker and what is wrong with it.
  """
  where = f'<!-- {kind}: {name} -->'
  need(
    kind in ('headline', 'section', 'table'),
    f'{where}: a part is a headline, a section or a table',
  )
  folder, _, heading = name.partition(' / ')
  need(folder in summaries, f'{where}: no rows in results/{folder}')
  text = summaries[folder]
  if kind == 'headline':
    return f'\n{_headline(text)}\n'
  section = _section(text, heading, where)
  return f'\n{section if kind == "section" else _table(section, where)}\n'


def fill(
  text: str, summaries: Mapping[str, str], root: str = ''
) -> tuple[str, list[str]]:
  """A document with its marked parts made anew.

  Args:
    text: the document.
    summaries: by folder.
    root: of the checkout, as links of the document have it.

  Returns:
    The document, and what could not be made: such a part stays as it was.
  """
  warnings = []

  def part(match: re.Match) -> str:
    begin, kind, name, old, end = match.groups()
    if '<!-- ' in old:  # That of another part.
      warnings.append(f'{begin.strip()} has no end: put <!-- end --> below it')
      return match[0]
    try:
      made = _made(kind, name, summaries)
    except UserError as error:
      warnings.append(str(error))
      return match[0]
    return f'{begin}{made.replace("](results/", f"]({root}results/")}{end}'

  return _PART.sub(part, text), warnings


def documents(root: pathlib.Path) -> list[pathlib.Path]:
  """The README of a checkout, and its pages."""
  pages = [root / 'README.md', *sorted((root / 'docs').glob('*.md'))]
  return [path for path in pages if path.exists()]


def root_of(path: pathlib.Path) -> str:
  """The checkout of one of the `documents`, as its links have it."""
  return '../' if path.parent.name == 'docs' else ''


def fill_file(path: pathlib.Path, summaries: Mapping[str, str]) -> list[str]:
  """The same of a file; returns what could not be made."""
  text, warnings = fill(path.read_text(), summaries, root_of(path))
  path.write_text(text)
  return warnings
