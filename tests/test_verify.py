"""Verification rules, multiplied out.

The functions that the loop draws from are summed over every draft of a tiny
vocabulary, in float64: what comes out must be the target's law to the last
digit. There is no chance in these tests.
"""

import functools
import itertools

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import verify
from specjax.types import Draft, Rule, Scores
from specjax.verify import chains
from tests import models, reference

VOCAB = 4


class Chain:
  """Random laws of target and draft after every text of a tiny vocabulary."""

  def __init__(self, seed, depth, p_zeros=0.0, q_zeros=0.0, chosen=False):
    self.random = np.random.default_rng(seed)
    self.depth = depth
    self.chosen = chosen
    texts = [
      text
      for length in range(depth + 1)
      for text in itertools.product(range(VOCAB), repeat=length)
    ]
    self.p = {text: self.law(p_zeros) for text in texts}.__getitem__
    q = {text: self.law(q_zeros) for text in texts}
    if chosen:
      q = {text: np.eye(VOCAB)[law.argmax()] for text, law in q.items()}
    self.q = q.__getitem__

  def law(self, zeros):
    weights = self.random.exponential(size=VOCAB) ** 2
    weights *= self.random.random(VOCAB) >= zeros
    weights[self.random.integers(VOCAB)] += 0.1
    return reference.normalize(weights)


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.vmap, in_axes=(None, 0, 0))
def judged(rule: Rule, draft, scores):
  """accept [N] and rest [N+1, V] of many drafts."""
  rows = jnp.arange(draft.tokens.shape[0] + 1)
  rest = jax.vmap(lambda row: rule.rest(draft, scores, row))(rows)
  return rule.accept(draft, scores), rest


def step_law(chain: Chain, size_of, rule: Rule = verify.token):
  """What one step may emit and how likely, by the rule's own functions.

  Args:
    chain: the laws.
    size_of: tokens drawn, as many as there may be -> how many exist.
    rule: the rule.
  """
  depth = chain.depth
  texts = list(itertools.product(range(VOCAB), repeat=depth))
  size = [min(size_of(text), depth) for text in texts]
  p = np.array([[chain.p(x[:i]) for i in range(depth + 1)] for x in texts])
  q = np.array([[chain.q(x[:i]) for i in range(depth)] for x in texts])
  tokens = np.array(texts)
  parents = np.broadcast_to(np.arange(depth), tokens.shape)
  draft = Draft(tokens, parents, np.array(size), None if chain.chosen else q)
  with np.errstate(divide='ignore'):
    scores = Scores(p, np.log(p))
  accept, rest = map(np.asarray, judged(rule, draft, scores))
  # The probabilities of nodes beyond the size sum to 1: no such node exists.
  drawn = np.take_along_axis(q, tokens[:, :, None], 2).prod((1, 2))
  law = {}
  for i, text in enumerate(texts):
    for kept in range(size[i] + 1):
      weight = drawn[i] * accept[i, :kept].prod()
      if kept < size[i]:
        weight *= 1 - accept[i, kept]
      for x in range(VOCAB):
        emitted = (*text[:kept], x)
        law[emitted] = law.get(emitted, 0) + weight * rest[i, kept, x]
  return law


def error(chain, size_of, rule=verify.token):
  """How far the law of the text is from the target's."""
  count = chain.depth + 1
  law = reference.extend(step_law(chain, size_of, rule), chain.p, count)
  return reference.difference(law, reference.sample(chain.p, count))


# How much is drafted: a number, or a stop that depends on what was drawn.
SIZES = {
  'all': len,
  'none': lambda text: 0,
  'one': lambda text: 1,
  'two': lambda text: 2,
  'until a 1': lambda text: (*text, 1).index(1) + 1,
  'one, all after a 0': lambda text: 1 if text[0] else len(text),
}
KINDS = {
  'plain': {},
  'p with zeros': {'p_zeros': 0.5},
  'q with zeros': {'q_zeros': 0.5},
  'both with zeros': {'p_zeros': 0.6, 'q_zeros': 0.6},
  'chosen': {'chosen': True},
  'chosen, p with zeros': {'chosen': True, 'p_zeros': 0.6},
}


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('depth', [1, 2, 3])
def test_the_token_rule_keeps_the_law_of_the_target(kind, depth, float64):
  for seed, size_of in enumerate(SIZES.values()):
    chain = Chain(seed, depth, **KINDS[kind])
    assert error(chain, size_of) <= 1e-12


@pytest.mark.parametrize('kind', KINDS)
def test_a_step_is_that_of_the_paper(kind, float64):
  """Not only what is emitted, but how much of it was accepted."""
  for seed, size_of in enumerate(SIZES.values()):
    chain = Chain(10 + seed, 3, **KINDS[kind])

    def more(text, size_of=size_of):
      # Whether a token is drawn does not depend on it or on later ones.
      return len(text) < min(size_of((*text, 0, 0, 0)[:3]), 3)

    paper = reference.leviathan(chain.p, chain.q, more)
    assert reference.difference(step_law(chain, size_of), paper) <= 1e-12


@pytest.mark.parametrize('name', ['all', 'one', 'none'])
def test_observing_keeps_the_law_and_accepts_nothing(name, float64):
  chain = Chain(0, 2)
  assert error(chain, SIZES[name], verify.observe) <= 1e-12
  law = step_law(chain, SIZES[name], verify.observe)
  assert all(len(text) == 1 for text, weight in law.items() if weight)


@pytest.mark.parametrize('name', models.WRONG_RULES)
def test_a_wrong_rule_is_seen(name, float64):
  rule = models.WRONG_RULES[name]
  assert error(Chain(0, 3), SIZES['two'], rule) > 1e-4


def test_dropping_a_drawn_token_is_seen(float64):
  """A size that looks at the token it drops is no stopping time."""

  def drops(text):
    return (*text, 1).index(1)

  assert error(Chain(0, 3), drops) > 1e-3


def chance(width):
  """Strategy of laws [3, VOCAB] with zeros."""
  weights = st.one_of(st.just(0.0), st.floats(2**-10, 1, width=width))
  arrays = hnp.arrays(f'float{width}', (3, VOCAB), elements=weights)
  arrays = arrays.filter(lambda x: x.sum(1).all())
  return arrays.map(lambda x: x / x.sum(1, keepdims=True))


@hypothesis.given(
  p=chance(32),
  q=chance(32),
  tokens=st.tuples(*[st.integers(0, VOCAB - 1)] * 2),
  chosen=st.booleans(),
)
def test_acceptance_is_a_probability_and_0_where_p_is(p, q, tokens, chosen):
  draft = Draft(
    np.array([tokens]),
    np.array([[0, 1]]),
    np.array([2]),
    None if chosen else q[None, :2],
  )
  accept, rest = judged(verify.token, draft, Scores(p[None], p[None]))
  accept, rest = np.asarray(accept[0]), np.asarray(rest[0])
  assert (accept >= 0).all()
  assert (accept <= 1).all()
  assert (accept[p[[0, 1], tokens] == 0] == 0).all()
  # What follows a rejection or the whole chain is a law the target allows.
  assert (rest >= 0).all()
  assert (rest[p == 0] == 0).all()
  np.testing.assert_allclose(rest.sum(1), 1, atol=1e-5)


def test_a_rejected_choice_is_not_sampled_again():
  draft = Draft(jnp.array([2]), jnp.array([0]), jnp.array(1), None)
  p = jnp.array([[0.1, 0.2, 0.6, 0.1], [0.25] * 4])
  scores = Scores(p, p)
  np.testing.assert_allclose(chains.token_accept(draft, scores), [0.6])
  rest = chains.token_rest(draft, scores, jnp.array(0))
  np.testing.assert_allclose(rest, [0.25, 0.5, 0, 0.25], rtol=1e-6)


def test_overlap_is_the_chance_of_the_first_acceptance(float64):
  for seed, kind in enumerate(KINDS.values()):
    chain = Chain(seed, 2, **kind)
    p, q = chain.p(()), chain.q(())
    token = int(q.argmax())
    draft = Draft(
      jnp.array([token, 0]),
      jnp.array([0, 1]),
      jnp.array(2),
      None if chain.chosen else jnp.array([q, q]),
    )
    beta = verify.overlap(draft, Scores(jnp.array([p, p, p]), None))
    law = step_law(chain, len)
    longer = sum(weight for text, weight in law.items() if len(text) > 1)
    np.testing.assert_allclose(beta, longer, rtol=1e-12)
    none = draft._replace(size=jnp.array(0))
    assert verify.overlap(none, Scores(jnp.array([p, p, p]), None)) == 0


# parents, size, which coins pass, path, accepted
WALKS = (
  # A chain of three: all, some, none; a later coin does not matter.
  ((0, 1, 2), 3, (1, 1, 1), (0, 1, 2, 3), 3),
  ((0, 1, 2), 3, (1, 1, 0), (0, 1, 2, 2), 2),
  ((0, 1, 2), 3, (0, 1, 1), (0, 0, 0, 0), 0),
  ((0, 1, 2), 3, (1, 0, 1), (0, 1, 1, 1), 1),
  # Nodes at or beyond the size do not exist.
  ((0, 1, 2), 2, (1, 1, 1), (0, 1, 2, 2), 2),
  ((0, 1, 2), 0, (1, 1, 1), (0, 0, 0, 0), 0),
  # Siblings: the first that passes is taken, the others are not judged.
  ((0, 0, 1), 3, (0, 1, 1), (0, 2, 2, 2), 1),
  ((0, 0, 1), 3, (1, 1, 1), (0, 1, 3, 3), 2),
  ((0, 0, 2), 3, (0, 1, 1), (0, 2, 3, 3), 2),
  ((0, 0, 2), 3, (1, 1, 1), (0, 1, 1, 1), 1),
  # Two levels with two children each:  0 -- 1 -- 3, 4   and   0 -- 2 -- 5, 6
  ((0, 0, 1, 1, 2, 2), 6, (0, 1, 1, 1, 0, 1), (0, 2, 6, 6), 2),
  ((0, 0, 1, 1, 2, 2), 5, (0, 1, 1, 1, 0, 1), (0, 2, 2, 2), 1),
)


@pytest.mark.parametrize('walk', WALKS, ids=str)
def test_walk(walk):
  parents, size, passes, path, accepted = walk
  nodes = len(parents)
  draft = Draft(jnp.arange(nodes), jnp.array(parents), jnp.array(size), None)
  half = jnp.full(nodes, 0.5)
  u = jnp.where(jnp.array(passes, bool), 0.49, 0.5)
  got, count = verify.walk(draft, half, u, depth=3)
  assert tuple(got.tolist()) == path
  assert count == accepted


def test_walk_through_a_wide_tree_is_the_same():
  """More than 16 nodes are walked by a loop that is not unrolled."""
  parents = jnp.array([0] * 17 + [17, 18])
  draft = Draft(jnp.arange(19), parents, jnp.array(19), None)
  u = jnp.ones(19).at[jnp.array([16, 17])].set(0)
  path, count = verify.walk(draft, jnp.full(19, 0.5), u, depth=3)
  assert path.tolist() == [0, 17, 18, 18]
  assert count == 2


def test_coins_are_never_passed_at_0_and_always_at_1():
  draft = Draft(jnp.zeros(2, int), jnp.array([0, 1]), jnp.array(2), None)
  low, high = jnp.zeros(2), jnp.full(2, 1 - 2**-24)
  assert verify.walk(draft, jnp.zeros(2), low, 2)[1] == 0
  assert verify.walk(draft, jnp.ones(2), high, 2)[1] == 2


def test_simulated_acceptance():
  rule = verify.simulated(0.25)
  draft = Draft(jnp.zeros(3, int), jnp.arange(3), jnp.array(3), None)
  scores = Scores(jnp.full((4, VOCAB), 0.25), None)
  np.testing.assert_array_equal(rule.accept(draft, scores), [0.25] * 3)
  np.testing.assert_array_equal(rule.rest(draft, scores, 1), [0.25] * VOCAB)
  assert not rule.lossless
  # One object per rate: a new one would compile a new program.
  assert verify.simulated(0.25) is rule
  for rate in (-0.1, 1.1):
    with pytest.raises(ValueError, match='rate must be in'):
      verify.simulated(rate)


def test_exact_rules_say_so():
  assert verify.token.lossless
  assert verify.observe.lossless
