"""Claims of papers about drafters.

Acceptance is read from many prompts without times, costs and speeds from fewer
with them; `configs/drafters.py` makes both.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from experiments.papers.claims import (
  ACCEPTANCE,
  MARGIN,
  PLACE,
  TIMED,
  Finding,
  apart,
  claim,
  drafters_rise,
  exact_rules,
  finding,
  matched,
  rises,
)
from specjax import trees
from specjax.bench.results import Rows
from specjax.bench.selecting import pick
from specjax.drafters.shapes import parallel
from specjax.reports.paired import ALPHA, SPEED, TAU
from specjax.stats import metrics, theory

TRAINED = ('draft-64', 'draft-128', 'draft-256')
INDEPENDENT = (*TRAINED, 'distilled')


@claim(
  'alpha rises from unigrams to bigrams to models, and with their size',
  'arXiv:2211.17192, Table 3',
  'difference of alpha, next less this',
)
def by_size(rows: Rows) -> Iterator[Finding]:
  drafters = rows.get('embedded/drafters', [])
  order = ('unigram', 'bigram', *TRAINED)
  return rises(drafters, 'drafter', order, statistic=ALPHA)


@claim(
  'alpha at temperature 0 is above alpha at temperature 1',
  'arXiv:2211.17192, Table 3 (with an exception); arXiv:2401.06706, Table 8',
  'difference of alpha',
)
def by_temperature(rows: Rows) -> Iterator[Finding]:
  drafters = rows.get('embedded/drafters', [])
  return rises(
    [r for r in drafters if r['drafter'] in TRAINED],
    'temperature',
    (1.0, 0.0),
    statistic=ALPHA,
    fixed=('domain', 'drafter'),
    label='T ',
  )


@claim(
  'The fastest draft is neither the smallest nor the largest',
  'arXiv:2211.17192, Table 2 (there the smallest)',
  'relative change of the speed',
)
def middle_size(rows: Rows) -> Iterator[Finding]:
  small, middle, large = TRAINED
  orders = ((small, middle), (large, middle))
  return rises(rows.get('quickstart', []), 'drafter', *orders, statistic=SPEED)


@claim(
  'Lookup gains more on text that copies than on free text',
  'arXiv:2401.07851; arXiv:2311.08252',
  'difference of tau, not paired',
)
def lookup(rows: Rows) -> Iterator[Finding]:
  domains = [{'domain': 'documentation'}, {'domain': 'structured'}]
  for folder in ('embedded/drafters', 'quickstart'):
    ngram = pick(rows.get(folder, []), drafter='ngram')
    for place, pair in matched(ngram, ('temperature',), domains):
      step = f'{folder}, documentation to structured'
      yield finding(place, step, apart(*pair, TAU), *pair)


def _share(row: dict) -> tuple[list[float], list[float]]:
  """Seconds that drafting took, and those of a plain step, turn by turn."""
  times = row['seconds_per_step']
  drafting = np.subtract(times['whole'], times['scored'])
  return drafting.tolist(), times['plain']


def _cost(rows: Rows, drafter: str) -> float | None:
  """gamma c of a drafter, in plain steps; None where it was not timed."""
  timed = pick(exact_rules(rows, TIMED), drafter=drafter)
  costs = [r['gamma'] * r['c'] for r in timed if r['c'] is not None]
  return float(np.median(costs)) if costs else None


def _cheaper(rows: Rows, one: str, other: str) -> Iterator[Finding]:
  """Whether drafts of `other` cost less than those of `one`.

  What a step costs does not depend on the place, so there is one cell.
  """

  def fall(drafting, plain, other_drafting, other_plain):
    return drafting / plain - other_drafting / other_plain

  drafters = [{'drafter': name} for name in (one, other)]
  for _, pair in matched(exact_rules(rows, TIMED), (), drafters):
    if not pair[0].get('seconds_per_step'):
      continue
    columns = [column for row in pair for column in _share(row)]
    if len({len(column) for column in columns}) == 1:
      estimate = metrics.estimate(fall, *columns)
      yield Finding(
        f'cost of a draft, {one} less {other}', estimate, kind='cost'
      )


@claim(
  "A head on the target's features gives more tokens than the best independent "
  'draft of one layer',
  'arXiv:2503.01840; arXiv:2401.15077',
  'difference of tau; in brackets what a draft of each costs, in plain steps: '
  'the best of those drafts that cost as much as the head, or of all where '
  'none does',
)
def over_independent(rows: Rows) -> Iterator[Finding]:
  """The best draft that costs as much or more; the best of all if none does."""
  head = _cost(rows, 'eagle3')
  costs = {name: _cost(rows, name) for name in INDEPENDENT}
  known = {name: cost for name, cost in costs.items() if cost is not None}
  if head is None or not known:
    return
  dearer = [n for n, cost in known.items() if cost >= head] or list(known)
  every = exact_rules(rows)
  for place, (own,) in matched(every, PLACE, [{'drafter': 'eagle3'}]):
    drafts = pick(every, **place)
    others = [
      r for r in drafts if r['drafter'] in dearer and r['gamma'] == own['gamma']
    ]
    if others:
      best = max(others, key=lambda r: r['tau'])['drafter']
      for one in rises(drafts, 'drafter', (best, 'eagle3')):
        label = f'{one.cell} (costs {known[best]:.2f} and {head:.2f})'
        yield dataclasses.replace(one, cell=label)


over_eagle1 = drafters_rise(
  'EAGLE-3 gives more tokens than EAGLE-1',
  'arXiv:2503.01840, Table 1',
  ('eagle1', 'eagle3'),
)


over_eagle3 = drafters_rise(
  'A block that is drafted in one pass gives more tokens than EAGLE-3',
  'arXiv:2602.06036, Table 1 (five layers, blocks and trees of 16 tokens)',
  ('eagle3', 'dflash'),
)


@claim(
  'A block costs less to draft in one pass than a chain of EAGLE-3 as long',
  'arXiv:2602.06036, Table 9 (more speed at the same tau)',
  'difference of the cost of a draft, in plain steps',
)
def cheaper_blocks(rows: Rows) -> Iterator[Finding]:
  return _cheaper(rows, 'eagle3', 'dflash')


trees_over_chains = drafters_rise(
  'Trees give more tokens than chains',
  'arXiv:2401.15077, Table 5',
  *(
    (name, f'{name} tree')
    for name in ('eagle3', 'medusa', 'dflash', 'draft-128')
  ),
)


dynamic_trees = drafters_rise(
  'Trees made anew at every step give more than fixed ones',
  'arXiv:2406.16858, Table 1',
  ('eagle3 tree', 'eagle3 dynamic tree'),
)


def _chains(rows: Rows) -> list[dict]:
  """Rows of chains that say what every prompt accepted."""
  chains = pick(rows.get(ACCEPTANCE, []), verifier='token')
  return [r for r in chains if r.get('unit_histogram') and r['gamma'] > 2]


@claim(
  'Acceptance falls less along a draft of EAGLE-3 than of EAGLE-1',
  'arXiv:2503.01840',
  'fall of the conditional acceptance from the first to the last place, '
  'EAGLE-1 less EAGLE-3',
)
def flatter(rows: Rows) -> Iterator[Finding]:
  def difference(a, b, c, d, e, f, g, h):
    return (a / b - c / d) - (e / f - g / h)

  heads = [{'drafter': 'eagle1'}, {'drafter': 'eagle3'}]
  for place, pair in matched(_chains(rows), (*PLACE, 'gamma'), heads):
    last = place['gamma'] - 1
    columns = [
      column
      for row in pair
      for position in (0, last)
      for column in metrics.at_place(row['unit_histogram'], position)
    ]
    if len({len(column) for column in columns}) == 1:
      estimate = metrics.estimate(difference, *columns)
      where = {k: place[k] for k in PLACE}
      yield finding(where, f'place 1 to {last + 1}', estimate, pair[0])


@claim(
  'n-alpha drops once and is then flat',
  'arXiv:2401.15077, Table 2',
  'fall of n-alpha of EAGLE-1',
)
def drops_once(rows: Rows) -> Iterator[Finding]:
  """0-alpha is above 1-alpha, and that is near the last one."""

  def fall(a, b, c, d):
    return a / b - c / d

  for row in pick(_chains(rows), drafter='eagle1'):
    place, last = {k: row[k] for k in PLACE}, row['gamma'] - 1
    for one, other, within in ((0, 1, None), (1, last, MARGIN)):
      kind = 'falls' if within is None else f'within {MARGIN:g}'
      pair = (metrics.at_place(row['unit_histogram'], n) for n in (one, other))
      yield finding(
        place,
        f'{one}-alpha to {other}-alpha, {kind}',
        metrics.estimate(fall, *itertools.chain(*pair)),
        row,
        within=within,
        kind=kind,
      )


def _counts_of_heads(row: dict) -> tuple[np.ndarray, np.ndarray]:
  """Hits [K, R] and places [K, 1], those of the row's domain if known."""
  known = row['guesses']
  known = known.get('domains', {}).get(row['domain'], known)
  hits, counted = (
    np.array(known[name])[: row['gamma']] for name in ('hits', 'counted')
  )
  return hits, counted[:, None]


def expected_of_heads(row: dict) -> metrics.Draws:
  """1 and the chance of every node, by the accuracies of the heads.

  The draws are of other hits in as many places.
  """
  parents = tuple(range(row['gamma']))
  if (row['options'] or {}).get('tree'):
    accuracies = parallel.accuracies(row['guesses'])[: row['gamma']]
    parents = trees.most_accepted(accuracies, row['options']['tree'])
  hits, counted = _counts_of_heads(row)
  shape = (metrics.RESAMPLES, *hits.shape)
  drawn = np.random.default_rng(2).binomial(counted, hits / counted, shape)
  tokens = [theory.tree_tokens(parents, x / counted) for x in (hits, *drawn)]
  return metrics.Draws(tokens[:1], [np.array(tokens[1:])])


@claim(
  "Medusa's tau is 1 and the sum of the products of the heads' accuracies, "
  f'within {MARGIN:.0%}',
  'arXiv:2401.10774, section 3.3',
  'tau over that sum, less 1; both are drawn anew for the interval',
)
def product_of_heads(rows: Rows) -> Iterator[Finding]:
  """Greedy decoding: the accuracies are those of greedy guesses."""
  for row in pick(exact_rules(rows), temperature=0.0):
    known = row.get('guesses') and row['drafter'].startswith('medusa')
    if not known:
      continue
    expected = expected_of_heads(row)
    deviation = metrics.combine(
      lambda tokens, calls, known: tokens / calls / known,
      metrics.Sums(*(row[name] for name in TAU)),
      expected,
      positive=True,
    )
    (value,) = expected.values
    yield finding(
      {k: row[k] for k in (*PLACE, 'drafter')},
      f'tau {row["tau"]:.2f}, expected {value:.2f}',
      deviation.scaled(1, -1),
      row,
      within=MARGIN,
    )


@claim(
  'Earlier exits accept less and cost less',
  'arXiv:2404.16710, Tables 5 and 10',
  'differences of alpha, and of the cost of a draft in plain steps',
)
def earlier_exits(rows: Rows) -> Iterator[Finding]:
  order = ('exit 1', 'exit 2')
  exact = exact_rules(rows)
  yield from rises(exact, 'drafter', order, statistic=ALPHA, kind='alpha')
  yield from _cheaper(rows, 'exit 2', 'exit 1')


retrieval = drafters_rise(
  'Lookup in a corpus too gives more than in the text alone',
  'arXiv:2311.08252, Table 2',
  ('ngram', 'ngram corpus'),
)


several_places = drafters_rise(
  'Several places of the text give more than one',
  'arXiv:2311.08252',
  ('ngram', 'ngram candidates'),
)


@claim(
  'Drafts cost less when they are speculated themselves',
  'arXiv:2308.04623, Table 1',
  'difference of the cost of a draft, in plain steps',
)
def staged(rows: Rows) -> Iterator[Finding]:
  return _cheaper(rows, 'draft-64', 'cascade')


quantized = drafters_rise(
  'The target in 8 bits agrees with it more than a trained draft',
  'arXiv:2410.11305',
  *((name, 'target int8') for name in (*INDEPENDENT, 'eagle1', 'eagle3')),
  statistic=ALPHA,
)
