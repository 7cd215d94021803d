"""One page with everything a run found: tables, figures and coloured texts.

The page is one file without scripts: it needs no network, and can be printed.
"""

import base64
import dataclasses
import functools
import io
import pathlib

import jinja2
import matplotlib
from matplotlib.figure import Figure

from specjax.errors import UserError
from specjax.reports import batches, step_picture
from specjax.reports import run as run_report
from specjax.reports.markdown import span
from specjax.stats.folders import Folder, check_sample
from specjax.stats.row import RUN, by_place, fault

FILE = 'report.html'
# A page shows these fields, too.
_MORE = ('target', 'drafted', 'histogram', 'repetition')
FIELDS = {
  name: dataclasses.replace(field, needed=field.needed or name in _MORE)
  for name, field in RUN.items()
}


@functools.cache
def _templates() -> jinja2.Environment:
  """Templates that escape whatever is put into them."""
  folder = pathlib.Path(__file__).parent / 'templates'
  return jinja2.Environment(
    loader=jinja2.FileSystemLoader(folder),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )


def check(rows: list[dict]) -> None:
  """Refuses what are no rows of `specjax run`.

  Raises:
    UserError: one lacks a field that is shown, or has a value of another type
      in it.
  """
  for number, row in enumerate(rows, 1):
    if problem := fault(row, FIELDS):
      raise UserError(
        f'rows: row {number} {problem}: it was made by another program or an '
        'older version; measure again in another folder with specjax run'
      )


def picture(figure: Figure) -> str:
  """Returns a figure as data for a page: the same figure, the same bytes."""
  file = io.BytesIO()
  with matplotlib.rc_context({'svg.hashsalt': 'report'}):
    figure.savefig(
      file, format='svg', metadata={'Date': None}, transparent=True
    )
  data = base64.b64encode(file.getvalue()).decode()
  return f'data:image/svg+xml;base64,{data}'


def _count(text: dict) -> dict[str, int]:
  """Counts the tokens of a text by their origin."""
  origins = [token['origin'] for token in text['tokens']]
  return {o: origins.count(o) for o in ('accepted', 'corrected', 'bonus')}


def _page(name: str, texts: list[dict], **more) -> str:
  template = _templates().get_template(name)
  # By what was continued, and how: those can be compared.
  groups = by_place(texts).items()
  return template.render(groups=groups, count=_count, **more)


def render(rows: list[dict], texts: list[dict]) -> str:
  """Returns the page.

  Args:
    rows: of `specjax run`.
    texts: of `samples`; may be empty, and the page says so.

  Raises:
    UserError: the rows are not of `specjax run`.
  """
  check(rows)
  figures = [
    (make.__doc__.split('\n')[0], make(rows))
    for make in run_report.figures(rows)
  ]
  # Of the first drafter, which the verdict is about.
  order = sorted(texts, key=lambda text: text['drafter'] != rows[0]['drafter'])
  return _page(
    'report.html',
    texts,
    first=rows[0],
    shown=order[:2],
    found=run_report.headline_of(rows),
    sizes=span(batches.sizes(rows), 'd'),
    more=run_report.MORE,
    tables=run_report.groups(rows),
    figures=[(title, picture(figure)) for title, figure in figures],
  )


def write(folder: Folder, texts: list[dict]) -> None:
  """Writes the page of a folder, and a picture of the steps of one text.

  Raises:
    UserError: the rows are not of `specjax run`.
  """
  folder.write(FILE, render(folder.rows, texts))
  # Of the first drafter, as the text that the page begins with.
  own = [t for t in texts if t['drafter'] == folder.rows[0]['drafter']]
  if own:
    folder.write(step_picture.FILE, step_picture.svg(own[0]))


class Coloured:
  """Texts as a notebook shows them."""

  def __init__(self, texts: list[dict]):
    for text in texts:
      check_sample(text)
    self.texts = texts

  def _repr_html_(self) -> str:
    return _page('texts.html', self.texts)
