"""Rows of `experiments.against_huggingface`: decoders of two libraries."""

from typing import Any

from specjax.reports import intervals
from specjax.reports.conditions import machine, over_blocks, values
from specjax.reports.markdown import (
  Columns,
  Table,
  blocks,
  bullets,
  number,
  paragraph,
)
from specjax.stats.row import by_place, pick

_COLUMNS: Columns = (
  ('method', lambda r: r['method']),
  ('draft', lambda r: r['draft'] or '-'),
  ('gamma', lambda r: str(r['gamma'] or '-')),
  ('tokens/s', lambda r: f'{r["tokens_per_second"]:.1f}'),
  (
    'without the prompt',
    lambda r: number(r['decoding_tokens_per_second'] or None, '.1f'),
  ),
  ('x transformers plain', lambda r: intervals.shown(r, 'speedup')),
  ('same text', lambda r: str(r.get('greedy_identical', '-'))),
)


def fields(row: dict) -> dict[str, Any]:
  del row  # Unused: all rows have the same.
  return {
    'method': str,
    'draft': str | None,
    'gamma': int | None,
    'domain': str,
    'temperature': float,
    'prompts': int,
    'tokens_per_second': float,
    'decoding_tokens_per_second': float | None,
    'speedup': float,
    'speedup_ci': tuple[float, ...] | None,
    'greedy_identical?': int | None,
    'peer?': dict[str, Any],
  }


def _place(row: dict) -> str:
  return f'{row["domain"]}, temperature {row["temperature"]:g}'


def _fastest(rows: list[dict]) -> str:
  """The fastest method of each library, in one place."""
  winners = []
  for library in ('specjax', 'transformers'):
    mine = [r for r in rows if r['method'].startswith(library)]
    if mine:
      best = max(mine, key=lambda r: r['speedup'])
      draft = f' ({best["draft"]})' if best['draft'] else ''
      winners.append(
        f'{best["method"]}{draft} {intervals.shown(best, "speedup")}'
      )
  return f'{_place(rows[0])}: {", ".join(winners)}'


def headline(rows: list[dict]) -> str:
  """The fastest of either library, over plain decoding of transformers."""
  peer = rows[0].get('peer') or {}
  facts = [
    f'{values(rows, "threads")} threads',
    f'torch {peer["torch"]}' if 'torch' in peer else '',
    f'{peer["attention"]} attention' if 'attention' in peer else '',
    f'transformers {(rows[0].get("versions") or {}).get("transformers", "?")}',
  ]
  places = by_place(pick(rows, domain='all') or rows).values()
  return blocks(
    paragraph(
      'The fastest method of either library, in times plain decoding of '
      'transformers, the prompt included:'
    ),
    bullets(map(_fastest, places)),
    paragraph(f'{machine(rows, facts)}. {over_blocks(rows)}'),
  )


def summary(rows: list[dict]) -> str:
  """The headline, and a table for each temperature and domain."""
  tables = [
    Table.of(
      f'{_place(here[0])}, {here[0]["prompts"]} prompts', '', _COLUMNS, here
    ).markdown()
    for here in by_place(rows).values()
  ]
  return blocks(headline(rows), *tables)
