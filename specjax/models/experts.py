"""A mixture of experts without capacity: every token gets what it chose."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from specjax.models.config import TransformerConfig


class Experts(nn.Module):
  """x [..., E] -> [..., E], a weighted sum of the chosen experts.

  A few tokens read the weights of the experts that they chose; many compute
  all experts, and weight those that they did not choose with 0. The bytes of
  the weights are what a small step costs: reading all of them for one token
  would make plain decoding slower than it has to be, and so speculation look
  better than it is. From tokens x chosen >= experts on there is nothing to
  save.
  """

  config: TransformerConfig

  @nn.compact
  def __call__(self, x):
    c, e = self.config, self.config.experts

    def declare(name, shape, axes, scale):
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
    if chosen.size < e.count:
      y = self._few(rows, weight, chosen, up, down)
    else:
      y = self._all(rows, weight, chosen, up, down)
    return y.reshape(x.shape)

  def _few(self, rows, weight, chosen, up, down):
    y = jnp.einsum('te,tkewf->tkwf', rows, up[chosen])
    y = self.config.activation(y[..., 0, :]) * y[..., 1, :]
    y = jnp.einsum('tkf,tkfe->tke', y, down[chosen])
    return (y * weight[..., None]).sum(1)

  def _all(self, rows, weight, chosen, up, down):
    one_hot = jax.nn.one_hot(chosen, len(up), dtype=weight.dtype)
    share = (one_hot * weight[..., None]).sum(1)  # [T, X]
    y = jnp.einsum('te,xewf->txwf', rows, up)
    y = self.config.activation(y[..., 0, :]) * y[..., 1, :]
    return jnp.einsum('txf,xfe,tx->te', y, down, share)
