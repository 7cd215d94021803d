"""Rows of `experiments.constrained`: acceptance and speed within languages."""

from typing import Any

from specjax.reports import intervals, paired
from specjax.reports.conditions import baseline, machine, values
from specjax.reports.markdown import (
  Columns,
  Table,
  blocks,
  bullets,
  paragraph,
  with_interval,
)
from specjax.stats.row import pick

_NONE = 'none'


def fields(row: dict) -> dict[str, Any]:
  del row  # Unused: all rows have the same.
  counts = ('gamma', 'prompts', 'new_tokens', 'states', 'classes')
  numbers = ('alpha', 'forced', 'tau', 'speedup')
  ends = tuple[float | None, ...] | None
  return {
    **dict.fromkeys(('language', 'drafter', 'domain'), str),
    'masked': bool,
    'temperature': float,
    **dict.fromkeys(counts, int),
    **dict.fromkeys(numbers, float),
    'free_alpha': float | None,
    'ended': float,
    **{f'{name}_ci?': ends for name in (*numbers, 'free_alpha')},
  }


def _free(row: dict, rows: list[dict]) -> dict | None:
  """The row of the same drafter without a constraint."""
  same = pick(
    rows,
    language=_NONE,
    drafter=row['drafter'],
    gamma=row['gamma'],
    temperature=row['temperature'],
  )
  return same[0] if same else None


def _change(row: dict, rows: list[dict]) -> str:
  """Alpha less that without a constraint, on the same prompts."""
  free = _free(row, rows)
  if free is None or row is free:
    return '-'
  change = paired.difference(free, row, paired.ALPHA)
  if change is None:
    return '-'
  return with_interval(change.value, change.interval, '+.2f')


def _told(row: dict) -> str:
  if row['language'] == _NONE or not row.get('draft'):
    return '-'  # What is copied or looked up has no distribution to mask.
  return 'masked' if row['masked'] else 'not masked'


def _number(row: dict, name: str, form: str = '.2f') -> str:
  return '-' if row[name] is None else intervals.shown(row, name, form)


def _columns(rows: list[dict]) -> Columns:
  return (
    ('language', lambda r: r['language']),
    ('states', lambda r: str(r['states'] or '-')),
    ('T', lambda r: f'{r["temperature"]:g}'),
    ('drafter', lambda r: f'{r["drafter"]}, {r["gamma"]}'),
    ('draft', _told),
    ('forced', lambda r: f'{r["forced"]:.0%}'),
    ('alpha', lambda r: _number(r, 'alpha')),
    ('change', lambda r: _change(r, rows)),
    ('free alpha', lambda r: _number(r, 'free_alpha')),
    ('tau', lambda r: _number(r, 'tau')),
    ('speed-up', lambda r: _number(r, 'speedup')),
    ('ended', lambda r: f'{r["ended"]:.0%}'),
  )


def _span(rows: list[dict], name: str) -> str:
  found = [row[name] for row in rows]
  return f'{min(found):.2f} to {max(found):.2f}'


def headline(rows: list[dict]) -> str:
  """What constraints did to acceptance, for each draft of its own."""
  clauses = []
  models = [r for r in rows if r.get('draft') and r['masked']]
  for drafter in dict.fromkeys(r['drafter'] for r in models):
    for temperature in dict.fromkeys(r['temperature'] for r in models):
      mine = pick(models, drafter=drafter, temperature=temperature)
      bound = [r for r in mine if r['language'] != _NONE]
      free = pick(mine, language=_NONE)
      blind = [
        r
        for r in pick(rows, drafter=drafter, temperature=temperature)
        if not r['masked']
      ]
      if not (bound and free):
        continue
      clause = (
        f'{drafter} at temperature {temperature:g}: alpha '
        f'{free[0]["alpha"]:.2f} without a constraint, {_span(bound, "alpha")} '
        f'with one'
      )
      if blind:
        clause += f' ({_span(blind, "alpha")} where the draft is not masked)'
      clause += (
        f'; speed-up {free[0]["speedup"]:.2f}, and {_span(bound, "speedup")}'
      )
      clauses.append(clause)
  forced = [r['forced'] for r in rows if r['language'] != _NONE]
  share = f'{min(forced):.0%} to {max(forced):.0%}' if forced else 'none'
  facts = [
    f'{values(rows, "prompts")} prompts ({values(rows, "domain")})',
    f'up to {values(rows, "new_tokens")} new tokens',
  ]
  where = machine(rows, facts)
  how = baseline(rows)
  return blocks(
    f'Of the tokens {share} were the only ones allowed:'
    if clauses
    else 'Nothing was measured with a constraint and without.',
    bullets(clauses),
    paragraph(f'{where}; {how}.' if how else f'{where}.'),
  )


def summary(rows: list[dict]) -> str:
  """The headline, and a line for each language, drafter and temperature."""
  table = Table.of('Constrained texts', '', _columns(rows), rows)
  return blocks(headline(rows), table.markdown())
