"""Claims of papers about draft lengths, and what alpha says of tau."""

import itertools
from collections.abc import Iterator

from experiments.papers.claims import (
  MARGIN,
  PLACE,
  TIMED,
  Finding,
  claim,
  exact_rules,
  finding,
  matched,
  rises,
)
from specjax.bench.results import Rows
from specjax.bench.selecting import pick
from specjax.reports.paired import ALPHA, SPEED, TAU
from specjax.stats import metrics


def over_equation_one(row: dict) -> metrics.Estimate:
  """tau over what alpha gives if acceptances were independent, less 1."""

  def deviation(tokens, calls, overlap, prefixes):
    alpha, gamma = overlap / prefixes, row['gamma']
    expected = sum(alpha**i for i in range(gamma + 1))
    return tokens / calls / expected

  columns = [row[name] for name in (*TAU, *ALPHA)]
  return metrics.estimate(deviation, *columns, positive=True).scaled(1, -1)


@claim(
  f'tau is what Equation 1 gives at alpha, within {MARGIN:.0%}',
  'arXiv:2211.17192, Equation 1',
  'tau over Equation 1, less 1',
)
def equation_one(rows: Rows) -> Iterator[Finding]:
  drafters = ('draft-64', 'draft-128', 'draft-256', 'bigram')
  for row in rows.get('embedded/drafters', []):
    if row['drafter'] in drafters and row['unit_overlap']:
      place = {k: row[k] for k in (*PLACE, 'drafter')}
      yield finding(place, '', over_equation_one(row), row, within=MARGIN)


@claim(
  'Drafts can be too long: gamma 4 is faster than gamma 8',
  'arXiv:2302.01318, Figure 1',
  'relative change of the speed',
)
def long_drafts(rows: Rows) -> Iterator[Finding]:
  token = pick(rows.get('rules', []), verifier='token')
  return rises(token, 'gamma', (8, 4), statistic=SPEED, label='gamma ')


@claim(
  'tau / (gamma + 1) falls with gamma',
  'arXiv:2302.01318, Figure 1',
  'fall of tau / (gamma + 1)',
)
def share_of_a_step(rows: Rows) -> Iterator[Finding]:
  token = pick(rows.get('embedded/gammas', []), verifier='token')
  gammas = sorted({r['gamma'] for r in token})
  groups = ([{'gamma': g} for g in step] for step in itertools.pairwise(gammas))
  for place, pair in matched(token, PLACE, *groups):
    low, high = (row['gamma'] for row in pair)

    def fall(n, d, m, e, low=low, high=high):
      return n / d / (low + 1) - m / e / (high + 1)

    columns = [row[name] for row in pair for name in TAU]
    estimate = metrics.estimate(fall, *columns)
    yield finding(place, f'gamma {low} to {high}', estimate, pair[0])


@claim(
  'Drafts that adapt their length are faster than constant ones',
  'arXiv:2405.19715; arXiv:2405.04304',
  'relative change of the speed',
)
def adaptive(rows: Rows) -> Iterator[Finding]:
  """Every policy against constant lengths of the same draft."""
  constant = ('draft-128', 'draft-128 long')
  policies = [f'draft-128 {p}' for p in ('confidence', 'heuristic', 'expected')]
  orders = itertools.product(constant, policies)
  return rises(exact_rules(rows, TIMED), 'drafter', *orders, statistic=SPEED)
