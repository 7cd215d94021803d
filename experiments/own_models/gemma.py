"""Gemma 2 and 3 of the package `gemma` as targets."""

import jax
from gemma import gm

import specjax
from experiments.own_models import draw, target


def adapt(model: gm.nn.Transformer, max_positions: int) -> specjax.Model:
  """Returns the model; its weights are the params of the package."""

  def open_cache(params, slots):
    return model.config.init_cache(1, model.dtype, cache_length=slots)

  def apply(params, tokens, positions, cache, mask, end):
    cache = {i: {**layer, 'end_index': end[None]} for i, layer in cache.items()}
    where = {'positions': positions, 'attention_mask': mask}
    out = model.apply({'params': params}, tokens, cache=cache, **where)
    return out.logits, out.cache

  sizes = {'vocab_size': model.config.num_embed, 'max_positions': max_positions}
  return specjax.adapt(open_cache, apply, **sizes)


def tiny(vocab=2048, width=32, layers=3, window=8) -> gm.nn.Transformer:
  """Returns a Gemma 3 with local layers and a last one that is not."""
  near, far = gm.nn.AttentionType.LOCAL_SLIDING, gm.nn.AttentionType.GLOBAL
  sizes = vocab, width, 2 * width, 4, 8, 2  # 4 heads of 8, 2 of keys
  sizes += None, True, True, (near,) * (layers - 1) + (far,)
  config = gm.nn.config.TransformerConfig(*sizes, sliding_window_size=window)
  return gm.nn.Transformer(config=config, dtype=jax.numpy.float32)


def load(seed=0, **sizes) -> specjax.Target:
  """Returns a `tiny` target with random weights."""
  model = tiny(**sizes)
  fresh = model.init(jax.random.key(0), jax.numpy.zeros((1, 1), int))['params']
  params = draw(fresh, seed, 0.05)
  return target(adapt(model, 1024), params, eos=(1,))
