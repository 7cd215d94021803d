"""Bytes that a step reads from memory: what its time is held against."""

import jax

from specjax.models.transformer import Model


def bytes_per_token(model: Model, params, slots: int) -> tuple[int, int]:
  """Bytes of weights and of a padded cache that one plain step reads.

  Args:
    model: the model.
    params: its parameters, or their shapes.
    slots: of the cache.
  """

  def size(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))

  config = model.config
  weights = size(params)
  # Of a table only one row is read, unless it is the unembedding too.
  if not config.tied_embeddings:
    weights -= size(params['embedding'])
  weights -= size(params.get('position'))
  # An encoder reads once, before the first step.
  weights -= size(params.get('encoder'))
  width = jax.tree.leaves(params)[0].dtype.itemsize
  kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim
  return weights, kv * slots * width
