"""Rows of `experiments.long_contexts`: steps by context and batch."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from specjax.reports import figure_style
from specjax.reports.conditions import machine, values
from specjax.reports.markdown import (
  Columns,
  Table,
  blocks,
  bullets,
  counted,
  number,
  paragraph,
  span,
)
from specjax.stats.row import group, pick

PLAIN = 'plain'


def fields(row: dict) -> dict[str, Any]:
  counts = ('context', 'batch', 'gamma')
  sizes = ('weight_bytes', 'cache_bytes', 'draft_bytes')
  types: dict[str, Any] = {
    'drafter': str,
    **dict.fromkeys((*counts, *sizes), int),
    **dict.fromkeys(('predicted_ms', 'step_ms'), float),
  }
  if row.get('drafter') != PLAIN:
    types |= dict.fromkeys(('plain_ms', 'c', 'v'), float)
    types['break_even_alpha'] = float | None
    types['speedups'] = tuple[tuple[float, ...], ...]
  return types


def _share(row: dict) -> float:
  """Of the cache in all bytes of a step."""
  return row['cache_bytes'] / (row['cache_bytes'] + row['weight_bytes'])


def _predicted_cost(row: dict, rows: list[dict]) -> float | None:
  """A step over a plain one, by their bytes alone."""
  place = {name: row[name] for name in ('context', 'batch')}
  plain = pick(rows, drafter=PLAIN, **place)
  return row['predicted_ms'] / plain[0]['predicted_ms'] if plain else None


def _name(row: dict) -> str:
  if row['drafter'] == 'windowed' and row.get('window'):
    return f'windowed {row["window"]}'
  return row['drafter']


def _outweighs(mine: list[dict]) -> str:
  """From which context on a plain step reads more cache than weights."""
  row = max(mine, key=lambda r: r['context'])
  each = row['cache_bytes'] / row['context']
  return f'{row["weight_bytes"] / each:,.0f} tokens at batch {row["batch"]}'


def crossing(points: list[tuple[float, float]], level: float) -> float | None:
  """Where a curve falls to a level for good, between two of its points.

  Args:
    points: (context, value), at least one; between them a line over the
      logarithm of the context.
    level: of the value.

  Returns:
    The first context where there all are below it; None where the last is not.
  """
  points = sorted(points)
  above = [i for i, (_, value) in enumerate(points) if value > level]
  if not above:
    return points[0][0]
  if above[-1] == len(points) - 1:
    return None
  (a, high), (b, low) = points[above[-1] : above[-1] + 2]
  part = (high - level) / (high - low)
  return float(np.exp(np.log(a) + part * np.log(b / a)))


def _gains(mine: list[dict]) -> str:
  """How the acceptance that a draft needs moves with the context."""
  mine = sorted(mine, key=lambda r: r['context'])
  first = mine[0]
  who = f'{_name(first)}, gamma {first["gamma"]}, batch {first["batch"]}'

  def said(row):
    needed = row['break_even_alpha']
    if needed is None:
      return f'loses at {row["context"]:,} tokens whatever is accepted'
    return (
      f'gains at {row["context"]:,} tokens where alpha is above {needed:.2f}'
    )

  text = f'{who}: {said(first)}'
  if len(mine) > 1:
    text += f', and {said(mine[-1])}'
  rate = max(rate for rate, _ in first['speedups'])
  found = crossing([(r['context'], -dict_of(r)[rate]) for r in mine], -1.0)
  if found is None:
    return f'{text}; at alpha {rate:g} it does not gain at the longest'
  if found == first['context']:
    return f'{text}; at alpha {rate:g} it gains at all contexts'
  return f'{text}; at alpha {rate:g} it gains from {found:,.0f} tokens on'


def dict_of(row: dict) -> dict[float, float]:
  """Speed-up by the acceptance that is assumed."""
  return {rate: speedup for rate, speedup in row['speedups']}


def headline(rows: list[dict]) -> str:
  """Where the cache outweighs the weights, and from where on a draft gains."""
  clauses = []
  plain = pick(rows, drafter=PLAIN)
  if plain:
    by_batch = group(plain, 'batch').values()
    clauses.append(
      'a plain step reads more cache than weights from '
      + ' and from '.join(map(_outweighs, by_batch))
      + ' on'
    )
    ratios = span(r['step_ms'] / r['predicted_ms'] for r in plain)
    clauses.append(
      f'plain steps take {ratios} times what reading their bytes takes, as '
      'measured in the same minutes'
    )
  drafts = [r for r in rows if r['drafter'] != PLAIN]
  clauses += map(_gains, group(drafts, 'drafter', 'batch').values())
  target = rows[0].get('target') or {}
  shape = ''
  if {'num_layers', 'width'} <= target.keys():
    layers = counted(target['num_layers'], 'layer')
    shape = f'random weights, {layers} x {target["width"]}'
  facts = [values(rows, 'dtype'), shape]
  where = f'{machine(rows, facts)}; medians.'
  return blocks(bullets(clauses), paragraph(where))


def _columns(rows: list[dict]) -> Columns:
  rates = sorted({rate for r in rows for rate, _ in r.get('speedups', ())})

  def speedup(rate) -> Callable[[dict], str]:
    return lambda r: number(dict_of(r).get(rate) if 'speedups' in r else None)

  def cost(row):
    own = row.get('plain_ms')
    return number(own and row['step_ms'] / own)

  return (
    ('batch', lambda r: str(r['batch'])),
    ('context', lambda r: f'{r["context"]:,}'),
    ('drafter', _name),
    ('MB', lambda r: f'{(r["weight_bytes"] + r["cache_bytes"]) / 1e6:.3g}'),
    ('of the draft', lambda r: f'{r["draft_bytes"] / 1e6:.3g}'),
    ('cache', lambda r: f'{_share(r):.0%}'),
    ('step ms', lambda r: number(r['step_ms'], '.1f')),
    ('predicted', lambda r: number(r['predicted_ms'], '.1f')),
    ('x plain', cost),
    ('by bytes', lambda r: number(_predicted_cost(r, rows))),
    ('v', lambda r: number(r.get('v'))),
    ('c', lambda r: number(r.get('c'))),
    ('alpha needed', lambda r: number(r.get('break_even_alpha'))),
    *((f'at {rate:g}', speedup(rate)) for rate in rates),
  )


def summary(rows: list[dict]) -> str:
  """The headline, and a line for each context, batch and way."""
  note = (
    'Bytes that a step must read, its draft included, and the share of caches '
    'in them; a step in milliseconds and as its bytes predict, and both over '
    'plain decoding. alpha needed: the acceptance above which the draft gains; '
    'behind it speed-ups at rates of acceptance.'
  )
  order = sorted(rows, key=lambda r: (r['batch'], r['context']))
  table = Table.of('Steps by context', note, _columns(rows), order)
  return blocks(headline(rows), table.markdown())


def outcome(rows: list[dict]) -> dict[str, Any]:
  """The acceptance above which each draft gains, for scripts."""
  return {
    'break_even_alpha': {
      f'{r["drafter"]}, batch {r["batch"]}, {r["context"]}': r[
        'break_even_alpha'
      ]
      for r in rows
      if r['drafter'] != PLAIN
    }
  }


@figure_style.in_style
def steps_by_context(rows: list[dict]) -> Figure:
  """A step by context, measured and as its bytes predict."""
  by_batch = group(sorted(rows, key=lambda r: r['context']), 'batch')
  figure = figure_style.blank(2.6)
  panels = figure.subplots(1, len(by_batch), sharey=True, squeeze=False)[0]
  alike = [row | {'verifier': ''} for row in rows]
  for axes, ((batch,), mine) in zip(panels, by_batch.items(), strict=True):
    for own in group(mine, 'drafter').values():
      contexts = [r['context'] for r in own]
      look = figure_style.look(own[0] | {'verifier': ''}, alike)
      for field, line, what in (
        ('step_ms', '-', 'measured'),
        ('predicted_ms', ':', 'by bytes'),
      ):
        axes.plot(
          contexts,
          [r[field] for r in own],
          line,
          label=figure_style.plain(f'{_name(own[0])}, {what}'),
          **look,
        )
    axes.set_title(f'batch {batch}, ms a step')
    axes.set_xlabel('tokens of context')
    axes.set_xscale('log', base=2)
    axes.set_yscale('log')
  return figure_style.finish(
    figure,
    rows,
    'Predicted: bytes of weights and caches over the bandwidth that was '
    'measured beside.',
  )


def figures(rows: list[dict]) -> tuple[Callable[[list[dict]], Figure], ...]:
  return (steps_by_context,) if rows else ()
