"""Claims about drafters against rows that were made to hold, or to fail."""

import numpy as np
import pytest

from experiments.papers import claims_of_drafters as claims
from experiments.papers import claims_of_lengths, claims_of_training
from experiments.papers.claims import ACCEPTANCE, FAILS, HOLDS, TIMED, UNDECIDED
from tests.support import rows as made


def row(drafter, calls=4, **changes):
  """A row of eight prompts with eight tokens each: tau is 8 / calls."""
  # Prompts differ, and for every drafter in another way.
  calls_of = made.around(calls, by=0.01 + len(drafter) / 1000)
  changes = {'unit_target_calls': calls_of, 'tau': 8 / calls} | changes
  return made.row(drafter=drafter, **changes)


def timed(drafter, c, **changes):
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
  return row(drafter, c=c, v=1.2, seconds_per_step=seconds, **changes)


def outcomes(found):
  return {finding.cell: finding.outcome for finding in found}


def test_a_head_is_compared_with_the_best_draft_that_costs_as_much():
  many = [
    row('draft-64', 2.0),
    row('draft-128', 3.0),
    row('draft-256', 3.5),
    row('eagle3', 2.5),
  ]
  cheap = [timed(n, c) for n, c in (('draft-64', 0.05), ('draft-128', 0.3))]
  rows = {ACCEPTANCE: many, TIMED: [*cheap, timed('eagle3', 0.2)]}
  assert outcomes(claims.over_independent(rows)) == {
    'code, T 0, draft-128 to eagle3 (costs 0.60 and 0.40)': HOLDS
  }
  # The better one is known to cost less, so it counts only if all do.
  rows[TIMED][-1] = timed('eagle3', 0.4)
  assert outcomes(claims.over_independent(rows)) == {
    'code, T 0, draft-64 to eagle3 (costs 0.10 and 0.80)': FAILS
  }
  assert not claims.over_independent({ACCEPTANCE: many})
  # Another draft length gives more tokens anyway.
  rows[ACCEPTANCE] = [row('draft-64', 2.0, gamma=8), many[-1]]
  assert not claims.over_independent(rows)


def test_rules_that_are_not_plain_prove_nothing():
  rows = [row('eagle1', 4), row('eagle3', 2, verifier='block')]
  assert not claims.over_eagle1({ACCEPTANCE: rows})
  rows[1]['verifier'] = 'token'
  assert outcomes(claims.over_eagle1({ACCEPTANCE: rows})) == {
    'code, T 0, eagle1 to eagle3': HOLDS
  }


def chain(drafter, *histogram, **changes):
  gamma = len(histogram) - 1
  # Prompts differ in a step more here and a step less there.
  moved = np.zeros((8, gamma + 1), int)
  moved[:4, 0] = moved[4:, -1] = 1
  moved[:4, -1] = moved[4:, 0] = -1
  counts = (np.array(histogram) + moved).tolist()
  return row(drafter, gamma=gamma, unit_histogram=counts, **changes)


def test_the_fall_of_acceptance_along_a_draft():
  """0.8, 0.5, 0.5 against 0.7, 0.7, 4/7: falls of 0.3 and 0.129."""
  steep = chain('eagle1', 20, 40, 20, 20)
  flat = chain('eagle3', 30, 21, 21, 28)
  (found,) = claims.flatter({ACCEPTANCE: [steep, flat]})
  assert found.estimate.value == pytest.approx(0.3 - (0.7 - 4 / 7))
  assert found.outcome == HOLDS
  swapped = [steep | {'drafter': 'eagle3'}, flat | {'drafter': 'eagle1'}]
  (found,) = claims.flatter({ACCEPTANCE: swapped})
  assert found.outcome == FAILS
  other = chain('eagle3', 30, 21, 21, 14, 14)
  assert not claims.flatter({ACCEPTANCE: [steep, other]})


def test_acceptance_drops_once():
  rows = {ACCEPTANCE: [chain('eagle1', 20, 40, 20, 20)]}
  assert outcomes(claims.drops_once(rows)) == {
    'code, T 0, 0-alpha to 1-alpha, falls': HOLDS,
    'code, T 0, 1-alpha to 2-alpha, within 0.1': HOLDS,
  }
  rows = {ACCEPTANCE: [chain('eagle1', 20, 16, 32, 32)]}
  assert list(outcomes(claims.drops_once(rows)).values()) == [UNDECIDED, FAILS]


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
  (found,) = claims.product_of_heads({ACCEPTANCE: [heads(5)]})
  assert found.estimate.value == pytest.approx(1.6 / 1.625 - 1)
  assert found.outcome == HOLDS
  (found,) = claims.product_of_heads({ACCEPTANCE: [heads(4)]})
  assert found.outcome == FAILS
  # What was counted in a few places only is as uncertain.
  (found,) = claims.product_of_heads({ACCEPTANCE: [heads(5, counted=20)]})
  assert found.outcome == UNDECIDED
  warm = heads(5) | {'temperature': 1.0}
  assert not claims.product_of_heads({ACCEPTANCE: [warm, row('ngram')]})


def test_heads_are_as_good_as_in_the_domain():
  code = {'hits': [[8, 0], [0, 0], [0, 0]], 'counted': [10] * 3}
  own = heads(5, domains={'code': code})
  assert claims.expected_of_heads(own).values == pytest.approx([1.8])
  other = own | {'domain': 'structured'}
  assert claims.expected_of_heads(other).values == pytest.approx([1.625])


def test_costs_are_compared_turn_by_turn():
  rows = {TIMED: [timed('draft-64', 0.2), timed('cascade', 0.15)]}
  (found,) = claims.staged(rows)
  assert found.estimate.value == pytest.approx(0.1, abs=1e-3)
  assert found.outcome == HOLDS
  rows = {TIMED: [timed('draft-64', 0.2), timed('cascade', 0.21)]}
  assert claims.staged(rows)[0].outcome == FAILS
  assert not claims.staged({TIMED: [timed('cascade', 0.2)]})


def test_data_to_distil_on():
  kinds = {'corpus': 4, 'target text': 3, 'own text': 5}
  rows = [
    row(f'{name} on {kind}', calls + extra)
    for name, extra in (('total variation', 0.5), ('jensen shannon', 0))
    for kind, calls in kinds.items()
  ]
  rows = {claims_of_training.DIVERGENCES: rows}
  found = outcomes(claims_of_training.model_text(rows))
  assert found['code, T 0, jensen shannon on corpus to '
               'jensen shannon on target text'] == HOLDS  # fmt: skip
  assert list(found.values()).count(FAILS) == 2
  best = outcomes(claims_of_training.total_variation_is_not_best(rows))
  assert set(best.values()) == {HOLDS}
  assert len(best) == 3


def test_policies_against_constant_lengths():
  speeds = {'draft-128': 1.5, 'draft-128 long': 1.0, 'draft-128 expected': 1.4}
  rows = [
    row(name, speedup=s, unit_seconds=[1 / s + i / 100 for i in range(8)])
    for name, s in speeds.items()
  ]
  assert outcomes(claims_of_lengths.adaptive({TIMED: rows})) == {
    'code, T 0, draft-128 to draft-128 expected': FAILS,
    'code, T 0, draft-128 long to draft-128 expected': HOLDS,
  }
  # Without the times of every prompt nothing can be said.
  rows = [r | {'unit_seconds': None} for r in rows]
  found = claims_of_lengths.adaptive({TIMED: rows})
  assert {e.outcome for e in found} == {UNDECIDED}
