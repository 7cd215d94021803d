"""Rows of `specjax run`: the verdict, all tables, and the figures."""

import dataclasses

from specjax import prompts
from specjax.bench import collectives
from specjax.reports import (
  Draw,
  batch_plots,
  batch_tables,
  batches,
  best_drafters,
  definitions,
  draft_vocabularies,
  intervals,
  paired,
  pairing,
  plots,
  run_headline,
  turns,
)
from specjax.reports.conditions import conditions, over_blocks
from specjax.reports.markdown import (
  Table,
  blocks,
  number,
  paragraph,
  with_interval,
)
from specjax.stats.row import by_place, pick

FIGURES = (
  plots.speedup_against_gamma,
  plots.acceptance_by_position,
  plots.alpha_by_domain,
  plots.predicted_against_measured,
  plots.tau_against_cost,
)
_MANY = 30  # lines of tables; more are folded, and not printed
_WHERE = 'What was accepted where'
_MARK = ' (!)'  # of a row that cannot be believed
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


def _drafter(row) -> str:
  return row['drafter'] + (_MARK if run_headline.faults(row) else '')


def _accepted(row) -> str:
  shares = row['acceptance_by_position'] or ()
  return ' '.join('-' if a is None else f'{a:.2f}' for a in shares)


COLUMNS = (
  ('drafter', _drafter),
  ('draft', lambda r: r.get('draft') or '-'),
  ('rule', best_drafters.rule),
  ('gamma', lambda r: str(r['gamma'])),
  ('speed-up', lambda r: intervals.shown(r, 'speedup')),
  ('predicted', lambda r: number(r.get('predicted_speedup'))),
  ('tau', lambda r: intervals.shown(r, 'tau')),
  ('alpha', lambda r: intervals.shown(r, 'alpha')),
  ('c', lambda r: number(r.get('c'), '.3f')),
  ('v', lambda r: number(r.get('v'))),
  ('tokens/s', lambda r: number(r.get('tokens_per_second'), '.0f')),
)
_POSITIONS = (
  ('drafter', _drafter),
  ('rule', best_drafters.rule),
  ('gamma', lambda r: str(r['gamma'])),
  ('no bonus', lambda r: number(r.get('tau_without_bonus'))),
  ('accepted at 1, 2, ...', _accepted),
)


def _prompts(row: dict) -> str:
  """What was continued; rows of older programs do not say."""
  if not row.get('prompts_from'):
    return ''
  return prompts.describe(row['prompts'], row['prompts_from'])


def _note(cells: list[dict]) -> str:
  """What was continued, and which rows cannot be believed."""
  marked = [
    f'{r["drafter"]} (!), {r["verifier"]}, gamma {r["gamma"]}: '
    + ' '.join(run_headline.faults(r))
    for r in cells
    if run_headline.faults(r)
  ]
  return '\n\n'.join(filter(None, [_prompts(cells[0]), *marked]))


def cells(rows: list[dict]) -> list[Table]:
  """A table for each domain and temperature."""
  made = []
  for place, here in by_place(rows).items():
    first = here[0]
    speed = first['baseline_tokens_per_second']
    timed = 'not timed' if speed is None else f'{speed:.0f} tokens/s'
    title = f'{place[0]}, temperature {place[1]:g}: plain decoding {timed}'
    if first.get('repetition') is not None:
      title += f', {first["repetition"]:.0%} of its 4-grams repeated'
    if greedy := run_headline.greedy_texts(here):
      same, texts, note = greedy
      title += f'; {same} of {texts} texts identical to it{note}'
    made.append(Table.of(title, _note(here), COLUMNS, here))
  return made


def positions(rows: list[dict]) -> list[Table]:
  """What was accepted at each position: a table for each of those cells."""
  return [
    Table.of(
      f'Accepted by position: {domain}, temperature {temperature:g}',
      '',
      _POSITIONS,
      here,
    )
    for (domain, temperature), here in by_place(rows).items()
  ]


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
      with_interval(correlation[0], intervals.trusted(row, correlation[1:]))
      for correlation in (row.get('autocorrelation') or [])[:2]
    ]
    lags += ['-'] * (2 - len(lags))
    where = [row['domain'], f'{row["temperature"]:g}', row['drafter']]
    where += [row['verifier'], str(row['gamma'])]
    lines.append([*where, ', '.join(bins), *lags])
  head = ['domain', 'temperature', 'drafter', 'rule', 'gamma']
  head += ['accepted / drafted from context', 'lag 1', 'lag 2']
  return [Table('Along the text', _ALONG, head, lines)]


def _accepted_where(rows: list[dict]) -> list[Table]:
  method = _POSITIONS[:3]
  apart = definitions.tables(rows, method) + turns.tables(rows, method)
  return positions(rows) + apart + along_the_text(rows)


def groups(rows: list[dict]) -> list[Group]:
  """All tables of a run: what compares batches, then those of each batch."""
  if not batches.swept(rows):
    return _of_one_batch(rows)
  across = Group('By batch', batch_tables.tables(rows), False)
  made = [across] if across.tables else []
  for batch in batches.sizes(rows):
    for one in _of_one_batch(pick(rows, batch=batch)):
      tables = [
        dataclasses.replace(t, title=f'Batch {batch}: {t.title}')
        for t in one.tables
      ]
      made.append(Group(f'{one.name}, batch {batch}', tables, True))
  return made


def _of_one_batch(rows: list[dict]) -> list[Group]:
  """The best of each drafter first."""
  best_of_each = best_drafters.tables(run_headline.sound(rows))
  made = (
    ('The best of each drafter', best_of_each),
    ('Fewer tokens', draft_vocabularies.tables(run_headline.sound(rows))),
    ('All cells', cells(rows)),
    (_WHERE, _accepted_where(rows)),
    ('Differences on the same prompts', paired.tables(rows)),
  )
  filled = [
    Group(name, tables, name == _WHERE) for name, tables in made if tables
  ]
  return filled[:1] + [
    dataclasses.replace(one, folded=one.folded or one.size > _MANY)
    for one in filled[1:]
  ]


def best(rows: list[dict]) -> dict | None:
  """The lossless row with the largest speed-up, of those to be believed."""
  lossless = [r for r in rows if r['lossless'] and r['speedup']]
  sound = run_headline.sound(lossless)
  return max(sound, key=lambda r: r['speedup'], default=None)


def _over_blocks(rows: list[dict]) -> str:
  timed = [r for r in rows if r.get('timed') or r.get('speedup') is not None]
  return over_blocks(timed)


def doubts(rows: list[dict]) -> list[str]:
  """Sentences on what a reader of times must know of them."""
  sentences = list(filter(None, [_over_blocks(rows)]))
  impossible = sum(bool(r.get('impossible')) for r in rows)
  if impossible:
    sentences.append(
      f'Numbers that cannot be true: see `impossible` in {impossible} of '
      f'{len(rows)} rows. The best is one of the others.'
    )
  return sentences


def headline(rows: list[dict]) -> str:
  """The verdict, the conditions, and each domain and temperature."""
  verdict = batches.verdict(rows).markdown()
  return blocks(verdict, paragraph(_over_blocks(rows)))


def _text(rows: list[dict], shown: list[Group]) -> str:
  where = paragraph(f'{conditions(rows)}.')
  parts = [headline(rows)]
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
  counting = definitions.COUNTING + older * definitions.BY_OUTCOME
  parts = [counting, pairing.note(rows)]
  parts.append(collectives.table(rows))
  return _text(rows, groups(rows)) + ''.join(parts)


def figures(rows: list[dict]) -> tuple[Draw, ...]:
  """What these rows can show; without times, where drafts were accepted."""
  if all(row['speedup'] is None for row in rows):
    return (plots.acceptance_by_position,)
  if batches.swept(rows):
    return batch_plots.speedup_by_batch, plots.predicted_against_measured
  return FIGURES
