"""The figure of a run of several batch sizes."""

import numpy as np
from matplotlib.figure import Figure

from specjax.reports import figure_style, intervals


def _curve(axes, own: list[dict], label: str, **look) -> None:
  """A line with its interval band, and dotted what was predicted."""
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


@figure_style.in_style
def speedup_by_batch(rows: list[dict]) -> Figure:
  """Speed-up over plain decoding by batch, a line for each draft length."""
  shown, note = figure_style.having(rows, 'speedup')
  if not shown:
    return figure_style.empty(rows, note)
  figure, panels = figure_style.panels(
    shown, 'prompts decoded together', 'speed-up over\nplain decoding', 2.6
  )
  names = ('drafter', 'verifier', 'gamma')
  curves = dict.fromkeys(tuple(r[n] for n in names) for r in shown)
  gammas = sorted(figure_style.distinct(shown, 'gamma'))
  for axes, cells in panels:
    axes.axhline(1, color='black', linewidth=0.8)
    for curve in curves:
      own = [r for r in cells if tuple(r[n] for n in names) == curve]
      if own:
        look = figure_style.look(own[0], rows)
        look['color'] = figure_style.colour(gammas.index(curve[-1]))
        label = figure_style.name(own[0], rows, gamma=True)
        _curve(axes, own, label, **look)
    sizes = sorted(figure_style.distinct(shown, 'batch'))
    axes.set_xscale('log', base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
  panels[0][0].set_ylim(bottom=0)
  return figure_style.finish(
    figure,
    rows,
    note + 'Ratio of decoding times on the same prompts, prefill excluded, '
    'over plain decoding in batches of the same size; bands: 95% intervals '
    'over batches, where there are enough of them. A batch takes as long as '
    'its last row. Dotted: tau / (v + gamma c), with v and c of that batch '
    'size, times the share of the steps in which rows were at work, over that '
    'of plain decoding.',
  )
