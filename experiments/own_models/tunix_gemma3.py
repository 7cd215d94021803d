"""Gemma 3 of `google-tunix` as a target.

It takes row i of a block for slot i, so here its windows are cut from the mask.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.models.gemma3 import model as gemma3

import specjax
from experiments.own_models import draw, target, tunix


def run(model, tokens, positions, cache, mask):
  """Returns logits and the cache, as the model does for whole prompts."""
  end, slots = cache['layer_0']['end_index'], jnp.arange(mask.shape[-1])
  places = jax.lax.dynamic_update_slice(slots, positions[0], end)
  near = places > positions[..., None] - model.config.sliding_window_size
  x, after = model.embedder.encode(tokens), {}
  for i, layer in enumerate(model.layers):
    local = layer.attn.attn_type == gemma3.AttentionType.LOCAL_SLIDING
    layer.attn.attn_type = gemma3.AttentionType.GLOBAL
    inputs = x, positions, cache[f'layer_{i}'], mask & near if local else mask
    after[f'layer_{i}'], x = layer(*inputs)
  return model.embedder.decode(model.final_norm(x)), after


def tiny(vocab=2048, width=32, layers=6, window=8) -> gemma3.Gemma3:
  sizes = dict(num_layers=layers, num_embed=vocab, sliding_window_size=window)
  sizes |= dict(embed_dim=width, hidden_dim=2 * width, param_dtype=jnp.float32)
  config = gemma3.ModelConfig(**sizes, num_heads=4, num_kv_heads=2, head_dim=8)
  return gemma3.Gemma3(config, rngs=nnx.Rngs(0))


def load(seed=0, **sizes) -> specjax.Target:
  """Returns a `tiny` target with random weights."""
  module = tiny(**sizes)
  params = draw(nnx.state(module), seed, 0.05)
  return target(tunix.adapt(module, 1024, run), params)
