"""Rows of `benchmarks.continuous_batching`: many prompts through few rows."""

from typing import Any

from experiments.measuring.selecting import pick
from experiments.reports import intervals
from experiments.reports.conditions import machine, over_blocks, values
from experiments.reports.markdown import (
  Columns,
  Table,
  blocks,
  bullets,
  paragraph,
  with_interval,
)
from specjax import metrics


def fields(row: dict) -> dict[str, Any]:
  del row  # Unused: all rows have the same.
  numbers = ('tokens_per_second', 'tokens_per_second_with_reading', 'tau')
  numbers += ('times_alone', 'times_static', 'same_text_as_alone')
  return {
    'drafter': str,
    'way': str,
    **dict.fromkeys(('gamma', 'prompts', 'batch'), int),
    'chunk': int | None,
    'temperature': float,
    **dict.fromkeys(numbers, float),
    'efficiency': float | None,
    'tokens_per_second_ci?': tuple[float | None, ...] | None,
    'efficiency_ci?': tuple[float | None, ...] | None,
    'seconds_by_pass?': tuple[float, ...],
  }


_BY_LOAD = ', by load'


def _over(one: dict, other: dict) -> str:
  """How many times as fast one way was, of passes that took turns."""
  times = metrics.ratio(other['seconds_by_pass'], one['seconds_by_pass'])
  return with_interval(times.value, times.interval)


def _by_load(rows: list[dict]) -> list[str]:
  """A draft length by load beside each constant one."""
  lines = []
  timed = [
    r for r in pick(rows, way='continuous') if len(r.get('seconds_by_pass', ()))
  ]
  for one in timed:
    drafter, by_load, _ = one['drafter'].partition(_BY_LOAD)
    same = pick(timed, chunk=one['chunk'])
    constant = pick(same, drafter=drafter)
    plain = pick(same, drafter='plain')
    if not by_load or not constant or not plain:
      continue
    best = min(constant + plain, key=lambda r: sum(r['seconds_by_pass']))
    lines.append(
      f'{one["drafter"]}, chunks of {one["chunk"]}: {_over(one, best)} times '
      f'as fast as the best constant length ({best["gamma"]}), '
      f'{_over(one, plain[0])} times as fast as plain decoding, of '
      f'{len(one["seconds_by_pass"])} passes that took turns'
    )
  return lines


def headline(rows: list[dict]) -> str:
  """How much faster each drafter is where rows get the next prompt at once."""
  clauses = []
  for drafter in dict.fromkeys(r['drafter'] for r in rows):
    if mine := pick(rows, drafter=drafter, way='continuous'):
      best = max(mine, key=lambda r: r['tokens_per_second'])
      clauses.append(
        f'{drafter}: {best["times_static"]:.2f} times batches that wait and '
        f'{best["times_alone"]:.2f} times single prompts, efficiency '
        f'{intervals.shown(best, "efficiency")}'
      )
  shortest, *_, longest = rows[0].get('new_tokens') or ['?']
  facts = [
    f'{values(rows, "prompts")} prompts',
    f'{values(rows, "batch")} rows',
    f'temperature {rows[0]["temperature"]:g}',
    f'{shortest} to {longest} new tokens',
  ]
  what = 'Where a row gets the next prompt as soon as it is done'
  return blocks(
    f'{what}, reading included:'
    if clauses
    else f'{what}, nothing was measured.',
    bullets(clauses + _by_load(rows)),
    paragraph(f'{machine(rows, facts)}. {over_blocks(rows)}'),
  )


_COLUMNS: Columns = (
  ('drafter', lambda r: r['drafter']),
  ('gamma', lambda r: str(r['gamma'] or '-')),
  ('way', lambda r: r['way']),
  ('chunk', lambda r: str(r['chunk'] or '-')),
  ('tokens/s', lambda r: intervals.shown(r, 'tokens_per_second', '.0f')),
  ('with reading', lambda r: f'{r["tokens_per_second_with_reading"]:.0f}'),
  ('x alone', lambda r: f'{r["times_alone"]:.2f}'),
  ('x static', lambda r: f'{r["times_static"]:.2f}'),
  ('efficiency', lambda r: intervals.shown(r, 'efficiency')),
  ('tau', lambda r: f'{r["tau"]:.2f}'),
  ('same text as alone', lambda r: f'{r["same_text_as_alone"]:.1%}'),
)


def summary(rows: list[dict]) -> str:
  """The headline, and a line for each way and drafter."""
  table = Table.of('Many prompts', '', _COLUMNS, rows)
  return blocks(headline(rows), table.markdown())
