"""The verdict on a run: sentences that come before its tables.

They are made from the rows of `specjax run` and hold for any of them: a
drafter wins only where the whole interval of its speed-up lies above 1, and
only with a rule that keeps the target's distribution.
"""

import collections
import dataclasses
import functools
import shlex

from specjax.reports import break_even, intervals
from specjax.reports.conditions import conditions
from specjax.reports.markdown import blocks, bullets, counted, paragraph, span
from specjax.stats import metrics
from specjax.stats.row import by_place

WINS, UNDECIDED, UNKNOWN, LOSES = 'wins', 'undecided', 'unknown', 'loses'
_ORDER = (WINS, UNDECIDED, UNKNOWN, LOSES)
_TIMES = 'times plain decoding'
_SHOWN = 3  # faulty rows that are told one by one
_UNTIMED = 'no time was taken, so nothing is said about speed'
MORE = (
  'Where its time goes, and what would help; FILE is the config of this run:'
)


@dataclasses.dataclass(frozen=True)
class Headline:
  """The first thing that is read.

  Attributes:
    warnings: what was left out, and why; they come first.
    verdict: one sentence on everything.
    greedy: one on texts at temperature 0; '' where none was compared.
    where: the conditions.
    places: one on each domain and temperature, where there are several.
    command: what tells more on a loss; '' where there is none.
  """

  warnings: list[str]
  verdict: str
  greedy: str
  where: str
  places: list[str]
  command: str

  def markdown(self) -> str:
    verdict = ' '.join(filter(None, [self.verdict, self.greedy]))
    return blocks(
      *map(paragraph, [*self.warnings, verdict, self.where]),
      bullets(self.places),
      self.command and f'{MORE}\n\n```sh\n{self.command}\n```',
    )


def faults(row: dict) -> list[str]:
  """Why a row decides nothing: impossible values, or texts that are wrong."""
  reasons = list(row.get('impossible') or ())
  bugs = [d for d in row.get('differences') or () if d['verdict'] == 'bug']
  if bugs and row['lossless']:
    reasons.append(
      f'{len(bugs)} of its texts at temperature 0 differ from plain decoding '
      'by more than a tie'
    )
  return reasons


def sound(rows: list[dict]) -> list[dict]:
  return [row for row in rows if not faults(row)]


def state(row: dict) -> str:
  """Whether a row with times is faster than plain decoding."""
  ends = intervals.stored(row, 'speedup')
  if ends is None:
    return UNKNOWN
  low, high = ends
  return WINS if low > 1 else LOSES if high < 1 else UNDECIDED


def weightless(row: dict) -> bool:
  """Whether a drafter has no weights beside those of the target."""
  if row.get('parameters') is not None:
    return row['parameters'] == 0
  return row.get('draft') is None


def leading(rows: list[dict]) -> dict:
  """The fastest of the rows of which the most favourable can be said."""
  return min(rows, key=lambda r: (_ORDER.index(state(r)), -r['speedup']))


def named(row: dict, rows: list[dict]) -> str:
  """A drafter with its draft, its rule where there are several, its length."""
  name, draft = row['drafter'], row.get('draft')
  if draft and draft not in name:
    name += f' (draft {draft})'
  if len({r['verifier'] for r in rows}) > 1:
    name += f' with the rule {row["verifier"]}'
  return f'{name} at draft length {row["gamma"]}'


def _where(place: tuple[str, float]) -> str:
  return f'{place[0]}, temperature {place[1]:g}'


def _number(row: dict, name: str, unit: str = '') -> str:
  text = intervals.shown(row, name) + (unit and f' {unit}')
  if intervals.stored(row, name):
    return text
  if metrics.enough(intervals.units(row, name)):
    return f'{text}, without an interval'
  return f'{text} with too few prompts for an interval'


def _subject(row: dict, rows: list[dict]) -> str:
  parts = [f'the best of {len(rows)}'] if len(rows) > 1 else []
  parts += ['without weights of its own'] if weightless(row) else []
  which = ' and '.join(parts)
  return named(row, rows) + (f', {which},' if which else '')


def _without_weights(rows: list[dict], best: dict, name: str, pick) -> str:
  """The best of the drafters that have no weights, where it is another."""
  free = [row for row in rows if weightless(row)]
  if not free or weightless(best):
    return ''
  other = pick(free)
  text = f'; without weights, {named(other, rows)} reaches '
  # Few prompts are said once in a sentence.
  known = intervals.stored(best, name)
  text += _number(other, name) if known else intervals.shown(other, name)
  unclear = name == 'speedup' and state(other) == UNDECIDED
  return f'{text}, undecided' if unclear else text


def _speed(rows: list[dict]) -> str:
  """What can be said of rows of one place that have times."""
  best = leading(rows)
  text = f'{_subject(best, rows)} is {_number(best, "speedup", _TIMES)}'
  if state(best) == LOSES:
    return f'nothing pays: {text}, {break_even.reason(best)}'
  if state(best) == UNDECIDED:
    text += ', and the interval includes 1'
  fastest = max(rows, key=lambda r: r['speedup'])
  if fastest is not best:  # It is one of which less can be said.
    other = _number(fastest, 'speedup')
    text += f' ({named(fastest, rows)}, undecided, reaches {other})'
  text += _without_weights(rows, best, 'speedup', leading)
  return text if state(best) == WINS else f'undecided: {text}'


def _most(rows: list[dict]) -> dict:
  return max(rows, key=lambda r: r['tau'])


def _acceptance(rows: list[dict]) -> str:
  """What can be said of rows of one place without times."""
  best = _most(rows)
  tokens = _number(best, 'tau', 'tokens per target call')
  text = f'{_subject(best, rows)} gives {tokens}'
  return text + _without_weights(rows, best, 'tau', _most)


def _overall(rows: dict[tuple, list[dict]]) -> str:
  """One sentence on several places whose rows have times."""
  best = {place: leading(here) for place, here in rows.items()}
  count = collections.Counter(map(state, best.values()))
  total = f'{len(best)} domains and temperatures'
  top = max(best, key=lambda place: best[place]['speedup'])
  fastest = (
    f'the best, {named(best[top], rows[top])} on {_where(top)}, is '
    f'{_number(best[top], "speedup", _TIMES)}'
  )
  if count[LOSES] == len(best):
    return f'Nothing here pays: {fastest}, {break_even.reason(best[top])}'
  if count[UNKNOWN] == len(best):
    return f'Undecided: {fastest}'
  if not count[WINS]:
    return (
      f'Undecided: in none of {total} does the interval of a speed-up lie '
      f'above 1; {fastest}'
    )
  text = f'Speculation pays in {count[WINS]} of {total}'
  unclear = count[UNDECIDED] + count[UNKNOWN]
  text += f', is undecided in {unclear}' if unclear else ''
  text += f', loses in {count[LOSES]}' if count[LOSES] else ''
  gains = [row['speedup'] for row in best.values() if state(row) == WINS]
  where = 'there' if len(gains) == len(best) else 'where it pays,'
  return f'{text}; {where} the best is {span(gains)} {_TIMES}'


def _overall_acceptance(rows: dict[tuple, list[dict]]) -> str:
  taus = span(_most(cells)['tau'] for cells in rows.values())
  return (
    f'In {len(rows)} domains and temperatures the best gives {taus} tokens '
    'per target call'
  )


def _warnings(rows: list[dict]) -> list[str]:
  faulty = [row for row in rows if faults(row)]
  if not faulty:
    return []
  examples = [
    f'{named(row, rows)} ({_where((row["domain"], row["temperature"]))}): '
    + ', '.join(reason.rstrip('.') for reason in faults(row))
    for row in faulty[:_SHOWN]
  ]
  if len(faulty) > _SHOWN:
    examples.append(f'and {len(faulty) - _SHOWN} more')
  return [
    f'{len(faulty)} of {len(rows)} rows cannot be believed; they decide '
    f'nothing and are marked in the tables: {"; ".join(examples)}.'
  ]


def greedy_texts(rows: list[dict]) -> tuple[int, int, str] | None:
  """How many greedy texts of exact rules are those of plain decoding.

  Returns:
    They, all that were compared, and how the others differ, as a clause; None
    where none was compared.
  """
  compared = [
    r for r in rows if r['lossless'] and r['identical_to_plain'] is not None
  ]
  if not compared:
    return None
  same = sum(r['identical_to_plain'] for r in compared)
  # Those of conversations are several each.
  texts = sum(r.get('texts') or r['prompts'] for r in compared)
  verdicts = [d['verdict'] for r in compared for d in r['differences'] or ()]
  ties, bugs = (counted(verdicts.count(kind), kind) for kind in ('tie', 'bug'))
  note = f', {ties}, {bugs}'
  return same, texts, note if verdicts else ''


def _greedy(rows: list[dict]) -> str:
  counts = greedy_texts(rows)
  if counts is None:
    return ''
  same, texts, note = counts
  return (
    f'At temperature 0, {same} of {texts} texts are those of plain decoding, '
    f'token for token{note}.'
  )


def command_of(row: dict) -> str:
  """What tells more of a row."""
  names = str((row['drafter'],))
  # Between double quotes a shell leaves all but these as they are.
  quoted = shlex.quote(names) if set(names) & set('"$`\\!') else f'"{names}"'
  return f'specjax explain FILE --drafters={quoted}'


def headline(rows: list[dict]) -> Headline:
  """The verdict on the rows of a run."""
  made = functools.partial(
    Headline,
    warnings=_warnings(rows),
    greedy=_greedy(rows),
    where=f'{conditions(rows)}.',
  )
  lossless = [row for row in sound(rows) if row['lossless']]
  timed = [row for row in lossless if row['speedup'] is not None]
  shown = timed or lossless
  if not shown:
    why = (
      'No verdict: no row is left that keeps the distribution of the target.'
    )
    return made(verdict=why, places=[], command='')
  cells = by_place(shown)
  say = _speed if timed else _acceptance
  sentences = [f'{_where(place)}: {say(here)}' for place, here in cells.items()]
  best = map(leading, cells.values()) if timed else ()
  slow = [row for row in best if state(row) in (LOSES, UNDECIDED)]
  command = command_of(slow[0]) if slow else ''
  untimed = '' if timed else f'; {_UNTIMED}'
  if len(sentences) == 1:
    return made(verdict=f'{sentences[0]}{untimed}.', places=[], command=command)
  verdict = _overall(cells) if timed else _overall_acceptance(cells)
  places = [f'{one}.' for one in sentences]
  return made(verdict=f'{verdict}{untimed}.', places=places, command=command)
