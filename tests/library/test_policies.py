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


def asks(policy, memory, drafted, confidence, reach) -> bool:
  return bool(policy.goes_on(memory, drafted, confidence, reach))


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
  assert policies.heuristic().start() == 5
  for drafted, accepted, following in SCHEDULE:
    memory = policy.learn(memory, drafted, accepted)
    assert memory == following
  assert [asks(policy, memory, n, 0.0, 0.0) for n in (1, 2, 3, 4)] == [
    True,
    True,
    False,
    False,
  ]


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


def test_what_expected_costs_by_itself():
  memory = policies.expected().start()
  np.testing.assert_allclose(memory, (1, 0.7, 1.7, 1.15), rtol=1e-6)
  learned = policies.expected().learn(memory, jnp.int32(2), jnp.int32(2))
  np.testing.assert_allclose(learned, (2.9, 2.63, 4.53, 2.335), rtol=1e-6)


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
  return Params(None, jnp.asarray(np.log(probs), jnp.float32))


def drafted(policy, steps, **stages):
  """Sizes of a chain of 5; in each step so many tokens are accepted."""
  drafter, params = lm.make(TABLE, 5, policy), arrows()
  batch = len(TEMPERATURE)
  values = sampling.make(batch, TEMPERATURE, top_k=TOP_K, **stages)
  tokens, length = np.zeros((batch, 128), np.int32), np.ones(batch, np.int32)
  ctx, memory = promises.fresh(drafter, params, tokens, length, values)
  propose, sizes = jax.jit(drafter.propose), []
  key = generate.row_keys(0, range(batch))
  for accepted in steps:
    draft, memory = propose(params, memory, ctx, key)
    (size,) = set(draft.size.tolist())
    sizes.append(size)
    for row, count in zip(draft.tokens, draft.size, strict=True):
      assert row[:count].tolist() == [1, 2, 3, 4, 5][:count]
    path = jnp.minimum(jnp.arange(6), accepted)
    count = jnp.full(batch, accepted)
    verdict = Verdict(jnp.tile(path, (batch, 1)), count, count)
    memory = drafter.commit(params, memory, ctx, verdict, None)
  return sizes


@pytest.mark.parametrize(
  ('threshold', 'size'),
  # The token that was unlikely is the last one, and stays.
  [(0.7, 2), (0.45, 5)],
)
def test_a_chain_stops_at_its_confidence(threshold, size):
  assert drafted(policies.confidence(threshold), [0]) == [size]


def test_a_confidence_comes_after_the_bias():
  """Stages that change logits come before it."""
  bias = {1: float(np.log(1 / 4))}  # 0.8 becomes a half, of the first token
  found = drafted(
    policies.confidence(0.55), [0], vocab_size=VOCAB, logit_bias=bias
  )
  assert found == [1]


def test_a_chain_of_the_heuristic_schedule():
  # 5 is K: there the memory goes on to 6.
  found = drafted(policies.heuristic(2), [2, 4, 0, 0, 0, 1, 0])
  assert found == [2, 4, 5, 5, 4, 3, 2]


def test_a_chain_of_expected_gains():
  """Its reach is 0.8, 0.48, 0.24, 0.216, and 0.317 the least at first."""
  # Then alpha is 2.63 / 3.9 and a plain step gives 3.53 / 2.485: 0.31595.
  assert drafted(policies.expected(), [2, 3]) == [3, 3]
  # 0.8 x 0.6 is worth less than 0.5.
  costly = policies.expected(0.24, 0.0)
  least = 0.24 * 1.7 / (0.7 * 1.24)
  assert 0.47 < least < 0.48
  assert drafted(costly, [0, 0])[0] == 3
