"""Intervals hold the truth in 95% of the cases, neither more nor fewer."""

import numpy as np
import pytest

from experiments import coverage
from experiments.coverage import Case
from specjax.reports.paired import TAU, difference
from specjax.stats import estimates, metrics


def _kinds():
  """A ratio, a paired difference and one of costs, of skewed units.

  Calls of a prompt are gamma distributed with a skewness of 1, the turns of
  costs lognormal.
  """

  def calls(rng, n):
    return 10 + rng.gamma(4, 3, size=n)

  def tau(rng, n):
    return [metrics.ratio(np.full(n, 48), calls(rng, n))]

  def change(rng, n):
    one = calls(rng, n)
    other = 0.8 * one + rng.gamma(4, 1, size=n)
    rows = [
      {'unit_tokens': [48] * n, 'unit_target_calls': column, 'prompts': n}
      | {'prompts_hash': ''}
      for column in (one, other)
    ]
    return [difference(*rows, TAU, relative=True)]

  def cost(rng, n):
    drafted, scored = np.exp(0.2 * rng.normal(size=(2, 15)))
    found = metrics.combine(
      lambda t, m, c, v: t / m / (c + v),
      metrics.Sums(np.full(n, 48), calls(rng, n)),
      metrics.medians(0.5 * drafted, scored),
      positive=True,
    )
    return [found]

  return [
    Case('tau', tau, [48 / 22]),
    Case('change', change, [100 * (22 / (0.8 * 22 + 4) - 1)]),
    Case('cost', cost, [48 / 22 / 1.5]),
  ]


@pytest.fixture
def share(monkeypatch):
  """Share of intervals that hold the truth, by units."""
  for module in (estimates, metrics):
    monkeypatch.setattr(module, 'RESAMPLES', 400)

  def simulate(*sizes, draws=300):
    cases = _kinds()
    held = [coverage.tally(cases, n, draws)['coverage'] for n in sizes]
    return float(np.mean(held))

  return simulate


def test_95_percent_hold_the_truth(share):
  """1,800 intervals: a standard deviation of 0.005."""
  assert 0.935 <= share(8, 30) <= 0.967


def test_the_percentile_bootstrap_would_be_seen(share):
  with coverage.method('old'):
    assert share(8, draws=50) < 0.92


def test_too_few_units_are_not_counted():
  few = Case('few', lambda rng, n: [metrics.ratio(*rng.random((2, n)))], [1.0])
  held = coverage.tally([few], 4, 10)
  assert (held['coverage'], held['without_interval']) == (None, 1.0)
  assert coverage.tally([few], 5, 10)['without_interval'] == 0


def test_the_least_of_two_populations(monkeypatch):
  """One is always held and one never."""
  monkeypatch.setattr(coverage, '_DRAWS', {'new': 200, 'old': 20})

  def draw(rng, n):
    return [metrics.ratio(rng.random(n) + 1, np.ones(n))]

  def case(name, truth):
    return Case(name, draw, [truth])

  cases = [case('far', 9.0), case('near', 1.5)]
  rows = [coverage.row('kind', cases, 8)]
  assert rows[0]['least_population'] == 'far'
  assert rows[0]['coverage'] == pytest.approx(0.475, abs=0.03)
  none = [rows[0] | {'coverage': None, 'percentile_coverage': None}]
  assert 'No interval was made' in coverage.headline(none)
  assert '| - ' in coverage.summary(none)
