"""The page of the certificate, and that of one thing on trial."""

from collections.abc import Callable
from typing import Any

from specjax.reports.conditions import machine
from specjax.reports.markdown import (
  Table,
  blocks,
  bullets,
  markdown,
  number,
  paragraph,
)
from specjax.stats.row import group, pick

EXACT = 1e-12  # largest error of a probability that counts as none


def _loop_cells(loops: list[dict]) -> list[str]:
  """Least p-value of a setting, that of all together, texts, and power."""
  if not loops:
    return ['not run', '-', '-', '-']
  single = [r for r in loops if r['setting'] != 'all']
  together = next(iter(pick(loops, setting='all')), {})
  return [
    number(min((r['p_value'] for r in single), default=None), '.2g'),
    number(together.get('p_value'), '.2g'),
    f'{sum(r["samples"] for r in single):,}',
    number(together.get('power'), '.3f'),
  ]


def distributions(rows: list[dict]) -> Table:
  """One line for every rule and drafter, the worst of its settings."""
  case = 'rule', 'drafter', 'model'
  loops = group(pick(rows, part='loop'), *case)
  lines = []
  for key, cells in group(pick(rows, part='distribution'), *case).items():
    rule, drafter, model = key
    lossless = cells[0]['lossless']
    error = max(c['max_error'] for c in cells)
    far = max(c['total_variation'] for c in cells)
    calls = [c['calls'] for c in pick(cells, setting='T 1')]
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
  head = ['rule', 'draft', 'settings', 'largest error', 'total variation']
  head += ['calls at T 1', 'loop: least p-value', 'of all', 'texts', 'power']
  return Table('Distribution of whole texts', '', head, lines)


def settings(rows: list[dict]) -> Table:
  """One line for every setting, the worst of the exact rules."""
  lines = []
  loops = group(pick(rows, part='loop'), 'setting')
  for setting, every in group(
    pick(rows, part='distribution'), 'setting'
  ).items():
    cells, ran = pick(every, lossless=True), loops.get(setting, [])
    error = max((c['max_error'] for c in cells), default=None)
    least = min((r['p_value'] for r in ran), default=None)
    exact = [str(len(cells)), number(error, '.0e')]
    lines.append([*setting, *exact, str(len(ran)), number(least, '.2g')])
  head = ['setting', 'exact cases', 'largest error', 'loops', 'least p-value']
  return Table('By setting', '', head, lines)


def _evidence(row: dict) -> str:
  """Says what a test found against a planted bug."""
  value = row['evidence']
  if row['test'] == 'loop':
    return 'p < 1e-300' if value >= 300 else f'p = 1e-{value:.0f}'
  units = {'distribution': 'error', 'memory': 'q off by'}
  return f'{units[row["test"]]} {value:.2g}'


_HOLDS = {True: 'yes', False: 'BROKEN', None: 'says nothing here'}
# Tables that have a line for each row of a part: a title, and what each column
# shows of the row. The last four are of one thing on trial.
_BY_ROW: dict[str, tuple[str, dict[str, str | Callable[[dict], str]]]] = {
  'mutant': ('Planted bugs', {
    'planted bug': '{mutant}', 'seen in': '{test}', 'setting': '{setting}',
    'evidence': _evidence,
    'caught': lambda r: 'yes' if r['caught'] else 'SURVIVED',
  }),
  'published': ('Tokens accepted by a step: published examples', {
    'rule': '{rule}', 'example': '{source}',
    'accepted (paper)': '{published:.4f}', 'accepted (here)': '{accepted:.4f}',
  }),
  'block': ('Block minus token verification, tokens per step', {
    'temperature': '{temperature:g}', 'gamma': '{gamma}',
    'random pairs': '{pairs}', 'least': '{least:.1e}', 'mean': '{mean:.4f}',
  }),
  'arithmetic': ('Precision: total variation of whole texts at T 1', {
    'precision': '{dtype}', 'rule': '{rule}', 'draft': '{drafter}',
    'from plain decoding in it': '{total_variation:.1e}',
    'plain decoding in it from float64': '{of_plain:.1e}',
  }),
  'law': ('Laws', {
    'law': '{law}', 'what must hold': '{says}',
    'holds': lambda r: _HOLDS[r['holds']], '': '{detail}',
  }),
  'step': ('Small steps: simple p and q, every draft, every coin', {
    'draft': '{draft}', 'vocabulary': '{vocabulary}',
    'pairs of p and q': '{examples}', 'wrong': '{faults}',
    'worst total variation': lambda r: number(r['worst'], '.3g'),
  }),
  'texts': ('Texts of the compiled loop beside those of the target', {
    'setting': '{setting}', 'texts': '{samples:,}', 'p-value': '{p_value:.2g}',
    'below is an alarm': '{level:.1e}',
  }),
  'foreign': ('Settings', {
    'setting': '{setting}', 'pairs of p and q': '{pairs}',
    'enumerated': '{enumerated}', 'drafts': '{drafts}',
    'worst total variation': lambda r: number(r['worst'], '.1e'),
    'random steps': '{steps:,}',
    'not as enumerated': '{strays} of {checked:,}', 'p-value': '{p_value:.2g}',
    'below is an alarm': '{level:.1e}',
    'would have seen': lambda r: number(r['least_seen'] or None, '.2g'),
  }),
  'planted': ('Bugs planted in it', {
    'planted bug': '{bug}',
    'seen': lambda r: (
      '-' if not r['applies'] else 'yes' if r['caught'] else 'NO'
    ),
    '': '{detail}',
  }),
}  # fmt: skip


def _by_row(rows: list[dict]) -> list[Table]:
  tables = []
  for part, (title, columns) in _BY_ROW.items():
    lines = [
      [
        show.format_map(row) if isinstance(show, str) else show(row)
        for show in columns.values()
      ]
      for row in pick(rows, part=part)
    ]
    if part == 'arithmetic':  # One precision after the other.
      order = list(dict.fromkeys(line[0] for line in lines))
      lines.sort(key=lambda line, order=order: order.index(line[0]))
    tables.append(Table(title, '', list(columns), lines))
  return tables


def _found(rows: list[dict]) -> list[list[str]]:
  """Returns what was certified and the result; parts that ran alone."""
  facts, loops = verdict(rows), pick(rows, part='loop')
  lines = []
  caught = facts['mutants'] - facts['survivors']
  missed = [r['mutant'] for r in pick(rows, part='mutant') if not r['caught']]
  if facts['max_error'] is not None:
    error = f'{facts["max_error"]:.0e}'
    lines.append(['largest error of a whole text with exact rules', error])
  if loops:
    name = f'tests of compiled loops with p below {loops[0]["level"]:.1e}'
    lines.append([name, f'{facts["alarms"]} of {facts["tests"]}'])
  if facts['mutants']:
    lines.append(['planted bugs found', f'{caught} of {facts["mutants"]}'])
  lines += [['planted bug not found', name] for name in missed]
  for (dtype,), same in group(pick(rows, part='arithmetic'), 'dtype').items():
    name = f'total variation from plain decoding in {dtype}, at most'
    lines.append([name, f'{max(r["total_variation"] for r in same):.0e}'])
  return lines


def headline(rows: list[dict]) -> str:
  """Says whether the certificate holds, and where it was made."""
  failures = verdict(rows)['failures']
  ends = pick(rows, part='end')
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
  found = _found(rows)
  table = markdown(['what', 'result'], found) if found else ''
  return blocks(paragraph(holds), table, *map(paragraph, where))


def summary(rows: list[dict]) -> str:
  """Returns the certificate."""
  tables = [distributions(rows), settings(rows), *_by_row(rows)]
  return blocks(headline(rows), *(t.markdown() for t in tables if t.lines))


def verdict(rows: list[dict]) -> dict:
  """Returns what the last line of the program says."""
  exact = pick(rows, part='distribution', lossless=True)
  planted = pick(rows, part='mutant')
  survivors = [r['mutant'] for r in planted if not r['caught']]
  errors = [r for r in exact if r['max_error'] > EXACT]
  alarms = [r for r in pick(rows, part='loop') if r['p_value'] < r['level']]
  toys = [
    r
    for r in pick(rows, part='published')
    if abs(r['accepted'] - r['published']) > EXACT
  ]
  worse = [
    r
    for r in pick(rows, part='block')
    if r['least'] < -EXACT
    or ((r['gamma'] == 1 or r['temperature'] == 0) and abs(r['mean']) > EXACT)
  ]
  return {
    'max_error': max((r['max_error'] for r in exact), default=None),
    'tests': len(pick(rows, part='loop')),
    'alarms': len(alarms),
    'mutants': len(planted),
    'survivors': len(survivors),
    'failures': len(errors + alarms + toys + worse) + len(survivors),
  }


# One thing on trial


def _words(value: Any) -> str:
  if isinstance(value, dict):
    return '; '.join(f'{k}: {_words(v)}' for k, v in value.items())
  if isinstance(value, list):
    return f'({", ".join(map(str, value))})'
  return str(value)


def _counterexample(found: dict) -> str:
  apart = 'expected', 'obtained', 'drafts'
  usual = 'chosen', 'drafts_left_out'  # Left out where they are 0.
  expected, obtained, drafts = map(found.get, apart)
  head = ['drafted', 'with chance', 'accepted with', 'then drawn from']
  columns = 'drafted', 'chance', 'accepts', 'then_draws_from'
  lines = [[_words(d[name]) for name in columns] for d in drafts or ()]
  compared = [[n, str(expected[n]), str(obtained[n])] for n in expected]
  return blocks(
    '### Counterexample\n',
    bullets(
      f'{name.replace("_", " ")}: {_words(value)}'
      for name, value in found.items()
      if name not in apart and (value or name not in usual)
    ),
    markdown(head, lines) if lines else '',
    markdown(['', 'expected', 'obtained'], compared),
  )


def page(rows: list[dict]) -> str:
  """Returns the page of one thing on trial."""
  (end,) = pick(rows, part='verdict')
  tables = [*_by_row(rows), distributions(rows)]
  found, said = end['counterexample'], (end['verdict'], end['why'])
  return blocks(
    f'## {end["kind"]} {end["name"]}\n',
    paragraph(f'Verdict: {": ".join(filter(None, said))}.'),
    paragraph(f'Remedy: {end["remedy"]}.') if end['remedy'] else '',
    _counterexample(found) if found else '',
    bullets(end['notes']),
    *(t.markdown() for t in tables if t.lines),
    paragraph(f'Took {end["seconds"]:.0f} s. {machine([end])}.'),
  )


def last_line(rows: list[dict]) -> dict:
  """Returns the last line of the program for one thing on trial."""
  (end,) = pick(rows, part='verdict')
  fields = 'kind', 'name', 'exact', 'verdict', 'why', 'remedy', 'counterexample'
  return {name: end[name] for name in fields}
