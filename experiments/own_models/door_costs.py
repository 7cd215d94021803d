"""What does a model pay for owning its cache?

  python -m experiments.own_models.door_costs

Times the step of the embedded target as it is, and through `specjax.adapt`,
where the same passes write their rows into a cache of its own. Both take turns.
A minute on two idle cores.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

import specjax
from specjax import native, pair, sampling, verify
from specjax.drafters import ngram, plain
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.models import transformer
from specjax.models.transformer import Model
from specjax.stats import estimates
from specjax.types import Params, Spec

_STEPS, _TURNS, _SLOTS, _PROMPT = 32, 24, 256, 48


def own_cache(model: Model) -> Model:
  """Returns a model of specjax as one that owns its cache, for targets."""

  def open_cache(params, slots):
    return transformer.open_cache(model, params, 1, slots)

  def apply(params, tokens, positions, cache, mask, end):
    block = jax.lax.dynamic_slice_in_dim(mask, end, tokens.shape[1], 2)
    out = model.forward(params, tokens, positions, cache, end[None], block)

    count = jnp.full(1, tokens.shape[1])
    cache = caches.fill(cache, out.flight, end, count)
    return model.head(params, out.hidden), cache

  return specjax.adapt(
    open_cache,
    apply,
    vocab_size=model.config.vocab_size,
    max_positions=model.config.max_positions,
  )


def clock(spec: Spec, params: Params, batch: int):
  """Returns a function that takes the seconds of a step."""
  values = sampling.make(batch, 0.0, vocab_size=spec.target.config.vocab_size)
  prompts = np.random.default_rng(0).integers(1, 2000, (batch, _PROMPT))

  def run() -> float:
    state = generate.start(
      params,
      prompts.tolist(),
      spec=spec,
      new_tokens=_SLOTS - _PROMPT - 8,
      key=generate.row_keys(0, range(batch)),
      values=values,
      slots=_SLOTS,
    )
    steps = jax.block_until_ready(jnp.int32(_STEPS))
    jax.block_until_ready(state)
    begin = time.perf_counter()
    state = generate.generate(params, state, steps, spec=spec)
    jax.block_until_ready(state)
    return (time.perf_counter() - begin) / _STEPS

  run()
  return run


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
      clocks = {
        key: clock(Spec(model, drafter, verify.token), params, batch)
        for key, model in models.items()
      }
      times: dict[str, list[float]] = {key: [] for key in clocks}
      for turn in range(_TURNS):
        for key in [*clocks][:: 1 if turn % 2 else -1]:
          times[key].append(clocks[key]())
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
