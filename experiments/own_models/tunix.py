"""Qwen 2 and 3, Llama 3, Gemma 1 and 2 of `google-tunix` as targets."""

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.models.qwen3 import model as qwen3

import specjax
from experiments.own_models import draw, target


def adapt(module, max_positions, run=lambda model, *x: model(*x)):
  """Returns the specjax.Model; its weights are `nnx.state(module)`."""
  graph, config = nnx.graphdef(module), module.config

  def open_cache(params, slots):
    dtype = jax.tree.leaves(params)[0].dtype
    rows = jnp.zeros((1, slots, config.num_kv_heads, config.head_dim), dtype)
    layer = {'k': rows, 'v': rows, 'end_index': jnp.zeros(1, jnp.int32)}
    return {f'layer_{i}': layer for i in range(config.num_layers)}

  def apply(params, tokens, positions, cache, mask, end):
    cache = {i: {**layer, 'end_index': end[None]} for i, layer in cache.items()}
    return run(nnx.merge(graph, params), tokens, positions, cache, mask)

  vocab = getattr(config, 'vocab_size', None) or config.num_embed
  sizes = {'vocab_size': vocab, 'max_positions': max_positions}
  return specjax.adapt(open_cache, apply, **sizes)


def tiny(vocab=2048, width=32, layers=2) -> qwen3.Qwen3:
  sizes = layers, vocab, width, 2 * width, 4, 8, 2, 1_000_000, 1e-6
  return qwen3.Qwen3(qwen3.ModelConfig(*sizes), rngs=nnx.Rngs(0))


def load(seed=0, **sizes) -> specjax.Target:
  """Returns a `tiny` target with random weights."""
  module = tiny(**sizes)
  params = draw(nnx.state(module), seed)
  return target(adapt(module, 1024), params)
