"""Figures of the rows of `specjax run`.

Each function takes rows and returns a matplotlib Figure: in print on one page,
with its conditions underneath. A row that has not the numbers a figure shows is
left out, and the figure says so.
"""

import numpy as np
from matplotlib.figure import Figure

from specjax.reports import intervals, verdicts
from specjax.reports.figure_style import (
  blank,
  colour,
  dashes,
  distinct,
  few,
  finish,
  in_style,
  label_of,
  look,
  narrow,
  panels,
  point,
  shortened,
  showing,
)
from specjax.stats import theory

_MANY = 16  # methods; the marks of more are drawn thinner


def drafters(rows: list[dict]) -> Figure:
  """Speed-up of each drafter (tau if not timed), 95% interval; plain is 1."""
  rows = few(rows)
  exact = [r for r in rows if r['lossless']]
  exact = verdicts.timed(exact) or verdicts.sound(exact)
  if not exact:
    return blank(0.3)
  shown = verdicts.of_drafters(exact)
  timed = shown[0]['speedup'] is not None
  name = 'speedup' if timed else 'tau'
  with narrow(0.6 + 0.3 * len(shown)) as figure:
    axes = figure.subplots()
    axes.axvline(1, color='black', linewidth=0.8)
    for place, row in enumerate(shown):
      ends = intervals.stored(row, name) or [row[name]] * 2
      style = look(row, rows)
      axes.plot(ends, [place] * 2, color=style['color'])
      axes.plot(row[name], place, **style)
    labels = [shortened(verdicts.named(r)) for r in shown]
    axes.set_yticks(range(len(shown)), labels)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis='y')
    axes.set_xlabel(
      'times as fast as plain decoding' if timed else 'tokens per target call'
    )
  return figure


@in_style
def acceptance_by_position(rows: list[dict]) -> Figure:
  """Share of all steps in which position 1, 2, ... of a draft was accepted."""
  figure, places = panels(
    rows, 'position in the draft', 'accepted,\nshare of steps'
  )
  for axes, cells in places:
    for row in cells:
      values = [
        np.nan if v is None else v for v in row['acceptance_by_position'] or ()
      ]
      axes.plot(
        range(1, len(values) + 1),
        values,
        label=label_of(row, rows, gamma=True),
        linestyle=dashes(row, rows),
        **look(row, rows),
      )
    axes.set_ylim(0, 1)
    axes.xaxis.get_major_locator().set_params(integer=True)
  return finish(
    figure,
    rows,
    'Share of all whole steps in which the drafted token at a position was '
    'accepted, that is, it and all before it.',
  )


def _theory(cells: list[dict], gammas: np.ndarray) -> np.ndarray:
  """Returns the predicted speed-up at lengths that were not measured, too.

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
  # Sums of probabilities may pass 1 by their rounding.
  tau = theory.tokens_per_call(min(cells[0]['alpha'], 1.0), gammas)
  return tau / (scored + gammas * c)


@showing('speedup', 'alpha', 'c', 'v')
def speedup_against_gamma(shown: list[dict], rows: list[dict]):
  """Measured speed-up at each draft length, and the speed model's line."""
  figure, places = panels(
    shown, r'drafted tokens $\gamma$', 'speed-up over\nplain decoding'
  )
  gammas = np.arange(max(r['gamma'] for r in shown) + 3)
  # Too many methods to see caps of error bars.
  many = len({(r['drafter'], r['verifier']) for r in shown}) > _MANY
  bars = {'elinewidth': 0.4, 'capsize': 0} if many else {'capsize': 2}
  for axes, cells in places:
    axes.axhline(1, color='black', linewidth=0.8)
    keys = list(dict.fromkeys((r['drafter'], r['verifier']) for r in cells))
    for place, key in enumerate(keys):
      own = [r for r in cells if (r['drafter'], r['verifier']) == key]
      shift = min(0.12, 0.8 / len(keys)) * (place - (len(keys) - 1) / 2)
      for row in own:
        label, x = label_of(row, rows), row['gamma'] + shift
        point(axes, x, row, 'speedup', rows, label, **bars)
      if own[0]['lossless'] and not any(map(verdicts.is_tree, own)):
        axes.plot(
          gammas,
          _theory(own, gammas),
          color=look(own[0], rows)['color'],
          linewidth=0.4 if many else 0.9,
        )
    axes.xaxis.get_major_locator().set_params(integer=True)
  places[0][0].set_ylim(bottom=0)
  return figure, (
    'Points: ratio of decoding times on the same prompts, prefill '
    'excluded, with 95% intervals over prompts; set apart sideways. Lines: '
    'tau / (v + gamma c), tau = (1 - alpha^(gamma + 1)) / (1 - alpha), '
    'Leviathan et al. 2023, Eq. 1, which is of chains under token '
    'verification, accepted i.i.d.; alpha, c and v measured, v a straight line '
    'between the lengths that were, from 1 at 0, and beyond them.'
  )


def _curve(axes, own: list[dict], label: str, **look) -> None:
  """Draws a line with its interval band, and dotted the prediction."""
  own = sorted(own, key=lambda r: r['batch'])
  batches = [r['batch'] for r in own]
  nowhere = [np.nan, np.nan]
  ends = np.array([intervals.stored(r, 'speedup') or nowhere for r in own])
  axes.plot(batches, [r['speedup'] for r in own], label=label, **look)
  axes.fill_between(
    batches, *ends.T, color=look['color'], alpha=0.12, linewidth=0
  )
  predicted = [r.get('predicted_static_speedup') for r in own]
  if all(x is not None for x in predicted):
    axes.plot(
      batches, predicted, color=look['color'], linewidth=0.7, linestyle=':'
    )


@showing('speedup')
def speedup_by_batch(shown: list[dict], rows: list[dict]):
  """Speed-up over plain decoding by batch, a line for each draft length."""
  figure, places = panels(
    shown, 'prompts decoded together', 'speed-up over\nplain decoding', 2.6
  )
  names = ('drafter', 'verifier', 'gamma')
  curves = dict.fromkeys(tuple(r[n] for n in names) for r in shown)
  gammas = sorted(distinct(shown, 'gamma'))
  for axes, cells in places:
    axes.axhline(1, color='black', linewidth=0.8)
    for curve in curves:
      own = [r for r in cells if tuple(r[n] for n in names) == curve]
      if own:
        style = look(own[0], rows)
        style['color'] = colour(gammas.index(curve[-1]))
        label = label_of(own[0], rows, gamma=True)
        _curve(axes, own, label, **style)
    sizes = sorted(distinct(shown, 'batch'))
    axes.set_xscale('log', base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
  places[0][0].set_ylim(bottom=0)
  return figure, (
    'Ratio of decoding times on the same prompts, prefill excluded, '
    'over plain decoding in batches of the same size; bands: 95% intervals '
    'over batches, where there are enough of them. A batch takes as long as '
    'its last row. Dotted: tau / (v + gamma c), with v and c of that batch '
    'size, times the share of the steps in which rows were at work, over that '
    'of plain decoding.'
  )
