"""The test of fit: it keeps its false-alarm rate and has the stated power."""

import numpy as np
import pytest
from scipy import stats

from specjax.stats import fit_tests

EXPECTED = np.array([0.4, 0.3, 0.2, 0.05, 0.03, 0.015, 0.005, 0.0])
OTHER = np.array([0.37, 0.33, 0.2, 0.05, 0.03, 0.015, 0.005, 0.0])
SAMPLES = 2000


def rejected(truth, level, repeats=4000):
  """Share of samples of a distribution that do not pass for EXPECTED."""
  random = np.random.default_rng(0)
  counts = random.multinomial(SAMPLES, truth, size=repeats)
  return np.mean([fit_tests.fit(c, EXPECTED).p_value < level for c in counts])


def test_false_alarms_are_as_rare_as_the_level_says():
  assert 0.04 < rejected(EXPECTED, 0.05) < 0.062
  assert 0.006 < rejected(EXPECTED, 0.01) < 0.016


def test_power_is_how_often_another_law_is_seen():
  stated = fit_tests.power(SAMPLES, [(EXPECTED, OTHER)], 0.05)
  assert 0.5 < stated < 0.95
  assert abs(rejected(OTHER, 0.05) - stated) < 0.03
  # Of the same distribution nothing but the false alarms are seen.
  assert fit_tests.power(SAMPLES, [(EXPECTED, EXPECTED)], 0.05) == 0.05


def test_the_impossible_is_seen_at_once():
  counts = np.zeros(8, int)
  counts[[0, 7]] = 1000, 1
  assert fit_tests.fit(counts, EXPECTED) == (np.inf, 1)
  assert fit_tests.fit(counts, EXPECTED).p_value == 0
  drawn = np.array([0, 1, 7])
  found = fit_tests.fit_drawn(drawn, np.tile(EXPECTED, (3, 1)))
  assert found == (np.inf, 1)
  # Expected more than fifty times, it is as good as certain to happen.
  for share, certain in ((0.025, False), (0.02525, True)):
    never = EXPECTED.copy()
    never[[0, 7]] = EXPECTED[0] - share, share
    found = fit_tests.power(SAMPLES, [(EXPECTED, never)], 1e-6)
    assert (found == 1) == certain


def test_counts_are_judged_by_a_g_test():
  counts, probs = np.array([1, 40, 159]), np.array([0.05, 0.25, 0.7])
  found = fit_tests.fit(counts, probs)
  g = stats.power_divergence(counts, 200 * probs, lambda_='log-likelihood')
  assert found == (pytest.approx(g.statistic), 2)
  assert found.p_value == pytest.approx(g.pvalue)


def test_draws_of_one_law_are_judged_by_pearsons_statistic():
  """The statistic of four outcomes has three degrees of freedom."""
  probs, drawn = (
    np.array([0.1, 0.2, 0.3, 0.4]),
    np.repeat(range(4), (8, 22, 27, 43)),
  )
  found = fit_tests.fit_drawn(drawn, np.tile(probs, (100, 1)))
  expected = 100 * probs
  pearson = ((np.bincount(drawn) - expected) ** 2 / expected).sum()
  assert found.freedom == 3
  assert found.statistic == pytest.approx(pearson)


def test_rare_outcomes_share_a_group():
  """The rarest are expected 1 + 3 + 6 times, the fourth ten times."""
  found = fit_tests.groups(EXPECTED, 200)
  assert found.tolist() == [4, 3, 2, 1, 0, 0, 0, -1]
  for samples in (24, 5):  # Of 24 the likeliest alone is expected 9.6 times.
    assert fit_tests.groups(EXPECTED, samples).tolist() == [0] * 7 + [-1]


def test_samples_are_put_together():
  a = fit_tests.Fit(3.0, 2)
  b = fit_tests.Fit(5.0, 4)
  assert fit_tests.together([a, b]) == (8.0, 6)
  assert fit_tests.Fit().p_value == 1  # Nothing was tested.
