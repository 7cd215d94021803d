"""Rows of a run of several batch sizes: up to which one speculation pays.

A step serves all rows of a batch at once. Plain decoding reads the weights once
for all of them, so what a row gains from scoring several tokens in one pass
shrinks as the batch grows: v rises, and at some batch the speed-up is 1.
"""

from typing import Any, NamedTuple

import numpy as np

from specjax.reports import intervals, verdicts
from specjax.reports.intervals import column, columns
from specjax.reports.markdown import Columns, Table, number, span
from specjax.reports.verdicts import LOSES, WINS, timed
from specjax.stats.row import by_place, group, pick

_NOTE = """
A batch takes as long as its last row; gamma 0 is plain decoding. **ms per
token** is what a row waits for one until it ends, **at work** the share of the
steps in which rows had not ended. **predicted** is tau / (v + gamma c), times
at work over that of plain decoding, with c and v of this batch size; **rows
refilled** is tau / (v + gamma c) alone, what is expected where another prompt
takes the place of a row that ends.
""".strip()
_BEST = """
The draft length of the largest speed-up at each batch, among those with the
best verdict; plain and speculative on either side of a slash. A step costs
v + gamma c plain steps and gives tau tokens.
""".strip()


def sizes(rows: list[dict]) -> list[int]:
  """Returns the batch sizes of rows, the smallest first."""
  return sorted({row['batch'] for row in rows})


def swept(rows: list[dict]) -> bool:
  return len(sizes(rows)) > 1


class BreakEven(NamedTuple):
  """Where a speed-up is 1, in rows of a batch; straight between logarithms.

  Attributes:
    value: infinite where none of these batches reaches it.
    ends: of its interval, where those of the speed-up cross 1; or None.
    between: the batches around it; None where it lies outside.
    last: the largest batch.
    falls: whether the speed-up is above 1 at the smallest.
  """

  value: float
  ends: tuple[float, float] | None
  between: tuple[int, int] | None
  last: int
  falls: bool

  def text(self) -> str:
    """Returns it as a cell: '5.7 [4.2, 9.0], between 4 and 8'."""

    def shown(batch: float) -> str:
      if batch == 0:
        return 'below'
      return f'beyond {self.last}' if np.isinf(batch) else f'{batch:.1f}'

    ends = ''
    if self.ends and not np.isinf(min(self.ends)):
      ends = f' [{shown(self.ends[0])}, {shown(self.ends[1])}]'
    if self.between is None:
      return f'{f"beyond {self.last}" if self.falls else "at none"}{ends}'
    return f'{self.value:.1f}{ends}, between {{}} and {{}}'.format(
      *self.between
    )


def _cross(batches, values, down: bool) -> tuple[float, int]:
  """Returns where values first reach 1, and the place of the next batch."""
  reached = [x <= 1 if down else x >= 1 for x in values]
  if not any(reached):
    return np.inf, len(values)
  place = reached.index(True)
  if place == 0:
    return 0.0, 0
  x = np.log(batches[place - 1 : place + 1])
  y = np.log(values[place - 1 : place + 1])
  share = y[0] / (y[0] - y[1])
  return float(np.exp(x[0] + share * (x[1] - x[0]))), place


def find(points: list[tuple[int, float, list[float] | None]]) -> BreakEven:
  """Finds where a speed-up falls to 1, or rises to it if it begins below.

  Args:
    points: batch, speed-up and its interval, the smallest batch first.
  """
  batches, values, _ = zip(*points, strict=True)
  down = values[0] > 1
  value, place = _cross(batches, values, down)
  inside = 0 < place < len(batches)
  known = [(b, ends) for b, _, ends in points if ends]
  ends = None
  if len(known) > 1:
    some, pairs = zip(*known, strict=True)
    curves = zip(*pairs, strict=True)
    low, high = (_cross(some, curve, down)[0] for curve in curves)
    ends = (low, high) if down else (high, low)
  between = (batches[place - 1], batches[place]) if inside else None
  return BreakEven(value, ends, between, batches[-1], down)


def best(rows: list[dict]) -> list[dict]:
  """Returns the best row of each batch, of one place."""
  by_batch = group(sorted(rows, key=lambda r: r['batch']), 'batch')
  return [verdicts.ranked(here)[0] for here in by_batch.values()]


def measured(rows: list[dict]) -> BreakEven:
  """Finds where the best draft length of each batch breaks even."""
  points = [
    (r['batch'], r['speedup'], intervals.stored(r, 'speedup'))
    for r in best(rows)
  ]
  return find(points)


def refilled(rows: list[dict]) -> BreakEven | None:
  """Predicts where it breaks even if rows are refilled, without interval."""
  known = [r for r in rows if r.get('predicted_speedup') is not None]
  if not known:
    return None
  by_batch = group(sorted(known, key=lambda r: r['batch']), 'batch')
  most = (
    (batch, max(r['predicted_speedup'] for r in here), None)
    for (batch,), here in by_batch.items()
  )
  return find(list(most))


def paying(rows: list[dict]) -> list[int]:
  """Returns the batches at which speculation wins, of one place."""
  return [r['batch'] for r in best(rows) if verdicts.state(r) == WINS]


def up_to(rows: list[dict]) -> int | None:
  """Returns the batch up to which every one wins; None if not the first."""
  last = None
  for row in best(rows):
    if verdicts.state(row) != WINS:
      break
    last = row['batch']
  return last


def pooled(rows: list[dict]) -> list[dict]:
  """Returns the run's own drafter at each batch, over all places together."""
  own = pick(rows, drafter=rows[0]['drafter'])
  by_batch = group(sorted(own, key=lambda r: r['batch']), 'batch')
  return [verdicts.of_drafters(here)[0] for here in by_batch.values()]


def verdict(own: list[dict], over: str) -> str:
  """Says up to which batch a drafter pays, and by how much.

  Args:
    own: its row at each batch, of `pooled`.
    over: says what the rows are pooled over; may be empty.
  """
  states, last = [*map(verdicts.state, own)], up_to(own)
  tried = span(sizes(own), 'd')
  if last == own[-1]['batch']:
    text = f'pays in batches of {tried}'
  elif last:
    text = f'pays up to batch {last} of {tried}'
  elif wins := paying(own):
    text = f'pays at batch {", ".join(map(str, wins))} of {tried}'
  elif set(states) == {verdicts.UNKNOWN}:
    text = f'has no interval, and so no verdict, in batches of {tried}'
  else:
    loses = set(states) == {LOSES}
    text = 'does not pay' if loses else 'may or may not pay'
    text += f' in batches of {tried}'
  at = [row['batch'] for row in own]
  ends = at.index(last) if last else 0
  shown = [own[i] for i in sorted({0, ends, min(ends + 1, len(own) - 1)})]
  numbers = ', '.join(
    f'{intervals.shown(r, "speedup")} at batch {r["batch"]} '
    f'(gamma {r["gamma"]})'
    for r in shown
  )
  even = measured(own)
  parts = [f'{verdicts.named(own[0])} {text}{over}.']
  parts.append(f'In times plain decoding: {numbers}.')
  if even.between and even.ends:
    parts.append(f'It breaks even at batch {even.text()}.')
  return ' '.join(parts)


def of_places(rows: list[dict]) -> list[Table]:
  """Shows up to which batch speculation pays at each place, if several."""
  cells = by_place(rows)
  lines = []
  for (domain, temperature), here in cells.items():
    expected = refilled(here)
    lines.append(
      [
        domain,
        f'{temperature:g}',
        str(up_to(here) or '-'),
        ', '.join(map(str, paying(here))) or '-',
        measured(here).text(),
        expected.text() if expected else '-',
      ]
    )
  head = ['domain', 'temperature', 'pays up to batch', 'batches that pay']
  head += ['break-even batch', 'predicted with rows refilled']
  title = 'The best drafter of each place'
  return [Table(title, '', head, lines)] if len(lines) > 1 else []


def last_line(rows: list[dict]) -> list[dict]:
  """Returns what pays at each place, for the last line of a run."""
  found = []
  for (domain, temperature), here in by_place(timed(rows)).items():
    even = measured(here)
    inside = even.between is not None
    # An end is null where it lies outside all batches.
    ends = [x if 0 < x < np.inf else None for x in even.ends or ()]
    entry: dict[str, Any] = {
      'domain': domain,
      'temperature': temperature,
      'pays_up_to': up_to(here),
      'break_even': even.value if inside else None,
      'break_even_ci': ends or None if inside else None,
      'break_even_between': even.between,
      'best': [
        {name: r[name] for name in ('batch', 'drafter', 'gamma', 'speedup')}
        | {'speedup_ci': intervals.stored(r, 'speedup')}
        for r in best(here)
        if verdicts.names_best(r)
      ],
    }
    found.append(entry)
  return found


def _milliseconds(row: dict, name: str = 'row_seconds_per_token') -> str:
  return intervals.shown(row, name, '.2f', 1e3)


_ROWS: Columns = (
  *columns('batch', 'drafter', 'gamma', 'tokens_per_second'),
  ('ms per token', _milliseconds),
  column('tau', alone=True),
  *columns('c', 'v', 'at_work', 'speedup'),
  column('predicted_static_speedup', alone=True),
  column('measured_over_predicted_static'),
  column('predicted_speedup', 'rows refilled', alone=True),
)
_OF_BATCHES: Columns = (
  column('batch'),
  ('best', verdicts.named),
  *columns('gamma', 'speedup'),
  (
    'tokens/s',
    lambda r: (
      f'{r["baseline_tokens_per_second"]:.0f} / {r["tokens_per_second"]:.0f}'
    ),
  ),
  (
    'ms per token of a row',
    lambda r: (
      f'{_milliseconds(r, "baseline_row_seconds_per_token")} / '
      f'{_milliseconds(r)}'
    ),
  ),
  column('v'),
  ('a step', lambda r: number(verdicts.step_cost(r))),
  column('tau', alone=True),
  ('verdict', verdicts.state),
)


def plain(row: dict) -> dict:
  """Returns plain decoding beside a row, as a row at draft length 0."""
  was = {
    name.removeprefix('baseline_'): value
    for name, value in row.items()
    if name.startswith('baseline_')
  }
  own = {'drafter': 'plain', 'gamma': 0, 'tau': 1.0, 'v': 1.0, 'speedup': 1.0}
  return {'batch': row['batch']} | own | was


def tables(rows: list[dict]) -> list[Table]:
  """Shows what is best at each batch, and every length at every batch."""
  shown = timed(rows)
  chosen, every = of_places(shown), []
  for (domain, temperature), here in by_place(shown).items():
    where = f'{domain}, temperature {temperature:g}'
    title = f'Best draft length by batch: {where}'
    chosen.append(
      Table.of(title, '' if every else _BEST, _OF_BATCHES, best(here))
    )
    lines = []
    here = sorted(here, key=lambda r: (r['batch'], r['drafter'], r['gamma']))
    for same in group(here, 'batch').values():
      lines += [plain(same[0]), *same]
    note = '' if every else _NOTE
    every.append(Table.of(f'By batch: {where}', note, _ROWS, lines))
  return chosen + every
