"""What a run measured, in plain numpy.

alpha  mean of beta = sum(min(p, q)) over prefixes that the target generated
       (Leviathan et al., arXiv:2211.17192, Corollary 3.6)
tau    tokens emitted per target call, the bonus or corrected token included
alpha (maximum likelihood)  accepted / judged tokens; acceptance  accepted /
       drafted tokens. These differ from alpha when beta is not i.i.d.

A step is whole where K + 1 tokens had room before the limit when it began
(`counting`); any other counts in tokens and in target calls, and nowhere else.
tau without the bonus is the mean accepted length of the whole steps.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

RESAMPLES = 2000
FEWEST = 5  # units; of fewer, resampling says next to nothing
LAGS = 4


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A value and its 95% interval."""

  value: float
  low: float
  high: float

  @property
  def interval(self) -> list[float]:
    return [self.low, self.high]


def estimate(
  statistic: Callable[..., Any], *columns, seed: int = 0
) -> Estimate:
  """A function of sums over units, with a bootstrap interval over the units.

  Args:
    statistic: takes one sum per column (numbers, or arrays of resampled sums).
    *columns: [n] each, a value per unit (a prompt, or a batch of prompts).
      The values of a unit are drawn together, so a comparison of two methods
      on the same prompts is paired.
    seed: of the resampling.

  Returns:
    The estimate; NaN where the statistic is not defined.
  """
  if len({np.shape(c) for c in columns}) != 1 or not np.size(columns[0]):
    raise ValueError('columns must be vectors of one length of at least 1')
  table = np.array(columns, float)  # [columns, n]
  n = table.shape[1]
  rows = np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))
  with np.errstate(divide='ignore', invalid='ignore'):
    value = float(statistic(*table.sum(1)))
    values = statistic(*table[:, rows].sum(2))
  values = values[np.isfinite(values)]
  if not np.isfinite(value) or not len(values):
    return Estimate(np.nan, np.nan, np.nan)
  low, high = np.percentile(values, [2.5, 97.5])
  return Estimate(value, float(low), float(high))


def ratio(numerator, denominator, seed: int = 0) -> Estimate:
  """Ratio of sums over units; see `estimate`."""
  return estimate(lambda a, b: a / b, numerator, denominator, seed=seed)


def speedup(base_seconds, base_tokens, seconds, tokens) -> Estimate:
  """Ratio of the times per token, each [n] per unit.

  With as many tokens on both sides this is the ratio of the total times. It
  also holds where sampled texts end at different lengths.
  """

  def times(base_seconds, base_tokens, seconds, tokens):
    return base_seconds / base_tokens / (seconds / tokens)

  return estimate(times, base_seconds, base_tokens, seconds, tokens)


def by_position(counts) -> tuple[list[float], list[float]]:
  """Acceptance by position: of all whole steps, and of those that tried it.

  Args:
    counts: a `types.Counts` of numpy arrays, rows first.

  Returns:
    unconditional [K] and conditional [K]; NaN where nothing was tried.
  """
  steps = counts.histogram.sum()
  accepted, tried = counts.accepted.sum(0), counts.tried.sum(0)
  with np.errstate(divide='ignore', invalid='ignore'):
    return (accepted / steps).tolist(), (accepted / tried).tolist()


def at_place(histogram, place: int) -> tuple[np.ndarray, np.ndarray]:
  """Accepted and judged tokens [n] at a place of chains of constant length.

  Args:
    histogram: [n, K+1] steps of every unit by accepted length.
    place: 0 is the first.
  """
  counts = np.asarray(histogram)
  return counts[:, place + 1 :].sum(1), counts[:, place:].sum(1)


def by_context(accepted, drafted, length, edges) -> list[dict]:
  """Acceptance by the length of the text when the step began.

  Args:
    accepted: [B, n] accepted lengths; negative where there was no whole step.
    drafted: [B, n] tokens that were drafted.
    length: [B, n] committed tokens before the step.
    edges: [m + 1] ends of the bins; the upper end lies outside.

  Returns:
    m bins; the acceptance of one in which nothing was drafted is NaN.
  """
  bins = []
  for low, high in itertools.pairwise(edges):
    inside = (accepted >= 0) & (length >= low) & (length < high)
    taken = ratio((accepted * inside).sum(1), (drafted * inside).sum(1))
    bins.append(
      {
        'from': int(low),
        'to': int(high),
        'steps': int(inside.sum()),
        'acceptance': taken.value,
        'acceptance_ci': taken.interval,
      }
    )
  return bins


def autocorrelation(accepted, lags: int = LAGS) -> list[Estimate]:
  """Correlation of the accepted lengths of steps that are `lag` steps apart.

  Means and variances are those of all rows together: prompts that differ in
  how well they are drafted add to it.

  Args:
    accepted: [B, n] accepted lengths; negative where there was no whole step.
    lags: 1, 2, ... up to this.
  """

  def correlation(n, x, y, xx, xy, yy):
    x, y = x / n, y / n
    return (xy / n - x * y) / np.sqrt((xx / n - x * x) * (yy / n - y * y))

  found = []
  for lag in range(1, lags + 1):
    x, y = accepted[:, :-lag].astype(float), accepted[:, lag:].astype(float)
    both = (x >= 0) & (y >= 0)
    sums = [
      (z * both).sum(1) for z in (np.ones_like(x), x, y, x * x, x * y, y * y)
    ]
    found.append(estimate(correlation, *sums))
  return found


def repetition(texts, n: int = 4) -> float:
  """Share of n-grams that occurred before in the same text, over all texts."""
  repeated = total = 0
  for text in texts:
    grams = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
    total += len(grams)
    repeated += len(grams) - len(set(grams))
  return repeated / total if total else float('nan')


def predicted_speedup(tau: float, c: float, v: float, gamma: float) -> float:
  """tau / (v + gamma c): Leviathan et al., Theorem 3.8, for any v.

  Args:
    tau: tokens per target call.
    c: cost of one drafted token, in plain steps.
    v: cost of scoring, judging and committing gamma + 1 tokens, likewise.
    gamma: drafted tokens.
  """
  return tau / (v + gamma * c)
