"""Rows of a run of several batch sizes: up to which one speculation pays.

A step serves all rows of a batch at once. Plain decoding reads the weights once
for all of them, so what a row gains from scoring several tokens in one pass
shrinks as the batch grows: v rises, and at some batch the speed-up is 1.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from specjax.reports import break_even, intervals, run_headline
from specjax.reports.markdown import span
from specjax.reports.run_headline import LOSES, UNDECIDED, WINS, Headline
from specjax.stats.row import by_place, group, pick

_WAITS = 0.95  # at work in a smaller share of the steps is told


def sizes(rows: list[dict]) -> list[int]:
  """The batch sizes of rows, the smallest first."""
  return sorted({row['batch'] for row in rows})


def swept(rows: list[dict]) -> bool:
  return len(sizes(rows)) > 1


def timed(rows: list[dict]) -> list[dict]:
  """Rows of exact rules that have times and can be believed."""
  sound = run_headline.sound(rows)
  return [r for r in sound if r['lossless'] and r['speedup'] is not None]


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
    """As a clause: 'at batch 5.7 [4.2, 9.0], between 4 and 8'."""

    def shown(batch: float) -> str:
      if batch == 0:
        return 'below'
      return f'beyond {self.last}' if np.isinf(batch) else f'{batch:.1f}'

    ends = ''
    if self.ends and not np.isinf(min(self.ends)):
      ends = f' [{shown(self.ends[0])}, {shown(self.ends[1])}]'
    if self.between is None:
      where = 'beyond the largest batch' if self.falls else 'at no batch tried'
      return f'{where}{ends}'
    around = 'between {} and {}'.format(*self.between)
    return f'at batch {self.value:.1f}{ends}, {around}'


def _cross(batches, values, down: bool) -> tuple[float, int]:
  """Where values first reach 1, and the place of the batch behind it."""
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
  """Where a speed-up falls to 1, or rises to it if it begins below.

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
  """The row of each batch that is best, of one place."""
  by_batch = group(sorted(rows, key=lambda r: r['batch']), 'batch')
  return [run_headline.leading(here) for here in by_batch.values()]


def measured(rows: list[dict]) -> BreakEven:
  """Of the best draft length of each batch, of one place."""
  return find(
    [
      (r['batch'], r['speedup'], intervals.stored(r, 'speedup'))
      for r in best(rows)
    ]
  )


def refilled(rows: list[dict]) -> BreakEven | None:
  """The same as it is predicted where rows are refilled; no interval."""
  known = [r for r in rows if r.get('predicted_speedup') is not None]
  if not known:
    return None
  by_batch = group(sorted(known, key=lambda r: r['batch']), 'batch')
  return find(
    [
      (batch, max(r['predicted_speedup'] for r in here), None)
      for (batch,), here in by_batch.items()
    ]
  )


def paying(rows: list[dict]) -> list[int]:
  """Batches at which speculation wins, of one place."""
  return [r['batch'] for r in best(rows) if run_headline.state(r) == WINS]


def up_to(rows: list[dict]) -> int | None:
  """The batch up to which it wins at every one; None if not at the first."""
  last = None
  for row in best(rows):
    if run_headline.state(row) != WINS:
      break
    last = row['batch']
  return last


def _said(row: dict, rows: list[dict]) -> str:
  name = run_headline.named(row, rows)
  return f'{name}, {intervals.shown(row, "speedup")}'


def _because(row: dict, rows: list[dict]) -> str:
  """Why a row is no faster than this, from its costs and those of batch 1."""
  if row.get('v') is None:
    return 'its costs were not measured'
  same = {n: row[n] for n in ('drafter', 'verifier', 'gamma')}
  first = min(pick(rows, **same), key=lambda r: r['batch'])
  scored = row['gamma'] + 1
  text = f'v({scored}) = {row["v"]:.2f}'
  if first is not row and first.get('v') is not None:
    text += f' ({first["v"]:.2f} at batch {first["batch"]})'
  cost = break_even.cost_of(row)
  text += (
    f': a step costs {cost:.2f} plain steps and gives a row '
    f'{row["tau"]:.2f} tokens'
  )
  busy = row.get('at_work')
  if busy is not None and busy < _WAITS:
    text += f', and rows are at work in {busy:.0%} of the steps'
  return f'because {text}' if row['speedup'] < 1 else text


def _tried(rows: list[dict]) -> str:
  return span(sizes(rows), 'd')


def _not(chosen: list[dict]) -> str:
  """What is said of the best of each batch where none of them wins."""
  states = {*map(run_headline.state, chosen)}
  if states == {LOSES}:
    return 'pays at no batch'
  few = '' if UNDECIDED in states else ', with too few prompts for intervals'
  return f'undecided{few}'


def sentence(rows: list[dict]) -> str:
  """What is said of one place, without a full stop."""
  chosen, won = best(rows), paying(rows)
  last = up_to(rows)
  beyond = [r for r in chosen if last is None or r['batch'] > last]
  if last is not None and not beyond:
    text = (
      f'pays at every batch tried, {_tried(rows)} '
      f'({_said(chosen[-1], rows)} at {last})'
    )
  elif last is not None:
    reached = next(r for r in chosen if r['batch'] == last)
    after = beyond[0]
    state = {LOSES: 'loses', UNDECIDED: 'is undecided'}
    verdict = state.get(run_headline.state(after), 'is not known')
    text = (
      f'pays up to batch {last} ({_said(reached, rows)}), not beyond: at batch '
      f'{after["batch"]} the best {verdict} ({_said(after, rows)}), '
      f'{_because(after, rows)}'
    )
  elif won:
    some = ', '.join(map(str, won))
    top = max(pick(chosen, batch=tuple(won)), key=lambda r: r['speedup'])
    text = (
      f'pays at batch {some} of those tried, {_tried(rows)} '
      f'({_said(top, rows)} at {top["batch"]})'
    )
  else:
    top = max(chosen, key=lambda r: r['speedup'])
    text = (
      f'{_not(chosen)}: the best of batches {_tried(rows)}, at '
      f'{top["batch"]}, is {_said(top, rows)}, {_because(top, rows)}'
    )
  later = [b for b in won if last is not None and b > last]
  if later:
    text += f'; it pays again at batch {", ".join(map(str, later))}'
  text += f'; break-even {measured(rows).text()}'
  expected = refilled(rows)
  if expected:
    text += f', predicted with rows refilled {expected.text()}'
  return text


def verdict(rows: list[dict]) -> Headline:
  """The verdict on rows of several batches."""
  usual = run_headline.headline(rows)
  shown = timed(rows)
  if not shown or not swept(shown):
    return usual
  cells = by_place(shown)
  said = {
    f'{domain}, temperature {temperature:g}': here
    for (domain, temperature), here in cells.items()
  }
  sentences = [f'{where}: {sentence(here)}' for where, here in said.items()]
  slow = [
    r
    for here in cells.values()
    for r in best(here)
    if run_headline.state(r) in (LOSES, UNDECIDED)
  ]
  command = ''
  if slow:
    one = f'--batches="()" --batch={slow[0]["batch"]}'
    command = f'{run_headline.command_of(slow[0])} {one}'
  if len(sentences) == 1:
    return dataclasses.replace(
      usual, verdict=f'{sentences[0]}.', places=[], command=command
    )
  lasts = {where: up_to(here) for where, here in said.items()}
  parts = [
    f'{where}: ' + (f'up to batch {last}' if last else _not(best(said[where])))
    for where, last in lasts.items()
  ]
  verdict = (
    f'Of batches of {_tried(shown)} speculation pays, by domain and '
    f'temperature: {"; ".join(parts)}'
  )
  return dataclasses.replace(
    usual,
    verdict=f'{verdict}.',
    places=[f'{one}.' for one in sentences],
    command=command,
  )


def _finite(ends: tuple[float, float] | None) -> list[float | None] | None:
  """Ends as JSON has them: null where one lies outside of all batches."""
  return ends and [x if 0 < x < np.inf else None for x in ends]


def last_line(rows: list[dict]) -> list[dict]:
  """For the last line of a run: what pays where, in every place."""
  found = []
  for (domain, temperature), here in by_place(timed(rows)).items():
    even = measured(here)
    inside = even.between is not None
    entry: dict[str, Any] = {
      'domain': domain,
      'temperature': temperature,
      'pays_up_to': up_to(here),
      'break_even': even.value if inside else None,
      'break_even_ci': _finite(even.ends) if inside else None,
      'break_even_between': even.between,
      'best': [
        {
          'batch': r['batch'],
          'drafter': r['drafter'],
          'gamma': r['gamma'],
          'speedup': r['speedup'],
          'speedup_ci': intervals.stored(r, 'speedup'),
        }
        for r in best(here)
      ],
    }
    found.append(entry)
  return found
