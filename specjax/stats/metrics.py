"""Metrics of a run, in plain numpy.

alpha  mean of beta = sum(min(p, q)) over prefixes that the target generated
       (Leviathan et al., arXiv:2211.17192, Corollary 3.6)
tau    tokens emitted per target call, the bonus or corrected token included
alpha (maximum likelihood)  accepted / judged tokens; acceptance  accepted /
       drafted tokens. These differ from alpha when beta is not i.i.d.

A step is whole where K + 1 tokens had room before the limit when it began
(`counting`); any other counts in tokens and in target calls, and nowhere else.
tau without the bonus is the mean accepted length of the whole steps.

The field averages acceptance length in three ways, and speed-ups in two:

tau               of all calls together (micro): as vLLM and aiperf
tau per request   the mean of the requests' own (macro): as specdec_bench
tau per step      the mean of accepted + 1 over steps: MAT of Spec-Bench
speed-up          ratio of the times per token of all units together
speed-up of rates  ratio of the means of the units' rates: as Spec-Bench
"""

import itertools

import numpy as np

from specjax.stats.estimates import FEWEST as FEWEST
from specjax.stats.estimates import LEVEL as LEVEL
from specjax.stats.estimates import RESAMPLES as RESAMPLES
from specjax.stats.estimates import Draws as Draws
from specjax.stats.estimates import Estimate as Estimate
from specjax.stats.estimates import Sums as Sums
from specjax.stats.estimates import combine as combine
from specjax.stats.estimates import enough as enough
from specjax.stats.estimates import estimate as estimate
from specjax.stats.estimates import fields as fields
from specjax.stats.estimates import medians as medians
from specjax.stats.estimates import ratio as ratio
from specjax.stats.estimates import student as student

LAGS = 4
_FEWEST_TEXTS = 30  # texts: correlations of fewer are too skewed


def speedup(base_seconds, base_tokens, seconds, tokens) -> Estimate:
  """Ratio of the times per token, each [n] per unit.

  With as many tokens on both sides this is the ratio of the total times. It
  also holds where sampled texts end at different lengths.
  """

  def times(base_seconds, base_tokens, seconds, tokens):
    return base_seconds / base_tokens / (seconds / tokens)

  columns = base_seconds, base_tokens, seconds, tokens
  return estimate(times, *columns, positive=True)


def tau_per_request(tokens, calls) -> Estimate:
  """Mean over requests of each one's tokens per target call, each [n].

  A short request counts as much as a long one. One without a call is left out.
  """
  tokens, calls = np.asarray(tokens, float), np.asarray(calls, float)
  called = calls > 0
  own = np.divide(tokens, calls, out=np.zeros_like(tokens), where=called)
  return ratio(own * called, called)


def tau_per_step(accepted, steps) -> Estimate:
  """Mean over whole steps of accepted tokens and the one that follows them.

  This is the mean number of accepted tokens (MAT) of Spec-Bench (Xia et al.,
  arXiv:2401.07851), but for the last step of a text that reaches its limit:
  there it counts with what it accepted beyond the limit.

  Args:
    accepted: [n] accepted tokens of the whole steps of each request.
    steps: [n] their number.
  """
  return ratio(accepted, steps).scaled(1.0, 1.0)


def speedup_of_rates(base_seconds, base_tokens, seconds, tokens) -> Estimate:
  """Ratio of the mean tokens per second, each [n] per unit.

  As Spec-Bench has it: a unit that is decoded fast counts more than by its
  share of the time.
  """
  rates, base = (
    np.asarray(n, float) / np.asarray(s, float)
    for n, s in ((tokens, seconds), (base_tokens, base_seconds))
  )
  return ratio(rates, base)


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
    taken = ratio((accepted * inside).sum(1), (drafted * inside).sum(1), 1.0)
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
  how well they are drafted add to it. Of fewer than 30 rows no interval covers.

  Args:
    accepted: [B, n] accepted lengths; negative where there was no whole step.
    lags: 1, 2, ... up to this.
  """

  def correlation(n, x, y, xx, xy, yy):
    x, y = x / n, y / n
    return (xy / n - x * y) / np.sqrt((xx / n - x * x) * (yy / n - y * y))

  correlations = []
  for lag in range(1, lags + 1):
    x, y = accepted[:, :-lag].astype(float), accepted[:, lag:].astype(float)
    both = (x >= 0) & (y >= 0)
    sums = [
      (z * both).sum(1) for z in (np.ones_like(x), x, y, x * x, x * y, y * y)
    ]
    correlations.append(
      estimate(correlation, *sums, within=(-1.0, 1.0), fewest=_FEWEST_TEXTS)
    )
  return correlations


def repetition(texts) -> float:
  """Share of 4-grams that occurred before in the same text, over all texts."""
  repeated = total = 0
  for text in texts:
    grams = [tuple(text[i : i + 4]) for i in range(len(text) - 3)]
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

  Raises:
    ValueError: a step costs nothing, or less.
  """
  cost = v + gamma * c
  if np.any(cost <= 0):
    raise ValueError(
      'v + gamma c, the cost of a step, must be above 0, got '
      f'{np.nanmin(cost):g}'
    )
  return tau / cost
