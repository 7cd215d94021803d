"""Figures from the rows of `experiments.run`.

Each function takes rows and returns a matplotlib Figure, in print on one page
and with its conditions underneath. Colours are those of Okabe and Ito (2008),
which all common kinds of colour vision keep apart; markers differ as well.
A row that has not the numbers a figure shows is left out, and the figure says
so.
"""

import functools
import textwrap

import matplotlib
import numpy as np
from matplotlib.figure import Figure

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


def _styled(make):
  """A figure function in the style of this module, whatever the user's is."""

  @functools.wraps(make)
  def styled(rows: list[dict]) -> Figure:
    if not rows:
      raise ValueError('rows is empty: there is nothing to show')
    with matplotlib.rc_context(_STYLE):
      return make(rows)

  return styled


def _tokens_per_call(alpha, gamma):
  """Tokens per target call of a chain whose tokens are accepted i.i.d.

  Leviathan et al., arXiv:2211.17192, Equation 1.
  """
  powers = np.arange(int(np.max(gamma)) + 1)
  terms = np.where(powers <= np.asarray(gamma)[..., None], alpha**powers, 0)
  return terms.sum(-1)


def _distinct(rows: list[dict], name: str) -> list:
  return list(dict.fromkeys(row[name] for row in rows))


def _with(rows: list[dict], *names: str) -> tuple[list[dict], str]:
  """Rows that have numbers of these names, and a note on the others."""
  kept = [r for r in rows if all(r.get(name) is not None for name in names)]
  left = len(rows) - len(kept)
  which = {'speedup': 'no times'}.get(names[0], f'no {names[0]}')
  note = f'{left} of {len(rows)} rows have {which} and are left out. '
  return kept, note if left else ''


def _rule(row: dict) -> str:
  return row['verifier'] + ('' if row['lossless'] else ' (lossy)')


def _line(row: dict, rows: list[dict], gamma: bool) -> str:
  """What a row is called among others: as much as tells them apart."""
  parts = [row['drafter']]
  if len(_distinct(rows, 'verifier')) > 1:
    parts.append(_rule(row))
  own = [r for r in rows if r['drafter'] == row['drafter']]
  if gamma and len(_distinct(own, 'gamma')) > 1:
    parts.append(f'$\\gamma$ = {row["gamma"]}')
  return ', '.join(part.replace('_', ' ') for part in parts)


def _look(row: dict, rows: list[dict]) -> dict:
  """Colour and marker of a drafter with a rule."""
  pairs = [(r['drafter'], r['verifier']) for r in rows]
  place = list(dict.fromkeys(pairs)).index((row['drafter'], row['verifier']))
  return {
    'color': _COLOURS[place % len(_COLOURS)],
    'marker': _MARKERS[place % len(_MARKERS)],
  }


def _dashes(row: dict, rows: list[dict]) -> str:
  """A line style for each draft length of a drafter."""
  own = [r for r in rows if r['drafter'] == row['drafter']]
  return _LINES[_distinct(own, 'gamma').index(row['gamma']) % len(_LINES)]


def _figure(height: float) -> Figure:
  return Figure((_WIDTH, height), layout='constrained', dpi=150)


def _span(rows: list[dict], name: str) -> str:
  """The value that all rows have, or the range of it."""
  found = sorted({r[name] for r in rows if r.get(name) is not None})
  if len(found) < 2:
    return ''.join(map(str, found))
  return f'{found[0]} to {found[-1]}'


def _finish(
  figure: Figure, rows: list[dict], text: str, place: str = 'upper left'
) -> Figure:
  """Adds the legend, what is shown and in which conditions, under the axes."""
  handles: dict = {}
  for axes in figure.axes:
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
      handles.setdefault(label, handle)
  if handles:
    longest = max(map(len, handles))
    figure.legend(
      handles.values(),
      handles.keys(),
      loc=f'outside {place}',
      ncols=1 if 'right' in place else max(1, min(5, 120 // (longest + 9))),
    )
  first = rows[0]
  versions = first.get('versions') or {}
  conditions = (
    f'Run {first.get("config", "")}: target model {first.get("target", "")}, '
    f'{_span(rows, "prompts")} prompts a domain, batch {_span(rows, "batch")}, '
    f'seed {_span(rows, "seed")}; {first.get("device", "unknown device")}, jax '
    f'{versions.get("jax", "unknown")}, commit {first.get("commit") or "none"}.'
  )
  caption = '\n'.join(textwrap.wrap(f'{text} {conditions}', 135))
  # A dollar sign would begin a formula.
  caption = caption.replace('$', r'\$')
  figure.supxlabel(caption, x=0.01, ha='left', size=7)
  return figure


def _empty(rows: list[dict], note: str) -> Figure:
  figure = _figure(1.2)
  return _finish(figure, rows, note + 'Nothing is left to show.')


def _panels(rows: list[dict], x: str, y: str, height: float = 2.1):
  """A figure with axes for every temperature (down) and domain (across).

  Returns:
    The figure and pairs of axes and their rows.
  """
  groups = [
    (d, t)
    for t in _distinct(rows, 'temperature')
    for d in _distinct(rows, 'domain')
  ]
  across = min(len(_distinct(rows, 'domain')), 4)
  down = -(-len(groups) // across)
  figure = _figure(0.8 + height * down)
  grid = figure.subplots(
    down, across, sharex=True, sharey=True, squeeze=False
  ).ravel()
  for axes in grid[len(groups) :]:
    axes.set_axis_off()
  pairs = []
  for place, (axes, (domain, temperature)) in enumerate(
    zip(grid, groups, strict=False)
  ):
    axes.set_title(_plain(f'{domain}, temperature {temperature:g}'))
    if place + across >= len(groups):
      axes.set_xlabel(x)
      axes.tick_params(labelbottom=True)
    if place % across == 0:
      axes.set_ylabel(y)
    where = domain, temperature
    cells = [r for r in rows if (r['domain'], r['temperature']) == where]
    pairs.append((axes, cells))
  return figure, pairs


def _plain(text: str) -> str:
  """Text that matplotlib does not read as a formula."""
  return text.replace('$', r'\$')


def _errors(row: dict, name: str) -> np.ndarray:
  """Lengths [2, 1] of the error bar of a value with its interval."""
  low, high = row[f'{name}_ci']
  both = np.array([row[name] - low, high - row[name]])
  return np.maximum(both, 0)[:, None]


@_styled
def acceptance_by_position(rows: list[dict]) -> Figure:
  """Share of all steps in which position 1, 2, ... of a draft was accepted."""
  figure, panels = _panels(
    rows, 'position in the draft', 'accepted,\nshare of steps'
  )
  for axes, cells in panels:
    for row in cells:
      values = [
        np.nan if v is None else v for v in row['acceptance_by_position']
      ]
      axes.plot(
        range(1, len(values) + 1),
        values,
        label=_line(row, rows, gamma=True),
        linestyle=_dashes(row, rows),
        **_look(row, rows),
      )
    axes.set_ylim(0, 1)
    axes.xaxis.get_major_locator().set_params(integer=True)
  return _finish(
    figure,
    rows,
    'Share of all whole steps in which the drafted token at a position was '
    'accepted, that is, it and all before it.',
  )


def _theory(cells: list[dict], gammas: np.ndarray) -> np.ndarray:
  """Speed-up of a drafter at draft lengths that were not measured, too.

  tau is that of Equation 1 for the measured alpha; v is interpolated between
  1, what a plain step costs, and what was measured, and goes on as straight;
  c is interpolated.
  """
  cells = sorted(cells, key=lambda r: r['gamma'])
  known = np.array([0, *(r['gamma'] for r in cells)], float)
  v = np.array([1, *(r['v'] for r in cells)], float)
  slope = (v[-1] - v[-2]) / (known[-1] - known[-2])
  scored = np.interp(gammas, known, v)
  scored += slope * np.maximum(gammas - known[-1], 0)
  c = np.interp(gammas, known[1:], [r['c'] for r in cells])
  tau = _tokens_per_call(cells[0]['alpha'], gammas)
  return tau / (scored + gammas * c)


def _is_tree(row: dict) -> bool:
  return row['drafted'] > row['gamma'] * sum(row['histogram'])


@_styled
def speedup_against_gamma(rows: list[dict]) -> Figure:
  """Measured speed-up at each draft length, and the speed model's line."""
  shown, note = _with(rows, 'speedup', 'alpha', 'c', 'v')
  if not shown:
    return _empty(rows, note)
  figure, panels = _panels(
    shown, r'drafted tokens $\gamma$', 'speed-up over\nplain decoding'
  )
  gammas = np.arange(max(r['gamma'] for r in shown) + 3)
  for axes, cells in panels:
    axes.axhline(1, color='black', linewidth=0.8)
    keys = list(dict.fromkeys((r['drafter'], r['verifier']) for r in cells))
    for place, key in enumerate(keys):
      own = [r for r in cells if (r['drafter'], r['verifier']) == key]
      look = _look(own[0], shown)
      shift = 0.12 * (place - (len(keys) - 1) / 2)
      for row in own:
        axes.errorbar(
          row['gamma'] + shift,
          row['speedup'],
          _errors(row, 'speedup'),
          linestyle='none',
          capsize=2,
          label=_line(row, shown, gamma=False),
          **look,
        )
      if own[0]['lossless'] and not any(map(_is_tree, own)):
        axes.plot(
          gammas,
          _theory(own, gammas),
          color=look['color'],
          linewidth=0.9,
        )
    axes.xaxis.get_major_locator().set_params(integer=True)
  panels[0][0].set_ylim(bottom=0)
  return _finish(
    figure,
    rows,
    note + 'Points: ratio of decoding times on the same prompts, prefill '
    'excluded, with 95% intervals over prompts; set apart sideways. Lines: tau '
    '/ (v + gamma c), tau = (1 - alpha^(gamma + 1)) / (1 - alpha), Leviathan et '
    'al. 2023, Eq. 1, which is of chains under token verification, accepted '
    'i.i.d.; alpha, c and v measured, v a straight line between the lengths '
    'that were, from 1 at 0, and beyond them.',
  )


@_styled
def alpha_by_domain(rows: list[dict]) -> Figure:
  """alpha of every drafter by domain and temperature, with intervals."""
  shown, note = _with(rows, 'alpha')
  if not shown:
    return _empty(rows, note)
  temperatures = _distinct(shown, 'temperature')
  domains, drafters = (_distinct(shown, n) for n in ('domain', 'drafter'))
  figure = _figure(2.9)
  grid = figure.subplots(1, len(temperatures), sharey=True, squeeze=False)[0]
  step = 0.7 / max(len(drafters), 1)
  for axes, temperature in zip(grid, temperatures, strict=True):
    cells = [r for r in shown if r['temperature'] == temperature]
    # alpha is a drafter's: its rows of other rules and lengths say the same.
    unique = {(r['domain'], r['drafter']): r for r in reversed(cells)}
    for (domain, drafter), row in reversed(unique.items()):
      shift = step * (drafters.index(drafter) - (len(drafters) - 1) / 2)
      axes.errorbar(
        domains.index(domain) + shift,
        row['alpha'],
        _errors(row, 'alpha'),
        linestyle='none',
        capsize=2,
        label=_plain(drafter.replace('_', ' ')),
        **_look(row, shown),
      )
    axes.set_title(f'temperature {temperature:g}')
    axes.set_xticks(range(len(domains)), [_plain(d) for d in domains])
    axes.set_xlim(-0.5, len(domains) - 0.5)
    axes.set_ylim(0, 1)
    axes.grid(visible=False, axis='x')
  grid[0].set_ylabel(r'$\alpha$ = mean of $\Sigma\,\min(p, q)$')
  return _finish(
    figure,
    rows,
    note + 'alpha: mean of sum(min(p, q)) over prefixes that the target '
    'generated; 95% intervals by bootstrap over prompts.',
  )


@_styled
def predicted_against_measured(rows: list[dict]) -> Figure:
  """Measured speed-up of every cell over the predicted one."""
  shown, note = _with(rows, 'speedup', 'predicted_speedup')
  if not shown:
    return _empty(rows, note)
  figure = _figure(4.4)
  axes = figure.subplots()
  temperatures = _distinct(shown, 'temperature')
  ends = [r[n] for r in shown for n in ('speedup', 'predicted_speedup')]
  ends += [end for r in shown for end in r['speedup_ci']]
  low, high = 0.95 * min(ends), 1.05 * max(ends)
  axes.plot([low, high], [low, high], color='black', linewidth=0.8)
  for row in shown:
    place = temperatures.index(row['temperature'])
    look = _look(row, shown)
    axes.errorbar(
      row['predicted_speedup'],
      row['speedup'],
      _errors(row, 'speedup'),
      linestyle='none',
      capsize=2,
      fillstyle=('none', 'full', 'left', 'bottom')[place % 4],
      label=f'{_line(row, shown, gamma=True)}, T = {row["temperature"]:g}',
      **look,
    )
  axes.set_aspect('equal')
  axes.set_xlabel(r'predicted speed-up $\tau / (v + \gamma c)$')
  axes.set_ylabel('measured speed-up over plain decoding')
  return _finish(
    figure,
    rows,
    note + 'One point for every domain; on the line the prediction holds. tau, '
    'c and v were measured in the same run; intervals (95%, over prompts) are '
    'those of the measured speed-up. T is the sampling temperature.',
    'right upper',
  )
