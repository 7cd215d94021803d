"""What a batch does to its rows: how long each waits, and what that costs.

The rows of a batch take the steps of the loop together, and the batch ends
with its last row. A row that has ended waits; nothing takes its place.

  steps of the loop   1 2 3 4 5
  row 0               x x x x x    at work in 5 of 5
  row 1               x x x . .    at work in 3 of 5: in 8 of 10 together
"""

from typing import NamedTuple

import numpy as np

from specjax.bench.costs import Costs
from specjax.bench.measure import Run
from specjax.stats import metrics

FIELDS = (
  'at_work', 'baseline_at_work',
  'row_seconds_per_token', 'row_seconds_per_token_ci',
  'baseline_row_seconds_per_token', 'baseline_row_seconds_per_token_ci',
  'predicted_static_speedup', 'predicted_static_speedup_ci',
  'measured_over_predicted_static', 'measured_over_predicted_static_ci',
)  # fmt: skip


class Batches(NamedTuple):
  """Sums over the rows of every batch, [n] each."""

  seconds: np.ndarray
  tokens: np.ndarray
  calls: np.ndarray
  steps: np.ndarray  # of the loop
  rows: np.ndarray  # that have a prompt

  @property
  def places(self) -> np.ndarray:
    """Steps of every row, at work or not."""
    return self.steps * self.rows

  @property
  def at_work(self) -> float:
    """Share of the places in which a row was at work."""
    return float(self.calls.sum() / self.places.sum())

  @property
  def latency(self) -> metrics.Estimate:
    """Seconds per token of a row, until it ends.

    All steps of a batch take alike, so a row's time is that of as many steps.
    """
    return metrics.ratio(self.seconds * self.calls / self.steps, self.tokens)


def batches_of(runs: list[Run]) -> Batches:
  """The sums of some batches."""
  columns = [
    (
      run.seconds,
      run.counts.tokens.sum(),
      run.counts.target_calls.sum(),
      run.steps,
      len(run.texts),
    )
    for run in runs
  ]
  return Batches(*np.array(columns, float).T)


def _predict(cost: Costs, base: Batches, ours: Batches) -> metrics.Estimate:
  """The speed-up of batches that wait for their last row."""

  def speed(base_tokens, base_places, tokens, places, c, v):
    plain = base_tokens / base_places
    return metrics.predicted_speedup(tokens / places / plain, c, v, cost.depth)

  sums = metrics.Sums(base.tokens, base.places, ours.tokens, ours.places)
  return metrics.combine(speed, sums, cost.draws, positive=True)


def _agree(cost: Costs, base: Batches, ours: Batches) -> metrics.Estimate:
  """The measured speed-up over that; tokens cancel."""

  def over(base_seconds, base_places, seconds, places, c, v):
    step = base_seconds / base_places / (seconds / places)
    return step / metrics.predicted_speedup(1, c, v, cost.depth)

  sums = metrics.Sums(base.seconds, base.places, ours.seconds, ours.places)
  return metrics.combine(over, sums, cost.draws, positive=True)


def fields(runs: list[Run], base: list[Run], cost: Costs) -> dict:
  """Fields of a row that has times.

  Args:
    runs: of the method, a batch each.
    base: plain decoding of the same.
    cost: of the method's step, in batches of this size.
  """
  ours, plain = batches_of(runs), batches_of(base)
  found = {
    'row_seconds_per_token': ours.latency,
    'baseline_row_seconds_per_token': plain.latency,
    'predicted_static_speedup': _predict(cost, plain, ours),
    'measured_over_predicted_static': _agree(cost, plain, ours),
  }
  return {
    'at_work': ours.at_work,
    'baseline_at_work': plain.at_work,
    **{name: one.value for name, one in found.items()},
    **{f'{name}_ci': one.interval for name, one in found.items()},
  }
