"""The bound on several drafts, by programs and by enumeration."""

import itertools

import numpy as np
import pytest
from scipy import optimize

from specjax.stats import optimal

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
  """The chance of every set of drafted tokens."""
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
  [
    (2, 2, 1),
    (3, 3, 6),
    (4, 2, 12),
    (5, 3, 3),
    (6, 4, 1),
    (8, 2, 2),
    (8, 3, 4),
  ],
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


@LAWS
def test_more_drafts_are_accepted_more_often(replacement):
  for seed in range(4):
    p, q = pair(seed, 40)
    found = [optimal.acceptance(p, q, n, replacement) for n in range(1, 7)]
    assert found[0] == pytest.approx(np.minimum(p, q).sum(), abs=1e-12)
    assert (np.diff(found) > 0).all()
    assert found[-1] <= 1
    assert optimal.acceptance(p, p, 3, replacement) == pytest.approx(1)


def test_different_drafts_are_accepted_more_often():
  for seed in range(4):
    p, q = pair(seed, 40)
    different = optimal.acceptance(p, q, 3, False)
    assert different > optimal.acceptance(p, q, 3, True)


@LAWS
def test_what_is_ignored_costs_no_more_than_it_says(replacement):
  for seed, ignored in itertools.product(range(3), (1e-3, 0.1)):
    p, q = pair(seed, 60, 5)
    whole = optimal.acceptance(p, q, 3, replacement)
    found = optimal.acceptance(p, q, 3, replacement, ignored)
    assert whole <= found <= whole + 3 * ignored
    assert found != whole


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
