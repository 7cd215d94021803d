"""Rows of cells, from runs whose counts and times are written by hand."""

import numpy as np
import pytest

from experiments.measuring import costs, replay, row_fields
from experiments.measuring.measure import Run
from specjax import metrics
from specjax.types import Counts


def run(histogram, overlap=(0.0,), seconds=1.0, tokens=None, drafted=None):
  """A batch of prompts, one for each line of a histogram [B, K + 1]."""
  histogram = np.array(histogram)
  after = histogram[:, ::-1].cumsum(1)[:, ::-1]  # steps that accepted as many
  steps = after[:, 0]
  counts = Counts(
    histogram=histogram,
    # A token is judged where all before it were accepted.
    tried=after[:, :-1],
    accepted=after[:, 1:],
    drafted=np.array(
      steps * (histogram.shape[1] - 1) if drafted is None else drafted
    ),
    tokens=np.array(steps + after[:, 1:].sum(1) if tokens is None else tokens),
    target_calls=steps,
    overlap=np.array(overlap),
    misses=np.zeros_like(steps),
  )
  texts = [[1] * int(n) for n in counts.tokens]
  return Run(texts, counts, seconds, 0.0, 0)


def prices(spread, turns=9):
  """c 0.1 and v 1.2 at gamma 2, of turns that differ by so much."""
  away = spread * np.linspace(-1, 1, turns)
  plain = np.ones(turns)
  scored = 1.2 + away
  return costs.Costs(2, plain, scored, scored + 0.2)


def width(ends):
  return ends[1] - ends[0]


def loops():
  """Plain decoding and speculation on eight prompts that are nearly alike."""
  base, runs = [], []
  for i in range(8):
    runs.append(run([[4, 3, 3 + i % 2]], seconds=6.0 + 0.01 * i))
    base.append(run([[20]], seconds=10.0 + 0.01 * (i % 3), tokens=[20]))
  return base, runs


def test_intervals_of_predictions_know_how_sure_costs_are():
  base, runs = loops()
  sure, unsure = (row_fields.speed(runs, base, prices(x)) for x in (0.0, 0.4))
  for name in ('predicted_speedup', 'measured_over_predicted'):
    assert sure[name] == pytest.approx(unsure[name])
    assert width(unsure[f'{name}_ci']) > 5 * width(sure[f'{name}_ci'])
  # Measured alone, costs have no part in it.
  assert sure['speedup_ci'] == unsure['speedup_ci']
  tau = metrics.ratio(
    [r.counts.tokens.sum() for r in runs],
    [r.counts.target_calls.sum() for r in runs],
  )
  assert sure['predicted_speedup_ci'] == pytest.approx(
    [end / 1.4 for end in tau.interval]
  )


def test_costs_of_few_turns_leave_a_prediction_alone():
  base, runs = loops()
  row = row_fields.speed(runs, base, prices(0.1, turns=3))
  assert row['predicted_speedup_ci'] is None
  assert row['speedup_ci'] is not None


def test_a_check_of_a_prediction_knows_how_sure_costs_are():
  base, runs = loops()
  calls = [int(r.counts.target_calls.sum()) for r in runs]
  seen = {
    'gammas': [2],
    'unit_tokens': [int(r.counts.tokens.sum()) for r in runs],
    'unit_target_calls': [calls],
    'digests': ['other'] * 8,
    'tau': [2.0],
    'tau_by_beta': [2.0],
    'tau_iid': [2.0],
    'alpha': 0.5,
    'alpha_ci': None,
  }

  def check(cost):
    turns = {'seconds_per_step': cost.seconds()}
    row = {'gamma': 2, 'c': cost.c, 'v': cost.v} | turns
    return replay.compare(seen, row, base, runs)

  sure, unsure = check(prices(0.0)), check(prices(0.4))
  name = 'predicted_over_measured'
  assert sure[name] == pytest.approx(unsure[name])
  assert width(unsure[f'{name}_ci']) > 5 * width(sure[f'{name}_ci'])
  # Rows of older programs do not say how sure costs are.
  row = {'gamma': 2, 'c': 0.1, 'v': 1.2}
  old = replay.compare(seen, row, base, runs)
  assert old[name] == pytest.approx(sure[name])
  assert old[f'{name}_ci'] is None
