"""Rows of `experiments.paper_costs`: where speculation pays, calculated."""

import itertools
from typing import Any

from matplotlib.figure import Figure

from specjax.reports import Draw, figure_style
from specjax.reports.markdown import Table, blocks, bullets, paragraph, span
from specjax.stats.row import group, pick

_LEAD = (
  '*Calculated*, not measured: a pass takes the longest of reading its bytes, '
  'its operations and what devices exchange, at published peaks and without '
  'latencies. Real passes take longer, most of all small ones.'
)
_NOTE = """
*calculated*. **fits** is the batch whose caches fit beside the weights, **v**
and **c** are of that batch, **limit** is that of a plain step. A cell of
acceptance is the batch up to which every one pays with the best draft length,
*all* where all that fit do, and in brackets the speed-up at batch 1 and at the
largest batch of the table.
""".strip()
_SHOWN = '0.8'  # acceptance that the headline and the figure are of
_EVERY = 'at every batch that fits'
_OBJECT = dict[str, Any]


def fields(row: dict) -> dict[str, Any]:
  del row  # Unused: all rows have the same.
  numbers = tuple[float, ...]
  return {
    **dict.fromkeys(('target', 'draft', 'accelerator', 'dtype'), str),
    **dict.fromkeys(('devices', 'context', 'fits'), int),
    'batches': tuple[int, ...],
    'calculated': bool,
    'c': numbers,
    'plain_seconds': numbers,
    'plain_limit': tuple[str, ...],
    **dict.fromkeys(('v', 'best_gamma', 'speedup', 'pays_up_to'), _OBJECT),
  }


def device(row: dict) -> str:
  many = f'{row["devices"]} x ' if row['devices'] > 1 else ''
  return f'{many}{row["accelerator"]}'


def _rates(rows: list[dict]) -> list[str]:
  return list(rows[0]['speedup'])


def _rate(rows: list[dict]) -> str:
  """The acceptance that is told of; the largest where there is not 0.8."""
  rates = _rates(rows)
  return _SHOWN if _SHOWN in rates else rates[-1]


def _up_to(row: dict, rate: str) -> str:
  if not row['batches']:
    return 'nothing fits'
  value = row['pays_up_to'][rate]
  return f'all ({row["fits"]})' if value is None else str(value)


def pays(rows: list[dict]) -> dict[str, dict[str, str]]:
  """Up to which batch it pays, by deployment and draft, and by context."""
  rate = _rate(rows)
  names = ('target', 'accelerator', 'devices', 'draft')
  return {
    f'{here[0]["target"]} on {device(here[0])}, draft {here[0]["draft"]}': {
      str(row['context']): _up_to(row, rate) for row in here
    }
    for here in group(rows, *names).values()
  }


def _at(context: int, here: list[dict], rate: str) -> str:
  """Up to which batch it pays at a context."""
  fitting = [r for r in here if r['batches']]
  ends = [r for r in fitting if r['pays_up_to'][rate] is not None]
  limited = ', '.join(f'{r["pays_up_to"][rate]} on {device(r)}' for r in ends)
  if not fitting:
    return f'at {context:,} tokens at no batch, for nothing fits'
  if not ends:
    return f'at {context:,} tokens {_EVERY}'
  more = ', elsewhere at every one that fits' * (len(ends) < len(fitting))
  return f'at {context:,} tokens up to batch {limited}{more}'


def _returns(here: list[dict], rate: str) -> str:
  """How much more a longer context gains at the same batch, in one place."""
  for same in group(here, 'accelerator', 'devices').values():
    for short, long in itertools.pairwise(same):
      both = {*short['batches']} & {*long['batches']}
      if both and short['pays_up_to'][rate] is not None:
        batch = max(both)
        speeds = (
          f'{r["speedup"][rate][r["batches"].index(batch)]:.2f} at '
          f'{r["context"]:,}'
          for r in (short, long)
        )
        where = f'at batch {batch} on {device(short)}'
        return f'; {where} it is {" and ".join(speeds)} tokens'
  return ''


def headline(rows: list[dict]) -> str:
  """For every target and draft, up to which batch it pays by context."""
  rate, clauses = _rate(rows), []
  for (target, draft), here in group(rows, 'target', 'draft').items():
    parts = [
      _at(context, same, rate)
      for (context,), same in group(here, 'context').items()
    ]
    while len(parts) > 1 and all(p.endswith(_EVERY) for p in parts[-2:]):
      joined = parts[-2].replace(' tokens at', ' tokens and more at')
      parts = [*parts[:-2], joined]
    alone = [r['speedup'][rate][0] for r in here if r['batches']]
    gain = f' {span(alone)} times plain decoding at batch 1;' if alone else ''
    clauses.append(
      f'{target} with draft {draft}, acceptance {rate}:{gain} it pays '
      + '; '.join(parts)
      + _returns(here, rate)
    )
  where = f'In {rows[0]["dtype"]}.'
  return blocks(paragraph(_LEAD), bullets(clauses), paragraph(where))


def _cell(row: dict, rate: str) -> str:
  speeds = row['speedup'][rate]
  if not speeds:
    return '-'
  return f'{_up_to(row, rate)} [{speeds[0]:.2f}, {speeds[-1]:.2f}]'


def _ends(values: list[float], form: str, scale: float = 1.0) -> str:
  """The first and the last: of batch 1, and of the largest."""
  return f'{scale * values[0]:{form}}, {scale * values[-1]:{form}}'


def _line(row: dict, gamma: str) -> list[str]:
  size = device(row), f'{row["context"]:,}', str(row['fits'])
  if not row['batches']:
    return [*size, *'-' * 5, *('-' for _ in row['speedup'])]
  return [
    *size,
    str(row['batches'][-1]),
    _ends(row['plain_seconds'], '.2f', 1e3),
    f'{row["plain_limit"][0]}, {row["plain_limit"][-1]}',
    _ends(row['v'][gamma], '.2f'),
    _ends(row['c'], '.3f'),
    *(_cell(row, rate) for rate in row['speedup']),
  ]


def tables(rows: list[dict]) -> list[Table]:
  """A table for each target and draft."""
  made = []
  for (target, draft), here in group(rows, 'target', 'draft').items():
    gammas = list(here[0]['v'])
    gamma = '4' if '4' in gammas else gammas[-1]
    head = ['on', 'context', 'fits', 'to batch', 'plain ms', 'limit']
    head += [f'v({int(gamma) + 1})', 'c']
    head += [f'pays, acceptance {rate}' for rate in _rates(rows)]
    title = f'{target} with draft {draft} (calculated)'
    lines = [_line(row, gamma) for row in here]
    made.append(Table(title, '' if made else _NOTE, head, lines))
  return made


def summary(rows: list[dict]) -> str:
  """The headline, and all tables."""
  return blocks(headline(rows), *(one.markdown() for one in tables(rows)))


def speedup_by_batch(rows: list[dict]) -> Figure:
  """Calculated speed-up by batch, a line for each context."""
  rate = _rate(rows)
  drafts = list(dict.fromkeys(r['draft'] for r in rows))
  names = ('target', 'accelerator', 'devices')
  places = list(group(pick(rows, draft=drafts[0]), *names).items())
  across = min(5, len(places))
  down = -(-len(places) // across)
  figure = figure_style.blank(0.6 + 1.9 * down)
  grid = figure.subplots(
    down, across, sharex=True, sharey=True, squeeze=False
  ).ravel()
  for axes in grid[len(places) :]:
    axes.set_axis_off()
  contexts = sorted({r['context'] for r in rows})
  ticks = sorted({b for r in rows for b in r['batches']})[::3]
  for axes, (_, here) in zip(grid, places, strict=False):
    axes.axhline(1, color='black', linewidth=0.8)
    for row in here:
      axes.plot(
        row['batches'],
        row['speedup'][rate],
        color=figure_style.colour(contexts.index(row['context'])),
        label=f'{row["context"]:,} tokens',
        linewidth=1.2,
      )
    axes.set_title(f'{here[0]["target"]}, {device(here[0])}', size=8)
    axes.set_xscale('log', base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3, linewidth=0.5)
  grid[0].set_ylim(bottom=0)
  figure.supxlabel(
    f'batch; lines end where caches no longer fit. Calculated: draft '
    f'{drafts[0]}, acceptance {rate}, best draft length',
    size=8,
  )
  figure.supylabel('times plain decoding, calculated', size=8)
  handles, labels = grid[0].get_legend_handles_labels()
  figure.legend(
    handles, labels, loc='outside upper left', ncols=len(labels), fontsize=8,
    frameon=False,
  )  # fmt: skip
  return figure


def figures(rows: list[dict]) -> tuple[Draw, ...]:
  return (speedup_by_batch,) if any(r['batches'] for r in rows) else ()
