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
)


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
  }


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
    bullets(clauses),
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
