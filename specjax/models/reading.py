"""Reading a text into a cache, in blocks and without logits."""

import jax
import jax.numpy as jnp

from specjax import cache as caches
from specjax.models import transformer
from specjax.types import KV


def prefill(model, params, tokens, length, cache, taps=()):
  """Feeds all committed tokens but the last, which stays to be fed.

  Blocks of equal size are read until the longest row is through, so one
  program serves every prompt length of a buffer.

  Args:
    model: a `transformer.Model`.
    params: its parameters.
    tokens: [B, S], S as `cache.round_slots` gives it.
    length: [B] committed tokens, at least 1.
    cache: an empty cache of S slots.
    taps: layers whose features to return.

  Returns:
    The cache, and the features [B, len(taps), E] of the last token fed
    (zeros for a row of one token, which has none).
  """
  batch, slots = tokens.shape
  size = caches.block_of(slots)
  mask, offsets = transformer.causal(batch, size)
  dtype = cache[0].k.dtype
  last = length - 2

  def read(i, carry):
    cache, features = carry
    begin = i * size
    block = jax.lax.dynamic_slice_in_dim(tokens, begin, size, axis=1)
    used = jnp.full(batch, begin)
    out = model.forward(
      params, block, begin + offsets, cache, used, mask, taps=taps
    )

    def put(c, f):
      return jax.lax.dynamic_update_slice_in_dim(
        c, f.astype(c.dtype), begin, axis=2
      )

    cache = tuple(
      KV(put(c.k, f.k), put(c.v, f.v))
      for c, f in zip(cache, out.flight, strict=True)
    )
    row = jnp.clip(last - begin, 0, size - 1)
    here = jnp.take_along_axis(out.taps, row[:, None, None, None], 1)[:, 0]
    inside = (last >= begin) & (last < begin + size)
    return cache, jnp.where(inside[:, None, None], here, features)

  features = jnp.zeros((batch, len(taps), model.config.width), dtype)
  blocks = (length.max() - 1 + size - 1) // size
  return jax.lax.fori_loop(0, blocks, read, (cache, features))
