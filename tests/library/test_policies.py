"""Draft lengths: every policy, step by step, beside numbers worked out by hand.

The first part asks the functions themselves. The second lets a chain ask them,
on a table of logits whose confidences are typed out.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.drafters import lm
from specjax.drafters.shapes import policies
from specjax.loop import generate
from specjax.models import table
from specjax.types import Params, Verdict
from tests.library import test_drafter_promises as promises


def asks(policy, memory, drafted, confidence, reach, entropy=0.0) -> bool:
  last = policies.Last(drafted, confidence, entropy, reach)
  return bool(policy.goes_on(memory, last))


# threshold, confidence of the last token, whether to go on
CONFIDENCES = (
  (0.4, 0.39, False),
  (0.4, 0.4, True),
  (0.4, 0.41, True),
  (0.0, 0.0, True),
  (1.0, 0.999, False),
  (1.0, 1.0, True),
)


@pytest.mark.parametrize(('threshold', 'last', 'expected'), CONFIDENCES)
def test_confidence_looks_at_the_last_token_alone(threshold, last, expected):
  policy = policies.confidence(threshold)
  assert policies.confidence(threshold) is policy
  for drafted in (1, 9):
    for reach in (0.0, 1.0):
      assert asks(policy, policy.start(), drafted, last, reach) == expected
  assert policy.learn((), 3, 1) == ()


# drafted, accepted, the next draft
SCHEDULE = (
  (5, 5, 7),  # whole: two more
  (6, 6, 8),  # K ended it at 6: two more than that
  (6, 3, 7),
  (6, 0, 6),
  (6, 5, 5),  # all but one is not whole
  (5, 0, 4),
  (4, 1, 3),
  (3, 0, 2),
  (2, 0, 1),
  (1, 0, 1),  # never none
  (1, 1, 3),
)


def test_the_heuristic_schedule():
  policy = policies.heuristic(5)
  memory = policy.start()
  assert memory == 5
  assert [policies.heuristic(*x).start() for x in ((), (1,))] == [5, 1]
  for drafted, accepted, following in SCHEDULE:
    memory = policy.learn(memory, drafted, accepted)
    assert memory == following
  goes_on = [asks(policy, memory, n, 0.0, 0.0) for n in (1, 2, 3, 4)]
  assert goes_on == [True, True, False, False]


# threshold, and the most entropy at which sqrt(0.15 H) is no more
ENTROPIES = (0.0, 0.0), (0.3, 0.6), (0.6, 2.4), (1.2, 9.6)


@pytest.mark.parametrize(('threshold', 'most'), ENTROPIES)
def test_entropy_has_a_most(threshold, most):
  policy = policies.entropy(threshold)
  for drafted, sure in ((1, 0.01), (9, 1.0)):
    assert asks(policy, (), drafted, sure, sure, max(most - 1e-4, 0))
    assert not asks(policy, (), drafted, sure, sure, most + 1e-4)


# drafted and accepted; lambda then; the most entropy: (1 - lambda)^2 / 0.2
LAMBDAS = (
  (None, 0.3, 2.45),
  ((4, 2), 0.301, 2.443005),  # half of one half: 0.25 of 0.9
  ((4, 4), 0.302, 2.43602),  # 0.625
  ((1, 1), 0.303, 2.429045),  # 0.8125
  ((1, 1), 0.302, 2.43602),  # 0.90625
  ((5, 0), 0.303, 2.429045),
  ((0, 0), 0.304, 2.42208),
)


def test_adaedl_follows_the_acceptance():
  policy = policies.adaedl()
  memory = policy.start()
  for step, least, most in LAMBDAS:
    if step:
      memory = policy.learn(memory, *map(jnp.int32, step))
    np.testing.assert_allclose(memory.least, least, rtol=1e-6)
    for sure in (0.0, 1.0):
      assert asks(policy, memory, 1, sure, sure, most - 1e-4)
      assert not asks(policy, memory, 1, sure, sure, most + 1e-4)


# drafted, logarithm of the confidence, entropy; constant 1, weights 2, -0.5
# and 0.25: the sum, and its logistic function
CHANCES = (
  (1, 0.0, 0.0, 1.0, 0.731059),
  (1, -1.0, 0.5, -1.25, 0.222700),
  (3, -1.0, 0.5, -0.75, 0.320821),
  (5, -0.5, 2.0, 0.0, 0.5),
)


@pytest.mark.parametrize(
  ('drafted', 'log', 'entropy', 'total', 'chance'), CHANCES
)
def test_a_learned_chance(drafted, log, entropy, total, chance):
  policy = policies.learned(1, 2, -0.5, 0.25, 0.7)
  assert 1 / (1 + np.exp(-total)) == pytest.approx(chance, abs=1e-6)
  found = policy.chance(drafted, jnp.exp(log), entropy)
  assert found == pytest.approx(chance, abs=1e-6)
  assert asks(policy, (), drafted, 0.0, 0.301)  # A rejection has 0.699.
  assert not asks(policy, (), drafted, 1.0, 0.299)
  # A confidence of 0 counts as 1e-30: 0.01 ln(1e-30) is -0.690776.
  unsure = policies.learned(0, 0.01, 0, 0)
  assert unsure.chance(1, 0.0, 0.0) == pytest.approx(0.333861, abs=1e-6)


# Steps of 1 and 3 tokens cost 1.5 and 2.5 plain ones, and four tokens for 2.5
# are the most: a reward is tokens / cost / 1.6.
#
# drafted, accepted; the reward; the next length
PLAYS = (
  (1, 1, 0.83333, 3),  # untried
  (3, 0, 0.25, 1),  # 0.8333 + sqrt(2 ln 2) against 0.25 and as much
  (1, 0, 0.41667, 3),  # 0.625 + 1.0481 against 0.25 + 1.4823
  (3, 2, 0.75, 1),  # 0.625 against 0.5, each with 1.1774
  (1, 0, 0.41667, 3),  # 0.5556 + 1.0358 against 0.5 + 1.2686
)


def test_a_bandit_plays_by_its_rewards():
  policy = policies.bandit(0.25, 0.25, 1, 3)
  memory, gained = policy.start(), {1: 0.0, 3: 0.0}
  assert memory.length == 1
  for drafted, accepted, reward, following in PLAYS:
    memory = policy.learn(memory, jnp.int32(drafted), jnp.int32(accepted))
    gained[drafted] += reward
    np.testing.assert_allclose(memory.gained, [*gained.values()], rtol=1e-4)
    assert memory.length == following
  assert memory.played == (3, 2)
  assert [asks(policy, memory, n, 0.0, 0.0) for n in (1, 2, 3)] == [1, 1, 0]


# A token costs 0.25 + 0.25 plain steps, and a step counts half after the next.
#
# drafted and accepted; the sums then: tried, accepted, emitted, cost; the
# least reach that is worth a token: 0.5 emitted / (cost accepted / tried)
RATES = (
  (None, (1, 0.7, 1.7, 1.5), 0.809524),
  ((3, 1), (2.5, 1.35, 2.85, 3.25), 0.811966),
  ((3, 3), (4.25, 3.675, 5.425, 4.125), 0.760462),
  ((1, 0), (3.125, 1.8375, 3.7125, 3.5625), 0.886144),
  ((0, 0), (1.5625, 0.91875, 2.85625, 2.78125), 0.873271),
)


def test_expected_gains():
  policy = policies.expected(0.25, 0.25, 0.5)
  memory = policy.start()
  for step, sums, least in RATES:
    if step:
      memory = policy.learn(memory, *map(jnp.int32, step))
    np.testing.assert_allclose(memory, sums, rtol=1e-6)
    for confidence in (0.0, 1.0):  # Of the last token alone: of no matter.
      assert not asks(policy, memory, 9, confidence, least - 1e-5)
      assert asks(policy, memory, 9, confidence, least + 1e-5)


def test_what_tokens_cost_by_themselves():
  memory = policies.expected().start()
  np.testing.assert_allclose(memory, (1, 0.7, 1.7, 1.15), rtol=1e-6)
  learned = policies.expected().learn(memory, jnp.int32(2), jnp.int32(2))
  np.testing.assert_allclose(learned, (2.9, 2.63, 4.53, 2.335), rtol=1e-6)
  # Two tokens of steps of 1, 2 and 4; at most nine for 2.2 plain steps.
  bandit = policies.bandit()
  memory = bandit.start()
  for drafted in map(jnp.int32, (1, 2, 4)):
    memory = bandit.learn(memory, drafted, jnp.int32(1))
  gained = [2.2 / 9 * 2 / cost for cost in (1.15, 1.3, 1.6)]
  np.testing.assert_allclose(memory.gained, [*gained, 0], rtol=1e-6)
  assert memory.length == 8  # Untried.


# A chain asks. The draft says 0 > 1 > 2 > 3 > 4 > 5, as sure as this, and
# leaves the rest to the others alike; 0 is where every text begins.
SURE = (0.8, 0.6, 0.5, 0.9, 0.3)
VOCAB = 6
TABLE = table.build(VOCAB)
# Greedy, and sampled where a cut leaves the best token: all draft alike.
# Confidence is what the draft says at temperature 1, before any cut.
TEMPERATURE, TOP_K = (0.0, 0.25, 1.0, 3.0), (0, 1, 1, 1)


def arrows():
  rest = (1 - np.array([*SURE, 1 / VOCAB])) / (VOCAB - 1)
  probs = np.tile(rest[:, None], (1, VOCAB))
  probs[np.arange(5), np.arange(1, 6)] = SURE
  return Params(None, np.log(probs).astype(np.float32))


def drafted(policy, steps, **stages):
  """Sizes of a chain of 5; in each step so many tokens are accepted."""
  drafter, params = lm.make(TABLE, 5, policy), arrows()
  batch = len(TEMPERATURE)
  values = sampling.make(batch, TEMPERATURE, top_k=TOP_K, **stages)
  tokens, length = np.zeros((batch, 128), np.int32), np.ones(batch, np.int32)
  ctx, memory = promises.fresh(drafter, params, tokens, length, values)
  propose, commit = jax.jit(drafter.propose), jax.jit(drafter.commit)
  key, sizes = generate.row_keys(0, range(batch)), []
  for accepted in steps:
    draft, memory = propose(params, memory, ctx, key)
    (size,) = set(draft.size.tolist())
    sizes.append(size)
    for row in np.asarray(draft.tokens):
      assert row[:size].tolist() == [1, 2, 3, 4, 5][:size]
    path = np.minimum(np.arange(6), accepted)
    count = np.full(batch, accepted)
    verdict = Verdict(np.tile(path, (batch, 1)), count, count)
    memory = commit(params, memory, ctx, verdict, None)
  return sizes


# The chain's entropies are 0.822, 1.317, 1.498, 0.486 and 1.737: of 0.8, say,
# 0.8 ln(1 / 0.8) + 5 x 0.04 ln(1 / 0.04).
@pytest.mark.parametrize(
  ('policy', 'accepted', 'sizes'),
  [
    # The token that was unlikely is the last one, and stays. That all of them
    # come with chance 0.48, and then 0.24, is of no matter.
    (policies.confidence(0.55), [0], [3]),
    # sqrt(0.15 H) is 0.351, 0.444 and 0.474.
    (policies.entropy(0.46), [0], [3]),
    # 1 - sqrt(0.2 H) is 0.594 and 0.487.
    (policies.adaedl(0.55), [0], [2]),
    # A half each, and more for every token before it: 0.5, 0.365, 0.322.
    (policies.learned(0, 0, 0, 1, 0.65), [0], [3]),
    (policies.bandit(0.25, 0.25, 1, 3), [1, 0, 0, 2, 0], [1, 3, 1, 3, 1]),
    # 5 is K: there the memory goes on to 6.
    (policies.heuristic(2), [2, 4, 0, 0, 0, 1, 0], [2, 4, 5, 5, 4, 3, 2]),
  ],
)
def test_a_chain_stops_where_its_policy_says(policy, accepted, sizes):
  assert drafted(policy, accepted) == sizes


def test_a_confidence_comes_after_the_bias():
  bias = {1: float(np.log(1 / 4))}  # 0.8 becomes a half, of the first token
  found = drafted(
    policies.confidence(0.55), [0], vocab_size=VOCAB, logit_bias=bias
  )
  assert found == [1]


def test_a_chain_of_expected_gains():
  """Its reach is 0.8, 0.48, 0.24, 0.216, and 0.317 the least at first."""
  # Then alpha is 2.63 / 3.9 and a plain step gives 3.53 / 2.485: 0.31595.
  assert drafted(policies.expected(), [2, 3]) == [3, 3]
  # 0.8 x 0.6 is worth less than 0.5.
  costly = policies.expected(0.24, 0.0)
  least = 0.24 * 1.7 / (0.7 * 1.24)
  assert 0.47 < least < 0.48
  assert drafted(costly, [0, 0])[0] == 3
