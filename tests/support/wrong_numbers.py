"""Planted bugs of the measuring code, each with the check that finds it."""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np

from specjax.bench import row_fields
from specjax.bench.costs import Costs
from specjax.reports import paired
from specjax.stats import metrics
from tests.support.measuring_checks import MANY
from tests.support.wrong_counts import WRONG_COUNTS, WrongNumber, turned

_alpha_of, _acceptance, _speed = (
  row_fields.alpha_of,
  row_fields.acceptance,
  row_fields.speed,
)
_join, _ratio, _speedup = row_fields.join, metrics.ratio, metrics.speedup
_autocorrelation, _by_context = metrics.autocorrelation, metrics.by_context
_by_position, _predicted = metrics.by_position, metrics.predicted_speedup
_paired = paired.difference


def _fields(change: Callable[..., dict]):
  """`row_fields.acceptance` with fields that `change` makes anew."""

  def acceptance(runs, alpha, under_rule):
    row = _acceptance(runs, alpha, under_rule)
    return row | change(_join(runs), row)

  return acceptance


def _counts(change: Callable[..., dict]):
  """`row_fields.join` with counts that `change` makes of the right ones."""

  def join(runs):
    counts = _join(runs)
    return counts._replace(**change(counts))

  return join


def _times(change: Callable[..., tuple]):
  """`row_fields.speed` of what `change` makes of its arguments."""
  return lambda runs, base, cost: _speed(*change(runs, base, cost))


def _alpha(change: Callable[[row_fields.Alpha], row_fields.Alpha]):
  return lambda runs, prompts: change(_alpha_of(runs, prompts))


def _with_prefill(runs):
  return [
    dataclasses.replace(r, seconds=r.seconds + r.prefill_seconds) for r in runs
  ]


def _of_hits(runs, prompts):
  """A miss is no prefix."""
  alpha = _alpha_of(runs, prompts)
  return alpha._replace(prefixes=alpha.prefixes - _join(runs).misses[:prompts])


def _mean_of_ratios(numerator, denominator, *options, **more):
  shares = np.divide(numerator, denominator)
  return _ratio(shares, np.ones(len(shares)), *options, **more)


def _speedup_of_means(base_seconds, base_tokens, seconds, tokens):
  each = np.divide(base_seconds, base_tokens) / np.divide(seconds, tokens)
  return _ratio(each, np.ones(len(each)))


def _without_spread(runs, base, cost):
  """Costs as if they were known."""
  ones = np.ones(len(cost.plain))
  step = cost.v + cost.depth * cost.c
  return runs, base, Costs(cost.depth, ones, cost.v * ones, step * ones)


def _cut_is_zero(accepted, lags=metrics.LAGS):
  return _autocorrelation(np.maximum(accepted, 0), lags)


def _one_lag_off(accepted, lags=metrics.LAGS):
  return _autocorrelation(accepted, lags + 1)[1:]


def _ends_inside(accepted, drafted, length, edges):
  """Both ends of a bin belong to it."""
  return [
    bins
    for low, high in itertools.pairwise(edges)
    for bins in _by_context(accepted, drafted, length, [low, high + 1])
  ]


def _over_all_texts(texts, n=4):
  """Sequences that another text had count as repeated."""
  grams = [tuple(t[i : i + n]) for t in texts for i in range(len(t) - n + 1)]
  return 1 - len(set(grams)) / len(grams)


def _all_steps(counts):
  unconditional, _ = _by_position(counts)
  return unconditional, unconditional


def _scaled(factor: float):
  """Intervals of so many times the length."""

  def ratio(numerator, denominator, *options, **more):
    estimate = _ratio(numerator, denominator, *options, **more)
    low, high = estimate.value - estimate.low, estimate.high - estimate.value
    return dataclasses.replace(
      estimate,
      low=estimate.value - factor * low,
      high=estimate.value + factor * high,
    )

  return ratio


def _percentile(numerator, denominator, *options, **more):
  """The middle of resampled values, whatever the units are."""
  estimate = _ratio(numerator, denominator, *options, **more)
  table = np.array([numerator, denominator], float)
  n = table.shape[1]
  rows = np.random.default_rng(0).integers(n, size=(500, n))
  top, bottom = table[:, rows].sum(2)
  low, high = np.percentile(top / bottom, [2.5, 97.5])
  return dataclasses.replace(estimate, low=float(low), high=float(high))


def _unpaired(one, other, statistic, relative=False):
  """As if the rows were of different prompts."""
  moved = {name: turned(other[name]) for name in statistic}
  return _paired(one, other | moved, statistic, relative)


# Quantiles of Student's distribution of as many units.
_AT_90, _AT_95, _AT_98 = 1.685, 2.023, 2.426
assert MANY == 40


_ROW_FIELDS = (
  ('steps are those of all rows', 'counts', 'acceptance',
   _fields(lambda c, row: {'steps': row['target_calls']})),
  ('the histogram is shifted', 'sums that agree', 'join',
   _counts(lambda c: {'histogram': np.roll(c.histogram, 1, 1)})),
  ('alpha (maximum likelihood) over drafted tokens', 'acceptance', 'acceptance',
   _fields(lambda c, row: {'alpha_mle': row['acceptance']})),
  ('acceptance over tried tokens', 'acceptance', 'acceptance',
   _fields(lambda c, row: {'acceptance': row['alpha_mle']})),
  ('coverage of what was missed', 'sums that agree', 'acceptance',
   _fields(lambda c, row: {'coverage': 1 - row['coverage']})),
  ('coverage of the target calls', 'acceptance', 'acceptance', _fields(
    lambda c, row: {'coverage': 1 - c.misses.sum() / c.target_calls.sum()})),
  ('tau without the bonus is called tau', 'tau', 'acceptance',
   _fields(lambda c, row: {'tau': row['tau_without_bonus']})),
  ('alpha and that of the rule change places', 'alpha', 'acceptance',
   lambda runs, alpha, under_rule: _acceptance(runs, under_rule, alpha)),
  ('alpha of one prefix too many', 'alpha', 'alpha_of',
   _alpha(lambda a: a._replace(prefixes=a.prefixes + 1))),
  ('alpha of prefixes with a draft', 'alpha', 'alpha_of', _of_hits),
  ('the baseline with its prefill', 'speed', 'speed',
   _times(lambda runs, base, cost: (runs, _with_prefill(base), cost))),
  ('both with their prefill', 'speed', 'speed',
   _times(lambda r, b, cost: (_with_prefill(r), _with_prefill(b), cost))),
  ('speed against the baseline of other prompts',
   'intervals are those of the units', 'speed',
   _times(lambda runs, base, cost: (runs, turned(base), cost))),
  ('c and v are taken as known', 'interval of a prediction', 'speed',
   _times(_without_spread)),
  ('batches in another order', 'counts', 'join',
   lambda runs: _join(turned(runs))),
)  # fmt: skip
_METRICS = (
  ('acceptance of positions over all steps', 'acceptance', 'by_position',
   _all_steps),
  ('tau as a mean of ratios', 'tau', 'ratio', _mean_of_ratios),
  ('tau per request of all requests together', 'tau', 'tau_per_request',
   lambda tokens, calls: _ratio(tokens, calls)),
  ('tau per step without the bonus', 'tau', 'tau_per_step',
   lambda accepted, steps: _ratio(accepted, steps)),
  ('speed-up as a mean of ratios', 'speed', 'speedup', _speedup_of_means),
  ('speed-up of rates of all batches together', 'speed', 'speedup_of_rates',
   lambda *times: _speedup(*times)),
  ('speed-up upside down', 'speed', 'speedup',
   lambda bs, bt, s, t: _speedup(s, t, bs, bt)),
  ('speed-up of seconds, not of times per token',
   'speed of texts of other lengths', 'speedup',
   lambda bs, bt, s, t: _ratio(bs, s)),
  ('gamma + 1 drafted tokens are predicted', 'costs', 'predicted_speedup',
   lambda tau, c, v, gamma: _predicted(tau, c, v, gamma + 1)),
  ('the prediction is that of Theorem 3.8 for any v', 'costs',
   'predicted_speedup', lambda tau, c, v, gamma: _predicted(tau, c, 1, gamma)),
  ('repetition across texts', 'texts', 'repetition', _over_all_texts),
  ('autocorrelation over cut steps', 'steps along the text',
   'autocorrelation', _cut_is_zero),
  ('autocorrelation one lag off', 'steps along the text', 'autocorrelation',
   _one_lag_off),
  ('a step in two bins of the context', 'sums that agree', 'by_context',
   _ends_inside),
  ('intervals of 90%', 'coverage, normal units', 'ratio',
   _scaled(_AT_90 / _AT_95)),
  ('intervals of 98%', 'coverage, normal units', 'ratio',
   _scaled(_AT_98 / _AT_95)),
  ('intervals by percentiles', 'coverage, skewed units', 'ratio', _percentile),
)  # fmt: skip

WRONG_NUMBERS = (
  *WRONG_COUNTS,
  *(
    WrongNumber(n, check, row_fields, *rest) for n, check, *rest in _ROW_FIELDS
  ),
  *(WrongNumber(n, check, metrics, *rest) for n, check, *rest in _METRICS),
  WrongNumber(
    'v as a ratio of medians',
    'costs',
    Costs,
    'v',
    property(lambda cost: np.median(cost.scored) / np.median(cost.plain)),
  ),
  WrongNumber(
    'c of the whole draft',
    'costs',
    Costs,
    'c',
    property(lambda cost: np.median((cost.whole - cost.scored) / cost.plain)),
  ),
  WrongNumber(
    'differences of other prompts',
    'differences are paired',
    paired,
    'difference',
    _unpaired,
  ),
)
