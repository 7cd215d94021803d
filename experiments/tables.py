"""Tables: those of papers beside ours, and all that committed rows amount to.

  python -m experiments.tables --config configs/papers.py:leviathan/table2/wmt

prints a published table beside what a run of the same config has found, or what
the run needs.

  python -m experiments.tables results

writes, from the rows below a folder: each summary.md, the plots, findings.md,
real_findings.md, papers.md, and, where the folder is called results, the marked
parts of the README and of docs beside it. Nothing is measured. A marked part is
one of

  <!-- headline: quickstart -->                       where, how and a verdict:
                                                      what a summary begins with
  <!-- section: quickstart / code, temperature 0 -->  a heading and its text
  <!-- table: rules / Rules on the same prompts -->   the first table below one

and ends at `<!-- end -->`. Nobody else writes what lies between.

  python -m experiments.tables runs/quickstart-012345 --format=csv

writes the rows of each folder for other programs instead: as `csv` (rows.csv)
or as `latex` (tables.tex, for booktabs).
"""

import csv
import io
import json
import pathlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from experiments.papers import findings, published
from experiments.papers.published import Calculated, Published
from specjax import reports
from specjax.cli import command
from specjax.errors import UserError, need, writing
from specjax.reports import latex
from specjax.reports.markdown import markdown
from specjax.stats import folders, row
from specjax.stats.folders import Rows

MARKDOWN = 'markdown'
# What a row may do to a table that its types do not show.
_FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_PART = re.compile(r'(<!-- (\w+): (.+?) -->\n)(.*?)(<!-- end -->)', re.DOTALL)
_HEADING = re.compile(r'^(#+) (.*)$', re.MULTILINE)


def _is_interval(value: list | None) -> bool:
  """Returns whether a value is one interval, and not one for each length."""
  ends = value or (None, None)
  return len(ends) == 2 and not any(isinstance(end, list) for end in ends)


def _cells(row: dict, before: str = '') -> dict[str, Any]:
  """Flattens a row: an object gives its fields, an interval its ends.

  Any other list is JSON.
  """
  cells: dict[str, Any] = {}
  for name, value in row.items():
    if isinstance(value, dict):
      cells |= _cells(value, f'{before}{name}.')
    elif name.endswith('_ci') and _is_interval(value):
      low, high = value or (None, None)
      cells |= {f'{before}{name}_low': low, f'{before}{name}_high': high}
    else:
      listed = isinstance(value, list)
      cells[f'{before}{name}'] = json.dumps(value) if listed else value
  return cells


def as_csv(rows: list[dict]) -> str:
  """Writes a line for each row, and a column for each field of any row."""
  table = [_cells(row) for row in rows]
  text = io.StringIO()
  names = list(dict.fromkeys(name for cells in table for name in cells))
  writer = csv.DictWriter(text, names, lineterminator='\n')
  writer.writeheader()
  writer.writerows(table)
  return text.getvalue()


def as_latex(rows: list[dict]) -> str:
  """Writes the tables of the summary."""
  return latex.tables(reports.summary(rows))


# The file of a format, and what makes its content from the rows of a folder.
FORMATS: dict[str, tuple[str, Callable[[list[dict]], str]]] = {
  'csv': ('rows.csv', as_csv),
  'latex': ('tables.tex', as_latex),
}


def _made(kind: str, name: str, summaries: Mapping[str, str]) -> str:
  """Makes what belongs between two markers.

  Args:
    kind: headline, section, table or fields.
    name: a folder and, behind ' / ', the beginning of a heading; of fields run.
    summaries: by folder.

  Raises:
    UserError: names the marker and what is wrong with it.
  """
  where = f'<!-- {kind}: {name} -->'
  if (kind, name) == ('fields', 'run'):
    head = ['field', 'type', 'unit', 'interval over', 'meaning']
    return markdown(head, row.documentation())
  need(
    kind in ('headline', 'section', 'table'),
    f'{where}: a part is a headline, a section, a table, or the fields of run',
  )
  folder, _, heading = name.partition(' / ')
  need(folder in summaries, f'{where}: no rows in results/{folder}')
  text = summaries[folder]
  headings = list(_HEADING.finditer(text))
  ends = [*(match.start() for match in headings), len(text)]
  if kind == 'headline':
    return text[: ends[0]].strip()
  place = next(
    (i for i, m in enumerate(headings) if m[2].startswith(heading)), None
  )
  if place is None:
    titles = ', '.join(repr(m[2]) for m in headings)
    raise UserError(
      f'{where}: no heading begins with {heading!r}; there are {titles}'
    )
  below = text[headings[place].end() : ends[place + 1]].rstrip()
  if kind == 'section':
    return f'#### {headings[place][2]}{below}'
  table = re.search(r'^\|.*(\n\|.*)*$', below, re.MULTILINE)
  need(table, f'{where}: no table below that heading')
  return table[0]


def fill(
  text: str, summaries: Mapping[str, str], root: str = ''
) -> tuple[str, list[str]]:
  """Makes the marked parts of a document anew.

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
    if '<!-- ' in old:  # It belongs to another part.
      warnings.append(f'{begin.strip()} has no end: put <!-- end --> below it')
      return match[0]
    try:
      made = _made(kind, name, summaries)
    except UserError as error:
      warnings.append(str(error))
      return match[0]
    made = made.replace('](results/', f']({root}results/')
    return f'{begin}\n{made}\n\n{end}'

  return _PART.sub(part, text), warnings


def documents(root: pathlib.Path) -> dict[pathlib.Path, str]:
  """Returns the README of a checkout and its pages, with their way to it."""
  pages = sorted((root / 'docs').glob('*.md'))
  every = {root / 'README.md': ''} | dict.fromkeys(pages, '../')
  return {path: way for path, way in every.items() if path.exists()}


def _attempt(
  warnings: list[str], what: Any, make: Callable, *given: Any
) -> Any:
  """Calls a function; where rows are damaged, a warning says so instead."""
  try:
    return make(*given)
  except _FAULTS as error:
    why = error if isinstance(error, UserError) else repr(error)
    warnings.append(f'{what}: not written: {why}')
    return None


def write(root: pathlib.Path, rows: Rows) -> tuple[dict[str, str], list[str]]:
  """Writes the summary and the figures of each folder.

  Returns:
    The summaries by folder; what could not be written, and why.
  """
  summaries: dict[str, str] = {}
  warnings: list[str] = []
  for name, folder_rows in rows.items():
    folder = root / name
    what = f'{folder}/summary.md'
    text = _attempt(warnings, what, reports.summary, folder_rows)
    if text is None:
      continue
    summaries[name] = text
    (folder / 'summary.md').write_text(text)
    for draw in reports.figures(folder_rows):
      what = f'{folder}/{draw.__name__}.png'
      _attempt(warnings, what, reports.save, draw, folder_rows, folder)
  return summaries, warnings


def compare(x: Published | Calculated) -> None:
  """Prints one published table, and notes on how to run it."""
  rows, warning = published.rows_here(x)
  paper, about = published.read(x.paper), published.status(x, rows)
  if isinstance(x, Calculated):
    text = f'{published.table_calculated(x)}\n{about}\n'
  else:
    text = published.table_published(x, rows)
  if warning:
    print(warning, file=sys.stderr)
  notes = '\n\n'.join(paper['notes'])
  print(f'{paper["paper"]}: {x.table}\n\n{text}\n{notes}\n')
  print(json.dumps({'name': x.name, 'status': about}))


def regenerate_markdown(root: pathlib.Path, rows: Rows) -> list[str]:
  """Writes summaries, figures and pages; returns what could not be."""
  summaries, warnings = write(root, rows)
  for page in findings.PAGES:
    found = _attempt(warnings, root / page.file, findings.text, rows, page)
    if found is not None:
      (root / page.file).write_text(found)
  (root / 'papers.md').write_text(published.page())
  if root.resolve().name == 'results':  # The one that documents quote.
    for document, way in documents(root.resolve().parent).items():
      text, failed = fill(document.read_text(), summaries, way)
      document.write_text(text)
      warnings += failed
  return warnings


def regenerate(folder: str, form: str = MARKDOWN) -> None:
  """Writes everything that follows from the rows below a folder.

  Args:
    folder: of results.
    form: of `FORMATS`, or markdown of this project.
  """
  root = pathlib.Path(folder)
  rows, warnings = folders.read_folders(root, reports.fault)
  last_line = {'folders': len(rows), 'rows': sum(map(len, rows.values()))}
  if form == MARKDOWN:
    warnings += regenerate_markdown(root, rows)
  else:
    file, make = FORMATS[form]
    for name, folder_rows in rows.items():
      with writing('folder', root / name / file):
        (root / name / file).write_text(make(folder_rows))
    last_line['files'] = [str(root / name / file) for name in rows]
  for warning in warnings:
    print(warning, file=sys.stderr)
  print(json.dumps(last_line | {'left_out': len(warnings)}))


if __name__ == '__main__':
  if any(word.startswith('--config') for word in sys.argv):
    command.run(compare, (Published, Calculated))
  parser = command.Parser(__doc__)
  parser.add_argument('folder', nargs='?', default='results', help='of results')
  forms = *FORMATS, MARKDOWN
  parser.add_argument('--format', dest='form', choices=forms, default=MARKDOWN)
  command.guard(lambda: regenerate(**vars(parser.parse_args())))
