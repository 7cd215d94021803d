"""What a step costs against one size at a time.

A sweep is a function of a `Bench` that returns rows; every row of a sweep is
measured in turn with the others. `fit` says with which power a cost grows.
"""

import functools
from collections.abc import Sequence

import jax
import numpy as np
import scipy.stats

from experiments.stepping import (
  Loop,
  Models,
  Timed,
  idle,
  milliseconds,
  take_turns,
)
from specjax import verify
from specjax.bench.config import Speed
from specjax.drafters import lm, plain
from specjax.models import cache as caches
from specjax.models import cache_attention, variants
from specjax.models.attention import CacheAttention
from specjax.training.train_pair import model_of
from specjax.types import Rule, Spec

POSITIONS = 1 << 20  # more than any cache here has slots


class Bench:
  """Models of a configuration, and loops over them."""

  def __init__(self, x: Speed, bar):
    self.x, self.bar = x, bar

  @functools.lru_cache(maxsize=1)  # noqa: B019  One vocabulary at a time.
  def models(self, vocab: int) -> Models:
    x = self.x
    return Models(
      model_of(x.target, vocab, POSITIONS),
      model_of(x.draft, vocab, POSITIONS),
      x.seed,
      x.dtype,
    )

  def loop(
    self,
    gamma: int = 0,
    *,
    drafts: bool = False,
    rule: Rule = verify.token,
    batch: int = 1,
    used: int | None = None,
    slots: int | None = None,
    vocab: int | None = None,
    over_cache: CacheAttention | None = None,
  ) -> Loop:
    """Steps of gamma drafted tokens, from the draft or at no cost.

    They attend as their layout does, unless an attention is given.
    """
    x = self.x
    vocab = vocab or x.target.vocab_size
    used = used or x.used
    target, params, draft = self.models(vocab).fastest
    if over_cache is not None:
      target = variants.with_cache_attention(target, over_cache)
      draft = variants.with_cache_attention(draft, over_cache)
    drafter = plain.make() if not gamma else idle(gamma, vocab)
    if drafts:
      drafter = lm.make(draft, gamma)
    room = x.steps * (gamma + 1) + gamma + 1
    self.bar.set_description(f'compiling: gamma {gamma}, batch {batch}')
    return Loop(
      Spec(target, drafter, rule),
      params,
      used=used,
      slots=slots or caches.round_slots(used + room),
      steps=x.steps,
      batch=batch,
      seed=x.seed,
    )

  def time(self, loops: dict) -> dict:
    """Runs of each loop, in turns."""
    self.bar.set_description('measuring')
    ways = {name: loop.run for name, loop in loops.items()}
    return take_turns(ways, self.x.repeats, self.bar)


def seconds(runs: list[Timed]) -> float:
  """The median of a step."""
  return float(np.median([r.seconds for r in runs]))


def fit(sizes: Sequence[float], costs: Sequence[float]) -> dict:
  """The exponent b of cost = a size^b, by least squares on the logarithms.

  Args:
    sizes: at least two different ones.
    costs: of each.

  Returns:
    `exponent` and its 95% interval, None where there are only two points.
  """
  line = scipy.stats.linregress(np.log(sizes), np.log(costs))
  interval = None
  if len(sizes) > 2:
    half = scipy.stats.t.ppf(0.975, len(sizes) - 2) * line.stderr
    interval = [float(line.slope - half), float(line.slope + half)]
  return {'exponent': float(line.slope), 'exponent_ci': interval}


def gamma(bench: Bench) -> list[dict]:
  """Drafted tokens: the target's part v and the draft's part c of a step."""
  x = bench.x
  loops = {'plain': bench.loop()}
  for g in x.gammas:
    slots = caches.round_slots(x.used + (x.steps + 1) * (max(x.gammas) + 1))
    loops['idle', g] = bench.loop(g, slots=slots)
    loops['full', g] = bench.loop(g, drafts=True, slots=slots)
  timings = bench.time(loops)
  one = seconds(timings['plain'])
  rows = []
  for g in x.gammas:
    scored, whole = (seconds(timings[kind, g]) for kind in ('idle', 'full'))
    rows.append(
      {
        'sweep': 'gamma',
        'size': g,
        **milliseconds(timings['full', g]),
        'scoring_ms': 1e3 * scored,
        'plain_ms': 1e3 * one,
        'v': scored / one,
        'c': (whole - scored) / one / g,
      }
    )
  fitted = fit([g + 1 for g in x.gammas], [r['scoring_ms'] for r in rows])
  return [row | fitted | {'exponent_of': 'scoring_ms'} for row in rows]


def scoring(bench: Bench) -> list[dict]:
  """The target's part v of a step, by drafted tokens and rows of a batch."""
  x = bench.x
  slots = caches.round_slots(x.used + (x.steps + 1) * (max(x.gammas) + 1))
  loops = {
    (rows, g): bench.loop(g, batch=rows, slots=slots)
    for rows in x.batches
    for g in (0, *x.gammas)
  }
  timings = bench.time(loops)
  return [
    {
      'sweep': 'scoring',
      'batch': rows,
      'size': g,
      **milliseconds(timings[rows, g]),
      'plain_ms': 1e3 * seconds(timings[rows, 0]),
      'v': seconds(timings[rows, g]) / seconds(timings[rows, 0]),
    }
    for rows in x.batches
    for g in x.gammas
  ]


def _sweep(bench, name, sizes, options) -> list[dict]:
  """Plain and full steps of every size; options(size) are those of a loop."""
  loops = {}
  for size in sizes:
    loops['plain', size] = bench.loop(**options(size))
    loops['full', size] = bench.loop(
      bench.x.gamma, drafts=True, **options(size)
    )
  timings = bench.time(loops)
  rows = [
    {
      'sweep': name,
      'size': size,
      **milliseconds(timings['full', size]),
      'plain_ms': 1e3 * seconds(timings['plain', size]),
    }
    for size in sizes
  ]
  fitted = fit(sizes, [r['plain_ms'] for r in rows])
  return [row | fitted | {'exponent_of': 'plain_ms'} for row in rows]


def batch(bench: Bench) -> list[dict]:
  """Rows of a batch."""
  return _sweep(bench, 'batch', bench.x.batches, lambda n: {'batch': n})


def context(bench: Bench) -> list[dict]:
  """Tokens in use."""
  return _sweep(bench, 'context', bench.x.contexts, lambda n: {'used': n})


def vocabulary(bench: Bench) -> list[dict]:
  """Entries of the logits; target and draft have the head that belongs."""
  return _sweep(
    bench, 'vocabulary', bench.x.vocabularies, lambda n: {'vocab': n}
  )


def maximum(bench: Bench) -> list[dict]:
  """Cache slots, at the same tokens in use: nothing should depend on them."""
  return _sweep(bench, 'maximum', bench.x.maxima, lambda n: {'slots': n})


def attention(bench: Bench) -> list[dict]:
  """Ways to attend over the cache, plain and with a draft.

  On a GPU in half precision `fused` runs by cuDNN as well.
  """
  x = bench.x
  ways = {
    'of the layout': None,
    'blocked': cache_attention.blocked,
    'blocked, one size': cache_attention.walk(512, 512),
    'padded': cache_attention.padded,
    'fused': cache_attention.fused(),
  }
  if jax.default_backend() == 'gpu' and x.dtype in ('bfloat16', 'float16'):
    ways['fused, cudnn'] = cache_attention.fused('cudnn')
  loops = {}
  for slots in x.maxima:
    for name, way in ways.items():
      loops[name, slots, 0] = bench.loop(slots=slots, over_cache=way)
      loops[name, slots, x.gamma] = bench.loop(
        x.gamma, slots=slots, over_cache=way
      )
  timings = bench.time(loops)
  return [
    {
      'sweep': 'attention',
      'way': name,
      'size': slots,
      'gamma': g,
      **milliseconds(timings[name, slots, g]),
    }
    for name, slots, g in loops
  ]


def simulated(bench: Bench) -> list[dict]:
  """Speed-up at an acceptance that no draft here has, against predicted.

  Every drafted token is accepted at a given rate, whatever it is. Predicted
  is tau / (v + gamma c) with tau = (1 - rate^(gamma + 1)) / (1 - rate)
  (Leviathan et al., arXiv:2211.17192, Theorem 3.8, there with v = 1).
  """
  x = bench.x
  gammas = [g for g in x.gammas if 1 < g <= 8]
  slots = caches.round_slots(x.used + (x.steps + 1) * (max(gammas) + 1))
  loops = {'plain': bench.loop(slots=slots)}
  for g in gammas:
    loops['idle', g] = bench.loop(g, slots=slots)
    for rate in x.rates:
      rule = verify.simulated(rate)
      loops[rate, g] = bench.loop(g, drafts=True, rule=rule, slots=slots)
  timings = bench.time(loops)
  one = seconds(timings['plain'])
  rows = []
  for rate in x.rates:
    for g in gammas:
      runs = timings[rate, g]
      scored = seconds(timings['idle', g]) / one
      c = (seconds(runs) / one - scored) / g
      tau = (1 - rate ** (g + 1)) / (1 - rate)
      emitted = float(np.mean([r.tokens for r in runs]))
      rows.append(
        {
          'sweep': 'simulated',
          'size': rate,
          'gamma': g,
          **milliseconds(runs),
          'plain_ms': 1e3 * one,
          'v': scored,
          'c': c,
          'tau': emitted,
          'tau_expected': tau,
          'speedup': emitted * one / seconds(runs),
          'predicted_speedup': tau / (scored + g * c),
        }
      )
  return rows
