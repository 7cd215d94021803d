"""Metrics against values worked out by hand."""

import types

import numpy as np
import pytest

from specjax.stats import metrics


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


def test_speedup_is_paired():
  """A slow prompt is slow for both: the ratio has next to no spread."""
  base = np.array([1.0, 5.0, 2.0, 3.0, 4.0, 9.0])
  seconds = base / 2 + [0, 1e-3, 0, -1e-3, 0, 0]
  found = metrics.speedup(base, [8] * 6, seconds, [8] * 6)
  assert found.interval == pytest.approx([2.0, 2.0], abs=0.002)
  # The inverse has the inverse ends.
  one, other = (base, [8] * 6), (seconds, [8, 7, 8, 6, 9, 8])
  there, back = metrics.speedup(*one, *other), metrics.speedup(*other, *one)
  assert back.interval == pytest.approx([1 / there.high, 1 / there.low])


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


def test_where_nothing_was_tried_there_is_no_share():
  """Five steps of depth 2; a single token was drafted in four of them."""
  arrays = {'histogram': [[2, 3, 0]], 'tried': [[4, 0]], 'accepted': [[3, 0]]}
  counts = types.SimpleNamespace(**{k: np.array(x) for k, x in arrays.items()})
  unconditional, conditional = metrics.by_position(counts)
  assert unconditional == [0.6, 0]
  assert conditional[0] == 0.75
  assert np.isnan(conditional[1])


def test_a_request_without_a_call_has_no_acceptance_length():
  found = metrics.tau_per_request([8, 8, 3, 0], [3, 4, 1, 0])
  assert found.value == pytest.approx((8 / 3 + 8 / 4 + 3 / 1) / 3)
  assert np.isnan(metrics.tau_per_request([0], [0]).value)


def test_requests_count_alike_in_the_interval_of_their_mean():
  """Their own values are the units: five ones and a long 2, or a short one."""
  short, long = (
    metrics.tau_per_request([3, 5, 4, 6, 5, 2 * n], [2, 4, 2, 3, 3, n])
    for n in (1, 1000)
  )
  assert short == long
  assert short.low < short.value < short.high


def test_repetition():
  # 1234, 2341, 3412, 4123, then 1234 again; in another text it is new.
  texts = [[1, 2, 3, 4, 1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]
  assert metrics.repetition(texts) == 1 / 9
  assert np.isnan(metrics.repetition([[1, 2]]))


def test_acceptance_by_context():
  """One of ten rows lost a token: the interval ends at 1."""
  taken = np.array([[9]] * 9 + [[8]])
  near, empty = metrics.by_context(
    taken, np.full((10, 1), 9), taken, [0, 99, 120]
  )
  assert near['acceptance_ci'][1] == 1
  assert empty['steps'] == 0
  assert np.isnan(empty['acceptance'])


def test_the_same_lengths_everywhere_say_nothing_of_their_memory():
  found = metrics.autocorrelation(np.ones((2, 6), int))
  assert np.isnan([one.value for one in found]).tolist() == [True] * 4


def test_autocorrelation_of_independent_steps_is_near_zero():
  """7,600 pairs: a standard deviation of 0.0115, so 0.05 is beyond 4."""
  accepted = np.random.default_rng(0).integers(0, 5, (400, 20))
  assert abs(metrics.autocorrelation(accepted, 1)[0].value) < 0.05
  # Correlations of fewer than 30 texts are too skewed for an interval.
  few, enough = (metrics.autocorrelation(accepted[:n], 1)[0] for n in (29, 30))
  assert few.interval is None
  assert enough.interval is not None
