"""Rows of `experiments.certify`: the certificate's verdict and its tables."""

from typing import Any

from experiments.reports.conditions import machine
from experiments.reports.markdown import (
  Table,
  blocks,
  bullets,
  number,
  paragraph,
)

EXACT = 1e-12  # largest error of a probability that counts as none
_FIELDS: dict[str, dict[str, Any]] = {
  'distribution': {
    **dict.fromkeys(('rule', 'drafter', 'model', 'setting'), str),
    'lossless': bool,
    **dict.fromkeys(('max_error', 'total_variation', 'calls'), float),
  },
  'loop': {
    **dict.fromkeys(('rule', 'drafter', 'model', 'setting'), str),
    'samples': int,
    **dict.fromkeys(('p_value', 'level'), float),
    'power': float | None,
  },
  'published': {
    **dict.fromkeys(('rule', 'source'), str),
    **dict.fromkeys(('published', 'accepted'), float),
  },
  'block': {
    **dict.fromkeys(('gamma', 'pairs'), int),
    **dict.fromkeys(('temperature', 'least', 'mean'), float),
  },
  'numbers': {
    'check': str,
    **dict.fromkeys(('deviation', 'bound'), float),
  },
  'mutant': {
    **dict.fromkeys(('mutant', 'test', 'setting'), str),
    'evidence': float,
    'caught': bool,
  },
  'arithmetic': {
    **dict.fromkeys(('rule', 'drafter', 'dtype'), str),
    **dict.fromkeys(('total_variation', 'of_plain'), float),
  },
  'end': dict.fromkeys(('seconds', 'boost'), float),
}


def fields(row: dict) -> dict[str, Any]:
  return {'part': str, **_FIELDS.get(str(row.get('part')), {})}


def _part(rows: list[dict], part: str) -> list[dict]:
  return [row for row in rows if row['part'] == part]


def _by_case(rows: list[dict]) -> dict[tuple, list[dict]]:
  """Rows of each rule, drafter and model: one for every setting."""
  cases: dict[tuple, list[dict]] = {}
  for row in rows:
    key = row['rule'], row['drafter'], row['model']
    cases.setdefault(key, []).append(row)
  return cases


def _loop_cells(loops: list[dict]) -> list[str]:
  """Least p-value of a setting, that of all together, texts, and power."""
  if not loops:
    return ['not run', '-', '-', '-']
  single = [r for r in loops if r['setting'] != 'all']
  together = next((r for r in loops if r['setting'] == 'all'), {})
  return [
    number(min((r['p_value'] for r in single), default=None), '.2g'),
    number(together.get('p_value'), '.2g'),
    f'{sum(r["samples"] for r in single):,}',
    number(together.get('power'), '.3f'),
  ]


def distributions(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
  """One line for every rule and drafter, the worst of its settings."""
  loops = _by_case(_part(rows, 'loop'))
  lines = []
  for key, cells in _by_case(_part(rows, 'distribution')).items():
    rule, drafter, model = key
    lossless = cells[0]['lossless']
    error = max(c['max_error'] for c in cells)
    far = max(c['total_variation'] for c in cells)
    calls = [c['calls'] for c in cells if c['setting'] == 'T 1']
    lines.append(
      [
        rule if lossless else f'{rule} (lossy)',
        drafter if model == 'table' else f'{drafter}, {model}',
        str(len(cells)),
        f'{error:.0e}' if lossless else '-',
        f'{far:.0e}' if lossless else f'{far:.3f}',
        number(calls[0] if calls else None, '.3f'),
        *_loop_cells(loops.get(key, [])),
      ]
    )
  head = [
    'rule',
    'draft',
    'settings',
    'largest error',
    'total variation',
    'calls at T 1',
    'loop: least p-value',
    'of all',
    'texts',
    'power',
  ]
  return head, lines


def settings(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
  """One line for every setting, the worst of the exact rules."""
  lines: list[list[str]] = []
  part, loops = _part(rows, 'distribution'), _part(rows, 'loop')
  for name in dict.fromkeys(r['setting'] for r in part):
    cells = [r for r in part if r['setting'] == name and r['lossless']]
    ran = [r for r in loops if r['setting'] == name]
    least = min((r['p_value'] for r in ran), default=None)
    lines.append(
      [
        name,
        str(len(cells)),
        number(max((c['max_error'] for c in cells), default=None), '.0e'),
        str(len(ran)),
        number(least, '.2g'),
      ]
    )
  return [
    'setting',
    'exact cases',
    'largest error',
    'loops',
    'least p-value',
  ], lines


def numbers(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
  """Checks of the measuring code; certificates of older programs have none."""
  lines = [
    [
      row['check'],
      f'{row["deviation"]:.2g}',
      f'{row["bound"]:.2g}',
      'OFF' if _is_off(row) else 'yes',
    ]
    for row in _part(rows, 'numbers')
  ]
  return ['check', 'off by', 'at most', 'holds'], lines


def _is_off(row: dict) -> bool:
  # A deviation that is no number is none within the bound.
  return not row['deviation'] <= row['bound']


def mutants(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
  lines = []
  for row in _part(rows, 'mutant'):
    unit = {
      'distribution': f'error {row["evidence"]:.2g}',
      'loop': f'p = 1e-{row["evidence"]:.0f}',
      'memory': f'q off by {row["evidence"]:.2g}',
      'numbers': f'off by {row["evidence"]:.2g}',
    }[row['test']]
    if row['test'] == 'loop' and row['evidence'] >= 300:
      unit = 'p < 1e-300'
    verdict = 'yes' if row['caught'] else 'SURVIVED'
    lines.append([row['mutant'], row['test'], row['setting'], unit, verdict])
  return ['planted bug', 'seen in', 'setting', 'evidence', 'caught'], lines


def published(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
  lines = [
    [
      row['rule'],
      row['source'],
      f'{row["published"]:.4f}',
      f'{row["accepted"]:.4f}',
    ]
    for row in _part(rows, 'published')
  ]
  return ['rule', 'example', 'accepted (paper)', 'accepted (here)'], lines


def block(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
  lines = [
    [
      f'{row["temperature"]:g}',
      str(row['gamma']),
      str(row['pairs']),
      f'{row["least"]:.1e}',
      f'{row["mean"]:.4f}',
    ]
    for row in _part(rows, 'block')
  ]
  return ['temperature', 'gamma', 'random pairs', 'least', 'mean'], lines


def arithmetic(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
  lines = []
  for row in _part(rows, 'arithmetic'):
    lines.append(
      [
        row['dtype'],
        row['rule'],
        row['drafter'],
        f'{row["total_variation"]:.1e}',
        f'{row["of_plain"]:.1e}',
      ]
    )
  order = list(dict.fromkeys(line[0] for line in lines))
  lines.sort(key=lambda line: order.index(line[0]))
  return [
    'precision',
    'rule',
    'draft',
    'from plain decoding in it',
    'plain decoding in it from float64',
  ], lines


_SECTIONS = (
  ('Distribution of whole texts', distributions),
  ('By setting', settings),
  ('Measuring code', numbers),
  ('Planted bugs', mutants),
  ('Tokens accepted by a step: published examples', published),
  ('Block minus token verification, tokens per step', block),
  ('Precision: total variation of whole texts at T 1', arithmetic),
)


def _parts(rows: list[dict]) -> list[str]:
  """What was certified, part by part; parts that were not run are left out."""
  found = verdict(rows)
  said = []
  if found['max_error'] is not None:
    said.append(
      'with exact rules a whole text has the probability that the target gives '
      f'it, up to {found["max_error"]:.0e}'
    )
  if found['tests']:
    level = _part(rows, 'loop')[0]['level']
    said.append(
      f'{found["alarms"]} of {found["tests"]} tests of compiled loops give an '
      f'alarm, which is a p-value below {level:.1e}: all share one false-alarm '
      'rate'
    )
  if checks := _part(rows, 'numbers'):
    off = sum(map(_is_off, checks))
    said.append(f'{off} of {len(checks)} checks of the measuring code are off')
  if found['mutants']:
    caught = found['mutants'] - found['survivors']
    said.append(f'{caught} of {found["mutants"]} planted bugs are found')
    missed = [r['mutant'] for r in _part(rows, 'mutant') if not r['caught']]
    said += [f'not found: {name}' for name in missed]
  precise: dict[str, float] = {}
  for row in _part(rows, 'arithmetic'):
    known = precise.get(row['dtype'], 0.0)
    precise[row['dtype']] = max(known, row['total_variation'])
  if precise:
    moves = ', '.join(f'{far:.0e} in {name}' for name, far in precise.items())
    said.append(
      'from plain decoding in the same precision the distribution of a text '
      f'moves by at most {moves}'
    )
  return said


def headline(rows: list[dict]) -> str:
  """Whether the certificate holds, what of it, and where it was made."""
  failures = verdict(rows)['failures']
  ends = _part(rows, 'end')
  if failures:
    holds = f'The certificate does not hold: {failures} of its checks fail.'
  elif ends:
    holds = 'The certificate holds: nothing that should hold fails.'
  else:
    holds = 'The certificate is not finished; so far nothing fails.'
  where = [
    f'Power is that of all settings together against acceptance '
    f'{end["boost"]:g} times as likely. Took {end["seconds"]:.0f} s. '
    f'{machine([end])}.'
    for end in ends
  ]
  return blocks(paragraph(holds), bullets(_parts(rows)), *map(paragraph, where))


def summary(rows: list[dict]) -> str:
  """The certificate."""
  parts = [headline(rows)]
  for title, make in _SECTIONS:
    head, lines = make(rows)
    if lines:
      parts.append(Table(title, '', head, lines).markdown())
  return blocks(*parts)


def verdict(rows: list[dict]) -> dict:
  """What the last line of the program says."""
  exact = [r for r in _part(rows, 'distribution') if r['lossless']]
  planted = _part(rows, 'mutant')
  survivors = [r['mutant'] for r in planted if not r['caught']]
  errors = [r for r in exact if r['max_error'] > EXACT]
  alarms = [r for r in _part(rows, 'loop') if r['p_value'] < r['level']]
  toys = [
    r
    for r in _part(rows, 'published')
    if abs(r['accepted'] - r['published']) > EXACT
  ]
  worse = [
    r
    for r in _part(rows, 'block')
    if r['least'] < -EXACT
    or ((r['gamma'] == 1 or r['temperature'] == 0) and abs(r['mean']) > EXACT)
  ]
  off = [r for r in _part(rows, 'numbers') if _is_off(r)]
  return {
    'max_error': max((r['max_error'] for r in exact), default=None),
    'tests': len(_part(rows, 'loop')),
    'alarms': len(alarms),
    'mutants': len(planted),
    'survivors': len(survivors),
    'failures': len(errors + alarms + toys + worse + off) + len(survivors),
  }
