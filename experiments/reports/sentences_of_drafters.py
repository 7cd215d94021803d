"""Which drafter when: what the rows of `configs/drafters.py` say."""

from experiments.measuring.results import Rows
from experiments.reports import intervals
from experiments.reports.best_drafters import at, best, places
from experiments.reports.words import bullets, conditions, paragraph, span
from specjax import metrics

TIMED = 'drafters/timed'
_NEAR = 0.95  # of the largest speed-up: as good as the fastest


def _timed(rows: Rows) -> list[dict]:
  """The fastest exact row of every drafter at every place."""
  there = [r for r in rows[TIMED] if r['lossless'] and r['speedup']]
  return best(there)


def _speed(row: dict) -> str:
  return intervals.shown(row, 'speedup')


def _fastest(rows: list[dict], key) -> dict:
  return max(rows, key=key)


def _by_speed(row: dict) -> float:
  return row['speedup']


def _if_scoring_were_free(row: dict) -> float:
  """The speed-up for the tau and c measured, at v = 1."""
  return metrics.predicted_speedup(row['tau'], row['c'], 1.0, row['gamma'])


def _by_temperature(rows: list[dict], key, show) -> str:
  """The first by `key` at every place: 'at temperature 0 on code ..., '."""
  parts = []
  for temperature in dict.fromkeys(r['temperature'] for r in rows):
    words = []
    for place in places([r for r in rows if r['temperature'] == temperature]):
      row = _fastest(at(rows, place), key)
      words.append(f'{show(row)} on {place[0]}')
    parts.append(f'at temperature {temperature:g} {", ".join(words)}')
  return '; '.join(parts)


def _named(row: dict) -> str:
  return f'{row["drafter"]} {_speed(row)}'


def _smallest(rows: list[dict]) -> str:
  """The fewest parameters that are as good as the fastest, place by place."""
  found: dict = {}
  for place in places(rows):
    here = at(rows, place)
    bound = _NEAR * max(map(_by_speed, here))
    near = [r for r in here if r['speedup'] >= bound]
    name = min(near, key=lambda r: r['parameters'])['drafter']
    found[name] = found.get(name, 0) + 1
  order = sorted(found, key=found.__getitem__, reverse=True)
  return ', '.join(f'{name} in {found[name]}' for name in order)


def drafters_conditions(rows: Rows) -> str:
  """Where the drafters were compared."""
  return paragraph(f'{conditions(rows[TIMED])}.')


def drafters(rows: Rows) -> str:
  """Which drafter when: every number is one of a row."""
  there = _timed(rows)
  free = [r for r in there if r['parameters'] == 0]
  known = [r for r in there if intervals.stored(r, 'speedup')]
  never = {r['drafter'] for r in known} - {
    r['drafter'] for r in known if intervals.above(r, 'speedup', 1)
  }
  items = [
    f'the fastest: {_by_temperature(there, _by_speed, _named)}',
    f'the fewest parameters within {1 - _NEAR:.0%} of the fastest, of '
    f'{len(places(there))} tables: {_smallest(there)}',
  ]
  if free:
    items.append(
      'without weights beside the target: '
      f'{_by_temperature(free, _by_speed, _named)}'
    )
  light = [r for r in there if r['gamma'] * r['c'] < 1]
  items.append(
    'the most tokens a call, where a draft costs less than a plain step: '
    + _by_temperature(
      light,
      lambda r: r['tau'],
      lambda r: f'{r["drafter"]} {r["tau"]:.2f} (speed-up {r["speedup"]:.2f})',
    )
  )
  items.append(
    f'scoring gamma + 1 tokens costs {span(r["v"] for r in there)} plain steps '
    'here; if it cost one, as where weights are read from slow memory, the '
    'fastest would be '
    + _by_temperature(
      there,
      _if_scoring_were_free,
      lambda r: f'{r["drafter"]} {_if_scoring_were_free(r):.2f}',
    )
  )
  if never:
    items.append(
      'surely faster than plain decoding in no table: '
      f'{", ".join(sorted(never))}'
    )
  return bullets(items)
