"""Rows of `experiments.step_costs`: what a step costs, sweep by sweep.

`experiments.quantized` and `experiments.accelerator` write such rows. A sweep
has a table of all that its rows have, and a sentence in the headline where one
is written below; a new sweep needs neither.
"""

from typing import Any

from specjax.reports.conditions import machine, values
from specjax.reports.markdown import (
  Table,
  blocks,
  bullets,
  counted,
  paragraph,
  span,
  with_interval,
)
from specjax.stats.row import group, pick

_HIDDEN = {
  # Where and how rows were measured.
  'schema', 'program', 'by', 'config', 'target', 'draft', 'dtype', 'used',
  'repeats', 'steps', 'load_before', 'versions', 'device', 'xla_threads',
  'commit',
  # What the headline says.
  'sweep', 'exponent_of', 'weight_bytes', 'cache_bytes_in_use',
  'step_ms_quartiles', 'exponent', 'exponent_ci',
}  # fmt: skip
# What the sentences read, beside the names of a sweep.
_READ = {
  'limit': ('limit_ratio', 'bandwidth_gb_per_second', 'parameters'),
  'transformers': ('ratio',),
  'eight bits': ('ratio',),
  'judge': ('share',),
  'simulated': ('speedup', 'predicted_speedup'),
  'layouts': ('v', 'size'),
  'scoring': ('v', 'size', 'batch'),
  'own vocabulary': ('ratio', 'size'),
  'dispatch': ('returned_ms', 'empty_ms', 'first_s'),
}


def fields(row: dict) -> dict[str, Any]:
  types: dict[str, Any] = {
    'sweep': str,
    'step_ms': float,
    **dict.fromkeys(_READ.get(str(row.get('sweep')), ()), float),
    **{f'{name}?': str for name in ('model', 'way', 'stages', 'exponent_of')},
    **{f'{name}?': float | None for name in ('size', 'gamma', 'exponent')},
    'exponent_ci?': tuple[float, ...] | None,
  }
  if 'exponent' in row:
    types |= {'exponent_of': str, 'exponent_ci': types['exponent_ci?']}
    types |= {'size': float}
  return types


def _size(row: dict) -> float:
  return row['size']


def _by_size(rows: list[dict]) -> dict[tuple, list[dict]]:
  return group(sorted(rows, key=_size), 'size')


def _growth(rows: list[dict]) -> list[str]:
  """With which power of a size a step grows."""
  first, last = rows[0], rows[-1]
  names = {'scoring_ms': 'scoring', 'plain_ms': 'a plain step'}
  what = names.get(first['exponent_of'], first['exponent_of'])
  size = 'gamma + 1' if first['sweep'] == 'gamma' else f'the {first["sweep"]}'
  power = with_interval(first['exponent'], first['exponent_ci'])
  return [
    f'{what} grows with the power {power} of {size}, {first["sweep"]} '
    f'{first["size"]:,} to {last["size"]:,}'
  ]


def _limit(rows: list[dict]) -> list[str]:
  """How near a step is to its bytes, and what a larger cache costs."""
  clauses = []
  for model in group(rows, 'model').values():
    in_order = sorted(model, key=lambda r: r['size'])
    small, large = in_order[0], in_order[-1]
    clauses.append(
      f'{small["parameters"] / 1e6:.0f}M parameters: a plain step takes '
      f'{small["step_ms"]:.1f} ms, {small["limit_ratio"]:.2f} times what '
      'reading its weights and the cache in use takes at '
      f'{small["bandwidth_gb_per_second"]:.0f} GB/s, as measured in the same '
      'minutes'
    )
    if large is not small:
      clauses[-1] += (
        f'; with {large["size"]:,} slots instead of {small["size"]:,} '
        f'{large["step_ms"] / small["step_ms"]:.2f} times as long'
      )
  return clauses


def _transformers(rows: list[dict]) -> list[str]:
  return [
    f'transformers takes {row["ratio"]:.2f} times as long for a token on the '
    'same weights'
    for row in pick(rows, way='transformers')
  ]


def _layouts(rows: list[dict]) -> list[str]:
  """Which layout a pass over some tokens is the fastest in."""
  clauses = []
  for (size,), mine in _by_size(rows).items():
    best = min(mine, key=lambda r: r['v'])
    width = best.get('columns', '-')  # Of blocks, in older rows.
    columns = '' if width == '-' else f', {width} columns'
    clauses.append(f'{size:g}: {best["v"]:.2f} ({best["way"]}{columns})')
  return [
    'passes in the fastest layout, over that of a single token, by tokens: '
    + ', '.join(clauses)
  ]


def _eight_bits(rows: list[dict]) -> list[str]:
  """Steps with weights in eight bits over those with floats."""
  steps = pick(rows, way='int8')
  ratios = ', '.join(f'{r["ratio"]:.2f} ({r["model"]})' for r in steps)
  return [f'a step with weights in eight bits takes {ratios} times as long']


def _judge(rows: list[dict]) -> list[str]:
  """The share of a step that sampling and verification take."""
  clauses = []
  for (size,), mine in _by_size(rows).items():
    single = [r for r in mine if r['stages'] != 'all']
    every = [r['share'] for r in pick(mine, stages='all')]
    parts = []
    if single:
      worst = max(single, key=lambda r: r['share'])
      shares = span((r['share'] for r in single), '.0%')
      parts.append(
        f'{shares} of a step with one stage, the most with {worst["stages"]} '
        f'at gamma {worst["gamma"]}'
      )
    if every:
      parts.append(f'{max(every):.0%} with all of them')
    vocabulary = f'a vocabulary of {size:,}'
    clauses.append(
      f'sampling and verification, {vocabulary}: {"; ".join(parts)}'
    )
  return clauses


def _simulated(rows: list[dict]) -> list[str]:
  """Speed-ups for a given acceptance."""
  best = (
    max(mine, key=lambda r: r['speedup']) for mine in _by_size(rows).values()
  )
  return [
    f'where a token is accepted with probability {row["size"]:g}, the best is '
    f'{row["speedup"]:.2f} times plain decoding, at gamma {row["gamma"]} '
    f'(predicted {row["predicted_speedup"]:.2f})'
    for row in best
  ]


def _own_vocabulary(rows: list[dict]) -> list[str]:
  """Draft steps in tokens of the draft's own over those in the target's."""
  clauses = []
  for (size,), mine in _by_size(rows).items():
    parts = [
      f'{span((r["ratio"] for r in own), ".2f")} with {way} of them'
      for way in ('as many', 'half')
      if (own := pick(mine, way=way))
    ]
    if parts:
      clauses.append(
        f'{size:,} tokens of the target: a draft step in tokens of its own '
        f"over one in the target's {', '.join(parts)}"
      )
  return clauses


def _scoring(rows: list[dict]) -> list[str]:
  """The target's part of a step, by rows of a batch."""
  clauses = []
  for (batch,), mine in group(rows, 'batch').items():
    parts = ', '.join(
      f'{r["v"]:.2f} ({r["size"]})' for r in sorted(mine, key=_size)
    )
    clauses.append(
      f'scoring a draft, over a plain step, batch {batch}, by drafted tokens: '
      f'{parts}'
    )
  return clauses


def _dispatch(rows: list[dict]) -> list[str]:
  """What a program costs before its first step."""
  return [
    f'gamma {row["gamma"]}: a dispatch returns to the host after '
    f'{row["returned_ms"]:.2f} ms and takes {row["empty_ms"]:.2f} ms without '
    f'a step, a step {row["step_ms"]:.2f} ms; the first one, which is '
    f'compiled, {row["first_s"]:.1f} s'
    for row in rows
  ]


_SAID = {
  'own vocabulary': _own_vocabulary,
  'scoring': _scoring,
  'dispatch': _dispatch,
  'limit': _limit,
  'transformers': _transformers,
  'eight bits': _eight_bits,
  'judge': _judge,
  'simulated': _simulated,
  'layouts': _layouts,
}


def _shape(rows: list[dict]) -> str:
  """The size of the random model, where one is measured."""
  draft = rows[0].get('draft')
  if draft and pick(rows, sweep='own vocabulary') == rows:
    layers = counted(draft['num_layers'], 'layer')
    return f'random weights, {layers} x {draft["width"]}'
  target = rows[0].get('target') or {}
  names = ('num_layers', 'width', 'vocab_size')
  random = any(row.get('model', 'random') == 'random' for row in rows)
  if not random or any(name not in target for name in names):
    return ''
  layers, width, vocabulary = (target[name] for name in names)
  shape = f'{counted(layers, "layer")} x {width}'
  return f'random weights, {shape} for {vocabulary:,} tokens'


def headline(rows: list[dict]) -> str:
  """What each sweep shows in a sentence, and where it was measured."""
  clauses: list[str] = []
  for (name,), mine in group(rows, 'sweep').items():
    if mine[0].get('exponent') is not None:
      clauses += _growth(mine)
    elif name in _SAID:
      clauses += _SAID[name](mine)
  facts = [values(rows, 'dtype'), _shape(rows)]
  if values(rows, 'used'):
    facts.append(f'{values(rows, "used")} tokens in use')
  where = f'{machine(rows, facts)}; medians.'
  return blocks(bullets(clauses), paragraph(where))


def _show(value: Any) -> str:
  if isinstance(value, float):
    return f'{value:.3g}' if value < 100 else f'{value:.0f}'
  return str(value)


def summary(rows: list[dict]) -> str:
  """The headline, and a table for each sweep."""
  tables = []
  for (name,), mine in group(rows, 'sweep').items():
    head = [key for key in mine[0] if key not in _HIDDEN]
    lines = [[_show(row.get(key, '-')) for key in head] for row in mine]
    tables.append(Table(name, '', head, lines).markdown())
  return blocks(headline(rows), *tables)
