"""Verification rules, multiplied out.

The functions that the loop draws from are summed over every draft of a tiny
vocabulary, in float64: what comes out must be the target's distribution to the
last digit. There is no chance in these tests.
"""

import functools

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import verify
from specjax.certify import exact
from specjax.drafters import lm, plain
from specjax.drafters.shapes import policies, static_tree
from specjax.types import Draft, Scores
from tests.support import models, papers_in_numpy

VOCAB = 4
LONGEST = 6
TEXTS = exact.Texts(VOCAB, LONGEST)


def random_model(random, zeros=0.0, one_hot=False) -> exact.Distributions:
  """A distribution after every text, some tokens of which have no chance."""
  weights = random.exponential(size=(len(TEXTS), VOCAB)) ** 2
  weights *= random.random(weights.shape) >= zeros
  sure = random.integers(VOCAB, size=len(TEXTS))
  weights[np.arange(len(TEXTS)), sure] += 0.1
  if one_hot:
    weights = np.eye(VOCAB)[weights.argmax(1)]
  probs = weights / weights.sum(1, keepdims=True)
  logits = np.log(np.maximum(probs, 1e-300))
  return exact.Distributions(probs, logits)


def chosen(source):
  """The same drafts from a one-hot q, as tokens that were not drawn."""

  def without_probs(texts, q, contexts):
    made = source(texts, q, contexts)
    draft = made.draft._replace(probs=None)
    return made._replace(draft=draft)

  return without_probs


# p and q with zeros, and drafts that are chosen.
KINDS = {
  'plain': ({}, {}),
  'p with zeros': ({'zeros': 0.5}, {}),
  'q with zeros': ({}, {'zeros': 0.5}),
  'both with zeros': ({'zeros': 0.6}, {'zeros': 0.6}),
  'p one-hot': ({'one_hot': True}, {}),
  'chosen': ({}, {'one_hot': True}),
  'chosen, p with zeros': ({'zeros': 0.6}, {'one_hot': True}),
}


@functools.cache
def pair(seed, kind):
  random = np.random.default_rng(seed)
  return tuple(random_model(random, **options) for options in KINDS[kind])


def sizes(size_of):
  """Drafts cut by what policies read of the drawn tokens."""
  return exact.tree((0, 1, 2), size=size_of)


# How much is drafted: a number, or a stop that depends on what was drawn.
CHAINS = {
  'one': exact.tree((0,)),
  'two': exact.tree((0, 1)),
  'three': exact.tree((0, 1, 2)),
  'none of three': sizes(lambda chances, _: np.zeros(len(chances), int)),
  'two of three': sizes(lambda chances, _: np.full(len(chances), 2)),
  'until an unlikely one': sizes(exact.stopping(policies.confidence(0.3))),
  'until much entropy': sizes(exact.stopping(policies.entropy(0.35))),
  'until a rejection is likely': sizes(
    exact.stopping(policies.learned(1, 1, -1, 0.1, 0.5))
  ),
}
DRAWN_TREES = {
  'siblings': exact.tree((0, 0, 0)),
  'two levels': exact.tree((0, 0, 1, 2)),
  'uneven': exact.tree((0, 0, 1, 1)),
}
INDEPENDENT = {
  'siblings, replaced': exact.tree((0, 0, 0), True),
  'two chains': exact.tree((0, 0, 1, 2), True),
  'uneven, replaced': exact.tree((0, 0, 1, 1), True),
}
HUBS = {
  'hubs': exact.tree((0, 0, 1, 1), law=static_tree.beside_hub),
  'a hub above one child': exact.tree((0, 0, 2), law=static_tree.beside_hub),
}
ENDS = 'none of three', 'two of three', 'three', 'until an unlikely one'
ONES = 'three', 'uneven'
RULES = {
  'token': (verify.token, CHAINS),
  'block': (verify.block, {n: CHAINS[n] for n in ENDS}),
  # On chains these two are the token rule and block verification, see below.
  'recursive': (
    verify.recursive,
    DRAWN_TREES | INDEPENDENT | {'hubs': HUBS['hubs']},
  ),
  'traversal': (
    verify.traversal,
    DRAWN_TREES | {'uneven, replaced': INDEPENDENT['uneven, replaced']},
  ),
  'k_seq': (verify.k_seq, INDEPENDENT),
  'importance': (
    verify.importance,
    {n: INDEPENDENT[n] for n in ('siblings, replaced', 'uneven, replaced')},
  ),
  'hub': (verify.hub, HUBS | {'two': CHAINS['two']}),
  'multi_path': (
    verify.multi_path,
    {n: INDEPENDENT[n] for n in ('siblings, replaced', 'two chains')},
  ),
  'naive': (verify.naive, {n: (CHAINS | DRAWN_TREES)[n] for n in ONES}),
  'observe': (verify.observe, {'uneven': DRAWN_TREES['uneven']}),
  'lenience of 1': (verify.lenience(1.0), {'three': CHAINS['three']}),
}
CASES = [(rule, name) for rule, (_, all) in RULES.items() for name in all]
LIMIT, EOS = 3, (VOCAB - 1,)
CONTEXTS = exact.unfinished(TEXTS, LIMIT, EOS)  # The first is empty.


def texts_of(rule, source, p, q):
  """Distribution [texts] of finished texts."""
  step = exact.step(rule, source, TEXTS, p, q, CONTEXTS)
  return exact.sequence(step, TEXTS, CONTEXTS, LIMIT, EOS).sum(1)


@functools.cache
def plain_texts(seed, kind):
  p, _ = pair(seed, kind)
  step = exact.plain(TEXTS, p, CONTEXTS)
  return exact.sequence(step, TEXTS, CONTEXTS, LIMIT, EOS).sum(1)


@pytest.mark.parametrize(('rule', 'name'), CASES)
def test_an_exact_rule_keeps_the_law_of_the_target(rule, name, float64):
  of_chains, (rule, sources) = rule in ('token', 'block'), RULES[rule]
  assert rule.lossless
  for seed, kind in enumerate(KINDS):
    p, q = pair(seed, kind)
    source = sources[name]
    if kind.startswith('chosen') and of_chains:
      source = chosen(source)
    found = texts_of(rule, source, p, q)
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-12)
    assert np.abs(found - plain_texts(seed, kind)).max() <= 1e-12


def emitted(rule, source, p, q):
  """Distribution of what the first step emits: text -> probability."""
  chances = exact.step(rule, source, TEXTS, p, q, CONTEXTS)[0]
  return {TEXTS.tokens(i): chances[i] for i in np.flatnonzero(chances)}


def accepted_first(rule, source, p, q):
  """The chance [V] that each token is accepted below the root, of one level."""
  chances = np.zeros(VOCAB)
  for text, weight in emitted(rule, source, p, q).items():
    if len(text) == 2:
      chances[text[0]] += weight
  return chances


def function_of(p):
  """Distributions as a function of the text, for the reference."""
  probs = np.asarray(p.probs)

  def after(text):
    number = 0
    for token in text:
      number = TEXTS.after(number, token)
    return probs[number]

  return after


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('rule', ['token', 'block'])
def test_a_step_is_that_of_the_paper(rule, kind, float64):
  """Not only what is emitted, but how much of it was accepted."""
  p, q = pair(7, kind)
  target, draft = function_of(p), function_of(q)
  if rule == 'block':
    paper = papers_in_numpy.sun(target, draft, 3)
  else:
    paper = papers_in_numpy.leviathan(target, draft, lambda text: len(text) < 3)
  ours = emitted(RULES[rule][0], CHAINS['three'], p, q)
  assert papers_in_numpy.difference(ours, paper) <= 1e-12


@pytest.mark.parametrize('replacement', [False, True])
def test_siblings_are_judged_as_in_the_papers(replacement, float64):
  """SpecInfer and Sequoia, for three children of the root."""
  source = exact.tree((0, 0, 0), replacement)
  for seed, kind in enumerate(('plain', 'p with zeros', 'both with zeros')):
    p, q = pair(seed, kind)
    paper = papers_in_numpy.siblings(p.probs[0], q.probs[0], 3, replacement)
    accepted = accepted_first(verify.recursive, source, p, q)
    np.testing.assert_allclose(accepted, paper, atol=1e-12)


def spechub(p, q):
  """Chance that a token is accepted, Sun et al., arXiv:2411.05289, section 4.

  `pairs` has what is left of the chance of each pair, and p what is left of it.
  """
  a, accepted, p = q.argmax(), np.zeros(len(q)), p.copy()
  others = [x for x in range(len(q)) if x != a]
  pairs = {(x, a): q[x] for x in others}
  pairs |= {(a, x): q[a] * q[x] / (1 - q[a]) for x in others}

  def take(token, *from_pairs):
    chance = sum(pairs[pair] for pair in from_pairs)
    amount = min(p[token], chance)
    for pair in from_pairs:
      pairs[pair] *= 1 - amount / chance if chance else 1
    p[token] -= amount
    accepted[token] += amount

  for x in others:
    take(x, (x, a))
  for x in others:
    take(x, (a, x))
  take(a, *((a, x) for x in others))
  take(a, *((x, a) for x in others))
  return accepted


@pytest.mark.parametrize(
  ('drawn', 'temperature', 'expected'),
  [
    ([0], 0.7, [0, 0.75, 0.25, 0]),
    # Nothing of q is left: any other token, or at temperature 0 the next best.
    ([0, 1, 2], 0.7, [0, 0, 0, 1]),
    ([1, 2], 0.0, [1, 0, 0, 0]),
    ([0], 0.0, [0, 1, 0, 0]),
    ([0, 1], 0.0, [0, 0, 0, 1]),
    ([0], 1.0, [0, 1 / 3, 1 / 3, 1 / 3]),
  ],
)
def test_a_sibling_is_no_earlier_one(drawn, temperature, expected):
  logits = np.float32([3.0, 2.0, 0.5, 1.0])
  remaining = jax.jit(static_tree.remaining)
  q = {0.7: [0.2, 0.6, 0.2, 0.0], 0.0: [1.0, 0, 0, 0], 1.0: [1.0, 0, 0, 0]}
  taken = np.isin(np.arange(4), drawn)
  found = remaining(np.float32(q[temperature]), taken, logits, temperature)
  np.testing.assert_allclose(found, expected, atol=1e-6)
  half = np.float16(q[temperature])
  law = jax.eval_shape(remaining, half, taken, logits, temperature)
  assert law.dtype == half.dtype


def test_pairs_with_a_hub_are_judged_as_in_the_paper(float64):
  for seed in range(5):
    p, q = pair(seed, 'plain')
    source = exact.tree((0, 0), law=static_tree.beside_hub)
    accepted = accepted_first(verify.hub, source, p, q)
    paper = spechub(p.probs[0], q.probs[0])
    np.testing.assert_allclose(accepted, paper, atol=1e-12)


def test_k_seq_accepts_as_often_as_its_threshold_says(float64):
  """And with one candidate it is the token rule."""
  three, single = (exact.tree((0,) * n, True) for n in (3, 1))
  for seed in range(5):
    p, q = pair(seed, 'plain')
    accepted = accepted_first(verify.k_seq, three, p, q)
    paper = papers_in_numpy.k_seq(p.probs[0], q.probs[0], 3)
    np.testing.assert_allclose(accepted.sum(), paper, atol=1e-12)
    one = emitted(verify.k_seq, single, p, q)
    token = emitted(verify.token, CHAINS['one'], p, q)
    assert papers_in_numpy.difference(one, token) <= 1e-12


def test_k_seq_where_p_and_q_have_nothing_in_common():
  root = np.array([0, 0])
  draft = Draft(root, root, np.array(2), np.float32([[1, 0, 0]] * 2))
  p = np.float32([[0, 0.25, 0.75]] * 3)
  accept, rest = jax.jit(verify.k_seq.accept), jax.jit(verify.k_seq.rest)
  np.testing.assert_array_equal(accept(draft, Scores(p, p)), 0)
  rest = rest(draft, Scores(p, p), 0)
  np.testing.assert_allclose(rest, p[0], rtol=1e-6)


@pytest.mark.parametrize(
  ('rule', 'of_chains'), [('recursive', 'token'), ('traversal', 'block')]
)
def test_on_a_chain_a_rule_for_trees_is_one_for_chains(
  rule, of_chains, float64
):
  for seed, kind in enumerate(KINDS):
    p, q = pair(seed, kind)
    for name in ENDS:
      ours, other = (
        emitted(RULES[x][0], CHAINS[name], p, q) for x in (rule, of_chains)
      )
      assert papers_in_numpy.difference(ours, other) < 1e-12


# Lossy rules


@pytest.mark.parametrize('factor', [0.3, 0.7])
def test_lenience_never_gives_a_token_more_than_its_share(factor, float64):
  """A.5: no token comes with a probability above p / factor."""
  rule = verify.lenience(factor)
  assert not rule.lossless
  for seed, kind in enumerate(('plain', 'p with zeros', 'q with zeros')):
    p, q = pair(seed, kind)
    chances = np.zeros(VOCAB)
    for text, weight in emitted(rule, exact.tree((0,)), p, q).items():
      chances[text[0]] += weight
    target = np.asarray(p.probs[0])
    np.testing.assert_allclose(chances.sum(), 1, rtol=1e-12)
    assert (chances <= target / factor + 1e-12).all()
    assert np.abs(chances - target).max() > 1e-3
    alpha = np.minimum(q.probs[0], target / factor).sum()
    kept = accepted_first(rule, exact.tree((0,)), p, q).sum()
    np.testing.assert_allclose(kept, alpha, rtol=1e-12)


def test_lenience_at_temperature_0_looks_at_the_logits():
  logits = np.log(np.float32([[0.5, 0.3, 0.2]] * 4))
  scores = Scores(np.float32([[1, 0, 0]] * 4), logits)
  draft = Draft(np.array([0, 1, 2]), np.arange(3), np.array(3), None)
  for factor, expected in ((0.5, [1, 1, 0]), (1.0, [1, 0, 0])):
    accept = jax.jit(verify.lenience(factor).accept)(draft, scores)
    np.testing.assert_array_equal(accept, expected)


def test_rules_refuse_drafts_they_cannot_judge():
  chain, tree = lm.make(models.DRAFT, 2), lm.make_tree(models.DRAFT, (0, 0, 1))
  several = lm.make_tree(models.DRAFT, (0, 0, 1), True)
  for rule in (verify.token, verify.block, verify.lenience(0.5)):
    assert not rule.refuses(chain)
    assert not rule.refuses(plain.make())
    assert 'use specjax.verify.recursive' in rule.refuses(tree)
  for drafter in (chain, tree):
    for rule in (verify.k_seq, verify.importance):
      assert 'replacement=True' in rule.refuses(drafter)
  assert not verify.k_seq.refuses(several)
  paths = lm.make_tree(models.DRAFT, (0, 0, 1, 2), True)
  assert not any(map(verify.multi_path.refuses, (chain, paths)))
  for parents in ((0, 0, 1), (0, 0, 1, 1), (0, 0, 1, 3)):
    other = lm.make_tree(models.DRAFT, parents, True)
    assert 'replacement=True' in verify.multi_path.refuses(other)
  assert 'replacement=True' in verify.multi_path.refuses(tree)
  hub = lm.make_tree(models.DRAFT, (0, 0, 1), hub=True)
  assert not any(map(verify.hub.refuses, (chain, hub)))
  assert all('hub=True' in verify.hub.refuses(one) for one in (tree, several))
  with pytest.raises(ValueError, match='hub is of trees'):
    lm.make_tree(models.DRAFT, (0, 0, 0), hub=True)
  for drafter in (chain, tree, several):
    assert not verify.recursive.refuses(drafter)
    assert not verify.typical().refuses(drafter)


def chance(width):
  """Strategy of distributions [3, VOCAB] with zeros."""
  weights = st.one_of(st.just(0.0), st.floats(2**-10, 1, width=width))
  arrays = hnp.arrays(f'float{width}', (3, VOCAB), elements=weights)
  arrays = arrays.filter(lambda x: x.sum(1).all())
  return arrays.map(lambda x: x / x.sum(1, keepdims=True))


@jax.jit
def judged(draft, p):
  """accept [2, N] and rest [2, N+1, V] of both rules for chains."""
  scores = Scores(p, p)

  def all_of(rule):
    rest = jax.vmap(lambda row: rule.rest(draft, scores, row))
    return rule.accept(draft, scores), rest(jnp.arange(3))

  pairs = [all_of(rule) for rule in (verify.token, verify.block)]
  return jax.tree.map(lambda *x: jnp.stack(x), *pairs)


@hypothesis.given(
  p=chance(32),
  q=chance(32),
  tokens=st.tuples(*[st.integers(0, VOCAB - 1)] * 2),
  chosen=st.booleans(),
)
def test_acceptance_is_a_probability_and_0_where_p_is(p, q, tokens, chosen):
  draft = Draft(
    np.array(tokens), np.arange(2), np.array(2), None if chosen else q[:2]
  )
  accept, rest = judged(draft, p)
  accept, rest = np.asarray(accept), np.asarray(rest)
  assert (accept >= 0).all()
  assert (accept <= 1).all()
  assert (accept[:, p[[0, 1], tokens] == 0] == 0).all()
  # What follows a rejection or the whole chain is something the target allows.
  assert (rest >= 0).all()
  assert (rest[:, p == 0] == 0).all()
  np.testing.assert_allclose(rest.sum(-1), 1, atol=1e-5)


def test_overlap_is_the_chance_of_the_first_acceptance(float64):
  for seed, kind in enumerate(KINDS):
    p, q = pair(seed, kind)
    token = int(q.probs[0].argmax())
    chosen = kind.startswith('chosen')
    probs = None if chosen else np.tile(q.probs[:1], (2, 1))
    draft = Draft(np.array([token, 0]), np.arange(2), np.array(2), probs)
    scores = Scores(np.tile(p.probs[:1], (3, 1)), None)
    chances = emitted(verify.token, CHAINS['three'], p, q)
    longer = sum(weight for text, weight in chances.items() if len(text) > 1)
    overlap = jax.jit(verify.overlap)
    np.testing.assert_allclose(overlap(draft, scores), longer, rtol=1e-12)
    assert overlap(draft._replace(size=np.array(0)), scores) == 0


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
  # More than 16 nodes are walked by a loop that is not unrolled.
  ((*[0] * 17, 17, 18), 19, (*[0] * 16, 1, 1, 0), (0, 17, 18, 18), 2),
)


walk = jax.jit(verify.walk, static_argnames='depth')


@pytest.mark.parametrize('case', WALKS, ids=str)
def test_walk(case):
  parents, size, passes, path, accepted = case
  nodes = len(parents)
  draft = Draft(np.arange(nodes), np.array(parents), np.array(size), None)
  half = np.full(nodes, 0.5, np.float32)
  u = np.where(passes, np.float32(0.49), half)
  got, count = walk(draft, half, u, depth=3)
  assert tuple(got.tolist()) == path
  assert count == accepted


def test_a_token_drawn_twice_is_one_text():
  """The walk stands at the first of equal siblings, where children hang."""
  tokens, parents = np.array([5, 5, 6, 7]), np.array([0, 0, 0, 1])
  draft = Draft(tokens, parents, np.array(4), None)
  u = np.array([0.9, 0.1, 0.1, 0.1])
  path, count = walk(draft, np.full(4, 0.5), u, depth=2)
  assert path.tolist() == [0, 1, 4]
  assert count == 2


def test_coins_are_never_passed_at_0_and_always_at_1():
  draft = Draft(np.zeros(2, int), np.array([0, 1]), np.array(2), None)
  low, high = np.zeros(2, np.float32), np.full(2, 1 - 2**-24, np.float32)
  assert walk(draft, low, low, depth=2)[1] == 0
  assert walk(draft, np.ones_like(low), high, depth=2)[1] == 2


def test_chance_of_a_first_token():
  """Summed over all drafts it is sum(min(p / l, q)), and for two candidates
  what recursive rejection leaves to the second one."""
  p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])

  def mean(rule, tokens, parents):
    batch, count = tokens.shape
    draft = Draft(
      tokens,
      np.broadcast_to(parents, tokens.shape),
      np.full(batch, count),
      np.broadcast_to(np.float32(q), (batch, count, 3)),
    )
    rows = np.tile(np.float32(p), (count + 1, 1))
    chance = jax.jit(jax.vmap(verify.chance(rule), (0, None)))
    chances = np.asarray(chance(draft, Scores(rows, np.log(rows))))
    return float(chances @ q[tokens].prod(1))

  singles = np.arange(3)[:, None]
  assert mean(verify.token, singles, [0]) == pytest.approx(0.6)
  lenient = np.minimum(p / 0.5, q).sum()
  assert mean(verify.lenience(0.5), singles, [0]) == pytest.approx(lenient)
  pairs = np.stack(np.divmod(np.arange(9), 3), 1)
  left = np.maximum(p - q, 0) / 0.4
  second = 0.6 + 0.4 * np.minimum(left, q).sum()
  assert mean(verify.recursive, pairs, [0, 0]) == pytest.approx(second)
  # Below the first token nothing is a first token.
  assert mean(verify.token, pairs, [0, 1]) == pytest.approx(0.6)


def test_observing_accepts_nothing(float64):
  p, q = pair(0, 'plain')
  chances = emitted(verify.observe, CHAINS['three'], p, q)
  assert {len(text) for text in chances} == {1}
