"""The page of one rule, drafter or policy: its verdict, and what was seen."""

from typing import Any

from specjax.reports.certify import distributions
from specjax.reports.conditions import machine
from specjax.reports.markdown import (
  Columns,
  Table,
  blocks,
  bullets,
  markdown,
  number,
  paragraph,
)
from specjax.stats.row import pick

_HOLDS = {True: 'yes', False: 'BROKEN', None: 'says nothing here'}
_TABLES: dict[str, tuple[str, Columns]] = {
  'law': (
    'Laws',
    (
      ('law', lambda r: str(r['law'])),
      ('what must hold', lambda r: r['says']),
      ('holds', lambda r: _HOLDS[r['holds']]),
      ('', lambda r: r['detail']),
    ),
  ),
  'step': (
    'Small steps: simple p and q, every draft, every coin',
    (
      ('draft', lambda r: r['draft']),
      ('vocabulary', lambda r: str(r['vocabulary'])),
      ('pairs of p and q', lambda r: str(r['examples'])),
      ('wrong', lambda r: str(r['faults'])),
      ('worst total variation', lambda r: number(r['worst'], '.3g')),
    ),
  ),
  'texts': (
    'Texts of the compiled loop beside those of the target',
    (
      ('setting', lambda r: r['setting']),
      ('texts', lambda r: f'{r["samples"]:,}'),
      ('p-value', lambda r: f'{r["p_value"]:.2g}'),
      ('below is an alarm', lambda r: f'{r["level"]:.1e}'),
    ),
  ),
  'planted': (
    'Bugs planted in it',
    (
      ('planted bug', lambda r: r['bug']),
      (
        'seen',
        lambda r: ('yes' if r['caught'] else 'NO') if r['applies'] else '-',
      ),
      ('', lambda r: r['detail']),
    ),
  ),
}
_TITLES = {
  'p': 'p, of the target',
  'q': 'q, of the draft',
  'chosen': 'tokens are chosen, probs are None',
}


def _words(value: Any) -> str:
  if isinstance(value, dict):
    return '; '.join(f'{k}: {_words(v)}' for k, v in value.items())
  if isinstance(value, list):
    return f'({", ".join(map(str, value))})'
  return str(value)


def _drafts(found: dict) -> str:
  """What the rule does with every draft."""
  lines = [
    [
      draft['drafted'],
      draft['chance'],
      _words(draft['accepts']),
      _words(draft['then_draws_from']),
    ]
    for draft in found['drafts']
  ]
  head = ['drafted', 'with chance', 'accepted with', 'then drawn from']
  return markdown(head, lines)


def _compared(found: dict) -> str:
  names = list(found['expected'])
  lines = [
    [n, str(found['expected'][n]), str(found['obtained'][n])] for n in names
  ]
  return markdown(['', 'expected', 'obtained'], lines)


def counterexample(found: dict) -> str:
  """A counterexample as a person reads it."""
  plain = {
    _TITLES.get(name, name.replace('_', ' ')): value
    for name, value in found.items()
    if name not in ('drafts', 'expected', 'obtained', 'drafts_left_out')
    or not isinstance(value, dict | list)
    if not (name in ('chosen', 'drafts_left_out') and not value)
  }
  rows = found.get('drafts')
  return blocks(
    '### Counterexample\n',
    bullets(f'{name}: {_words(value)}' for name, value in plain.items()),
    _drafts(found) if isinstance(rows, list) else '',
    _compared(found),
  )


def page(rows: list[dict]) -> str:
  """The verdict in one page."""
  (end,) = pick(rows, part='verdict')
  tables = [
    Table.of(title, '', columns, pick(rows, part=part))
    for part, (title, columns) in _TABLES.items()
  ]
  tables.append(distributions(rows))
  found = end['counterexample']
  return blocks(
    f'## {end["kind"]} {end["name"]}\n',
    paragraph(f'Verdict: {end["verdict"]}.'),
    counterexample(found) if found else '',
    bullets(end['notes']),
    *(t.markdown() for t in tables if t.lines),
    paragraph(f'Took {end["seconds"]:.0f} s. {machine([end])}.'),
  )


def last_line(rows: list[dict]) -> dict:
  """What the last line of the program says."""
  (end,) = pick(rows, part='verdict')
  fields = 'kind', 'name', 'exact', 'verdict', 'counterexample'
  return {name: end[name] for name in fields}
