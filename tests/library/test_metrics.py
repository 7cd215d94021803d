"""Metrics against values worked out by hand."""

import numpy as np
import pytest

from specjax.stats import metrics
from specjax.types import Counts


def test_an_interval_needs_units_enough_and_spread():
  """Without spread nobody knows how large it is: no width would be a claim."""
  # It is the ratio of sums, not the mean of ratios.
  assert metrics.ratio([1, 9], [10, 10]).value == 0.5
  assert np.isnan(metrics.ratio([0, 0], [0, 0]).value)
  few = metrics.ratio([3.5, 3.6, 3.7, 3.4], [1] * 4)
  assert few.value == pytest.approx(3.55)
  assert few.interval is None
  assert not metrics.enough(2)
  same = metrics.ratio([1, 9, 2, 4, 7], [1, 9, 2, 4, 7])
  assert same.value == 1.0
  assert same.interval is None
  assert metrics.ratio([1, 9, 2, 4, 7], [1, 9, 2, 4, 8]).interval
  assert metrics.ratio([0, 0, 0, 0, 0], [1, 9, 2, 4, 8]).interval is None


def test_speedup_compares_times_per_token():
  found = metrics.speedup([4.0, 4.0], [10, 10], [1.0, 1.0], [5, 5])
  assert found.value == pytest.approx(2.0)


def test_speedup_is_paired():
  """A slow prompt is slow for both: the ratio has next to no spread."""
  base = np.array([1.0, 5.0, 2.0, 3.0, 4.0, 9.0])
  seconds = base / 2 + [0, 1e-3, 0, -1e-3, 0, 0]
  found = metrics.speedup(base, [8] * 6, seconds, [8] * 6)
  assert found.interval == pytest.approx([2.0, 2.0], abs=0.002)


def test_what_is_not_possible_is_no_ratio():
  with pytest.raises(ValueError, match=r'the value is 1\.5, which must be'):
    metrics.ratio([3, 3, 3, 3, 3], [2, 1, 3, 2, 2], most=1.0)
  with pytest.raises(ValueError, match='the value is -1, which must be from 0'):
    metrics.ratio([-1], [1])
  rounded = metrics.ratio([1 + 1e-12], [1], most=1.0)
  assert rounded.value == 1.0


def test_intervals_end_where_values_do():
  wide = metrics.ratio([1, 9, 2, 9, 1], [10, 10, 3, 9, 8])
  clipped = wide.clipped(0.3, 0.7)
  assert wide.low < 0.3 < wide.value < 0.7 < wide.high
  assert clipped.interval == [0.3, 0.7]
  assert (clipped.value, clipped.error) == (wide.value, wide.error)
  beyond = wide.clipped(0.0, 0.1)
  assert beyond.high == beyond.value == wide.value
  assert metrics.ratio([1, 2], [1, 2]).clipped(0.0, 1.0).interval is None
  assert np.isnan(metrics.ratio([0], [0]).clipped(0.0, 1.0).value)


def test_acceptance_by_position():
  """Four steps of depth 2 that accepted 0, 1, 2, 2; one proposed nothing."""
  counts = Counts(
    histogram=np.array([[2, 1, 2]]), tried=np.array([[4, 3]]),
    accepted=np.array([[3, 2]]), drafted=np.array([8]), tokens=np.array([10]),
    target_calls=np.array([5]), overlap=np.array([2.0]), misses=np.array([1]),
  )  # fmt: skip
  unconditional, conditional = metrics.by_position(counts)
  assert unconditional == [0.6, 0.4]
  assert conditional == [0.75, pytest.approx(2 / 3)]
  # Where nothing was tried, there is no share.
  none = counts._replace(tried=np.array([[4, 0]]), accepted=np.array([[3, 0]]))
  unconditional, conditional = metrics.by_position(none)
  assert unconditional == [0.6, 0]
  assert conditional[0] == 0.75
  assert np.isnan(conditional[1])


# Three requests of drafts 3 deep: accepted tokens of their steps. Each text
# takes 8 tokens at most, and the last step of the first one was cut.
STEPS = [[3, 1, 3], [0, 0, 3, 1], [2]]
TOKENS, CALLS = [4 + 2 + 2, 1 + 1 + 4 + 2, 3], [3, 4, 1]
WHOLE = [[3, 1], [0, 0, 3, 1], [2]]


def test_acceptance_length_under_its_definitions():
  micro = metrics.ratio(TOKENS, CALLS)
  assert micro.value == 19 / 8
  macro = metrics.tau_per_request(TOKENS, CALLS)
  assert macro.value == pytest.approx((8 / 3 + 8 / 4 + 3 / 1) / 3)
  # A list of accepted + 1 of every step, and its mean.
  listed = [accepted + 1 for request in WHOLE for accepted in request]
  flat = metrics.tau_per_step([sum(x) for x in WHOLE], list(map(len, WHOLE)))
  assert flat.value == pytest.approx(np.mean(listed)) == pytest.approx(17 / 7)
  # It is tau where no step was cut.
  steps = [sum(x) + len(x) for x in STEPS]
  uncut = metrics.tau_per_step([sum(x) for x in STEPS], CALLS)
  assert uncut.value == pytest.approx(metrics.ratio(steps, CALLS).value)


def test_a_request_without_a_call_has_no_acceptance_length():
  found = metrics.tau_per_request([*TOKENS, 0], [*CALLS, 0])
  assert found.value == metrics.tau_per_request(TOKENS, CALLS).value
  assert np.isnan(metrics.tau_per_request([0], [0]).value)


def test_requests_count_alike_in_the_interval_of_their_mean():
  """Their own values are the units: five ones and a long 2, or a short one."""
  short, long = (
    metrics.tau_per_request([3, 5, 4, 6, 5, 2 * n], [2, 4, 2, 3, 3, n])
    for n in (1, 1000)
  )
  assert short == long
  assert short.low < short.value < short.high


def test_speedup_of_rates_is_that_of_spec_bench():
  """Rates 4 and 1 of ours, 1 and 1 plain; in all 13 tokens in 10 s, and 10."""
  seconds, tokens = [1.0, 9.0], [4, 9]
  base_seconds, base_tokens = [4.0, 6.0], [4, 6]
  columns = base_seconds, base_tokens, seconds, tokens
  assert metrics.speedup_of_rates(*columns).value == pytest.approx(2.5)
  assert metrics.speedup(*columns).value == pytest.approx(1.3)


def test_repetition():
  assert metrics.repetition([[1, 2, 3, 4, 5, 6]]) == 0
  # 1234, 2341, 3412, 4123, then 1234 again.
  assert metrics.repetition([[1, 2, 3, 4, 1, 2, 3, 4]]) == pytest.approx(0.2)
  assert np.isnan(metrics.repetition([[1, 2]]))


def test_predicted_speedup_is_theorem_3_8_at_v_one():
  """Leviathan et al., Table 1: alpha .8, gamma 5, c = 0 gives 3.69."""
  alpha, gamma = 0.8, 5
  tau = (1 - alpha ** (gamma + 1)) / (1 - alpha)
  assert round(metrics.predicted_speedup(tau, 0, 1, gamma), 2) == 3.69


def test_acceptance_by_context():
  accepted = np.array([[2, 0, 1], [1, 2, -1]])
  drafted = np.array([[2, 2, 2], [2, 2, 2]])
  length = np.array([[10, 13, 14], [10, 12, 15]])
  low, high, empty = metrics.by_context(
    accepted, drafted, length, [10, 13, 16, 20]
  )
  assert (low['from'], low['to'], low['steps']) == (10, 13, 3)
  assert low['acceptance'] == pytest.approx(5 / 6)
  assert (high['steps'], high['acceptance']) == (2, pytest.approx(1 / 4))
  assert empty['steps'] == 0
  assert np.isnan(empty['acceptance'])
  # One of ten rows lost a token: the interval ends at 1.
  taken = np.array([[9]] * 9 + [[8]])
  (near,) = metrics.by_context(taken, np.full((10, 1), 9), taken, [0, 99])
  assert near['acceptance_ci'][1] == 1


def test_autocorrelation():
  """Steps that alternate; a row that ends early adds its own pairs only."""
  accepted = np.array([[0, 2, 0, 2, 0, 2], [0, 2, 0, -1, -1, -1]])
  one, two, *_ = metrics.autocorrelation(accepted)
  assert one.value == pytest.approx(-1)
  assert two.value == pytest.approx(1)
  # The same lengths everywhere say nothing.
  assert np.isnan(metrics.autocorrelation(np.ones((2, 6), int))[0].value)


def test_autocorrelation_of_independent_steps_is_near_zero():
  """7,600 pairs: a standard deviation of 0.0115, so 0.05 is beyond 4."""
  accepted = np.random.default_rng(0).integers(0, 5, (400, 20))
  assert abs(metrics.autocorrelation(accepted, 1)[0].value) < 0.05
  # Correlations of fewer than 30 texts are too skewed for an interval.
  few, enough = (metrics.autocorrelation(accepted[:n], 1)[0] for n in (29, 30))
  assert few.interval is None
  assert enough.interval is not None
