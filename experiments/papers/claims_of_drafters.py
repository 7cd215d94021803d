"""Claims of papers about drafters, and rows of `configs/drafters.py`.

Acceptance is read from many prompts without times, costs and speeds from fewer
with them.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from experiments.papers.claims import MARGIN
from experiments.papers.judgement import (
  Evidence,
  Rows,
  faster,
  on,
  pick,
  places,
  steps,
  where_of,
)
from experiments.reports.paired import ALPHA, TAU, Statistic
from specjax import metrics, theory, trees
from specjax.drafters import medusa

MANY, TIMED = 'drafters/acceptance', 'drafters/timed'
DIVERGENCES = 'embedded/divergences'
INDEPENDENT = ('draft-64', 'draft-128', 'draft-256', 'distilled')
_PLACE = ('domain', 'temperature')
_EXACT = ('token', 'recursive')


def _exact(rows: Rows, folder: str = MANY) -> list[dict]:
  """Rows of the plain exact rules, one of which every drafter has."""
  return [r for r in rows.get(folder, []) if r['verifier'] in _EXACT]


def _rise(
  rows: Rows,
  *orders: tuple[str, ...],
  statistic: Statistic = TAU,
  kind: str = '',
) -> Iterator[Evidence]:
  """Evidence that a statistic rises from drafter to drafter."""
  for order in orders:
    yield from steps(
      _exact(rows), 'drafter', order, statistic, _PLACE, kind=kind
    )


def _share(row: dict) -> tuple[list[float], list[float]]:
  """Seconds that drafting took, and those of a plain step, turn by turn."""
  times = row['seconds_per_step']
  drafting = np.subtract(times['whole'], times['scored'])
  return drafting.tolist(), times['plain']


def _cost(rows: Rows, drafter: str) -> float | None:
  """gamma c of a drafter, in plain steps; None where it was not timed."""
  there = pick(_exact(rows, TIMED), drafter=drafter)
  found = [r['gamma'] * r['c'] for r in there if r['c'] is not None]
  return float(np.median(found)) if found else None


def _cheaper(rows: Rows, one: str, other: str) -> Iterator[Evidence]:
  """Evidence that drafts of `other` cost less than those of `one`.

  What a step costs does not depend on the place, so there is one cell.
  """
  there = _exact(rows, TIMED)
  a, b = (pick(there, drafter=name) for name in (one, other))
  if not (a and b and a[0].get('seconds_per_step')):
    return
  if len(_share(a[0])[0]) != len(_share(b[0])[0]):
    return

  def fall(drafting, plain, other_drafting, other_plain):
    return drafting / plain - other_drafting / other_plain

  found = metrics.estimate(fall, *_share(a[0]), *_share(b[0]))
  yield Evidence(f'cost of a draft, {one} less {other}', found, kind='cost')


def over_independent(rows: Rows) -> Iterator[Evidence]:
  """The best draft that costs as much or more; the best of all if none does."""
  head = _cost(rows, 'eagle3')
  costs = {name: _cost(rows, name) for name in INDEPENDENT}
  known = {name: cost for name, cost in costs.items() if cost is not None}
  if head is None or not known:
    return
  dearer = [n for n, cost in known.items() if cost >= head] or list(known)
  there = _exact(rows)
  for place in places(pick(there, drafter='eagle3'), *_PLACE):
    own = pick(there, **place, drafter='eagle3')[0]
    others = [r for n in dearer for r in pick(there, **place, drafter=n)]
    others = [r for r in others if r['gamma'] == own['gamma']]
    if not others:
      continue
    name = max(others, key=lambda r: r['tau'])['drafter']
    for found in steps(
      pick(there, **place), 'drafter', (name, 'eagle3'), TAU, _PLACE
    ):
      said = f'{found.where} (costs {known[name]:.2f} and {head:.2f})'
      yield dataclasses.replace(found, where=said)


def over_eagle1(rows: Rows) -> Iterator[Evidence]:
  yield from _rise(rows, ('eagle1', 'eagle3'))


def trees_over_chains(rows: Rows) -> Iterator[Evidence]:
  yield from _rise(
    rows,
    ('eagle3', 'eagle3 tree'),
    ('medusa', 'medusa tree'),
    ('draft-128', 'draft-128 tree'),
  )


def dynamic_trees(rows: Rows) -> Iterator[Evidence]:
  yield from _rise(rows, ('eagle3 tree', 'eagle3 dynamic tree'))


def _chains(rows: Rows, drafter: str) -> list[dict]:
  """Rows of a chain that say what every prompt accepted."""
  there = pick(rows.get(MANY, []), drafter=drafter, verifier='token')
  return [r for r in there if r.get('unit_histogram') and r['gamma'] > 2]


def flatter(rows: Rows) -> Iterator[Evidence]:
  """First to last conditional acceptance: the fall of one less the other's."""
  there = _chains(rows, 'eagle1') + _chains(rows, 'eagle3')

  def difference(a, b, c, d, e, f, g, h):
    return (a / b - c / d) - (e / f - g / h)

  for where in places(there, *_PLACE):
    cells = [pick(there, **where, drafter=n) for n in ('eagle1', 'eagle3')]
    if not all(cells) or cells[0][0]['gamma'] != cells[1][0]['gamma']:
      continue
    last = cells[0][0]['gamma'] - 1
    columns = [
      column
      for (row, *_) in cells
      for place in (0, last)
      for column in metrics.at_place(row['unit_histogram'], place)
    ]
    if len({len(column) for column in columns}) == 1:
      yield Evidence(
        where_of(where, f'place 1 to {last + 1}'),
        metrics.estimate(difference, *columns),
        **on(cells[0][0]),
      )


def drops_once(rows: Rows) -> Iterator[Evidence]:
  """0-alpha is above 1-alpha, and that is near the last one."""

  def fall(a, b, c, d):
    return a / b - c / d

  for row in _chains(rows, 'eagle1'):
    where, last = {k: row[k] for k in _PLACE}, row['gamma'] - 1
    counts = row['unit_histogram']
    for one, other, within in ((0, 1, None), (1, last, MARGIN)):
      word = 'falls' if within is None else f'within {MARGIN:g}'
      pair = (metrics.at_place(counts, place) for place in (one, other))
      yield Evidence(
        where_of(where, f'{one}-alpha to {other}-alpha, {word}'),
        metrics.estimate(fall, *itertools.chain(*pair)),
        within=within,
        kind=word,
        **on(row),
      )


def distilled(rows: Rows) -> Iterator[Evidence]:
  yield from _rise(rows, ('undistilled', 'distilled'), ('control', 'distilled'))


def _data(rows: Rows, *kinds: str) -> Iterator[Evidence]:
  """Evidence that tau rises from kind to kind of data, for each divergence."""
  there = _exact(rows, DIVERGENCES)
  names = dict.fromkeys(r['drafter'] for r in there)
  for name in dict.fromkeys(n.partition(' on ')[0] for n in names):
    order = tuple(f'{name} on {kind}' for kind in kinds)
    yield from steps(there, 'drafter', order, TAU, _PLACE)


def model_text(rows: Rows) -> Iterator[Evidence]:
  for kind in ('target text', 'own text'):
    yield from _data(rows, 'corpus', kind)


def total_variation_is_not_best(rows: Rows) -> Iterator[Evidence]:
  """The best of the others gives more on the same data."""
  there = _exact(rows, DIVERGENCES)
  for place in places(there, *_PLACE):
    cells = pick(there, **place)
    for kind in dict.fromkeys(r['drafter'].partition(' on ')[2] for r in cells):
      own = f'total variation on {kind}'
      mine = [r for r in cells if r['drafter'].endswith(f' on {kind}')]
      others = [r for r in mine if r['drafter'] != own]
      if others:
        name = max(others, key=lambda r: r['tau'])['drafter']
        yield from steps(mine, 'drafter', (own, name), TAU, _PLACE)


def _counts_of_heads(row: dict) -> tuple[np.ndarray, np.ndarray]:
  """Hits [K, R] and places [K, 1], those of the row's domain if known."""
  known = row['guesses']
  known = known.get('domains', {}).get(row['domain'], known)
  depth = row['gamma']
  return np.array(known['hits'])[:depth], np.array(known['counted'])[
    :depth, None
  ]


def expected_of_heads(row: dict) -> metrics.Draws:
  """1 and the chance of every node, by the accuracies of the heads.

  The draws are of other hits in as many places.
  """
  parents = tuple(range(row['gamma']))
  if (row['options'] or {}).get('tree'):
    accuracies = medusa.accuracies(row['guesses'])[: row['gamma']]
    parents = trees.most_accepted(accuracies, row['options']['tree'])
  hits, counted = _counts_of_heads(row)
  shape = (metrics.RESAMPLES, *hits.shape)
  drawn = np.random.default_rng(2).binomial(counted, hits / counted, shape)
  tokens = [theory.tree_tokens(parents, x / counted) for x in (hits, *drawn)]
  return metrics.Draws(tokens[:1], [np.array(tokens[1:])])


def product_of_heads(rows: Rows) -> Iterator[Evidence]:
  """Greedy decoding: the accuracies are those of greedy guesses."""
  for row in pick(_exact(rows), temperature=0.0):
    if not row.get('guesses'):
      continue
    expected = expected_of_heads(row)
    deviation = metrics.combine(
      lambda tokens, calls, known: tokens / calls / known,
      metrics.Sums(*(row[name] for name in TAU)),
      expected,
      positive=True,
    )
    (value,) = expected.values
    place = {k: row[k] for k in (*_PLACE, 'drafter')}
    yield Evidence(
      where_of(place, f'tau {row["tau"]:.2f}, expected {value:.2f}'),
      deviation.scaled(1, -1),
      within=MARGIN,
      **on(row),
    )


def typical(rows: Rows) -> Iterator[Evidence]:
  there = [r for r in rows.get(MANY, []) if r['temperature']]
  order = ('recursive', 'typical')
  yield from steps(
    pick(there, drafter='medusa tree'), 'verifier', order, TAU, _PLACE
  )


def earlier_exits(rows: Rows) -> Iterator[Evidence]:
  yield from _rise(rows, ('exit 1', 'exit 2'), statistic=ALPHA, kind='alpha')
  yield from _cheaper(rows, 'exit 2', 'exit 1')


def adapters(rows: Rows) -> Iterator[Evidence]:
  pairs = ((f'exit {n}', f'exit {n} adapter') for n in (1, 2))
  yield from _rise(rows, *pairs, statistic=ALPHA)


def retrieval(rows: Rows) -> Iterator[Evidence]:
  yield from _rise(rows, ('ngram', 'ngram corpus'))


def several_places(rows: Rows) -> Iterator[Evidence]:
  yield from _rise(rows, ('ngram', 'ngram candidates'))


def staged(rows: Rows) -> Iterator[Evidence]:
  yield from _cheaper(rows, 'draft-64', 'cascade')


def quantized(rows: Rows) -> Iterator[Evidence]:
  trained = (*INDEPENDENT, 'eagle1', 'eagle3')
  yield from _rise(
    rows, *((name, 'target int8') for name in trained), statistic=ALPHA
  )


def adaptive(rows: Rows) -> Iterator[Evidence]:
  """Every policy against constant lengths of the same draft."""
  there = _exact(rows, TIMED)
  constant = ('draft-128', 'draft-128 long')
  policies = [f'draft-128 {p}' for p in ('confidence', 'heuristic', 'expected')]
  for place in places(there, *_PLACE):
    for names in itertools.product(constant, policies):
      one, other = (pick(there, **place, drafter=name) for name in names)
      if one and other and one[0]['speedup'] and other[0]['speedup']:
        yield Evidence(
          where_of(place, f'{names[0]} to {names[1]}'),
          faster(one[0], other[0]),
          **on(one[0]),
        )
