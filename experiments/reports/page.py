"""One page with everything a run found: tables, figures and coloured texts.

The page is one file without scripts: it needs no network, and can be printed.
"""

import base64
import functools
import io
import itertools
import pathlib

import jinja2
import matplotlib
from matplotlib.figure import Figure

from experiments.errors import UserError
from experiments.measuring import results, samples
from experiments.reports import headline, plots, words
from experiments.reports import run as run_report

FILE = 'report.html'
# What a row must have to be shown; others may be null or missing.
FIELDS = (
  *results.KEY,
  'config', 'target', 'lossless', 'batch', 'prompts', 'drafted', 'histogram',
  'alpha', 'tau', 'acceptance_by_position', 'tokens_per_second', 'speedup',
  'baseline_tokens_per_second', 'predicted_speedup', 'c', 'v', 'repetition',
  'identical_to_plain', 'differences',
)  # fmt: skip
FIGURES = (
  plots.speedup_against_gamma,
  plots.acceptance_by_position,
  plots.alpha_by_domain,
  plots.predicted_against_measured,
  plots.tau_against_cost,
)


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
  """Whether these are rows of `experiments.run`.

  Raises:
    UserError: there are none, or one lacks a field that is shown.
  """
  if not rows:
    raise UserError('rows: there are none, so there is nothing to report')
  for number, row in enumerate(rows, 1):
    missing = [name for name in FIELDS if name not in row]
    if missing:
      raise UserError(
        f'rows: row {number} has no {", ".join(missing)}: it was made by '
        'another program or an older version; measure again in another folder '
        'with experiments.run'
      )


def picture(figure: Figure) -> str:
  """A figure as data that a page can hold: the same figure, the same bytes."""
  file = io.BytesIO()
  with matplotlib.rc_context({'svg.hashsalt': 'report'}):
    figure.savefig(
      file, format='svg', metadata={'Date': None}, transparent=True
    )
  data = base64.b64encode(file.getvalue()).decode()
  return f'data:image/svg+xml;base64,{data}'


def _groups(texts: list[dict]) -> list[tuple[tuple, list[dict]]]:
  """Texts by what was continued, and how: those can be compared."""

  def where(text):
    return text['domain'], text['temperature']

  order = list(dict.fromkeys(map(where, texts)))
  texts = sorted(texts, key=lambda text: order.index(where(text)))
  return [(k, list(g)) for k, g in itertools.groupby(texts, where)]


def _count(text: dict) -> dict[str, int]:
  """How many tokens of a text have each origin."""
  origins = [token['origin'] for token in text['tokens']]
  return {o: origins.count(o) for o in ('accepted', 'corrected', 'bonus')}


def _page(name: str, texts: list[dict], **more) -> str:
  template = _templates().get_template(name)
  return template.render(groups=_groups(texts), count=_count, **more)


def render(rows: list[dict], texts: list[dict]) -> str:
  """The page.

  Args:
    rows: of `experiments.run`.
    texts: of `samples`; may be empty, and the page says so.

  Raises:
    UserError: the rows are not of `experiments.run`.
  """
  check(rows)
  figures = [(make.__doc__.split('\n')[0], make(rows)) for make in FIGURES]
  return _page(
    'report.html',
    texts,
    first=rows[0],
    found=headline.headline(rows),
    more=headline.MORE,
    where=words.conditions(rows),
    tables=run_report.groups(rows),
    figures=[(title, picture(figure)) for title, figure in figures],
  )


class Coloured:
  """Texts as a notebook shows them."""

  def __init__(self, texts: list[dict]):
    for text in texts:
      samples.check(text)
    self.texts = texts

  def _repr_html_(self) -> str:
    return _page('texts.html', self.texts)
