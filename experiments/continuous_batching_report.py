"""Rows of `experiments.continuous_batching`: many prompts through few rows."""

from typing import Any

import numpy as np

from specjax.reports import intervals
from specjax.reports.conditions import machine, over_blocks, values
from specjax.reports.markdown import (
  Columns,
  Table,
  blocks,
  bullets,
  paragraph,
  with_interval,
)
from specjax.stats import metrics
from specjax.stats.row import pick


def fields(row: dict) -> dict[str, Any]:
  del row  # Unused: all rows have the same.
  numbers = ('tokens_per_second', 'tokens_per_second_with_reading', 'tau')
  beside = ('times_alone', 'times_static', 'same_text_as_alone')
  return {
    'drafter': str,
    'way': str,
    **dict.fromkeys(('gamma', 'prompts', 'batch'), int),
    'chunk': int | None,
    'temperature': float,
    **dict.fromkeys(numbers, float),
    **dict.fromkeys(beside, float | None),
    'efficiency': float | None,
    'tokens_per_second_ci?': tuple[float | None, ...] | None,
    'efficiency_ci?': tuple[float | None, ...] | None,
    **dict.fromkeys(('seconds_by_pass?', 'tokens_by_pass?'), tuple[float, ...]),
  }


BY_LOAD = ', by load'


def _pace(row: dict) -> np.ndarray:
  """Seconds of a token, by pass: sampled texts are not of one length."""
  return np.divide(row['seconds_by_pass'], row['tokens_by_pass'])


def _over(one: dict, other: dict) -> str:
  """How many times as fast one way was, of passes that took turns."""
  times = metrics.ratio(_pace(other), _pace(one))
  return with_interval(times.value, times.interval)


def _by_load(rows: list[dict]) -> list[str]:
  """A draft length by load beside each constant one."""
  lines = []
  timed = [
    r for r in pick(rows, way='continuous') if len(r.get('tokens_by_pass', ()))
  ]
  for one in timed:
    drafter, by_load, _ = one['drafter'].partition(BY_LOAD)
    same = pick(timed, chunk=one['chunk'])
    constant = pick(same, drafter=drafter)
    plain = pick(same, drafter='plain')
    if not by_load or not constant or not plain:
      continue
    best = min(constant + plain, key=lambda r: _pace(r).sum())
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
    mine = pick(rows, drafter=drafter, way='continuous')
    if mine and mine[0]['times_static'] is not None:
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


def _gamma(row: dict) -> str:
  """The draft length; '-' where it is none, or not a constant one."""
  return '-' if BY_LOAD in row['drafter'] else str(row['gamma'] or '-')


def _shown(value: float | None, form: str) -> str:
  return '-' if value is None else f'{value:{form}}'


_COLUMNS: Columns = (
  ('drafter', lambda r: r['drafter']),
  ('gamma', _gamma),
  ('way', lambda r: r['way']),
  ('chunk', lambda r: str(r['chunk'] or '-')),
  ('tokens/s', lambda r: intervals.shown(r, 'tokens_per_second', '.0f')),
  ('with reading', lambda r: f'{r["tokens_per_second_with_reading"]:.0f}'),
  ('x alone', lambda r: _shown(r['times_alone'], '.2f')),
  ('x static', lambda r: _shown(r['times_static'], '.2f')),
  ('efficiency', lambda r: intervals.shown(r, 'efficiency')),
  ('tau', lambda r: f'{r["tau"]:.2f}'),
  ('same text as alone', lambda r: _shown(r['same_text_as_alone'], '.1%')),
)


def summary(rows: list[dict]) -> str:
  """The headline, and a line for each way and drafter."""
  table = Table.of('Many prompts', '', _COLUMNS, rows)
  return blocks(headline(rows), table.markdown())
