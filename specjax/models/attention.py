"""Attention over a cache and the block in flight, merged by their statistics.

The cache is never concatenated with the block, which would copy it, and is
walked only as far as it is used, and as a window reaches.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Cache slots read by one turn of the walk.
BLOCK = 512


class Bias(NamedTuple):
  """What the distance of two tokens adds to their score."""

  curve: jax.Array  # [distances, H] from 0 on; the last one for all beyond
  block: jax.Array  # [B, H, T, N] of each row of the block


class _Partial(NamedTuple):
  """Attention over some of the keys: enough to merge with the others."""

  top: jax.Array  # [B, G, M] largest score
  total: jax.Array  # [B, G, M] sum of exp(score - top)
  value: jax.Array  # [B, G, M, D] values weighted by exp(score - top)


def _attend_some(q, k, v, keep, cap, bias=None):
  """q [B, G, M, D] on k, v [B, G, N, D] where keep [B, 1, M or 1, N].

  `bias` [B, H, T, N] has the heads of a group and the queries that M holds.
  """
  dtype = jnp.promote_types(q.dtype, jnp.float32)
  score = jnp.einsum('bgmd,bgnd->bgmn', q, k, preferred_element_type=dtype)
  if cap is not None:
    score = soften(score, cap)
  if bias is not None:
    score += bias.astype(dtype).reshape(score.shape)
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


def soften(x, cap):
  """Soft cap: near x where x is small, never beyond the cap."""
  return cap * jnp.tanh(x / cap)


def distance(mask):
  """How far behind its query each row of a block is that it sees, [B, T, N].

  The rows of a block that a query sees are its ancestors, in order, and
  itself: their distance is the number of those behind them. So the distance
  is one of positions, however the tree is laid out in the block.

    query 3 of   0 -- 1 -- 3    sees  1 1 . 1    distance  2 1 . 0
                  \\- 2
  """
  seen = mask.astype(jnp.int32)
  return seen.sum(-1, keepdims=True) - jnp.cumsum(seen, -1)


def narrow(mask, window):
  """Takes from a mask [B, T, N] what is `window` tokens or more away."""
  if mask.shape[-1] <= window:
    return mask
  return mask & (distance(mask) < window)


def look_up(curve, index):
  """Entries [B, H, T, N] of a curve [.., H]; beyond its ends the last ones."""
  index = jnp.clip(index, 0, len(curve) - 1)
  return jnp.moveaxis(curve.T[:, index], 0, 1)


def attend(
  q,
  cache,
  length,
  flight,
  mask,
  positions=None,
  window=None,
  cap=None,
  bias=None,
):
  """Attention of T queries over the cache and the in-flight block.

  Args:
    q: [B, T, G, H/G, D], already scaled.
    cache: KV of S slots, or None when everything is in flight.
    length: [B] slots in use; the others are never looked at.
    flight: KV of N rows.
    mask: [B, T, N], true where query t sees row n; see `narrow`.
    positions: [B, T] of the queries; only a window or a bias needs them. Slot
      i of the cache holds position i.
    window: tokens that a query sees in the cache and the block together,
      itself included; None: all.
    cap: soft cap of the scores.
    bias: a `Bias`, which is added to them.

  Returns:
    [B, T, G, H/G, D].
  """
  b, t, g, r, d = q.shape
  q = q.transpose(0, 2, 3, 1, 4).reshape(b, g, r * t, d)
  keep = jnp.tile(mask[:, None], (1, 1, r, 1))
  block = None if bias is None else bias.block
  part = _attend_some(q, flight.k, flight.v, keep, cap, block)
  if cache is not None:
    first = None if window is None else positions - (window - 1)

    def lift(slot):
      if bias is None:
        return None
      return look_up(bias.curve, positions[..., None] - slot)

    part = _attend_cache(q, cache, length, first, part, cap, lift)
  # A row that sees nothing (padding) has total 0: it gets 0, not NaN.
  out = part.value / jnp.maximum(part.total, 1e-30)[..., None]
  out = out.astype(q.dtype).reshape(b, g, r, t, d)
  return out.transpose(0, 3, 1, 2, 4)


def _attend_cache(q, cache, length, first, part, cap, lift):
  """Adds the cache to `part`.

  `first` [B, T] is each query's first slot, lift(slots) their bias.
  """
  slots = cache.k.shape[2]

  def keep(slot):
    used = slot < length[:, None]
    if first is None:
      return used[:, None, None]
    inside = used[:, None] & (slot >= first[..., None])
    heads = q.shape[2] // first.shape[1]
    return jnp.tile(inside[:, None], (1, 1, heads, 1))

  if slots <= BLOCK:
    slot = jnp.arange(slots)
    some = _attend_some(q, cache.k, cache.v, keep(slot), cap, lift(slot))
    return _merge(part, some)
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
    k, v = cut(cache.k), cut(cache.v)
    return _merge(part, _attend_some(q, k, v, keep(slot), cap, lift(slot)))

  used = (length.max() + BLOCK - 1) // BLOCK
  start = 0
  if first is not None:
    start = (jnp.maximum(first.min(), 0) // BLOCK).astype(used.dtype)
  return jax.lax.fori_loop(start, used, body, part)
