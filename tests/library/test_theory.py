"""The theory: published numbers to the printed digit, and brute force."""

import itertools

import numpy as np
import pytest

from specjax.stats import theory

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


def best_gamma(alpha, c):
  """The least gamma of the largest speed-up."""
  return int(np.argmax(theory.speedup(alpha, np.arange(1, 1001), c))) + 1


def test_best_gammas_of_figure_3():
  alphas = [round(0.5 + 0.05 * i, 2) for i in range(9)]
  for c, gammas in FIGURE_3.items():
    assert tuple(best_gamma(a, c) for a in alphas) == gammas


def test_some_gamma_gains_where_alpha_exceeds_c():
  """Corollary 3.9: as much as gamma 1 where alpha > c; none gains elsewhere."""
  for alpha, c in itertools.product((0.05, 0.3, 0.7, 0.95), (0.01, 0.2, 0.6)):
    speed = theory.speedup(alpha, best_gamma(alpha, c), c)
    assert (speed > 1) == (alpha > c)
    assert alpha <= c or speed >= (1 + alpha) / (1 + c)


def test_tokens_of_a_tree_by_depth():
  """1 + .5 + .2 for the root's children, .5 * .4 + .5 * .1 for the first's."""
  table = [[0.5, 0.2], [0.4, 0.1]]
  assert theory.tree_tokens((0, 0, 1, 1), table) == pytest.approx(1.95)
  assert theory.tree_tokens((0, 0, 0), table) == 1.7  # A third has no chance.
  # Below the last row it goes on as there.
  assert theory.tree_tokens((0, 1, 2), table) == pytest.approx(1.78)


def test_speeds_with_lenience():
  """A.5, T5-small, English to German, temperature 0, c .015, gamma 8."""
  for alpha, speed in ((0.75, 3.3), (0.8, 3.9), (0.87, 4.9)):
    assert round(float(theory.speedup(alpha, 8, 0.015)), 1) == speed


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
  assert theory.break_even_alpha(3, 0.1) == theory.break_even_alpha(3, 0.1, 1)
  assert theory.break_even_alpha(2, 0.25, 0.5) == 0
  assert np.isnan(theory.break_even_alpha(3, 1.0, 1.2))
  tokens = float(theory.tokens_per_call(0.7, 3))
  c = theory.break_even_c(tokens, 3, 1.2)
  v = theory.break_even_v(tokens, 3, 0.1)
  assert theory.speedup(0.7, 3, c, 1.2) == pytest.approx(1)
  assert theory.speedup(0.7, 3, 0.1, v) == pytest.approx(1)
  # Scoring takes all of it, drafting leaves less than a plain step.
  assert theory.break_even_c(2.5, 3) == 0.5
  assert theory.break_even_v(2.0, 2, 0.5) == 1
  assert np.isnan(theory.break_even_c(2.0, 3, 2.0))
  assert np.isnan(theory.break_even_v(2.0, 3, 0.4))


# Trees.


def test_a_chain_is_a_tree():
  acceptance = (0.6, 0.2, 0.1, 0.05)
  assert theory.tree_tokens(range(14), acceptance) == pytest.approx(
    float(theory.tokens_per_call(0.6, 14))
  )


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
