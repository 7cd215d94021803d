"""Rules on drafts worked out by hand: which row, which size, which sibling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import verify
from specjax.types import Draft, Scores


def draft_of(tokens, parents, size, probs=None) -> Draft:
  probs = None if probs is None else jnp.array(probs)
  return Draft(jnp.array(tokens), jnp.array(parents), jnp.array(size), probs)


def scores_of(*rows) -> Scores:
  probs = jnp.array(rows)
  return Scores(probs, jnp.log(probs))


# Each rule is compiled once for a shape.
chance = jax.jit(
  lambda rule, *step: verify.chance(rule)(*step), static_argnums=0
)
accept = jax.jit(lambda rule, *step: rule.accept(*step), static_argnums=0)
rest = jax.jit(lambda rule, *step: rule.rest(*step), static_argnums=0)


# Two children of the root, of which the first is accepted with 1/2 and the
# second with 1/4 of what is left; below the first there is another.
PAIR = draft_of(
  [0, 1, 0], [0, 0, 1], 3, [[1.0, 0.0, 0.0], [0, 1, 0], [1, 0, 0]]
)
ROOT = [0.5, 0.125, 0.375]


@pytest.mark.parametrize(
  ('size', 'expected'),
  # 1 - 1/2 (1 - 1/4), then only the first, then nothing at all.
  [(3, 0.625), (2, 0.625), (1, 0.5), (0, 0.0)],
)
def test_a_node_beyond_the_size_has_no_chance(size, expected):
  draft = PAIR._replace(size=jnp.array(size))
  scores = scores_of(ROOT, ROOT, ROOT, ROOT)
  assert chance(verify.recursive, draft, scores) == pytest.approx(expected)
  # A rule that accepts everything that there is says so of nothing, too.
  always = chance(verify.simulated(1.0), draft, scores)
  assert always == (size > 0)


def test_the_chance_of_no_draft_at_all():
  draft = draft_of(np.zeros(0, int), np.zeros(0, int), 0)
  assert chance(verify.recursive, draft, scores_of(ROOT)) == 0
  assert verify.overlap(draft, scores_of(ROOT)) == 0


def test_every_node_is_typical_of_the_row_above_it():
  """p(x) > min(0.4, exp(-H)): of a flat row 1/4, a coin 0.4, a sure one 0.4.

  The tree  0 -- 1 -- 3    with the rows  flat, coin, sure, and of no matter
              \\- 2 -- 4
  """
  rule = verify.typical(0.4, 1.0)
  flat, coin, sure = [0.25] * 4, [0.5, 0.5, 0, 0], [0.0, 0.375, 0.625, 0]
  mild = [0.3, 0.3, 0.2, 0.2]  # exp(-H) is 0.255
  scores = scores_of(mild, coin, sure, sure, sure)
  for tokens, expected in (
    ([0, 1, 0, 2], [1, 1, 1, 1]),
    ([2, 3, 2, 1], [0, 0, 0, 0]),  # 0.2 < 0.255; 0 and 0.375 < 0.4
    ([3, 0, 1, 2], [0, 1, 1, 1]),
  ):
    draft = draft_of(tokens, [0, 0, 1, 2], 4)
    assert accept(rule, draft, scores).tolist() == expected
  assert not rule.lossless
  np.testing.assert_array_equal(rule.rest(draft, scores, 0), scores.probs[0])
  # By default the least of 0.09 and 0.3 exp(-H): 0.09, and then 0.082.
  few = scores_of([0.1, 0.9, 0, 0], [0.085, *[0.305] * 3], sure)
  draft = draft_of([0, 0], [0, 1], 2)
  assert accept(verify.typical(), draft, few).tolist() == [1, 1]
  # At temperature 0 only the likeliest token is accepted.
  greedy = scores_of(*jnp.eye(4)[jnp.array([1, 0, 2, 3, 3])])
  draft = draft_of([0, 1, 2, 2], [0, 0, 1, 2], 4)
  assert accept(rule, draft, greedy).tolist() == [0, 1, 0, 1]
  # At the bound itself a token is not accepted: 1/4 > 1/4 is false.
  scores = scores_of(flat, flat)
  bound = verify.typical(0.25, 1.0)
  assert bound.accept(draft_of([1], [0], 1), scores).tolist() == [0]


def test_what_is_left_after_some_siblings():
  """Children that do not exist take nothing away from p."""
  scores = scores_of(*[ROOT] * 4)
  for size, left in (
    (0, ROOT),
    (1, [0, 0.25, 0.75]),
    (2, [0, 0, 1]),
    (3, [0, 0, 1]),
  ):
    draft = PAIR._replace(size=jnp.array(size))
    found = rest(verify.recursive, draft, scores, jnp.array(0))
    np.testing.assert_allclose(found, left, atol=1e-7)
  # Below the first child there is one more, if it exists.
  for size, left in ((2, ROOT), (3, [0, 0.25, 0.75])):
    draft = PAIR._replace(size=jnp.array(size))
    found = rest(verify.recursive, draft, scores, jnp.array(1))
    np.testing.assert_allclose(found, left, atol=1e-7)
  # A draft may be one node.
  one = draft_of([0], [0], 1, [[1.0, 0, 0]])
  for rule in verify.recursive, verify.naive, verify.traversal:
    found = rest(rule, one, scores_of(ROOT, ROOT), jnp.array(0))
    np.testing.assert_allclose(found, [0, 0.25, 0.75], atol=1e-7)


def test_the_candidates_that_exist_decide_over_k():
  """k-SEQ with one candidate is the token rule, however wide the tree is."""
  q = [0.25, 0.25, 0.5]
  draft = draft_of([0, 1, 2], [0, 0, 0], 1, [q] * 3)
  one, two = draft_of([0], [0], 1, [q]), scores_of(ROOT, ROOT)
  scores = scores_of(*[ROOT] * 4)
  found = accept(verify.k_seq, draft, scores)[0]
  assert found == accept(verify.token, one, two)[0] == 1
  found = rest(verify.k_seq, draft, scores, jnp.array(0))
  expected = rest(verify.token, one, two, jnp.array(0))
  np.testing.assert_allclose(found, expected, atol=1e-6)
  none = draft._replace(size=jnp.array(0))
  found = rest(verify.k_seq, none, scores, jnp.array(0))
  np.testing.assert_allclose(found, ROOT, atol=1e-6)


def test_the_target_s_own_token_is_among_the_children_or_not():
  """Whatever q is; a second child with the same token is never the one."""
  q = [0.0, 0.0, 1.0]
  draft = draft_of([1, 1, 0], [0, 0, 0], 3, [q] * 3)
  scores = scores_of(*[[0.25, 0.5, 0.25]] * 4)
  found = accept(verify.naive, draft, scores)
  np.testing.assert_allclose(found, [0.5, 0, 0.5], atol=1e-7)
  left = rest(verify.naive, draft, scores, jnp.array(0))
  np.testing.assert_allclose(left, [0, 0, 1], atol=1e-7)
  shorter = draft._replace(size=jnp.array(2))
  left = rest(verify.naive, shorter, scores, jnp.array(0))
  np.testing.assert_allclose(left, [0.5, 0, 0.5], atol=1e-7)


def test_block_verification_of_a_chain_that_ends_early():
  """As if the block had been that long: h = w where it ends."""
  q = [0.5, 0.25, 0.25]
  whole = draft_of([1, 2, 1], [0, 1, 2], 2, [q] * 3)
  short = draft_of([1, 2], [0, 1], 2, [q] * 2)
  scores = scores_of(ROOT, [0.25, 0.5, 0.25], [0.125, 0.125, 0.75], ROOT)
  fewer = Scores(*(x[:3] for x in scores))
  found = accept(verify.block, whole, scores)
  expected = accept(verify.block, short, fewer)
  np.testing.assert_allclose(found[:2], expected, rtol=1e-6)
  assert found[2] == 0
  for row in map(jnp.array, range(3)):
    found = rest(verify.block, whole, scores, row)
    expected = rest(verify.block, short, fewer, row)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_verdict_judges_and_draws_with_coins_of_their_own():
  """The first coin draws the next token, and each node has its own."""
  nodes, rows = 3, 4000
  half = scores_of(*[[0.5, 0.5]] * (nodes + 1))
  rule = verify.simulated(0.5)
  assert not rule.lossless
  # One object per rate: a new one would compile a new program.
  assert verify.simulated(0.5) is rule
  draft = draft_of([0] * nodes, range(nodes), nodes)
  keys = jax.random.split(jax.random.key(0), rows)
  judge = jax.jit(jax.vmap(lambda k: verify.judge(k, draft, half, rule, nodes)))
  verdict = judge(keys)
  seen = np.zeros((nodes + 1, 2))
  np.add.at(seen, (verdict.num_accepted, verdict.next_token), 1)
  expected = rows * np.array([0.5, 0.25, 0.125, 0.125])[:, None] / 2
  # Six standard deviations.
  assert (np.abs(seen - expected) < 6 * np.sqrt(expected)).all()
