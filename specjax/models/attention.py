"""Attention over a cache and the block in flight, merged by their statistics.

The cache is never concatenated with the block, which would copy it. How it is
read is an option of the model, see `models.cache_attention`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.types import KV


class Bias(NamedTuple):
  """A bias of scores that depends on the distance of two tokens."""

  curve: jax.Array  # [distances, H] from 0 on; the last one for all beyond
  block: jax.Array  # [B, H, T, N] of each row of the block


class Partial(NamedTuple):
  """Attention over some of the keys: enough to merge with the others.

  M are the T queries of each of the H/G heads of a group.
  """

  top: jax.Array  # [B, G, M] largest score
  total: jax.Array  # [B, G, M] sum of exp(score - top)
  value: jax.Array  # [B, G, M, D] values weighted by exp(score - top)


def attend_some(q, k, v, keep, cap, bias=None, part=None):
  """q [B, G, M, D] on k [B, G, D, N], v [B, G, N, D].

  Where keys have fewer entries than queries, values are the rest of them, see
  `models.latent`.

  Args:
    q: queries.
    k: keys.
    v: values.
    keep: [B, 1, M or 1, N] which keys a query sees.
    cap: soft cap of the scores.
    bias: [B, H, T, N], which has the heads of a group and the queries that M
      holds.
    part: attention to other keys, which the result includes.
  """
  dtype = jnp.promote_types(q.dtype, jnp.float32)
  multiply = functools.partial(jnp.einsum, preferred_element_type=dtype)
  own = k.shape[2]
  if own == q.shape[3]:
    score = multiply('bgmd,bgdn->bgmn', q, k)
  else:
    score = multiply('bgmd,bgdn->bgmn', q[..., :own], k)
    score += multiply('bgmd,bgnd->bgmn', q[..., own:], v)
  if cap is not None:
    score = soften(score, cap)
  if bias is not None:
    score += bias.astype(dtype).reshape(score.shape)
  # What is not seen lies so far below any `top` that its weight is 0.
  lowest = jnp.finfo(dtype).min
  score = jnp.where(keep, score, lowest / 2)
  top = jnp.maximum(score.max(-1), lowest / 4 if part is None else part.top)
  weight = jnp.exp(score - top[..., None])
  total = weight.sum(-1)
  value = multiply('bgmn,bgnd->bgmd', weight.astype(v.dtype), v)
  if part is not None:
    scale = jnp.exp(part.top - top)
    total += part.total * scale
    value += part.value * scale[..., None]
  return Partial(top, total, value)


def merge(a: Partial, b: Partial) -> Partial:
  """Attention over the keys of both."""
  top = jnp.maximum(a.top, b.top)
  scale_a, scale_b = jnp.exp(a.top - top), jnp.exp(b.top - top)
  return Partial(
    top,
    a.total * scale_a + b.total * scale_b,
    a.value * scale_a[..., None] + b.value * scale_b[..., None],
  )


class View(NamedTuple):
  """The part of a cache that queries see."""

  length: jax.Array  # [B] slots in use
  first: jax.Array | None = None  # [B, T] a query's first slot; None: all
  sinks: int = 0  # slots before it that every query sees, the first ones
  lift: Callable[[jax.Array], jax.Array] | None = None  # slots -> their bias
  cap: float | None = None  # of the scores

  def keep(self, slot: jax.Array, queries: int) -> jax.Array:
    """Returns true [B, 1, M or 1, N] for the slots that M queries see."""
    used = slot < self.length[:, None]
    if self.first is None:
      return used[:, None, None]
    slot = jnp.atleast_2d(slot)[:, None]
    inside = slot >= self.first[..., None]
    if self.sinks:
      inside |= slot < self.sinks
    inside &= used[:, None]
    heads = queries // self.first.shape[1]
    return jnp.tile(inside[:, None], (1, 1, heads, 1))


# How a cache is read: (q [B, G, M, D], a cache of S slots, what q sees of it,
# attention to the block) -> attention to both.
CacheAttention = Callable[[jax.Array, KV, View, Partial], Partial]


@dataclasses.dataclass(frozen=True)
class AtOnce:
  """Attention to a cache and a block at once; also a `CacheAttention`.

  Attributes:
    fits: (q [B, T, G, H/G, D], cache, block, `Bias` or None, sinks' logits or
      None) -> whether there is one for these.
    attend: (q, cache, what q sees of it, block, mask [B, T, N] of what is of
      its text, biases [B, H, T, S] and [B, H, T, N] or None, logits [G, H/G] of
      sinks or None) -> [B, T, G, H/G, D]. Row n of the block lies behind the
      cache and the rows before it that are of the same text: what q sees
      depends on that place.
    otherwise: attention to the cache alone, where there is none.
  """

  fits: Callable[..., bool]
  attend: Callable[..., jax.Array]
  otherwise: CacheAttention

  def __call__(self, q: jax.Array, cache: KV, view: View, part: Partial):
    return self.otherwise(q, cache, view, part)


def soften(x, cap):
  """Soft cap: near x where x is small, never beyond the cap."""
  return cap * jnp.tanh(x / cap)


def distance(mask):
  """Returns the distance of each row of a block to its query, [B, T, N].

  The rows of a block that a query sees are its ancestors, in order, and
  itself: their distance is the number of those behind them. So the distance
  is one of positions, however the tree is laid out in the block.

    query 3 of   0 -- 1 -- 3    sees  1 1 . 1    distance  2 1 . 0
                  \\- 2
  """
  seen = mask.astype(jnp.int32)
  return seen.sum(-1, keepdims=True) - jnp.cumsum(seen, -1)


def narrow(mask, window, sinks=0, positions=None):
  """Removes rows from a mask [B, T, N] that are `window` or more tokens away.

  Args:
    mask: see `distance`.
    window: tokens, the query's own included.
    sinks: first positions of the text, which stay.
    positions: [B, T] of the queries; only sinks need them.
  """
  if mask.shape[-1] <= window:
    return mask
  far = distance(mask)
  near = far < window
  if sinks:
    near |= positions[..., None] - far < sinks
  return mask & near


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
  over_cache: CacheAttention | None = None,
  sinks=0,
  sink=None,
):
  """Attention of T queries over the cache and the in-flight block.

  Args:
    q: [B, T, G, H/G, D], already scaled.
    cache: KV of S slots, or None when everything is in flight.
    length: [B] slots in use; the others are never looked at.
    flight: KV of N slots.
    mask: [B, T, N], true where row n is of the text of query t.
    positions: [B, T] of the queries; only a window or a bias needs them. Slot
      i of the cache holds position i.
    window: tokens that a query sees in the cache and the block together,
      itself included, see `narrow`; None: all.
    cap: soft cap of the scores.
    bias: a `Bias`, which is added to them.
    over_cache: attention to the cache, one of `models.cache_attention`; needed
      where there is a cache.
    sinks: first slots that a query sees beside its window.
    sink: [G, H/G] a logit of each head to which no token belongs, or None.

  Returns:
    [B, T, G, H/G, D], D of the values.
  """
  b, t, g, r, d = q.shape
  first = None if window is None else positions - (window - 1)

  def lift(slot):
    slot = jnp.atleast_2d(slot)[:, None]
    return look_up(bias.curve, positions[..., None] - slot)

  view = View(length, first, sinks, None if bias is None else lift, cap)
  if (
    cache is not None
    and isinstance(over_cache, AtOnce)
    and over_cache.fits(q, cache, flight, bias, sink)
  ):
    lifts = bias and (lift(jnp.arange(cache.v.shape[2])), bias.block)
    return over_cache.attend(q, cache, view, flight, mask, lifts, sink)
  if window is not None:
    mask = narrow(mask, window, sinks, positions)
  q = q.transpose(0, 2, 3, 1, 4).reshape(b, g, r * t, d)
  keep = jnp.tile(mask[:, None], (1, 1, r, 1))
  block = None if bias is None else bias.block
  part = attend_some(q, flight.k, flight.v, keep, cap, block)
  if cache is not None:
    if over_cache is None:
      raise ValueError(
        'over_cache is None, but there is a cache to read: give one of '
        'specjax.models.cache_attention'
      )
    part = over_cache(q, cache, view, part)
  if sink is not None:
    top = jnp.repeat(sink.astype(part.top.dtype), t, 1)
    top = jnp.broadcast_to(top, part.top.shape)
    nothing = jnp.zeros_like(part.value)
    part = merge(part, Partial(top, jnp.ones_like(part.total), nothing))
  # A row that sees nothing (padding) has total 0: it gets 0, not NaN.
  out = part.value / jnp.maximum(part.total, 1e-30)[..., None]
  out = out.astype(q.dtype).reshape(b, g, r, t, out.shape[-1])
  return out.transpose(0, 3, 1, 2, 4)
