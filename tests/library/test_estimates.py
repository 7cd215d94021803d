"""Estimates against other people's formulas, and ends solved for by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from specjax.stats import estimates

UNITS = st.lists(st.integers(-9, 9), min_size=5, max_size=9)


def mean(*places):
  """A mean of each sample, with a sign: their sums over their numbers."""
  return lambda *sums: sum(s * sums[2 * i] / sums[2 * i + 1] for i, s in places)


def units_of(values):
  return estimates.Sums(values, np.ones(len(values)))


@given(UNITS)
def test_moments_of_a_mean_are_unbiased_cumulants(values):
  sums = units_of(values)
  found = sums.spread(0.0, sums.variants[0] / sums.variants[1])
  n = len(values)
  assert found.variance == pytest.approx(stats.kstat(values, 2) / n)
  assert found.up == found.down == pytest.approx(found.variance**0.5)
  third = stats.kstat(values, 3) / n**2
  assert found.third == pytest.approx(third, abs=1e-12)
  assert found.freedom == n - 1


@given(UNITS, UNITS)
def test_two_samples_are_welchs(one, other):
  if min(np.ptp(one), np.ptp(other)) == 0:
    return
  # Each sample beside its mirror image: without skewness ends are Student's.
  one, other = ([*x, *(-v for v in x)] for x in (one, other))
  difference = mean((0, 1), (1, -1))
  found = estimates.combine(difference, units_of(one), units_of(other))
  welch = stats.ttest_ind(one, other, equal_var=False)
  assert found.freedom == pytest.approx(welch.df)
  assert found.interval == pytest.approx(list(welch.confidence_interval()))


@given(UNITS, UNITS, st.floats(0.1, 4))
def test_skewness_moves_both_ends(one, other, scale):
  if min(np.ptp(one), np.ptp(other)) == 0:
    return
  one, other = np.array(one, float), scale * np.array(other)
  n, m = len(one), len(other)
  parts = [stats.kstat(one, 2) / n, stats.kstat(other, 2) / m]
  error = sum(parts) ** 0.5
  freedom = sum(parts) ** 2 / (
    parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1)
  )
  third = stats.kstat(one, 3) / n**2 - stats.kstat(other, 3) / m**2
  skew, top = third / error**3, stats.t(freedom).ppf(0.975)

  def hall(t):  # (1992), equation 4, which is solved for its argument.
    return t + skew * t**2 / 3 + skew**2 * t**3 / 27 + skew / 6

  ends = [
    optimize.brentq(lambda t, q=q: hall(t) - q, -1e4, 1e4) for q in (-top, top)
  ]
  # Outwards as Hall has it, but for twice Student's; inwards half as far.
  below, above = (
    min(max(end, (end + top) / 2), 2 * top) for end in (-ends[0], ends[1])
  )
  found = estimates.combine(
    mean((0, 1), (1, -1)), units_of(one), units_of(other)
  )
  middle = one.mean() - other.mean()
  expected = middle - above * error, middle + below * error
  assert found.interval == pytest.approx(list(expected), abs=1e-6)


@given(st.lists(st.integers(1, 9), min_size=5, max_size=9))
def test_a_positive_ratio_is_its_logarithms(values):
  if np.ptp(values) == 0:
    return
  whole, count = units_of(values), len(values)
  plain = estimates.combine(lambda a, n: np.log(a / n), whole)
  found = estimates.ratio(values, np.ones(count))
  assert found.interval == pytest.approx(list(np.exp(plain.interval)))
  assert found.error == pytest.approx(found.value * plain.error)
  assert found.freedom == plain.freedom
  # So the ratio the other way round has the inverse ends.
  inverse = estimates.ratio(np.ones(count), values)
  assert inverse.interval == pytest.approx([1 / found.high, 1 / found.low])
  ends = [2 * x + 3 for x in (found.value, *found.interval)]
  scaled = found.scaled(2, 3)
  assert [scaled.value, *scaled.interval] == pytest.approx(ends)
  assert scaled.error == 2 * found.error


def test_medians_reach_where_their_draws_do():
  turns = np.array([1.0, 2.0, 4.0, 7.0, 11.0])
  drawn = estimates.medians(turns)
  (draws,), (middle,) = drawn.variants, drawn.values
  assert middle == 4
  assert drawn.size == 5
  spread = drawn.spread(middle, draws)
  low, high = np.percentile(draws, [2.5, 97.5])
  assert spread.down * 1.959964 == pytest.approx(middle - low)
  assert spread.up * 1.959964 == pytest.approx(high - middle)
  assert (spread.variance, spread.third, spread.freedom) == (draws.var(), 0, 4)


def test_impossible_values_are_refused_and_rounding_is_not():
  assert estimates.ratio([1 + 1e-10] * 5, [1] * 5, most=1).value == 1
  for values in ([1.1] * 5, [-1] * 5):
    with pytest.raises(ValueError, match='must be from 0 to 1'):
      estimates.ratio(values, [1] * 5, most=1)


@pytest.mark.parametrize('columns', [(), ([],), ([], []), ([1, 2], [1])])
def test_columns_have_one_length_of_at_least_one(columns):
  with pytest.raises(ValueError, match=r'^columns must be'):
    estimates.Sums(*columns)


def test_units_without_numbers_are_no_units():
  """A prompt without a step of the kind neither counts nor has influence."""
  found = estimates.ratio([1, 0, 2, 3, 5, 8], [2, 0, 2, 4, 4, 9])
  fewer = estimates.ratio([1, 2, 3, 5, 8], [2, 2, 4, 4, 9])
  assert found == fewer
  assert found.freedom == 4
  assert found.influences[0][1] == 0
  assert (found.influences[0] ** 2).sum() == pytest.approx(found.error**2)
