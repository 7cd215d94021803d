"""Rows of `experiments.arrivals`: throughput and latency by rate."""

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from specjax.bench.selecting import group, pick
from specjax.reports import figure_style
from specjax.reports.conditions import baseline, machine, values
from specjax.reports.markdown import (
  Columns,
  Table,
  blocks,
  bullets,
  number,
  paragraph,
  with_interval,
)

_TIMES = {
  'first_token': 'first token',
  'between_tokens': 'between tokens',
  'latency': 'latency',
}
_PERCENTILES = (50, 95, 99)


def fields(row: dict) -> dict[str, Any]:
  counts = ('gamma', 'batch', 'chunk', 'requests')
  numbers = ['tokens_per_second', 'requests_per_second']
  types: dict[str, Any] = {
    **dict.fromkeys(('drafter', 'verifier', 'domain'), str),
    **dict.fromkeys(counts, int),
    'fraction': float | None,
    'temperature': float,
    'new_tokens': tuple[int, ...],
  }
  ends = tuple[float | None, ...] | None
  if row.get('fraction') is None:
    numbers += ['continuous_tokens_per_second', 'of_continuous']
  else:
    types |= {'counted': int, 'tokens_per_second_ci': ends}
    for name in _TIMES:
      numbers.append(f'{name}_ms')
      types |= {f'{name}_p{p}_ms': float | None for p in _PERCENTILES}
      types[f'{name}_ms_ci'] = ends
  return types | dict.fromkeys(numbers, float)


def _saturated(rows: list[dict]) -> list[dict]:
  return pick(rows, fraction=None)


def _at_rates(rows: list[dict]) -> list[dict]:
  """Rows of requests that came at a rate, the slowest first."""
  found = [r for r in rows if r['fraction'] is not None]
  return sorted(found, key=lambda r: r['fraction'])


def _name(row: dict) -> str:
  return f'{row["drafter"]}, {row["gamma"]}' if row['gamma'] else row['drafter']


def _against(row: dict, plain: dict) -> str:
  """What a drafter does to the median and the tail of plain decoding."""

  def both(one: dict, name: str) -> str:
    return ' and '.join(number(one[f'{name}_p{p}_ms'], '.0f') for p in (50, 95))

  shown = [
    f'{word} {both(plain, name)} ms plain, {both(row, name)} ms with '
    f'{_name(row)}'
    for name, word in _TIMES.items()
    if name != 'between_tokens'
  ]
  return (
    f'at {row["fraction"]:g} of it, {row["requests_per_second"]:.1f} requests '
    f'a second (p50 and p95): {"; ".join(shown)}'
  )


def headline(rows: list[dict]) -> str:
  """What each side saturates at, and what requests wait at each rate."""
  clauses = [
    f'{_name(r)} saturates at {r["tokens_per_second"]:.0f} tokens a second, '
    f'{r["requests_per_second"]:.1f} requests; that is '
    f'{r["of_continuous"]:.2f} of `continuous.decode` on the same prompts'
    for r in _saturated(rows)
  ]
  for row in _at_rates(rows):
    plain = pick(rows, drafter='plain', fraction=row['fraction'])
    if row['drafter'] != 'plain' and plain:
      clauses.append(_against(row, plain[0]))
  first = rows[0]
  shortest, longest = first['new_tokens']
  counted = values(_at_rates(rows), 'counted')
  facts = [
    f'{values(rows, "batch")} rows',
    f'{first["chunk"]} steps a turn',
    f'{counted} texts of each rate' if counted else '',
    f'temperature {first["temperature"]:g}',
    f'{shortest} to {longest} new tokens',
  ]
  where, how = machine(rows, facts), baseline(rows)
  return blocks(
    'Where requests come at random times, and rates are fractions of what '
    'plain decoding saturates at:',
    bullets(clauses),
    paragraph(f'{where}; {how}.' if how else f'{where}.'),
  )


def _time(name: str, form: str = '.0f') -> Columns:
  """Mean with its interval, and percentiles."""

  def mean(row):
    return with_interval(row[f'{name}_ms'], _ends(row, f'{name}_ms'), form)

  def percentiles(row):
    found = (row[f'{name}_p{p}_ms'] for p in _PERCENTILES)
    return ' / '.join('-' if x is None else f'{x:{form}}' for x in found)

  return ((_TIMES[name], mean), ('p50 / p95 / p99', percentiles))


def _ends(row: dict, name: str) -> list[float] | None:
  ends = row.get(f'{name}_ci')
  return None if not ends or None in ends else ends


def _rate(row: dict) -> str:
  name = 'tokens_per_second'
  return with_interval(row[name], _ends(row, name), '.0f')


_SATURATED: Columns = (
  ('drafter', _name),
  ('tokens/s', _rate),
  ('requests/s', lambda r: number(r['requests_per_second'], '.1f')),
  ('continuous', lambda r: f'{r["continuous_tokens_per_second"]:.0f}'),
  ('of continuous', lambda r: number(r['of_continuous'])),
)
_COLUMNS: Columns = (
  ('drafter', _name),
  ('of plain', lambda r: f'{r["fraction"]:g}'),
  ('requests/s', lambda r: number(r['requests_per_second'], '.1f')),
  ('tokens/s', _rate),
  *_time('first_token'),
  *_time('between_tokens', '.1f'),
  *_time('latency'),
)


def summary(rows: list[dict]) -> str:
  """The headline, a line for each side, and one for each rate and side."""
  tables = []
  if saturated := _saturated(rows):
    note = 'All requests come at once; tokens a second of the pool.'
    tables.append(Table.of('Saturated', note, _SATURATED, saturated))
  if played := _at_rates(rows):
    note = (
      'Milliseconds, from the time that a request was scheduled to come. '
      'Intervals are over blocks of texts that came one after the other.'
    )
    tables.append(Table.of('Requests by rate', note, _COLUMNS, played))
  return blocks(headline(rows), *(table.markdown() for table in tables))


def outcome(rows: list[dict]) -> dict[str, Any]:
  """The numbers that matter, for scripts."""
  return {
    f'{_name(r)} at {"once" if r["fraction"] is None else r["fraction"]}': {
      'tokens_per_second': r['tokens_per_second'],
      'of_continuous': r.get('of_continuous'),
      'first_token_p95_ms': r.get('first_token_p95_ms'),
    }
    for r in rows
  }


@figure_style.in_style
def latency_by_rate(rows: list[dict]) -> Figure:
  """Median and 95th percentile by the rate at which requests come."""
  played, figure = _at_rates(rows), figure_style.blank(2.4)
  panels = figure.subplots(1, len(_TIMES))
  for axes, (name, word) in zip(panels, _TIMES.items(), strict=True):
    for mine in group(played, 'drafter', 'gamma').values():
      for percent, line in ((50, '-'), (95, '--')):
        axes.plot(
          [r['requests_per_second'] for r in mine],
          [r[f'{name}_p{percent}_ms'] for r in mine],
          line,
          label=figure_style.plain(f'{_name(mine[0])}, p{percent}'),
          **figure_style.look(mine[0], rows),
        )
    axes.set_title(f'{word}, ms')
    axes.set_xlabel('requests a second')
    axes.set_yscale('log')
  return figure_style.finish(
    figure,
    rows,
    'Times begin when a request was scheduled to come. The same requests at '
    'the same times for all; rates are fractions of what plain decoding '
    'saturates at.',
  )


def figures(rows: list[dict]) -> tuple[Callable[[list[dict]], Figure], ...]:
  return (latency_by_rate,) if _at_rates(rows) else ()
