"""Bytes that a step reads from memory: what its time is held against."""

import jax

from specjax.models.config import TransformerConfig
from specjax.models.transformer import Model


def slots_seen(config: TransformerConfig, layer: int, used: int) -> int:
  """Slots of a cache that one query of a layer sees behind so many tokens."""
  window = config.reach(layer)
  if window is None:
    return used
  # The query itself, which is one of the window, is in no cache yet.
  return min(used, window - 1 + config.sinks(layer))


def bytes_per_token(model: Model, params, used: int) -> tuple[int, int]:
  """Bytes of weights and of the cache that one plain step must read.

  Args:
    model: the model; layers with a window see no more of the cache.
    params: its parameters, or their shapes.
    used: slots of the cache in use.
  """

  def size(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))

  config = model.config
  # Of a target that is left early only the first layers are.
  beyond = {
    name
    for name in params
    if name.startswith('layer') and int(name[5:]) >= config.num_layers
  }
  weights = size({n: x for n, x in params.items() if n not in beyond})
  # Of a table only one row is read, unless it is the unembedding too.
  if not config.tied_embeddings:
    weights -= size(params['embedding'])
  weights -= size(params.get('position'))
  # An encoder reads once, before the first step.
  weights -= size(params.get('encoder'))
  width = jax.tree.leaves(params)[0].dtype.itemsize
  slots = sum(slots_seen(config, i, used) for i in range(config.num_layers))
  return weights, 2 * config.num_kv_heads * config.head_dim * slots * width
