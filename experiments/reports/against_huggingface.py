"""Rows of `benchmarks.against_huggingface`: decoders of two libraries."""

from typing import Any

from experiments.reports import intervals
from experiments.reports.conditions import machine, over_blocks, values
from experiments.reports.markdown import (
  Table,
  blocks,
  bullets,
  number,
  paragraph,
)

_HEAD = ['method', 'draft', 'gamma', 'tokens/s', 'without the prompt']
_HEAD += ['x transformers plain', 'same text']


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


def _places(rows: list[dict]) -> list[list[dict]]:
  """The rows of each temperature and domain."""
  found: dict[tuple, list[dict]] = {}
  for row in rows:
    found.setdefault((row['temperature'], row['domain']), []).append(row)
  return list(found.values())


def _fastest(rows: list[dict]) -> str:
  """The fastest method of each library, in one place."""
  said = []
  for library in ('specjax', 'transformers'):
    mine = [r for r in rows if r['method'].startswith(library)]
    if mine:
      best = max(mine, key=lambda r: r['speedup'])
      draft = f' ({best["draft"]})' if best['draft'] else ''
      said.append(f'{best["method"]}{draft} {intervals.shown(best, "speedup")}')
  first = rows[0]
  return (
    f'{first["domain"]}, temperature {first["temperature"]:g}: '
    f'{", ".join(said)}'
  )


def headline(rows: list[dict]) -> str:
  """The fastest of either library, over plain decoding of transformers."""
  peer = rows[0].get('peer') or {}
  facts = [
    f'{values(rows, "threads")} threads',
    f'torch {peer["torch"]}' if 'torch' in peer else '',
    f'{peer["attention"]} attention' if 'attention' in peer else '',
    f'transformers {(rows[0].get("versions") or {}).get("transformers", "?")}',
  ]
  places = _places(rows)
  whole = [found for found in places if found[0]['domain'] == 'all']
  return blocks(
    paragraph(
      'The fastest method of either library, in times plain decoding of '
      'transformers, the prompt included:'
    ),
    bullets(map(_fastest, whole or places)),
    paragraph(f'{machine(rows, facts)}. {over_blocks(rows)}'),
  )


def _line(row: dict) -> list[str]:
  return [
    row['method'],
    row['draft'] or '-',
    str(row['gamma'] or '-'),
    f'{row["tokens_per_second"]:.1f}',
    number(row['decoding_tokens_per_second'] or None, '.1f'),
    intervals.shown(row, 'speedup'),
    str(row.get('greedy_identical', '-')),
  ]


def summary(rows: list[dict]) -> str:
  """The headline, and a table for each temperature and domain."""
  tables = [
    Table(
      f'{found[0]["domain"]}, temperature {found[0]["temperature"]:g}, '
      f'{found[0]["prompts"]} prompts',
      '',
      _HEAD,
      [_line(row) for row in found],
    ).markdown()
    for found in _places(rows)
  ]
  return blocks(headline(rows), *tables)
