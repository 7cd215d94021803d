"""Attention to latents (DeepSeek-AI, 2024, arXiv:2405.04434, section 2.1).

A token is compressed to a latent c of R entries, which every head makes its key
and its value of, and to one turned key r of P entries that all heads share.

  score = q . (K c) + q' . r = (K^T q) . c + q' . r,    y = V (sum of w c)

So heads attend to the latents themselves, with queries K^T q, and V maps what
was read. The cache has R + P entries a token, whatever the number of heads: it
is a cache of one head whose keys are r and then c, and whose values are c. What
both share is stored once, as values.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from specjax.models import cache as caches
from specjax.models import rotary
from specjax.models.config import TransformerConfig
from specjax.models.linear import Linear, declare

_EPS = 1e-6  # of its norms; files do not say


class LatentHeads(nn.Module):
  """Makes queries of latents, and latents, of a stream."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x, positions, turn):
    """Returns queries, the block, and maps from latents to values.

    Args:
      x: [B, T, E].
      positions: [B, T].
      turn: frequencies and amplitude of the positions, or None.

    Returns:
      [B, T, 1, H, P + R] not scaled yet, a KV of T rows, and [H, values, R].
    """
    c, s = self.config, self.config.latent
    reads = x
    if s.queries is not None:
      reads = self._map('q_down', x, (s.queries,), c.qkv_bias)
      reads = self._norm('q_norm', reads)
    q = self._map('q', reads, (c.num_heads, s.keys + s.turned), False)
    down = self._map('kv_down', x, (s.rank + s.turned,), c.qkv_bias)
    latent = self._norm('kv_norm', down[..., : s.rank])
    q, q_turned = q[..., : s.keys], q[..., s.keys :]
    key = down[..., s.rank :]
    if s.side_by_side:
      q_turned, key = _halves(q_turned), _halves(key)
    if turn is not None:
      q_turned = rotary.rotate(q_turned, positions, *turn)
      key = rotary.rotate(key, positions, *turn)
    shape = c.num_heads * (s.keys + s.values), s.rank
    up = declare(self, 'kv_up', shape, ('heads', None), s.rank**-0.5)
    up = up.reshape(c.num_heads, -1, s.rank)
    q = jnp.einsum('bthk,hkr->bthr', q, up[:, : s.keys])
    q = jnp.concatenate([q_turned, q], -1)[:, :, None]
    new = caches.block_of_rows(key[:, :, None], latent[:, :, None])
    return q, new, up[:, s.keys :]

  def _map(self, name, x, outputs, bias):
    axes, rows = ('heads', None)[-len(outputs) :], self.config.device.rows
    return Linear(
      x.shape[-1], outputs, ('width', *axes), bias, rows=rows, name=name
    )(x)

  def _norm(self, name, x):
    scale = declare(self, name, x.shape[-1:], start=nn.initializers.ones)
    y = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    y *= jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + _EPS)
    return y.astype(x.dtype) * scale


def _halves(x):
  """Entries that lie side by side, half of x [..., P] apart."""
  return x.reshape(*x.shape[:-1], -1, 2).swapaxes(-1, -2).reshape(x.shape)
