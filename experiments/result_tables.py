"""The tables and sentences of summary.md, from rows of `experiments.run`."""

from experiments import comparison, differences, intervals, prompts
from experiments.markdown import Table, markdown, with_interval


def _number(row, name, digits) -> str:
  return '-' if row[name] is None else f'{row[name]:.{digits}f}'


COLUMNS = (
  ('drafter', lambda r: r['drafter']),
  ('rule', lambda r: r['verifier'] + ('' if r['lossless'] else ' (lossy)')),
  ('gamma', lambda r: str(r['gamma'])),
  ('alpha', lambda r: intervals.shown(r, 'alpha')),
  ('tau', lambda r: intervals.shown(r, 'tau')),
  ('no bonus', lambda r: _number(r, 'tau_without_bonus', 2)),
  (
    'accepted at 1, 2, ...',
    lambda r: ' '.join(f'{a:.2f}' for a in r['acceptance_by_position']),
  ),
  ('tokens/s', lambda r: _number(r, 'tokens_per_second', 0)),
  ('speed-up', lambda r: intervals.shown(r, 'speedup')),
  ('predicted', lambda r: _number(r, 'predicted_speedup', 2)),
  ('c', lambda r: _number(r, 'c', 3)),
  ('v', lambda r: _number(r, 'v', 2)),
)

COUNTING = """
How it is counted: **alpha** is the mean of sum(min(p, q)) over prefixes that
the target generated, **tau** tokens per target call with the bonus or corrected
token, **no bonus** the mean accepted length of the whole steps. A step that the
end of the text or the limit cut short counts in tokens and target calls alone,
and a row that has finished counts nowhere. Where nothing was proposed, beta is
0. Intervals are 95% by bootstrap over prompts (of speeds: over batches).
"""


def _greedy(cells: list[dict]) -> str:
  """How many greedy texts were those of plain decoding, and what differed."""
  if cells[0]['temperature'] or not cells[0]['lossless']:
    return ''
  texts = sum(r['prompts'] for r in cells if r['lossless'])
  same = sum(r['identical_to_plain'] for r in cells if r['lossless'])
  found = [
    d['verdict'] for r in cells for d in r['differences'] if r['lossless']
  ]
  note = ''
  if found:
    note = f', {found.count("tie")} ties, {found.count("bug")} bugs'
  return f'; {same} of {texts} texts identical to it{note}'


def _prompts(row: dict) -> str:
  """What was continued; rows of older programs do not say."""
  if not row.get('prompts_from'):
    return ''
  return prompts.describe(row['prompts'], row['prompts_from'])


def cells(rows: list[dict]) -> list[Table]:
  """A table for each domain and temperature."""
  made = []
  for where in dict.fromkeys((r['domain'], r['temperature']) for r in rows):
    found = [r for r in rows if (r['domain'], r['temperature']) == where]
    first = found[0]
    speed, repeated = first['baseline_tokens_per_second'], first['repetition']
    timed = 'not timed' if speed is None else f'{speed:.0f} tokens/s'
    title = f'{where[0]}, temperature {where[1]:g}: plain decoding {timed}'
    if repeated is not None:
      title += f', {repeated:.0%} of its 4-grams repeated'
    title += _greedy(found)
    lines = [[show(r) for _, show in COLUMNS] for r in found]
    head = [name for name, _ in COLUMNS]
    made.append(Table(title, _prompts(first), head, lines))
  return made


def table(rows: list[dict]) -> str:
  """Markdown tables, one for each domain and temperature."""
  return '\n'.join(one.markdown() for one in cells(rows))


def best(rows: list[dict]) -> dict | None:
  """The lossless row with the largest speed-up."""
  lossless = [r for r in rows if r['lossless'] and r['speedup']]
  return max(lossless, key=lambda r: r['speedup'], default=None)


def summary(rows: list[dict]) -> str:
  """What a run found: tables, differences on the same prompts, and how."""
  if not rows:
    return 'No rows.\n'
  parts = [table(rows), comparison.text(rows), differences.text(rows)]
  parts += [along_the_text(rows), COUNTING]
  return ''.join(parts)


def along_the_text(rows: list[dict]) -> str:
  """Acceptance by context and its memory; '' where steps were not kept."""
  rows = [r for r in rows if r['acceptance_by_context']]
  if not rows:
    return ''
  lines = []
  for row in rows:
    bins = [
      f'{b["from"]}: {b["acceptance"]:.2f}'
      for b in row['acceptance_by_context']
      if b['acceptance'] is not None
    ]
    lags = [
      with_interval(found[0], intervals.trusted(row, found[1:]))
      for found in row['autocorrelation'][:2]
    ]
    where = [row['domain'], f'{row["temperature"]:g}', row['drafter']]
    where += [row['verifier'], str(row['gamma'])]
    lines.append([*where, ', '.join(bins), *lags])
  head = ['domain', 'temperature', 'drafter', 'rule', 'gamma']
  head += ['accepted / drafted from context', 'lag 1', 'lag 2']
  return (
    '\n### Along the text\n\nAccepted over drafted tokens, from so many '
    'committed tokens on; and the\ncorrelation of the accepted lengths of '
    'steps one and two apart, over all prompts\ntogether.\n\n'
    f'{markdown(head, lines)}\n'
  )
