"""The theory: published numbers to the printed digit, and brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax import exact, theory, trees, verify

# Leviathan et al., Table 1: alpha, gamma, operations, speed; c = 0.
TABLE_1 = (
  (0.6, 2, 1.53, 1.96),
  (0.7, 3, 1.58, 2.53),
  (0.8, 2, 1.23, 2.44),
  (0.8, 5, 1.63, 3.69),
  (0.9, 2, 1.11, 2.71),
  (0.9, 10, 1.60, 6.86),
)

# Table 4 with gamma and alpha of Table 2: gamma, alpha, c, expected speed, and
# what the rounded alpha and c give where that rounds to another digit.
TABLE_4 = (
  ('EnDe', 'small', 0, 7, 0.75, 0.02, 3.2, None),
  ('EnDe', 'base', 0, 7, 0.80, 0.04, 3.3, None),
  ('EnDe', 'large', 0, 7, 0.82, 0.11, 2.5, None),
  ('EnDe', 'small', 1, 7, 0.62, 0.02, 2.3, None),
  ('EnDe', 'base', 1, 5, 0.68, 0.04, 2.4, 2.347),
  ('EnDe', 'large', 1, 3, 0.71, 0.11, 2.0, 1.934),
  ('CNN/DM', 'small', 0, 5, 0.65, 0.02, 2.4, None),
  ('CNN/DM', 'base', 0, 5, 0.73, 0.04, 2.6, None),
  ('CNN/DM', 'large', 0, 3, 0.74, 0.11, 2.0, None),
  ('CNN/DM', 'small', 1, 5, 0.53, 0.02, 1.9, None),
  ('CNN/DM', 'base', 1, 3, 0.55, 0.04, 1.8, None),
  ('CNN/DM', 'large', 1, 3, 0.56, 0.11, 1.6, 1.541),
)

# The best integers for the curves of Figure 3, alpha .50 to .90 by .05.
FIGURE_3 = {
  0.01: (5, 6, 7, 8, 9, 11, 14, 17, 24),
  0.02: (4, 5, 6, 7, 8, 9, 11, 14, 19),
  0.05: (3, 4, 4, 5, 6, 7, 8, 10, 13),
  0.10: (2, 3, 3, 3, 4, 5, 6, 7, 10),
}


@pytest.mark.parametrize(('alpha', 'gamma', 'operations', 'speed'), TABLE_1)
def test_table_1(alpha, gamma, operations, speed):
  assert round(float(theory.operations(alpha, gamma, 0)), 2) == operations
  assert round(float(theory.speedup(alpha, gamma, 0)), 2) == speed


@pytest.mark.parametrize('row', TABLE_4, ids=lambda row: f'{row[0]} {row[1]}')
def test_table_4(row):
  *_, gamma, alpha, c, printed, other = row
  found = float(theory.speedup(alpha, gamma, c))
  assert abs(found - printed) < 0.07
  if other is None:
    assert round(found, 1) == printed
  else:
    assert round(found, 1) != printed
    assert round(found, 3) == other


def test_best_gammas_of_figure_3():
  alphas = [round(0.5 + 0.05 * i, 2) for i in range(9)]
  for c, gammas in FIGURE_3.items():
    assert tuple(theory.best_gamma(a, c) for a in alphas) == gammas


def test_some_gamma_gains_where_alpha_exceeds_c():
  """Corollary 3.9, and nothing gains where it does not apply."""
  for alpha, c in itertools.product((0.05, 0.3, 0.7, 0.95), (0.01, 0.2, 0.6)):
    gamma = theory.best_gamma(alpha, c)
    assert (gamma > 0) == (alpha > c)
    speed = theory.speedup(alpha, gamma, c)
    assert speed >= theory.least_gain(alpha, c) - 1e-12
  assert theory.least_gain(0.5, 0.25) == 1.2
  assert theory.least_gain(0.1, 0.2) == 1


def test_the_oracle():
  """53% above the best gamma at c .1, 47.5% at c .05; alpha .9."""
  for c, gain in ((0.1, 0.53), (0.05, 0.475)):
    best = theory.speedup(0.9, theory.best_gamma(0.9, c), c)
    assert theory.oracle_speedup(0.9, c) / best == pytest.approx(
      1 + gain, abs=5e-3
    )
  assert theory.oracle_speedup(1, 0) == np.inf
  assert theory.oracle_speedup(0, 0.3) == 1


def test_the_oracle_of_measured_lengths():
  """One step each of 0 and 1 tokens, two of 2; scoring three costs 1.4.

  9 tokens for 1 + (1.2 + 0.1) + 2 (1.4 + 0.2) plain steps; or, where three are
  scored whatever is drafted, for 4 * 1.4 + 0.1 + 2 * 0.2.
  """
  found = theory.oracle_of_lengths([1, 1, 2], 0.1, {3: 1.4})
  assert found == pytest.approx(9 / 5.5)
  fixed = theory.oracle_of_lengths([1, 1, 2], 0.1, {1: 1.4, 3: 1.4})
  assert fixed == pytest.approx(9 / 6.1)
  # What was measured between counts, too.
  found = theory.oracle_of_lengths([1, 1, 2], 0.1, {2: 1.0, 3: 1.4})
  assert found == pytest.approx(9 / 5.3)
  # Never slower than always drafting two.
  assert found > 9 / (4 * (1.4 + 0.2))


def test_tokens_of_a_tree_by_depth():
  """1 + .5 + .2 for the root's children, .5 * .4 + .5 * .1 for the first's."""
  table = [[0.5, 0.2], [0.4, 0.1]]
  assert theory.tree_tokens((0, 0, 1, 1), table) == pytest.approx(1.95)
  # Below the last row it goes on as there.
  assert theory.tree_tokens((0, 1, 2), table) == pytest.approx(1.78)


def test_speeds_with_lenience():
  """A.5, T5-small, English to German, temperature 0, c .015, gamma 8."""
  for alpha, speed in ((0.75, 3.3), (0.8, 3.9), (0.87, 4.9)):
    assert round(float(theory.speedup(alpha, 8, 0.015)), 1) == speed


def test_lenience_raises_alpha():
  random = np.random.default_rng(0)
  p, q = random.dirichlet(np.ones(5), 2)
  alphas = [theory.lenient_alpha(p, q, x) for x in (1, 0.5, 0.1, 1e-9)]
  assert alphas == sorted(alphas)
  assert alphas[0] == pytest.approx(np.minimum(p, q).sum())
  assert alphas[-1] == pytest.approx(1)
  with pytest.raises(ValueError, match=r'factor must be in \(0, 1\]'):
    theory.lenient_alpha(p, q, 0)


def test_equation_1_and_its_inverse():
  for alpha, gamma in itertools.product((0, 0.3, 1 - 1e-9, 1), (1, 4, 9)):
    tokens = theory.tokens_per_call(alpha, gamma)
    assert tokens == pytest.approx(sum(alpha**i for i in range(gamma + 1)))
    assert theory.alpha_of(float(tokens), gamma) == pytest.approx(
      alpha, abs=1e-7
    )
  assert np.isnan(theory.alpha_of(5.1, 4))
  assert np.isnan(theory.alpha_of(0.9, 4))
  with pytest.raises(ValueError, match='alpha must be in'):
    theory.tokens_per_call(1.2, 4)


def test_break_even():
  alpha = theory.break_even_alpha(3, 0.1, 1.2)
  assert theory.speedup(alpha, 3, 0.1, 1.2) == pytest.approx(1)
  assert theory.break_even_alpha(3, 0.1, 0.5) == 0
  assert np.isnan(theory.break_even_alpha(3, 1.0, 1.2))
  tokens = float(theory.tokens_per_call(0.7, 3))
  c = theory.break_even_c(tokens, 3, 1.2)
  v = theory.break_even_v(tokens, 3, 0.1)
  assert theory.speedup(0.7, 3, c, 1.2) == pytest.approx(1)
  assert theory.speedup(0.7, 3, 0.1, v) == pytest.approx(1)
  # Scoring takes all of it, drafting leaves less than a plain step.
  assert np.isnan(theory.break_even_c(2.0, 3, 2.1))
  assert np.isnan(theory.break_even_v(2.0, 3, 0.4))


# Trees.


def every_tree(nodes):
  """All trees of some nodes, level by level: parents never decrease."""
  if not nodes:
    yield ()
    return
  for parents in every_tree(nodes - 1):
    least = parents[-1] if parents else 0
    for parent in range(least, nodes):
      yield (*parents, parent)


def depth_of(parents):
  depth = [0]
  for parent in parents:
    depth.append(depth[parent] + 1)
  return max(depth)


def test_brute_force_sees_every_tree():
  assert [len(set(every_tree(n))) for n in range(6)] == [1, 1, 2, 5, 14, 42]


@given(
  st.lists(st.floats(0, 1), min_size=1, max_size=4),
  st.integers(0, 5),
  st.one_of(st.none(), st.integers(0, 4)),
)
def test_the_best_tree_is_that_of_brute_force(acceptance, nodes, depth):
  found = theory.best_tree(acceptance, nodes, depth)
  best = max(
    theory.tree_tokens(parents, acceptance)
    for n in range(nodes + 1)
    for parents in every_tree(n)
    if depth is None or depth_of(parents) <= depth
  )
  assert found.tokens == pytest.approx(best, rel=1e-12)
  assert found.tokens == theory.tree_tokens(found.parents, acceptance)
  assert len(found.parents) <= nodes
  assert depth is None or depth_of(found.parents) <= depth
  # Rows come level by level, as `types.Draft` and `static_tree` want them.
  assert list(found.parents) == sorted(found.parents)
  assert all(parent <= i for i, parent in enumerate(found.parents))


def test_the_best_tree_is_no_worse_than_chains_and_regular_trees():
  acceptance = (0.6, 0.2, 0.1, 0.05)
  chain = tuple(range(14))
  for parents in (chain, trees.branching((2, 2, 2)), trees.branching((14,))):
    found = theory.best_tree(acceptance, len(parents))
    assert found.tokens > theory.tree_tokens(parents, acceptance)
    assert len(found.parents) == len(parents)
  assert theory.tree_tokens(chain, acceptance) == pytest.approx(
    float(theory.tokens_per_call(0.6, 14))
  )
  # One chance alone leaves nothing to choose.
  assert theory.best_tree((0.6,), 4).parents == (0, 1, 2, 3)


def test_bad_trees_are_refused():
  with pytest.raises(ValueError, match='acceptance must be in'):
    theory.best_tree((0.5, 1.5), 3)
  with pytest.raises(ValueError, match='at least one chance'):
    theory.best_tree((), 3)
  with pytest.raises(ValueError, match='must be at least 0'):
    theory.best_tree((0.5,), -1)


# Several candidates for one place, beside the rules themselves.


def test_the_counter_example_of_sequoia():
  p, q = [1.0, 0.0], [0.5, 0.5]
  assert theory.with_replacement(p, q, 2).sum() == pytest.approx(0.75)
  assert theory.without_replacement(p, q, 2).sum() == pytest.approx(1.0)


@pytest.fixture(scope='module')
def pairs():
  random = np.random.default_rng(3)
  found = [random.dirichlet(np.full(3, 0.7), 2) for _ in range(6)]
  return [*found, (np.array([0.2, 0.3, 0.5]), np.array([0.0, 1.0, 0.0]))]


@pytest.mark.parametrize(
  ('chances', 'rule', 'replacement'),
  [
    (theory.with_replacement, verify.recursive, True),
    (theory.without_replacement, verify.recursive, False),
    (theory.k_seq, verify.k_seq, True),
  ],
)
def test_chances_are_those_of_the_rules(
  chances, rule, replacement, pairs, float64
):
  texts = exact.Texts(3, 2)
  source = exact.tree((0, 0), replacement)
  for p, q in pairs:
    laws = exact.constant(p, texts), exact.constant(q, texts)
    tau = exact.efficiency(rule, source, texts, *laws)
    assert 1 + chances(p, q, 2).sum() == pytest.approx(tau, abs=1e-12)
    # One candidate is what all rules agree on.
    assert chances(p, q, 1).sum() == pytest.approx(np.minimum(p, q).sum())


def test_toy_example_of_block_verification(float64):
  """10/9 and 11/9 accepted tokens; the corrected or bonus one comes on top."""
  texts, draft = exact.Texts(2, 3), exact.tree((0, 1))
  p = exact.constant([1 / 3, 2 / 3], texts)
  q = exact.constant([2 / 3, 1 / 3], texts)
  for rule, tau in ((verify.token, 19 / 9), (verify.block, 20 / 9)):
    found = exact.efficiency(rule, draft, texts, p, q)
    assert found == pytest.approx(tau, abs=1e-14)
  assert theory.tokens_per_call(2 / 3, 2) == pytest.approx(19 / 9)


# Replay.


def test_calls_of_a_text_that_is_certain():
  accept = theory.along([1, 0, 1, 0, 1], 2)
  assert accept.tolist() == [[1, 0], [0, 1], [1, 0], [0, 1], [1, 0]]
  assert theory.expected_calls(accept) == 3  # Steps begin at 0, 2, 4.
  assert theory.expected_calls(np.ones((9, 2))) == 3
  assert theory.expected_calls(np.zeros((9, 2))) == 9
  # A step of three tokens, of which the last is cut.
  assert theory.expected_calls(np.ones((5, 2))) == 2


def test_calls_of_a_coin():
  """Two tokens at gamma 1: one call if the first is accepted, else two."""
  assert theory.expected_calls([[0.3], [0.9]]) == pytest.approx(1.7)
