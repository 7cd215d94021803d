"""Planted bugs of the measuring code, each with the check that finds it."""

import dataclasses
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np

from specjax.bench import costs, measure, row_fields, runner
from specjax.bench.costs import Costs
from specjax.loop import generate
from specjax.reports import paired
from specjax.stats import metrics
from tests.support import scripted_run
from tests.support.measuring_checks import CHECKS, MANY


@dataclasses.dataclass(frozen=True)
class WrongNumber:
  """A function of the measuring code with a fault."""

  name: str
  check: str  # that finds it, of `measuring_checks.CHECKS`
  where: Any  # the module or class that has the function
  attribute: str
  wrong: Any  # takes its place

  def found(self) -> bool:
    """Returns true if the check fails."""
    with mock.patch.object(self.where, self.attribute, self.wrong):
      return not CHECKS[self.check]()


# Steps


def _emit(change: Callable[[Any], dict]) -> generate.StepParts:
  """A step in which `change` says which tokens stay, and whether it counts."""
  names = 'emitted', 'count', 'room', 'stopped'

  def emit(state, draft, verdict, eos):
    made = generate.PARTS.emit(state, draft, verdict, eos)
    right = dict(zip(names, made, strict=True))
    step = SimpleNamespace(state=state, verdict=verdict, **right)
    return tuple((right | change(step)).values())

  return generate.PARTS._replace(emit=emit)


def _tally(change: Callable[[Any], dict], *fields: str) -> generate.StepParts:
  """A step whose counts, or some of them, are those of other arguments."""
  names = 'counts', 'draft', 'verdict', 'emitted', 'room', 'live', 'beta'

  def tally(*step):
    given = dict(zip(names, step, strict=True))
    other = given | change(SimpleNamespace(**given))
    wrong = generate.PARTS.tally(*other.values())
    if not fields:
      return wrong
    some = {name: getattr(wrong, name) for name in fields}
    return generate.PARTS.tally(*step)._replace(**some)

  return generate.PARTS._replace(tally=tally)


def _rejected_is_untried(*step):
  after = generate.PARTS.tally(*step)
  return after._replace(tried=after.accepted)


def _left(x):
  return x.state.limit - x.state.length


_STEPS = (
  ('steps the limit cuts, by outcome', 'fields',
   _emit(lambda x: {'room': _left(x) > x.verdict.num_accepted})),
  ('steps the end cuts, by outcome', 'fields',
   _emit(lambda x: {'room': x.room & (x.count > x.verdict.num_accepted)})),
  ('cut steps are whole', 'fields',
   _emit(lambda x: {'room': jnp.ones_like(x.room)})),
  ('tokens behind the end of a text', 'fields',
   _emit(lambda x: {
     'count': jnp.minimum(x.verdict.num_accepted + 1, _left(x))})),
  ('tokens behind the limit', 'fields',
   _emit(lambda x: {
     'count': jnp.where(x.stopped, x.count, x.verdict.num_accepted + 1)})),
  ('finished rows are counted', 'fields',
   _tally(lambda x: {'live': jnp.ones_like(x.live)})),
  ('misses are tried', 'fields',
   _tally(lambda x: {
     'draft': x.draft._replace(size=jnp.maximum(x.draft.size, 1))}, 'tried')),
  ('nodes that do not exist are drafted', 'fields',
   _tally(lambda x: {'draft': x.draft._replace(
     size=jnp.full_like(x.draft.size, x.draft.tokens.shape[1]))}, 'drafted')),
  ('no bonus in the tokens', 'fields',
   _tally(lambda x: {
     'emitted': jnp.minimum(x.emitted, x.verdict.num_accepted)})),
  ('rejected tokens were not tried', 'fields',
   generate.PARTS._replace(tally=_rejected_is_untried)),
)  # fmt: skip

# Runs

_units, _compare = runner.Runner.units, runner.Runner.compare
_whole, _run = runner.Runner.whole, measure._run
_pace, _record = costs._pace, measure.record


def turned(items) -> list:
  """The same items, with the first one last."""
  return [*items[1:], *items[:1]]


def _per_row(way, job, steps=None):
  run = measure.decode(way, job, steps)
  return run.seconds / run.counts.target_calls.sum(), run


def _other_order(self, domain, temperature):
  job = _whole(self, domain, temperature)
  order = turned(range(len(job.prompts)))
  texts = [job.prompts[i] for i in order]
  return dataclasses.replace(job, prompts=texts, indices=job.indices[order])


def _first_keys(self, *cell):
  jobs = _units(self, *cell)
  return [dataclasses.replace(j, indices=jobs[0].indices) for j in jobs]


def _last_twice(self, *cell):
  jobs = _units(self, *cell)
  # All prompts in one batch, on which alpha is measured, stay one.
  return [*jobs, jobs[-1]] if len(jobs) > 1 else jobs


def _log_of(change: Callable[[measure.Log], dict]):
  """`measure.record` with a log that `change` makes of the right one."""

  def record(way, job):
    run = _record(way, job)
    return dataclasses.replace(run, log=run.log._replace(**change(run.log)))

  return record


_RUNS = (
  ('a step of all rows together', 'fields', costs, '_time', _per_row),
  ('rows that fill up a batch are counted',
   'a batch that is filled up', measure, '_run',
   lambda params, state, job, *rest: _run(
     params, state, dataclasses.replace(job, live=None), *rest)),
  ('alpha of prompts in another order', 'more rows than prompts',
   runner.Runner, 'whole', _other_order),
  ('a replay accepts the bonus, too', 'replays', costs, '_pace',
   lambda run, drafter: _pace(run, drafter).at[0].add(1)),
  ('every batch has the keys of the first', 'keys', runner.Runner, 'units',
   _first_keys),
  ('the last batch counts twice', 'fields', runner.Runner, 'units',
   _last_twice),
  ('texts beside the plain text of another prompt', 'fields', runner.Runner,
   'compare', lambda self, method, cell, base, runs: _compare(
     self, method, cell, turned(base), runs)),
  ('a cut step is logged as one that accepted nothing', 'fields',
   measure, 'record',
   _log_of(lambda log: {'accepted': np.maximum(log.accepted, 0)})),
  ('the length is that after the step', 'fields', measure,
   'record', _log_of(lambda log: {'length': log.length + log.accepted + 1})),
  ('v as a ratio of medians', 'fields', Costs, 'v',
   property(lambda cost: np.median(cost.scored) / np.median(cost.plain))),
  ('c of the whole draft', 'fields', Costs, 'c', property(
    lambda cost: np.median((cost.whole - cost.scored) / cost.plain))),
)  # fmt: skip

# Fields and metrics

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
  ('steps are those of all rows', 'fields', 'acceptance',
   _fields(lambda c, row: {'steps': row['target_calls']})),
  ('the histogram is shifted', 'fields', 'join',
   _counts(lambda c: {'histogram': np.roll(c.histogram, 1, 1)})),
  ('alpha (maximum likelihood) over drafted tokens', 'fields', 'acceptance',
   _fields(lambda c, row: {'alpha_mle': row['acceptance']})),
  ('acceptance over tried tokens', 'fields', 'acceptance',
   _fields(lambda c, row: {'acceptance': row['alpha_mle']})),
  ('coverage of missed tokens', 'fields', 'acceptance',
   _fields(lambda c, row: {'coverage': 1 - row['coverage']})),
  ('coverage of the target calls', 'fields', 'acceptance', _fields(
    lambda c, row: {'coverage': 1 - c.misses.sum() / c.target_calls.sum()})),
  ('tau without the bonus is called tau', 'fields', 'acceptance',
   _fields(lambda c, row: {'tau': row['tau_without_bonus']})),
  ('alpha and that of the rule change places', 'fields', 'acceptance',
   lambda runs, alpha, under_rule: _acceptance(runs, under_rule, alpha)),
  ('alpha of one prefix too many', 'fields', 'alpha_of',
   _alpha(lambda a: a._replace(prefixes=a.prefixes + 1))),
  ('alpha of prefixes with a draft', 'fields', 'alpha_of', _of_hits),
  ('the baseline with its prefill', 'fields', 'speed',
   _times(lambda runs, base, cost: (runs, _with_prefill(base), cost))),
  ('both with their prefill', 'fields', 'speed',
   _times(lambda r, b, cost: (_with_prefill(r), _with_prefill(b), cost))),
  ('speed against the baseline of other prompts',
   'fields', 'speed',
   _times(lambda runs, base, cost: (runs, turned(base), cost))),
  ('c and v are taken as known', 'interval of a prediction', 'speed',
   _times(_without_spread)),
  ('batches in another order', 'fields', 'join',
   lambda runs: _join(turned(runs))),
)  # fmt: skip
_METRICS = (
  ('acceptance of positions over all steps', 'fields', 'by_position',
   _all_steps),
  ('tau as a mean of ratios', 'fields', 'ratio', _mean_of_ratios),
  ('tau per request of all requests together', 'fields', 'tau_per_request',
   lambda tokens, calls: _ratio(tokens, calls)),
  ('tau per step without the bonus', 'fields', 'tau_per_step',
   lambda accepted, steps: _ratio(accepted, steps)),
  ('speed-up as a mean of ratios', 'fields', 'speedup', _speedup_of_means),
  ('speed-up of rates of all batches together', 'fields', 'speedup_of_rates',
   lambda *times: _speedup(*times)),
  ('speed-up upside down', 'fields', 'speedup',
   lambda bs, bt, s, t: _speedup(s, t, bs, bt)),
  ('speed-up of seconds, not of times per token',
   'texts of other lengths', 'speedup',
   lambda bs, bt, s, t: _ratio(bs, s)),
  ('gamma + 1 drafted tokens are predicted', 'fields', 'predicted_speedup',
   lambda tau, c, v, gamma: _predicted(tau, c, v, gamma + 1)),
  ('the prediction is that of Theorem 3.8 for any v', 'fields',
   'predicted_speedup', lambda tau, c, v, gamma: _predicted(tau, c, 1, gamma)),
  ('repetition across texts', 'fields', 'repetition', _over_all_texts),
  ('autocorrelation over cut steps', 'fields',
   'autocorrelation', lambda accepted, lags=metrics.LAGS:
   _autocorrelation(np.maximum(accepted, 0), lags)),
  ('autocorrelation one lag off', 'fields', 'autocorrelation',
   lambda accepted, lags=metrics.LAGS:
   _autocorrelation(accepted, lags + 1)[1:]),
  ('a step in two bins of the context', 'fields', 'by_context',
   _ends_inside),
  ('intervals of 90%', 'coverage, normal units', 'ratio',
   _scaled(_AT_90 / _AT_95)),
  ('intervals of 98%', 'coverage, normal units', 'ratio',
   _scaled(_AT_98 / _AT_95)),
  ('intervals by percentiles', 'coverage, skewed units', 'ratio', _percentile),
)  # fmt: skip


WRONG_NUMBERS = (
  *(WrongNumber(n, c, scripted_run, 'PARTS', parts) for n, c, parts in _STEPS),
  *(WrongNumber(*bug) for bug in _RUNS),
  *(WrongNumber(n, c, row_fields, *bug) for n, c, *bug in _ROW_FIELDS),
  *(WrongNumber(n, c, metrics, *bug) for n, c, *bug in _METRICS),
  WrongNumber(
    'differences of other prompts',
    'differences are paired',
    paired,
    'difference',
    _unpaired,
  ),
)
