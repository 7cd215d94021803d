"""A mixture of experts without capacity: every token gets what it chose."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from specjax.models.config import TransformerConfig
from specjax.models.linear import is_weight, multiply


class Experts(nn.Module):
  """x [..., E] -> [..., E], a weighted sum of the chosen experts.

  The time of a small step is that of reading weights: to read all experts for
  one token would make plain decoding slower than it has to be, and speculation
  look better than it is. So a few tokens loop over their choices, and read one
  expert for each. Where tokens x chosen > experts there is nothing to save: the
  loop is over the experts, each computes all tokens, and those that did not
  choose it have weight 0.

  It is a loop because the alternatives are slower on a CPU: a gather copies the
  experts' weights, and one product over all experts takes longer still, for one
  token and for hundreds.
  """

  config: TransformerConfig

  @nn.compact
  def __call__(self, x):
    c, e = self.config, self.config.experts

    def declare(name, shape, axes, scale):
      stored = self.get_variable('params', name)
      if is_weight(stored):
        return stored
      start = nn.initializers.normal(scale)
      return self.param(name, nn.with_logical_partitioning(start, axes), shape)

    router = declare(
      'router', (c.width, e.count), ('width', None), c.width**-0.5
    )
    up = declare(
      'up',
      (e.count, c.width, 2, e.width),
      ('experts', 'width', None, 'mlp'),
      c.width**-0.5,
    )
    down = declare(
      'down',
      (e.count, e.width, c.width),
      ('experts', 'mlp', 'width'),
      (2 * c.num_layers * c.width) ** -0.5,
    )
    rows = x.reshape(-1, c.width)
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    odds = jax.nn.softmax((rows @ router).astype(dtype))
    weight, chosen = jax.lax.top_k(odds, e.chosen)  # [T, chosen]
    if e.normalize:
      weight /= weight.sum(-1, keepdims=True)
    weight = weight.astype(x.dtype)
    if chosen.size <= e.count:
      y = self._walk_choices(rows, weight, chosen, up, down)
    else:
      y = self._walk_experts(rows, weight, chosen, up, down)
    return y.reshape(x.shape)

  def _one(self, rows, expert, up, down):
    """Rows [T, E] through one expert."""
    up, down = jax.tree.map(
      lambda x: jax.lax.dynamic_index_in_dim(x, expert, 0, False), (up, down)
    )
    c = self.config
    y = multiply(rows, up, c.device.rows)
    return multiply(c.activation(y[:, 0]) * y[:, 1], down, c.device.rows)

  def _walk_choices(self, rows, weight, chosen, up, down):
    ways = chosen.shape[1]

    def add(i, y):
      token, way = i // ways, i % ways
      row = jax.lax.dynamic_slice_in_dim(rows, token, 1)
      part = self._one(row, chosen[token, way], up, down)[0]
      return y.at[token].add(part * weight[token, way])

    return jax.lax.fori_loop(0, chosen.size, add, jnp.zeros_like(rows))

  def _walk_experts(self, rows, weight, chosen, up, down):
    def add(expert, y):
      share = jnp.where(chosen == expert, weight, 0).sum(1, keepdims=True)
      return y + self._one(rows, expert, up, down) * share

    return jax.lax.fori_loop(
      0, self.config.experts.count, add, jnp.zeros_like(rows)
    )
