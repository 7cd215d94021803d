"""Rows of `specjax run`: the verdict, all tables, and the figures."""

import collections
import dataclasses
import functools
from collections.abc import Sequence

from specjax import prompts
from specjax.reports import Draw, batches, drafters, intervals, paired, verdicts
from specjax.reports.conditions import conditions, over_blocks
from specjax.reports.intervals import column, columns
from specjax.reports.markdown import (
  Columns,
  Table,
  blocks,
  counted,
  markdown,
  paragraph,
  span,
  with_interval,
)
from specjax.reports.verdicts import LOSES, UNDECIDED, UNKNOWN, WINS
from specjax.stats import sanity_checks
from specjax.stats.readings import CONFIGURED
from specjax.stats.row import by_place, group, pick

MORE = (
  '`specjax explain` with the same flags, but one `batch` and other `results`, '
  'says where its time goes, and what would help.'
)
_SHOWN = 10  # drafters in the table of the verdict
_MANY = 30  # lines of tables; more are folded, and not printed
_WHERE = 'What was accepted where'
_MARK = ' (!)'  # of a row that cannot be believed
_DEFINITIONS = """
A published number is one of these. **tau** is over all calls together (vLLM,
aiperf), **tau per request** the mean of the prompts' own (specdec_bench),
**tau per step** the mean of accepted + 1 over the whole steps (mean accepted
tokens of Spec-Bench). **speed-up** is the ratio of the times per token of all
prompts together, **speed-up of rates** the ratio of the means of the prompts'
tokens per second (Spec-Bench).
""".strip()
_TURNS = """
The turns of conversations apart. Everywhere else a conversation counts as one
prompt, with the tokens and calls of all its turns.
""".strip()
_ALONG = """
Accepted over drafted tokens, from so many committed tokens on; and the
correlation of the accepted lengths of steps one and two apart, over all prompts
together.
""".strip()
_COUNTING = """
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


@dataclasses.dataclass(frozen=True)
class Headline:
  """The lines that are read first.

  Attributes:
    warnings: what was left out, and why.
    verdict: whether the draft of the run pays, by how much, and why.
    greedy: one on texts at temperature 0; '' if none was compared.
    where: the conditions.
    places: a line for each drafter, or for each of several batches; None
      without a verdict.
    title: the draft of the run and its draft length.
    pooled: the rows that the verdict is about: one for each batch size.
    slow: whether the draft loses, or is undecided.
  """

  warnings: list[str]
  verdict: str
  greedy: str
  where: str
  places: Table | None
  slow: bool
  title: str = ''
  pooled: Sequence[dict] = ()

  def markdown(self) -> str:
    verdict = ' '.join(filter(None, [self.verdict, self.greedy]))
    places = self.places
    return blocks(
      *map(paragraph, [*self.warnings, verdict, self.where]),
      markdown(places.head, places.lines) if places else '',
      self.slow and paragraph(MORE),
    )


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


PLACE_NAMES = 'domain', 'temperature'
PLACE: Columns = columns(*PLACE_NAMES)
METHOD: Columns = (
  ('drafter', lambda r: r['drafter'] + (_MARK if verdicts.faults(r) else '')),
  ('rule', verdicts.rule),
  column('gamma'),
)
COLUMNS: Columns = (
  METHOD[0],
  column('draft'),
  *METHOD[1:],
  column('speedup'),
  column('predicted_speedup', alone=True),
  *columns('tau', 'alpha', 'c', 'v', 'tokens_per_second'),
)


def _accepted(row: dict) -> str:
  shares = row['acceptance_by_position'] or ()
  return ' '.join('-' if a is None else f'{a:.2f}' for a in shares)


def cells(rows: list[dict]) -> list[Table]:
  """Makes a table of all rows for each domain and temperature."""
  made = []
  for place, here in by_place(rows).items():
    first = here[0]
    speed = first['baseline_tokens_per_second']
    timed = 'not timed' if speed is None else f'{speed:.0f} tokens/s'
    title = f'{place[0]}, temperature {place[1]:g}: plain decoding {timed}'
    if first.get('repetition') is not None:
      title += f', {first["repetition"]:.0%} of its 4-grams repeated'
    if greedy := verdicts.greedy_texts(here):
      same, texts, note = greedy
      title += f'; {same} of {texts} texts identical to it{note}'
    notes = [
      f'{r["drafter"]} (!), {r["verifier"]}, gamma {r["gamma"]}: '
      + ' '.join(verdicts.faults(r))
      for r in here
      if verdicts.faults(r)
    ]
    if first.get('prompts_from'):  # Rows of older programs do not say.
      notes.insert(0, prompts.describe(first['prompts'], first['prompts_from']))
    made.append(Table.of(title, '\n\n'.join(notes), COLUMNS, here))
  return made


def positions(rows: list[dict]) -> list[Table]:
  """Makes a table of acceptance by position for each of these places."""
  shown = (
    *METHOD,
    column('tau_without_bonus', 'no bonus', alone=True),
    ('accepted at 1, 2, ...', _accepted),
  )
  return [
    Table.of(
      f'Accepted by position: {domain}, temperature {temperature:g}',
      '',
      shown,
      here,
    )
    for (domain, temperature), here in by_place(rows).items()
  ]


def by_definition(rows: list[dict]) -> list[Table]:
  """Compares all definitions; makes no table of rows of older programs."""
  rows = [row for row in rows if row.get('tau_per_request') is not None]
  names = 'tau', 'tau_per_request', 'tau_per_step', 'speedup'
  shown = (*PLACE, *METHOD, *columns(*names, 'speedup_of_rates'))
  return [Table.of('By definition', _DEFINITIONS, shown, rows)] if rows else []


def by_turn(rows: list[dict]) -> list[Table]:
  """Says what each turn adds; makes no table where prompts have one turn."""
  lines = [
    row | dict.fromkeys(('speedup', 'speedup_ci')) | turn
    for row in rows
    if len(row.get('by_turn') or ()) > 1
    for turn in row['by_turn']
  ]
  shown: Columns = (
    *PLACE,
    *METHOD,
    ('turn', lambda row: str(row['turn'])),
    *columns('texts', 'speedup', 'tau', 'alpha'),
  )
  return [Table.of('Turn by turn', _TURNS, shown, lines)] if lines else []


def _bins(row: dict) -> str:
  return ', '.join(
    f'{b["from"]}: {b["acceptance"]:.2f}'
    for b in row['acceptance_by_context']
    if b['acceptance'] is not None
  )


def _lag(row: dict, lag: int) -> str:
  correlations = row.get('autocorrelation') or []
  if lag >= len(correlations):
    return '-'
  value, *ends = correlations[lag]
  return with_interval(value, ends)


def along_the_text(rows: list[dict]) -> list[Table]:
  """Shows acceptance by context and its memory, where steps were kept."""
  rows = [r for r in rows if r.get('acceptance_by_context')]
  shown: Columns = (
    *PLACE,
    *columns('drafter', 'verifier', 'gamma'),
    ('accepted / drafted from context', _bins),
    ('lag 1', lambda row: _lag(row, 0)),
    ('lag 2', lambda row: _lag(row, 1)),
  )
  return [Table.of('Along the text', _ALONG, shown, rows)] if rows else []


def groups(rows: list[dict]) -> list[Group]:
  """Makes all tables of a run: those that compare batches come first."""
  if not batches.swept(rows):
    return _of_one_batch(rows)
  across = Group('By batch', batches.tables(rows), False)
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
  """Makes the tables of one batch size; the best of each drafter comes first.

  A group of many lines is folded, but never the first one.
  """
  sound = verdicts.sound(rows)
  where = positions(rows) + by_definition(rows) + by_turn(rows)
  made = (
    ('By domain and temperature', by_domain(rows)),
    ('The best of each drafter', drafters.tables(sound)),
    ('Fewer tokens', drafters.vocabularies(sound)),
    ('All cells', cells(rows)),
    (_WHERE, where + along_the_text(rows)),
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
  """Returns the row with the largest speed-up of those with an interval.

  Rows of lossy rules and rows that cannot be believed are left out.
  """
  timed = filter(verdicts.names_best, verdicts.timed(rows))
  return max(timed, key=lambda r: r['speedup'], default=None)


def doubts(rows: list[dict]) -> list[str]:
  """Says what a reader of times must know of them, in sentences."""
  sentences = list(filter(None, [over_blocks(rows)]))
  impossible = sum(bool(r.get('impossible')) for r in rows)
  if impossible:
    sentences.append(
      f'Numbers that cannot be true: see `impossible` in {impossible} of '
      f'{len(rows)} rows. The best is one of the others.'
    )
  return sentences


def _free(here: list[dict], name: str) -> str:
  """Returns the best drafter without weights at a place, and its number."""
  free = [
    row
    for row in here
    if verdicts.weightless(row) and (name == 'tau' or verdicts.names_best(row))
  ]
  if not free:
    return '-'
  row = verdicts.ranked(free)[0]
  return f'{row["drafter"]} {row["gamma"]}: {intervals.shown(row, name)}'


def by_domain(rows: list[dict]) -> list[Table]:
  """Shows the best row at each place, beside the method of the verdict.

  Places where no row has an interval are counted, and have no line.
  """
  timed = verdicts.timed(rows)
  shown = timed or [r for r in verdicts.sound(rows) if r['lossless']]
  cells = by_place(shown)
  if len(cells) < 2:
    return []
  name = 'speedup' if timed else 'tau'
  own = verdicts.of_drafters(shown)[0]
  method = {key: own[key] for key in ('drafter', 'verifier', 'gamma')}
  several = len({row['verifier'] for row in shown}) > 1
  lead = {place: verdicts.ranked(here)[0] for place, here in cells.items()}
  lines = [
    (row, cells[place])
    for place, row in lead.items()
    if not timed or verdicts.names_best(row)
  ]
  best = [row for row, _ in lines]
  slow = timed and any(verdicts.state(r) == LOSES for r in best)
  columns_: Columns = (
    *PLACE,
    *([('speculation', verdicts.state)] if timed else []),
    ('best', verdicts.named),
    *([column('verifier')] if several else []),
    *columns('gamma', name),
    *([('to break even', verdicts.to_break_even)] if slow else []),
  )
  note = _count(list(lead.values())) if timed else ''
  table = Table.of('The best of each place', note, columns_, best)
  table.head += [f'{own["drafter"]} {own["gamma"]}', 'without weights']
  for line, (_, here) in zip(table.lines, lines, strict=True):
    (mine, *_) = pick(here, **method) or [{}]
    line += [intervals.shown(mine, name), _free(here, name)]
  return [table] if lines else []


def _count(best: list[dict]) -> str:
  """Says in how many places the best row is faster, and how much."""
  count = collections.Counter(map(verdicts.state, best))
  text = f'Speculation pays in {count[WINS]} of {len(best)} '
  text += 'domains and temperatures'
  for kind, words in (
    (UNDECIDED, 'is undecided in'),
    (UNKNOWN, 'has too few prompts for an interval in'),
    (LOSES, 'loses in'),
  ):
    text += f', {words} {count[kind]}' if count[kind] else ''
  gains = [r['speedup'] for r in best if verdicts.state(r) == WINS]
  if gains:
    text += f'; where it pays, the best is {span(gains)} times plain decoding'
  return f'{text}.'


def _method(row: dict) -> str:
  rule = '' if row['verifier'] == 'token' else f', rule {row["verifier"]}'
  return f'{verdicts.named(row)}, gamma {row["gamma"]}{rule},'


def _pays(row: dict) -> str:
  """Says whether a row is faster than plain decoding, and by how much."""
  if row['speedup'] is None:
    tau = intervals.shown(row, 'tau')
    return f'gives {tau} tokens per target call'
  words = {
    WINS: 'pays',
    LOSES: 'does not pay',
    UNDECIDED: 'may or may not pay',
    UNKNOWN: 'has no interval, and so no verdict',
  }
  speed = intervals.shown(row, 'speedup')
  return f'{words[verdicts.state(row)]}: {speed} times plain decoding'


def _over(rows: list[dict]) -> str:
  """Says what the numbers of rows are pooled over."""
  counts = [(name, len({row[name] for row in rows})) for name in PLACE_NAMES]
  where = [counted(count, name) for name, count in counts if count > 1]
  return f' over {" and ".join(where)}' if where else ''


def _verdict(shown: list[dict], drafters: list[dict]) -> str:
  """Says whether the draft of a run pays, by how much, why, and what else.

  Args:
    shown: rows of one batch size.
    drafters: the pooled row of each drafter; that of the run is the first.
  """
  own, *others = drafters
  parts = [f'{_method(own)} {_pays(own)}{_over(shown)}.']
  if own['speedup'] is None:
    parts.append('No time was taken, so nothing is said about speed.')
  elif (cost := verdicts.step_cost(own)) is not None:
    parts.append(
      f'A step gives {own["tau"]:.2f} tokens (tau) and costs {cost:.2f} steps '
      f'of the target: {own["v"]:.2f} to verify (v), and {own["c"]:.2f} for '
      f'each of {counted(own["gamma"], "drafted token")} (c).'
    )
    parts += filter(None, [sanity_checks.noise(own)])
    needed = verdicts.to_break_even(own)
    if own['speedup'] < 1 and needed != '-':
      one_of = ' or '.join(needed.split(', '))
      parts.append(f'It would break even with {one_of}.')
  timed = own['speedup'] is not None
  known = [r for r in others if not timed or verdicts.names_best(r)]
  if known:
    parts.append(
      f'The best alternative, {_method(known[0])} {_pays(known[0])}.'
    )
  elif others:
    parts.append('No other drafter has an interval, so none is called best.')
  return ' '.join(parts)


def _unjudged(rows: list[dict], shown: list[dict]) -> str:
  """Says that the draft of a run has no verdict; '' where it has one.

  It has none where no method of it has all its places left.

  Args:
    rows: of the run.
    shown: those that can be believed.
  """
  name = rows[0]['drafter']
  own, left = ([r for r in x if r['drafter'] == name] for x in (rows, shown))
  faulty = len(own) - len(verdicts.sound(own))
  most = len(by_place([r for r in own if r['lossless']]))
  methods = group(left, 'verifier', 'gamma').values()
  if not faulty or any(len(by_place(one)) == most for one in methods):
    return ''
  return (
    f'No verdict on {name}: {faulty} of its {len(own)} rows cannot be '
    'believed. Measure again in another folder (--results), with nothing else '
    'on the machine.'
  )


def _compared(drafters: list[dict]) -> Table:
  """Makes the table of the verdict: the draft of the run, then the others."""
  rows = drafters[:_SHOWN]
  timed = rows[0]['speedup'] is not None
  losing = [r for r in rows if timed and verdicts.state(r) != WINS]
  slow = any(verdicts.to_break_even(r) != '-' for r in losing)
  shown: Columns = (
    ('drafter', verdicts.named),
    *(
      column(name)
      for name in ('batch', 'verifier')
      if len({r.get(name) for r in rows}) > 1
    ),
    column('gamma'),
    *([('speculation', verdicts.state), column('speedup')] if timed else []),
    column('tau'),
    *(columns('c', 'v') if timed else []),
    *([('to break even', verdicts.to_break_even)] if slow else []),
  )
  return Table.of('', '', shown, rows)


def _is_slow(row: dict) -> bool:
  return verdicts.state(row) in (LOSES, UNDECIDED)


def headline_of(rows: list[dict]) -> Headline:
  """Returns the verdict on the rows of a run."""
  faulty = len(rows) - len(verdicts.sound(rows))
  warning = (
    f'{faulty} of {len(rows)} rows cannot be believed; they decide nothing and '
    'are marked in the tables, which say why.'
  )
  counts, greedy = verdicts.greedy_texts(rows), ''
  if counts:
    same, texts, note = counts
    greedy = (
      f'At temperature 0, {same} of {texts} texts are those of plain decoding, '
      f'token for token{note}.'
    )
  made = functools.partial(
    Headline,
    warnings=[warning] if faulty else [],
    greedy=greedy,
    where=f'{conditions(rows)}.',
  )
  timed = verdicts.timed(rows)
  if timed and batches.swept(timed):
    own = batches.pooled(timed)
    return made(
      verdict=batches.verdict(own, _over(timed)),
      title=verdicts.named(own[0]),
      places=_compared(own),
      slow=any(map(_is_slow, own)),
      pooled=own,
    )
  shown = timed or [r for r in verdicts.sound(rows) if r['lossless']]
  if not shown:
    why = "keeps the target's distribution."
    if any(row['lossless'] for row in rows):
      why = 'can be believed.'
    why = f'No verdict: no row is left that {why}'
    return made(verdict=why, places=None, slow=False)
  unjudged = _unjudged(rows, shown)
  if unjudged:
    shown = [r for r in shown if r['drafter'] != rows[0]['drafter']]
    if not shown:
      return made(verdict=unjudged, places=None, slow=False)
  compared = verdicts.of_drafters(shown)
  own = compared[0]
  return made(
    verdict=f'{unjudged} {_verdict(shown, compared)}'.strip(),
    title=_method(own).rstrip(','),
    places=_compared(compared),
    pooled=[own],
    slow=bool(timed) and _is_slow(own),
  )


def headline(rows: list[dict]) -> str:
  """Returns the verdict, the conditions, and the table of drafters."""
  return blocks(headline_of(rows).markdown(), paragraph(over_blocks(rows)))


def _text(rows: list[dict], shown: list[Group]) -> str:
  parts = [headline(rows)]
  for some in shown:
    parts.append(f'## {some.name}\n')
    parts += [one.markdown() for one in some.tables]
  return '\n'.join(parts)


def brief(rows: list[dict]) -> str:
  """Returns what a run prints: the verdict and the first tables, if few."""
  made = groups(rows)
  shown = [one for one in made if not one.folded and one.size <= _MANY]
  rest = '; '.join(one.name for one in made if one not in shown)
  more = f'\nsummary.md has more: {rest}\n' if rest else ''
  return _text(rows, shown) + more


def reading(name: str, found: dict) -> str:
  """Says what a short probe found of a head, as a clause.

  Args:
    name: of the drafter.
    found: the field `reading` of its rows.
  """
  if found['best'] == CONFIGURED:
    return (
      f'{name} is read as it is configured ({found["configured"]:.2f} of '
      f'{found["gamma"]} drafted tokens accepted on {found["prompts"]} '
      f'prompts), and none of {found["alternatives"]} near '
      'alternatives accepts clearly more'
    )
  return (
    f'{name} is read wrongly: {found["best"]} accepts '
    f'{found["best_accepted"]:.2f} of {found["gamma"]} drafted tokens, and '
    f'{found["configured"]:.2f} as it is configured. Load it '
    f'with the options {found["changes"]}; specjax probe has all alternatives'
  )


def pairing(rows: list[dict]) -> str:
  """Says which heads may be of another target, and what probes found."""
  names = sorted({row['drafter'] for row in rows if row.get('pairing')})
  if not names:
    return ''
  found = {r['drafter']: r['reading'] for r in rows if r.get('reading')}
  doubt = (
    f'Unverified pairing: {", ".join(names)}. No fingerprint says which '
    'weights such a head was trained for: of another target, its drafts are '
    'rejected, and the texts stay the same.'
  )
  probes = [f'{reading(name, found[name])}.' for name in names if name in found]
  return '\n' + blocks(paragraph(doubt), *map(paragraph, probes))


def _exchanged(rows: list[dict]) -> str:
  """Shows what the devices of a mesh exchange; '' on one device."""
  names = ('count', 'bytes', 'turn_count', 'turn_bytes')
  lines = {
    (*(show(r) for _, show in METHOD), kind, *(f'{one[n]:,}' for n in names))
    for r in rows
    for kind, one in (r.get('collectives') or {}).items()
  }
  head = [*(title for title, _ in METHOD), 'operation', 'a step', 'bytes']
  head += ['a turn of a loop inside', 'bytes']
  title = 'Exchanged by the devices at a step, bytes on each'
  made = Table(title, '', head, [list(line) for line in sorted(lines)])
  return f'\n{made.markdown()}' if lines else ''


def summary(rows: list[dict]) -> str:
  """Returns the verdict, all tables, and how numbers are counted."""
  older = not all('impossible' in row for row in rows)
  parts = [_text(rows, groups(rows)), _COUNTING, older * _BY_OUTCOME]
  return ''.join([*parts, pairing(rows), _exchanged(rows)])


def figures(rows: list[dict]) -> tuple[Draw, ...]:
  """Returns what these rows can show; without times, where drafts survive."""
  from specjax.reports import plots  # matplotlib takes a second

  if all(row['speedup'] is None for row in rows):
    return plots.drafters, plots.acceptance_by_position
  if batches.swept(rows):
    return (plots.speedup_by_batch,)
  return (
    plots.drafters,
    plots.speedup_against_gamma,
    plots.acceptance_by_position,
  )
