"""Parts that figures share: colours, panels, legends, captions.

Colours are those of Okabe and Ito (2008), which all common kinds of colour
vision keep apart, and three more; markers differ as well.
"""

import contextlib
import functools
import textwrap

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from specjax.reports import intervals, verdicts
from specjax.reports.conditions import conditions, values
from specjax.stats.row import by_place

_COLOURS = (
  '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000',
  '#882255', '#999933', '#888888',
)  # fmt: skip
_MARKERS = 'os^DvPX<>*'
_MOST = len(_COLOURS)  # drafters in a figure
_LINES = ('-', '--', ':', '-.')
_STYLE = {
  'font.size': 8,
  'axes.titlesize': 8,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.grid': True,
  'grid.alpha': 0.3,
  'grid.linewidth': 0.5,
  'lines.linewidth': 1.2,
  'lines.markersize': 4,
  'legend.frameon': False,
}
_WIDTH = 7.2  # inches, of a page with margins
_MARGIN = 0.45  # inches, that a line leaves free; hinted letters are wider
_LINE = 0.17  # inches, of the legend and what is said around it


def in_style(make):
  """Makes a figure function draw in the style of this module."""

  @functools.wraps(make)
  def styled(rows: list[dict]) -> Figure:
    if not rows:
      raise ValueError('rows is empty: there is nothing to show')
    with matplotlib.rc_context(_STYLE):
      shown = few(rows)
      count = len(distinct(rows, 'drafter')) if shown is not rows else 0
      more = f' The leading {_MOST} of {count} drafters.' if count else ''
      figure = make(shown)
      _head(figure, rows, make.__doc__.split('\n')[0] + more)
      return figure

  return styled


def few(rows: list[dict]) -> list[dict]:
  """Returns rows of no more drafters than have colours of their own.

  Those that lead, where rows are of a run; else the first ones.
  """
  names = distinct(rows, 'drafter')
  if len(names) <= _MOST:
    return rows
  judged = [r for r in rows if 'lossless' in r]
  one = [r for r in judged if r['batch'] == judged[0]['batch']]
  exact = verdicts.timed(one) or [r for r in one if r['lossless']]
  leading = [r['drafter'] for r in verdicts.of_drafters(exact)] if exact else []
  kept = list(dict.fromkeys([*leading, *names]))[:_MOST]
  return [row for row in rows if row['drafter'] in kept]


def width_of(text: str, size: float, weight: str = 'normal') -> float:
  """Returns the width of a line of text, in inches."""
  font = FontProperties(size=size, weight=weight)
  return text_to_path.get_text_width_height_descent(text, font, False)[0] / 72


def wrap(text: str, size: float, weight: str = 'normal') -> list[str]:
  """Breaks a text into lines that fit a figure."""
  for letters in range(150, 20, -5):
    lines = textwrap.wrap(text, letters)
    if all(width_of(x, size, weight) < _WIDTH - _MARGIN for x in lines):
      break
  return lines


def showing(*names: str):
  """Makes a figure of the rows that have numbers of these names.

  The function that is decorated takes these rows and all rows, and returns a
  figure and its caption. The caption says how many rows are left out.
  """

  def wrap(make):
    @in_style
    @functools.wraps(make)
    def draw(rows: list[dict]) -> Figure:
      shown = [
        r for r in rows if all(r.get(name) is not None for name in names)
      ]
      note, left = '', len(rows) - len(shown)
      if left:
        lacking = 'times' if names[0] == 'speedup' else names[0]
        note = (
          f'{left} of {len(rows)} rows have no {lacking} and are left out. '
        )
      if not shown:
        return finish(blank(0.3), rows, f'{note}Nothing is left to show.')
      figure, caption = make(shown, rows)
      return finish(figure, rows, note + caption)

    return draw

  return wrap


def _head(figure: Figure, rows: list[dict], title: str) -> None:
  """Writes above the legend what is shown, and in which conditions.

  The figure grows by what stands above and below the axes.
  """
  wrapped = wrap(plain(title), 8, 'bold')
  wrapped += wrap(plain(conditions(rows)), 8, 'bold')
  text = '\n'.join(wrapped)
  lines = len(wrapped) + figure.get_supxlabel().count('\n') + 1
  if figure.legends:  # Its title: a figure's own would lie on the legend.
    (legend,) = figure.legends
    legend.set_title(text, {'size': 8, 'weight': 'bold'})
    lines += -(-len(legend.get_texts()) // legend._ncols)
  else:
    figure.suptitle(text, x=0.01, ha='left', size=8, weight='bold')
  figure.set_figheight(figure.get_figheight() + _LINE * lines)


def distinct(rows: list[dict], name: str) -> list:
  return list(dict.fromkeys(row[name] for row in rows))


def label_of(row: dict, rows: list[dict], gamma: bool = False) -> str:
  """Returns what tells a row apart from others."""
  parts = [row['drafter']]
  if len(distinct(rows, 'verifier')) > 1:
    parts.append(verdicts.rule(row))
  own = [r for r in rows if r['drafter'] == row['drafter']]
  if gamma and len(distinct(own, 'gamma')) > 1:
    parts.append(f'gamma {row["gamma"]}')
  return plain(', '.join(parts))


def look(row: dict, rows: list[dict]) -> dict:
  """Returns the colour of a drafter, and a marker for it and a rule.

  Args:
    row: what is shown.
    rows: all of the run, so that a drafter looks alike in all its figures.
  """
  drafters = distinct(rows, 'drafter')
  place = drafters.index(row['drafter']) % len(_COLOURS)
  # Those of one colour have markers of their own.
  pairs = dict.fromkeys((r['drafter'], r['verifier']) for r in rows)
  alike = [p for p in pairs if drafters.index(p[0]) % len(_COLOURS) == place]
  turn = place + alike.index((row['drafter'], row['verifier']))
  return {'color': _COLOURS[place], 'marker': _MARKERS[turn % len(_MARKERS)]}


def colour(place: int) -> str:
  return _COLOURS[place % len(_COLOURS)]


def dashes(row: dict, rows: list[dict]) -> str:
  """Returns a line style for each draft length of a drafter."""
  own = [r for r in rows if r['drafter'] == row['drafter']]
  return _LINES[distinct(own, 'gamma').index(row['gamma']) % len(_LINES)]


def blank(height: float) -> Figure:
  return Figure((_WIDTH, height), layout='constrained', dpi=150)


@contextlib.contextmanager
def narrow(height: float):
  """Makes a figure that is readable on a phone, in the style of this module."""
  with matplotlib.rc_context(_STYLE):
    yield Figure((4.6, height), layout='constrained', dpi=150)


def shortened(name: str) -> str:
  """Returns a name that leaves room for what is drawn beside it."""
  return plain(name if len(name) < 28 else f'{name[:26]} ...')


def finish(figure: Figure, rows: list[dict], text: str) -> Figure:
  """Adds the legend above the axes, and the caption below."""
  handles: dict = {}
  for axes in figure.axes:
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
      handles.setdefault(label, handle)
  if handles:
    # A handle and the space around it take five letters of size 8.
    longest = max(width_of(label, 8) for label in handles) + 40 / 72
    figure.legend(
      handles.values(),
      handles.keys(),
      loc='outside upper left',
      ncols=max(1, min(5, int((_WIDTH - _MARGIN) / longest))),
      alignment='left',
    )
  first = rows[0]
  source = (
    f'Run {first.get("config", "")}: target model {first.get("target", "")}, '
    f'seed {values(rows, "seed")}, commit {first.get("commit") or "none"}.'
  )
  caption = '\n'.join(wrap(plain(f'{text} {source}'), 7))
  figure.supxlabel(caption, x=0.01, ha='left', size=7)
  return figure


def panels(rows: list[dict], x: str, y: str, height: float = 2.1):
  """Makes axes for every temperature (down) and domain (across).

  Returns:
    The figure and pairs of axes and their rows.
  """
  domains, cells = distinct(rows, 'domain'), by_place(rows)
  groups = [(d, t) for t in distinct(rows, 'temperature') for d in domains]
  across = min(len(domains), 4)
  down = -(-len(groups) // across)
  figure = blank(0.3 + height * down)
  grid = figure.subplots(
    down, across, sharex=True, sharey=True, squeeze=False
  ).ravel()
  for axes in grid[len(groups) :]:
    axes.set_axis_off()
  pairs = []
  for place, (axes, (domain, temperature)) in enumerate(
    zip(grid, groups, strict=False)
  ):
    axes.set_title(plain(f'{domain}, temperature {temperature:g}'))
    if place + across >= len(groups):
      axes.set_xlabel(x)
      axes.tick_params(labelbottom=True)
    if place % across == 0:
      axes.set_ylabel(y)
    pairs.append((axes, cells.get((domain, temperature), [])))
  return figure, pairs


def plain(text: str) -> str:
  """Returns text as a label: no formula, and nothing a legend would hide."""
  text = text.replace('$', r'\$')
  return f' {text}' if text.startswith('_') else text


def point(axes, x: float, row: dict, value: str, rows, label: str, **bars):
  """Draws a value of a row with its error bar, where it has one."""
  ends = intervals.stored(row, value)
  errors = None
  if ends is not None:
    both = np.array([row[value] - ends[0], ends[1] - row[value]])
    errors = np.maximum(both, 0)[:, None]
  axes.errorbar(
    x,
    row[value],
    errors,
    linestyle='none',
    label=label,
    **bars,
    **look(row, rows),
  )
