"""Attention over a cache and the block in flight, merged by their statistics.

The cache is never concatenated with the block, which would copy it, and is
walked only as far as it is used.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Cache slots read by one turn of the walk.
BLOCK = 512


def rotate(x, positions, theta):
  """Rotary positions (Su et al., arXiv:2104.09864), halves as in Llama.

  Args:
    x: [B, T, ..., D].
    positions: [B, T].
    theta: base of the frequencies.
  """
  half = x.shape[-1] // 2
  dtype = jnp.promote_types(x.dtype, jnp.float32)
  frequency = theta ** (-jnp.arange(half, dtype=dtype) / half)
  angle = positions.astype(dtype)[..., None] * frequency
  angle = angle.reshape(*positions.shape, *(1,) * (x.ndim - 3), half)
  sin, cos = jnp.sin(angle), jnp.cos(angle)
  a, b = jnp.split(x.astype(dtype), 2, -1)
  turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
  return turned.astype(x.dtype)


class _Partial(NamedTuple):
  """Attention over some of the keys: enough to merge with the others."""

  top: jax.Array  # [B, G, M] largest score
  total: jax.Array  # [B, G, M] sum of exp(score - top)
  value: jax.Array  # [B, G, M, D] values weighted by exp(score - top)


def _attend_some(q, k, v, keep):
  """q [B, G, M, D] on k, v [B, G, N, D] where keep [B, 1, M or 1, N]."""
  dtype = jnp.promote_types(q.dtype, jnp.float32)
  score = jnp.einsum('bgmd,bgnd->bgmn', q, k, preferred_element_type=dtype)
  score = jnp.where(keep, score, jnp.finfo(dtype).min / 2)
  top = score.max(-1)
  weight = jnp.where(keep, jnp.exp(score - top[..., None]), 0)
  value = jnp.einsum(
    'bgmn,bgnd->bgmd', weight.astype(v.dtype), v, preferred_element_type=dtype
  )
  return _Partial(top, weight.sum(-1), value)


def _merge(a, b):
  top = jnp.maximum(a.top, b.top)
  scale_a, scale_b = jnp.exp(a.top - top), jnp.exp(b.top - top)
  return _Partial(
    top,
    a.total * scale_a + b.total * scale_b,
    a.value * scale_a[..., None] + b.value * scale_b[..., None],
  )


def attend(q, cache, length, flight, mask):
  """Attention of T queries over the cache and the in-flight block.

  Args:
    q: [B, T, G, H/G, D], already scaled.
    cache: KV of S slots, or None when everything is in flight.
    length: [B] slots in use; the others are never looked at.
    flight: KV of N rows.
    mask: [B, T, N], true where query t sees row n.

  Returns:
    [B, T, G, H/G, D].
  """
  b, t, g, r, d = q.shape
  q = q.transpose(0, 2, 3, 1, 4).reshape(b, g, r * t, d)
  keep = jnp.tile(mask[:, None], (1, 1, r, 1))
  part = _attend_some(q, flight.k, flight.v, keep)
  if cache is not None:
    part = _attend_cache(q, cache, length, part)
  # A row that sees nothing (padding) has total 0: it gets 0, not NaN.
  out = part.value / jnp.maximum(part.total, 1e-30)[..., None]
  out = out.astype(q.dtype).reshape(b, g, r, t, d)
  return out.transpose(0, 3, 1, 2, 4)


def _attend_cache(q, cache, length, part):
  slots = cache.k.shape[2]
  if slots <= BLOCK:
    keep = (jnp.arange(slots) < length[:, None])[:, None, None]
    return _merge(part, _attend_some(q, cache.k, cache.v, keep))
  if slots % BLOCK:
    raise ValueError(f'a cache of {slots} slots is no multiple of {BLOCK}')

  def body(i, part):
    cut = functools.partial(
      jax.lax.dynamic_slice_in_dim,
      start_index=i * BLOCK,
      slice_size=BLOCK,
      axis=2,
    )
    slot = i * BLOCK + jnp.arange(BLOCK)
    keep = (slot < length[:, None])[:, None, None]
    return _merge(part, _attend_some(q, cut(cache.k), cut(cache.v), keep))

  used = (length.max() + BLOCK - 1) // BLOCK
  return jax.lax.fori_loop(0, used, body, part)
