"""Claims against rows that were made to hold, to fail, or to say nothing."""

import numpy as np
import pytest

from experiments.papers import claims, findings
from experiments.papers.claims import (
  ACCEPTANCE,
  CLAIMS,
  FAILS,
  HOLDS,
  TIMED,
  UNDECIDED,
  Finding,
  exactly,
)
from specjax.stats import metrics
from specjax.stats.metrics import Estimate
from tests.support import rows as made


@pytest.mark.parametrize(
  ('low', 'high', 'within', 'outcome'),
  [
    (0.1, 0.3, None, HOLDS),
    (-0.3, -0.1, None, FAILS),
    (-0.1, 0.3, None, UNDECIDED),
    # Equality needs the whole interval within.
    (-0.05, 0.09, 0.1, HOLDS),
    (0.11, 0.3, 0.1, FAILS),
    (0.05, 0.15, 0.1, UNDECIDED),
  ],
)
def test_an_outcome_is_where_the_interval_lies(low, high, within, outcome):
  found = Estimate((low + high) / 2, low, high)
  assert Finding('x', found, within=within).outcome == outcome
  # What has no interval decides nothing, whatever it says.
  assert Finding('x', Estimate(low, *[np.nan] * 2)).outcome == UNDECIDED
  assert Finding('x', Estimate(*[np.nan] * 3)).outcome == UNDECIDED


def _cell(value, error, freedom=39, influence=None, **more):
  reach = error * metrics.student(freedom)
  influences = (np.asarray([error] if influence is None else influence),)
  found = Estimate(
    value, value - reach, value + reach, error, freedom, influences
  )
  return Finding('x', found, **more)


def test_a_claim_is_judged_by_its_pooled_effect():
  """One undecided cell of many decides nothing."""
  cells = [_cell(v, 0.1) for v in (0.9, 1.0, 1.1, 1.0, 0.05)]
  assert cells[-1].outcome == UNDECIDED
  assert findings.overall(cells) == HOLDS
  against = [_cell(-v, 0.1) for v in (0.9, 1.0, 1.1, 1.0, 0.05)]
  assert findings.overall(against) == FAILS
  # Cells that differ as much as this say nothing of others.
  assert findings.overall([_cell(v, 0.1) for v in (2, -1, 1)]) == UNDECIDED
  # Each kind of cell must hold.
  other = [_cell(-1.0, 0.1, kind='cost') for _ in range(4)]
  assert findings.overall([*cells, *other]) == FAILS
  # Where nothing is estimated every cell counts.
  holds, fails = (exactly('x', same) for same in (True, False))
  assert findings.overall([holds, holds]) == HOLDS
  assert findings.overall([holds, fails]) == FAILS
  said = findings.pooled([*cells, *other])
  assert said[0].startswith('Pooled: +0.810 [')
  assert said[1].startswith('Pooled, cost: -1.000 [')


def test_the_pooled_interval_is_students_of_the_mean_of_cells():
  """Values 1, 2, 3: a mean of 2 and an error of sqrt(1 / 3)."""
  found, spread, count = findings.pool([_cell(v, 0.6) for v in (1, 2, 3)])
  assert count == 3
  assert found.value == pytest.approx(2)
  assert found.error == pytest.approx(np.sqrt(1 / 3))
  assert found.high == pytest.approx(2 + 4.3027 * np.sqrt(1 / 3), rel=1e-4)
  assert spread == pytest.approx(np.sqrt(1 - 0.36))
  # Cells alike by chance are no surer than what each of them knows.
  alike = findings.pool([_cell(2, 0.6) for _ in range(3)])
  assert alike.estimate.error == pytest.approx(0.6 / np.sqrt(3))
  assert alike.spread == 0


def test_cells_without_spread_count_in_the_mean():
  """Identical texts make no difference, and that is an effect, too."""
  same = Finding('x', Estimate(0.0, error=0.0))
  few = Finding('x', Estimate(9.0))
  found, _, count = findings.pool([_cell(3, 0.6), _cell(3, 0.6), same, few])
  assert (found.value, count) == (pytest.approx(2.0), 3)
  assert found.interval is not None
  assert findings.contradictions([same, few]) == 0


def test_cells_on_the_same_prompts_err_together():
  """Three times the same cell is one cell."""
  same = {'influence': [0.3, -0.4, 0.1]}
  error = np.sqrt(0.26)
  for names, expected in (('aaa', error), ('abc', error / np.sqrt(3))):
    cells = [_cell(2.0, error, **same, prompts=(name,)) for name in names]
    assert findings.pool(cells).estimate.error == pytest.approx(expected)


def test_contradictions_are_counted_beyond_chance():
  """Of 24 cells one at 2.2 errors is chance, one at 5 is none."""
  cells = [_cell(0.5, 0.5, 1000) for _ in range(23)]
  assert findings.contradictions([*cells, _cell(-1.1, 0.5, 1000)]) == 0
  assert findings.contradictions([_cell(-1.1, 0.5, 1000)]) == 1
  assert findings.contradictions([*cells, _cell(-2.5, 0.5, 1000)]) == 1
  wide = [_cell(v, 0.01, 1000, within=0.1) for v in (0.11, -0.3, 0.0)]
  assert findings.contradictions(wide) == 1


def test_equal_rules_must_agree_on_every_prompt():
  token = made.row(gamma=1, temperature=1.0)
  block = token | {'verifier': 'block'}
  (same,) = CLAIMS['block_equal']({'embedded/gammas': [token, block]})
  assert same.outcome == HOLDS
  block = block | {'unit_target_calls': [4] * 7 + [5]}
  (found,) = CLAIMS['block_equal']({'embedded/gammas': [token, block]})
  assert found.outcome == FAILS


def test_gain_of_block_verification_by_length():
  """Gains of 0% and 50% at gamma 2 and 4."""
  calls = {('token', 2): 4, ('block', 2): 4, ('token', 4): 3, ('block', 4): 2}
  rows = [
    made.row(
      verifier=verifier, gamma=gamma, temperature=1.0,
      unit_target_calls=made.around(count),
    )
    for (verifier, gamma), count in calls.items()
  ]  # fmt: skip
  (found,) = CLAIMS['block_gain']({'embedded/gammas': rows})
  assert found.estimate.value == pytest.approx(0.5)
  assert found.outcome == HOLDS


def test_equation_one():
  """alpha 1/2 and gamma 2 give 1.75 tokens; here there are 2."""
  row = made.row(drafter='bigram', unit_target_calls=made.around(4))
  (found,) = CLAIMS['equation_one']({'embedded/drafters': [row]})
  assert found.estimate.value == pytest.approx(2 / 1.75 - 1)
  assert found.outcome == FAILS


def test_without_rows_a_claim_is_not_run():
  text = findings.text({}, findings.PAGES[0])
  assert text.count('| not run |') == len(CLAIMS)


def row(drafter, calls=4, **changes):
  """A row of eight prompts with eight tokens each: tau is 8 / calls."""
  # Prompts differ, and for every drafter in another way.
  calls_of = made.around(calls, by=0.01 + len(drafter) / 1000)
  changes = {'unit_target_calls': calls_of, 'tau': 8 / calls} | changes
  return made.row(drafter=drafter, **changes)


def timed(drafter, c):
  """Drafting takes 2 c plain steps of 1 s, give or take, in each of six turns.

  The machine's speed changes by the turn, for every drafter alike.
  """
  plain = 1 + np.arange(6) / 10
  turns = c * np.array([0.99, 1.01, 1, 1, 0.98, 1.02])
  times = {
    'plain': plain,
    'scored': 1.2 * plain,
    'whole': (1.2 + 2 * turns) * plain,
  }
  seconds = {name: list(values) for name, values in times.items()}
  return row(drafter, c=c, v=1.2, seconds_per_step=seconds)


def outcomes(found):
  return {finding.cell: finding.outcome for finding in found}


def test_a_head_is_compared_with_the_best_draft_that_costs_as_much():
  calls = {'draft-64': 2.0, 'draft-128': 3.0, 'draft-256': 3.5, 'eagle3': 2.5}
  many = [row(*one) for one in calls.items()]
  cheap = [timed(n, c) for n, c in (('draft-64', 0.05), ('draft-128', 0.3))]
  rows = {ACCEPTANCE: many, TIMED: [*cheap, timed('eagle3', 0.2)]}
  assert outcomes(CLAIMS['over_independent'](rows)) == {
    'code, T 0, draft-128 to eagle3 (costs 0.60 and 0.40)': HOLDS
  }
  # The better one is known to cost less, so it counts only if all do.
  rows[TIMED][-1] = timed('eagle3', 0.4)
  assert outcomes(CLAIMS['over_independent'](rows)) == {
    'code, T 0, draft-64 to eagle3 (costs 0.10 and 0.80)': FAILS
  }
  assert not CLAIMS['over_independent']({ACCEPTANCE: many})
  # Another draft length gives more tokens anyway.
  rows[ACCEPTANCE] = [row('draft-64', 2.0, gamma=8), many[-1]]
  assert not CLAIMS['over_independent'](rows)


def chain(drafter, *histogram):
  gamma = len(histogram) - 1
  # Prompts differ in a step more here and a step less there.
  moved = np.zeros((8, gamma + 1), int)
  moved[:4, 0] = moved[4:, -1] = 1
  moved[:4, -1] = moved[4:, 0] = -1
  counts = (np.array(histogram) + moved).tolist()
  return row(drafter, gamma=gamma, unit_histogram=counts)


def test_the_fall_of_acceptance_along_a_draft():
  """0.8, 0.5, 0.5 against 0.7, 0.7, 4/7: falls of 0.3 and 0.129."""
  steep = chain('eagle1', 20, 40, 20, 20)
  flat = chain('eagle3', 30, 21, 21, 28)
  (found,) = CLAIMS['flatter']({ACCEPTANCE: [steep, flat]})
  assert found.estimate.value == pytest.approx(0.3 - (0.7 - 4 / 7))
  assert found.outcome == HOLDS
  swapped = [steep | {'drafter': 'eagle3'}, flat | {'drafter': 'eagle1'}]
  (found,) = CLAIMS['flatter']({ACCEPTANCE: swapped})
  assert found.outcome == FAILS
  other = chain('eagle3', 30, 21, 21, 14, 14)
  assert not CLAIMS['flatter']({ACCEPTANCE: [steep, other]})


def test_acceptance_drops_once():
  rows = {ACCEPTANCE: [chain('eagle1', 20, 40, 20, 20)]}
  assert outcomes(CLAIMS['drops_once'](rows)) == {
    'code, T 0, 0-alpha to 1-alpha, falls': HOLDS,
    'code, T 0, 1-alpha to 2-alpha, within 0.1': HOLDS,
  }
  rows = {ACCEPTANCE: [chain('eagle1', 20, 16, 32, 32)]}
  found = [x.outcome for x in CLAIMS['drops_once'](rows)]
  assert found == [UNDECIDED, FAILS]


def heads(calls, tree=0, counted=10**6, **more):
  """Accuracies 1/2 and 1/4: 1 + 1/2 + 1/8 tokens of a chain of two."""
  shares = [[0.5, 0.2], [0.25, 0.1], [0.9, 0.1]]
  hits = [[int(x * counted) for x in row] for row in shares]
  guesses = {'hits': hits, 'counted': [counted] * 3} | more
  options = {'tree': tree} if tree else {}
  name = 'medusa tree' if tree else 'medusa'
  return row(name, calls, guesses=guesses, options=options)


def test_tokens_of_heads():
  found = claims.expected_of_heads(heads(5))
  assert found.values == pytest.approx([1.625])
  assert found.variants[0] == pytest.approx(1.625, abs=0.01)
  # The three best nodes: 1/2, 1/5, 1/8.
  found = claims.expected_of_heads(heads(4, tree=3))
  assert found.values == pytest.approx([1.825])
  (found,) = CLAIMS['product_of_heads']({ACCEPTANCE: [heads(5)]})
  assert found.estimate.value == pytest.approx(1.6 / 1.625 - 1)
  assert found.outcome == HOLDS
  (found,) = CLAIMS['product_of_heads']({ACCEPTANCE: [heads(4)]})
  assert found.outcome == FAILS
  # What was counted in a few places only is as uncertain.
  (found,) = CLAIMS['product_of_heads']({ACCEPTANCE: [heads(5, counted=20)]})
  assert found.outcome == UNDECIDED
  warm = heads(5) | {'temperature': 1.0}
  assert not CLAIMS['product_of_heads']({ACCEPTANCE: [warm, row('ngram')]})
  # Heads are as good as in the domain.
  code = {'hits': [[8, 0], [0, 0], [0, 0]], 'counted': [10] * 3}
  own = heads(5, domains={'code': code})
  assert claims.expected_of_heads(own).values == pytest.approx([1.8])
  other = own | {'domain': 'structured'}
  assert claims.expected_of_heads(other).values == pytest.approx([1.625])


def test_costs_are_compared_turn_by_turn():
  rows = {TIMED: [timed('draft-64', 0.2), timed('cascade', 0.15)]}
  (found,) = CLAIMS['staged'](rows)
  assert found.estimate.value == pytest.approx(0.1, abs=1e-3)
  assert found.outcome == HOLDS
  rows = {TIMED: [timed('draft-64', 0.2), timed('cascade', 0.21)]}
  assert CLAIMS['staged'](rows)[0].outcome == FAILS
  assert not CLAIMS['staged']({TIMED: [timed('cascade', 0.2)]})


def test_policies_against_constant_lengths():
  speeds = {'draft-128': 1.5, 'draft-128 long': 1.0, 'draft-128 expected': 1.4}
  rows = [
    row(name, speedup=s, unit_seconds=[1 / s + i / 100 for i in range(8)])
    for name, s in speeds.items()
  ]
  assert outcomes(CLAIMS['adaptive']({TIMED: rows})) == {
    'code, T 0, draft-128 to draft-128 expected': FAILS,
    'code, T 0, draft-128 long to draft-128 expected': HOLDS,
  }
  # Without the times of every prompt nothing can be said.
  rows = [r | {'unit_seconds': None} for r in rows]
  found = CLAIMS['adaptive']({TIMED: rows})
  assert {e.outcome for e in found} == {UNDECIDED}


def suffixes(*rows):
  return outcomes(CLAIMS['suffixes']({'methods': list(rows)}))


@pytest.mark.parametrize(
  ('one', 'other'), [('ngram', 'suffix'), ('ngram tree', 'suffix tree')]
)
def test_more_tokens_per_call(one, other):
  cell = f'code, T 0, {one} to {other}'
  assert suffixes(row(one, 4), row(other, 3)) == {cell: HOLDS}
  assert suffixes(row(one, 3), row(other, 4)) == {cell: FAILS}
  lossy = row(other, 3, verifier='typical')
  assert not suffixes(row(one, 4), lossy)
