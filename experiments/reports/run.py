"""The tables and sentences of summary.md, from rows of `experiments.run`."""

import dataclasses

from experiments import prompts
from experiments.reports import (
  best_drafters,
  headline,
  intervals,
  paired,
  words,
)
from experiments.reports.markdown import Table, with_interval

_MANY = 30  # lines of tables; more are folded, and not printed
_WHERE = 'What was accepted where'
_MARK = ' (!)'  # of a row that cannot be believed
COUNTING = """
How it is counted: **alpha** is the mean of sum(min(p, q)) over prefixes that
the target generated, **tau** tokens per target call with the bonus or corrected
token, **no bonus** the mean accepted length of the whole steps: those that
began with room for gamma + 1 tokens. Any other step counts in tokens and target
calls alone, whatever it accepted; one in which the text ends counts with the
verdict on its whole draft, and a row that has finished counts nowhere. Where
nothing was proposed, beta is 0. Intervals are 95% over prompts (of speeds: over
batches); docs/measuring.md says how they are made. A number alone has none: its
units are too few, or its row does not hold them. The best of several is chosen
on the same prompts, so its number is on the high side.
"""
# Rows of programs that did not look for impossible values counted so.
_BY_OUTCOME = """
These rows are of an older program, which left out a step that the limit cut
short, where it did: **no bonus**, acceptance by position and alpha_mle are
too low, by a tenth in texts of 12 tokens and less in longer ones. alpha and tau
are as they would be now.
"""
OVER_BLOCKS = (
  'Measured over plain decoding with weights in blocks, which is not the '
  'fastest everywhere.'
)
_ALONG = """
Accepted over drafted tokens, from so many committed tokens on; and the
correlation of the accepted lengths of steps one and two apart, over all prompts
together.
""".strip()


@dataclasses.dataclass(frozen=True)
class Group:
  """Tables that belong together.

  Attributes:
    name: its heading.
    tables: in order.
    folded: whether a page shows them on demand alone.
  """

  name: str
  tables: list[Table]
  folded: bool

  @property
  def size(self) -> int:
    return sum(len(one.lines) for one in self.tables)


def _number(row, name, digits) -> str:
  value = row.get(name)
  return '-' if value is None else f'{value:.{digits}f}'


def _drafter(row) -> str:
  return row['drafter'] + (_MARK if headline.faults(row) else '')


def _accepted(row) -> str:
  shares = row['acceptance_by_position'] or ()
  return ' '.join('-' if a is None else f'{a:.2f}' for a in shares)


COLUMNS = (
  ('drafter', _drafter),
  ('draft', lambda r: r.get('draft') or '-'),
  ('rule', best_drafters.rule),
  ('gamma', lambda r: str(r['gamma'])),
  ('speed-up', lambda r: intervals.shown(r, 'speedup')),
  ('predicted', lambda r: _number(r, 'predicted_speedup', 2)),
  ('tau', lambda r: intervals.shown(r, 'tau')),
  ('alpha', lambda r: intervals.shown(r, 'alpha')),
  ('c', lambda r: _number(r, 'c', 3)),
  ('v', lambda r: _number(r, 'v', 2)),
  ('tokens/s', lambda r: _number(r, 'tokens_per_second', 0)),
)
_POSITIONS = (
  ('drafter', _drafter),
  ('rule', best_drafters.rule),
  ('gamma', lambda r: str(r['gamma'])),
  ('no bonus', lambda r: _number(r, 'tau_without_bonus', 2)),
  ('accepted at 1, 2, ...', _accepted),
)


def _lines(columns, rows: list[dict]) -> list[list[str]]:
  return [[show(r) for _, show in columns] for r in rows]


def _head(columns) -> list[str]:
  return [name for name, _ in columns]


def _greedy(cells: list[dict]) -> str:
  """How many greedy texts were those of plain decoding, and what differed."""
  lossless = [
    r for r in cells if r['lossless'] and r['identical_to_plain'] is not None
  ]
  if not lossless:
    return ''
  texts = sum(r['prompts'] for r in lossless)
  same = sum(r['identical_to_plain'] for r in lossless)
  found = [d['verdict'] for r in lossless for d in r['differences'] or ()]
  note = ''
  if found:
    note = f', {found.count("tie")} ties, {found.count("bug")} bugs'
  return f'; {same} of {texts} texts identical to it{note}'


def _prompts(row: dict) -> str:
  """What was continued; rows of older programs do not say."""
  if not row.get('prompts_from'):
    return ''
  return prompts.describe(row['prompts'], row['prompts_from'])


def _note(cells: list[dict]) -> str:
  """What was continued, and which rows cannot be believed."""
  marked = [
    f'{r["drafter"]} (!), {r["verifier"]}, gamma {r["gamma"]}: '
    + ' '.join(headline.faults(r))
    for r in cells
    if headline.faults(r)
  ]
  return '\n\n'.join(filter(None, [_prompts(cells[0]), *marked]))


def cells(rows: list[dict]) -> list[Table]:
  """A table for each domain and temperature."""
  made = []
  for place in best_drafters.places(rows):
    found = best_drafters.at(rows, place)
    first = found[0]
    speed = first['baseline_tokens_per_second']
    timed = 'not timed' if speed is None else f'{speed:.0f} tokens/s'
    title = f'{place[0]}, temperature {place[1]:g}: plain decoding {timed}'
    if first.get('repetition') is not None:
      title += f', {first["repetition"]:.0%} of its 4-grams repeated'
    title += _greedy(found)
    lines = _lines(COLUMNS, found)
    made.append(Table(title, _note(found), _head(COLUMNS), lines))
  return made


def positions(rows: list[dict]) -> list[Table]:
  """What was accepted at each position: a table for each of those cells."""
  made = []
  for place in best_drafters.places(rows):
    lines = _lines(_POSITIONS, best_drafters.at(rows, place))
    title = f'Accepted by position: {place[0]}, temperature {place[1]:g}'
    made.append(Table(title, '', _head(_POSITIONS), lines))
  return made


def along_the_text(rows: list[dict]) -> list[Table]:
  """Acceptance by context and its memory; none where steps were not kept."""
  rows = [r for r in rows if r.get('acceptance_by_context')]
  if not rows:
    return []
  lines = []
  for row in rows:
    bins = [
      f'{b["from"]}: {b["acceptance"]:.2f}'
      for b in row['acceptance_by_context']
      if b['acceptance'] is not None
    ]
    lags = [
      with_interval(found[0], intervals.trusted(row, found[1:]))
      for found in (row.get('autocorrelation') or [])[:2]
    ]
    lags += ['-'] * (2 - len(lags))
    where = [row['domain'], f'{row["temperature"]:g}', row['drafter']]
    where += [row['verifier'], str(row['gamma'])]
    lines.append([*where, ', '.join(bins), *lags])
  head = ['domain', 'temperature', 'drafter', 'rule', 'gamma']
  head += ['accepted / drafted from context', 'lag 1', 'lag 2']
  return [Table('Along the text', _ALONG, head, lines)]


def groups(rows: list[dict]) -> list[Group]:
  """All tables of a run, the best of each drafter first."""
  made = (
    ('The best of each drafter', best_drafters.tables(headline.sound(rows))),
    ('All cells', cells(rows)),
    (_WHERE, positions(rows) + along_the_text(rows)),
    ('Differences on the same prompts', paired.tables(rows)),
  )
  found = [
    Group(name, tables, name == _WHERE) for name, tables in made if tables
  ]
  return found[:1] + [
    dataclasses.replace(one, folded=one.folded or one.size > _MANY)
    for one in found[1:]
  ]


def table(rows: list[dict]) -> str:
  """Markdown tables, one for each domain and temperature."""
  return '\n'.join(one.markdown() for one in cells(rows))


def best(rows: list[dict]) -> dict | None:
  """The lossless row with the largest speed-up, of those to be believed."""
  lossless = [r for r in rows if r['lossless'] and r['speedup']]
  sound = headline.sound(lossless)
  return max(sound, key=lambda r: r['speedup'], default=None)


def old_baseline(rows: list[dict]) -> list[str]:
  """A sentence on times of programs that did not look for the fastest."""
  timed = [r for r in rows if r.get('timed') or r.get('speedup') is not None]
  if all(r.get('baseline') for r in timed):
    return []
  return [OVER_BLOCKS]


def doubts(rows: list[dict]) -> list[str]:
  """Sentences on what a reader of times must know of them."""
  said = old_baseline(rows)
  impossible = sum(bool(r.get('impossible')) for r in rows)
  if impossible:
    said.append(
      f'Numbers that cannot be true: see `impossible` in {impossible} of '
      f'{len(rows)} rows. The best is one of the others.'
    )
  return said


def _text(rows: list[dict], shown: list[Group]) -> str:
  where = words.paragraph(f'{words.conditions(rows)}.')
  parts = [headline.headline(rows).markdown()]
  parts += [f'{sentence}\n' for sentence in old_baseline(rows)]
  for group in shown:
    parts.append(f'## {group.name}\n\n{where}\n')
    parts += [one.markdown() for one in group.tables]
  return '\n'.join(parts)


def brief(rows: list[dict]) -> str:
  """What a run prints: the verdict and the first tables, where they are few."""
  if not rows:
    return 'No rows.\n'
  made = groups(rows)
  shown = [one for one in made if not one.folded and one.size <= _MANY]
  rest = '; '.join(one.name for one in made if one not in shown)
  return _text(rows, shown) + (
    f'\nsummary.md has more: {rest}\n' if rest else ''
  )


def summary(rows: list[dict]) -> str:
  """What a run found: verdict, tables, differences, and how it was counted."""
  if not rows:
    return 'No rows.\n'
  older = not all('impossible' in row for row in rows)
  return _text(rows, groups(rows)) + COUNTING + older * _BY_OUTCOME
