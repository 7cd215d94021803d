"""What does a model pay for owning its cache?

  python -m experiments.own_models.door_costs

Times the step of the embedded target as it is, and through `specjax.adapt`,
where the same passes write their rows into a cache of its own. Both take turns.
A minute on two idle cores.
"""

import jax
import jax.numpy as jnp
import numpy as np

import specjax
from experiments.step_timing import Loop, take_turns
from specjax import native, pair, verify
from specjax.drafters import ngram, plain
from specjax.models import cache as caches
from specjax.models import transformer
from specjax.models.transformer import Model
from specjax.stats import estimates
from specjax.types import Params, Spec

_STEPS, _TURNS, _SLOTS, _USED = 32, 24, 256, 48


def own_cache(model: Model) -> Model:
  """Returns a model of specjax as one that owns its cache, for targets."""

  def open_cache(params, slots):
    return transformer.open_cache(model, params, 1, slots)

  def apply(params, tokens, positions, cache, mask, end):
    block = jax.lax.dynamic_slice_in_dim(mask, end, tokens.shape[1], 2)
    out = model.forward(params, tokens, positions, cache, end[None], block)
    logits = model.head(params, out.hidden)
    # No logit is infinite: this makes the write wait for what is read of the
    # cache, without which the compiler copies the cache.
    begin = end + jnp.isinf(logits[0, 0, 0])
    count = jnp.full(1, tokens.shape[1])
    return logits, caches.fill(cache, out.flight, begin, count)

  return specjax.adapt(
    open_cache,
    apply,
    vocab_size=model.config.vocab_size,
    max_positions=model.config.max_positions,
  )


def main() -> None:
  native.claim_cores()
  target = specjax.load(pair.path('target'), layout='whole')
  params = Params(target.params, None)
  models = {'its own': own_cache(target.model), 'the loop': target.model}
  print('| rows | step | ms, cache of the loop | ms, its own | ratio |')
  print('| ---- | ---- | --------------------- | ----------- | ----- |')
  for batch in (1, 8):
    for name, drafter in (
      ('plain', plain.make()),
      ('4 drafted', ngram.make(4)),
    ):
      loops = {
        key: Loop(
          Spec(model, drafter, verify.token),
          params,
          used=_USED,
          slots=_SLOTS,
          steps=_STEPS,
          batch=batch,
        ).run
        for key, model in models.items()
      }
      times = {
        key: [run.seconds for run in runs]
        for key, runs in take_turns(loops, _TURNS).items()
      }
      ratio = estimates.ratio(times['its own'], times['the loop'])
      own, loop = (1e3 * np.median(times[key]) for key in models)
      low, high = ratio.interval
      print(
        f'| {batch} | {name} | {loop:.2f} | {own:.2f} | {ratio.value:.3f} '
        f'[{low:.3f}, {high:.3f}] |',
        flush=True,
      )


if __name__ == '__main__':
  main()
