"""The bound on several drafts, by programs, enumeration and explicit rules."""

import itertools

import numpy as np
import pytest
from scipy import optimize

from specjax import verify
from specjax.certify import exact
from specjax.stats import optimal, theory

EXACTLY = dict.fromkeys(
  ('primal_feasibility_tolerance', 'dual_feasibility_tolerance'), 1e-10
)
LAWS = pytest.mark.parametrize('replacement', [True, False])


def pair(seed, vocab, spread=3):
  """Some p and q; a larger spread has fewer likely tokens."""
  random = np.random.default_rng(seed)
  p, q = (random.exponential(size=vocab) ** spread for _ in 'pq')
  return p / p.sum(), q / q.sum()


def drafts(q, n, replacement):
  chances = {}
  for tokens in itertools.product(range(len(q)), repeat=n):
    chance = 1.0
    for place, token in enumerate(tokens):
      left = np.delete(q, tokens[:place]).sum()
      again = not replacement and token in tokens[:place]
      chance *= 0 if again else q[token] if replacement else q[token] / left
    if chance:
      found = chances.get(frozenset(tokens), 0)
      chances[frozenset(tokens)] = found + chance
  return chances


def largest_flow(p, chances):
  """The transport from sets of drafts to their tokens, as a linear program."""
  ways = [(i, y) for i, tokens in enumerate(chances) for y in sorted(tokens)]
  limits = np.zeros((len(chances) + len(p), len(ways)))
  for column, (i, y) in enumerate(ways):
    limits[[i, len(chances) + y], column] = 1
  bounds = [*chances.values(), *p]
  found = optimize.linprog(-np.ones(len(ways)), limits, bounds, options=EXACTLY)
  return -found.fun


def least_cut(p, chances):
  """The least of p(H) + 1 - P(all drafts in H) over all sets H."""
  cuts = []
  for chosen in itertools.product((False, True), repeat=len(p)):
    inside = {token for token, is_in in enumerate(chosen) if is_in}
    stay = sum(chance for tokens, chance in chances.items() if tokens <= inside)
    cuts.append(p[list(chosen)].sum() + 1 - stay)
  return min(cuts)


@LAWS
@pytest.mark.parametrize(
  ('vocab', 'n', 'spread'),
  [(2, 2, 1), (3, 3, 6), (4, 2, 12), (5, 3, 3), (6, 4, 1), (8, 3, 4)],
)
def test_the_formula_is_the_program_and_the_enumeration(
  vocab, n, spread, replacement
):
  for seed in range(6):
    p, q = pair(seed, vocab, spread)
    chances = drafts(q, n, replacement)
    found = optimal.acceptance(p, q, n, replacement)
    assert found == pytest.approx(largest_flow(p, chances), abs=1e-9)
    assert found == pytest.approx(least_cut(p, chances), abs=1e-9)


@pytest.mark.parametrize('vocab', [2, 3, 6])
def test_the_bound_for_pairs_with_a_hub(vocab):
  for seed in range(6):
    p, q = pair(seed, vocab)
    hub = int(q.argmax())
    chances = {
      frozenset((hub, x)): q[x] / (1 - q[hub]) for x in range(vocab) if x != hub
    }
    found = optimal.acceptance_beside_hub(p, q)
    assert found == pytest.approx(largest_flow(p, chances), abs=1e-9)
  with pytest.raises(ValueError, match='q without'):
    optimal.acceptance_beside_hub(np.eye(vocab)[0], np.eye(vocab)[0])


@LAWS
def test_tokens_without_a_chance(replacement):
  p, q = np.array([0.5, 0.5, 0, 0, 0]), np.array([0, 0.2, 0.3, 0.5, 0])
  chances = drafts(q, 3, replacement)
  found = optimal.acceptance(p, q, 3, replacement)
  assert found == pytest.approx(largest_flow(p, chances), abs=1e-9)
  assert optimal.acceptance(q, p, 1, replacement) == pytest.approx(0.2)


@pytest.mark.parametrize(
  ('p', 'q', 'n', 'field'),
  [
    ([[1.0]], [1.0], 1, 'p'),
    ([1.0, 0], [0.0, 0], 1, 'q'),
    ([1.0, 0], [1.5, -0.5], 1, 'q'),
    ([1.0, 0], [1.0], 1, 'q'),
    ([1.0, 0], [1.0, 0], 0, 'n'),
    ([1.0, 0], [1.0, 0], 2, 'q'),
  ],
)
def test_what_is_no_distribution_is_refused(p, q, n, field):
  with pytest.raises(ValueError, match=f'^{field} '):
    optimal.acceptance(p, q, n, False)


# An explicit rule: it draws one of several orders of the vocabulary, and emits
# the drafted token that comes first in it.


def emitted_first(order, q, n, replacement):
  """The chance [V] of each token to come first of the drafted ones."""
  behind = order[::-1]
  chance = np.empty(len(q))
  chance[behind] = -np.diff(optimal.leaves(q[behind], n, replacement))
  return chance


def achieved(p, q, n, replacement, enough, turns=250):
  """The sum(min(p, m)) of a mixture of orders, m being what it emits.

  Its rule accepts the emitted token y with chance min(1, p(y) / m(y)), and this
  sum is how often. Frank-Wolfe steps over pairs of orders lessen the sum of
  max(p - m, 0)^2 / p.
  """
  likely = np.argsort(np.argsort(p / q))
  emitted = [emitted_first(np.argsort(likely), q, n, replacement)]
  weights = np.ones(1)
  for _ in range(turns):
    mixed = weights @ np.array(emitted)
    if (value := np.minimum(p, mixed).sum()) > enough:
      break
    lack = np.maximum(p - mixed, 0) / p
    order = np.lexsort((likely, -lack))
    new = emitted_first(order, q, n, replacement)
    gains = np.array(emitted) @ lack
    worst = np.argmin(np.where(weights > 0, gains, np.inf))
    low, high = 0.0, weights[worst]
    for _ in range(40):
      middle = (low + high) / 2
      left = p - mixed - middle * (new - emitted[worst])
      slope = (np.maximum(left, 0) / p) @ (new - emitted[worst])
      low, high = (middle, high) if slope > 0 else (low, middle)
    weights[worst] -= high
    weights, emitted = np.append(weights, high), [*emitted, new]
  return value


LARGE = (
  (2048, 4, True), (2048, 2, False),
  *(
    pytest.param(*case, marks=pytest.mark.slow)
    for case in ((49152, 4, True), (49152, 2, False))
  ),
)  # fmt: skip


@pytest.mark.parametrize(('vocab', 'n', 'replacement'), LARGE)
def test_a_rule_is_within_a_thousandth_of_the_bound(vocab, n, replacement):
  random = np.random.default_rng(0)
  a = 3 * random.normal(size=vocab)
  b = a + (1 if vocab == 2048 else 2) * random.normal(size=vocab)
  p, q = (np.exp(x) / np.exp(x).sum() for x in (a, b))
  bound = optimal.acceptance(p, q, n, replacement)
  found = achieved(p, q, n, replacement, bound - 1e-3)
  assert bound - 1e-3 <= found <= bound + 1e-9


# Rules of the library, multiplied out.


@pytest.mark.slow
def test_the_bound_along_a_tree(float64):
  parents = (0, 0, 1, 1, 2)
  texts = exact.Texts(3, 3)
  for seed in range(5):
    p, q = pair(seed, 3, 2)
    both = exact.constant(p, texts), exact.constant(q, texts)
    bounds = [optimal.acceptance(p, q, n, False) for n in (1, 2)]
    most = theory.tree_tokens(parents, np.diff([0, *bounds]))
    for rule in (verify.recursive, verify.naive):
      found = exact.efficiency(rule, exact.tree(parents), texts, *both)
      assert found <= most + 1e-9


def best_of_chains(p, q):
  """The most tokens accepted of two drafted ones, as a linear program.

  A rule of this kind emits a part of the chain and one token more, and leaves
  later ones to the target. The first three tokens must have its distribution.

  Args:
    p: [1 + V, V] behind no token, and behind each.
    q: the same of the draft.
  """
  vocab = p.shape[1]
  every = range(vocab)

  def chance(rows, text):
    states = (0, *(token + 1 for token in text))
    return np.prod([rows[s, t] for s, t in zip(states, text, strict=False)])

  texts = list(itertools.product(every, repeat=3))
  ways = list(itertools.product(every, every, range(3), every))
  emit, spend = np.zeros((len(texts), len(ways))), {}
  for column, (a, b, kept, y) in enumerate(ways):
    begin = (*(a, b)[:kept], y)
    spend.setdefault((a, b), np.zeros(len(ways)))[column] = 1
    for row, text in enumerate(texts):
      if text[: kept + 1] == begin:
        emit[row, column] = chance(p, text) / chance(p, begin)
  equal = np.vstack([emit, *spend.values()])
  right = [chance(p, t) for t in texts] + [chance(q, chain) for chain in spend]
  accepted = [kept for _, _, kept, _ in ways]
  found = optimize.linprog(
    -np.array(accepted), A_eq=equal, b_eq=right, options=EXACTLY
  )
  return -found.fun


@pytest.mark.parametrize('vocab', [2, 3])
def test_block_verification_is_the_bound_of_a_chain(vocab, float64):
  texts = exact.Texts(vocab, 3)
  last = [texts.tokens(i)[-1:] for i in range(len(texts))]
  for seed in range(3):
    p, q = (
      np.array([pair((seed, row), vocab)[i] for row in range(vocab + 1)])
      for i in (0, 1)
    )
    both = []
    for rows in (p, q):
      probs = np.array([rows[token[0] + 1 if token else 0] for token in last])
      both.append(exact.Distributions(probs, np.log(probs)))
    found = exact.efficiency(verify.block, exact.tree((0, 1)), texts, *both)
    assert found - 1 == pytest.approx(best_of_chains(p, q), abs=1e-9)
