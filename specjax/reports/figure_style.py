"""Parts that figures share: colours, panels, legends, captions.

Colours are those of Okabe and Ito (2008), which all common kinds of colour
vision keep apart; markers differ as well.
"""

import functools
import textwrap

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from specjax.reports import intervals, verdicts
from specjax.reports.conditions import conditions
from specjax.stats.row import by_place

_COLOURS = (
  '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000',
)  # fmt: skip
_MARKERS = 'os^DvPX'
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
_LINE = 0.17  # inches, of the legend and what is said around it


def in_style(make):
  """Makes a figure function draw in the style of this module."""

  @functools.wraps(make)
  def styled(rows: list[dict]) -> Figure:
    if not rows:
      raise ValueError('rows is empty: there is nothing to show')
    with matplotlib.rc_context(_STYLE):
      figure = make(rows)
      _head(figure, rows, make.__doc__.split('\n')[0])
      return figure

  return styled


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
  wrapped = textwrap.wrap(plain(conditions(rows)), 115)
  text = '\n'.join([plain(title), *wrapped])
  lines = len(wrapped) + 1 + figure.get_supxlabel().count('\n') + 1
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


def _span(rows: list[dict], name: str) -> str:
  """Returns the value that all rows have, or its range."""
  values = sorted({r[name] for r in rows if r.get(name) is not None})
  if len(values) < 2:
    return ''.join(map(str, values))
  return f'{values[0]} to {values[-1]}'


def finish(figure: Figure, rows: list[dict], text: str) -> Figure:
  """Adds the legend above the axes, and the caption below."""
  handles: dict = {}
  for axes in figure.axes:
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
      handles.setdefault(label, handle)
  if handles:
    longest = max(map(len, handles))
    figure.legend(
      handles.values(),
      handles.keys(),
      loc='outside upper left',
      ncols=max(1, min(5, 120 // (longest + 9))),
      alignment='left',
    )
  first = rows[0]
  source = (
    f'Run {first.get("config", "")}: target model {first.get("target", "")}, '
    f'seed {_span(rows, "seed")}, commit {first.get("commit") or "none"}.'
  )
  caption = '\n'.join(textwrap.wrap(f'{text} {source}', 135))
  figure.supxlabel(plain(caption), x=0.01, ha='left', size=7)
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
