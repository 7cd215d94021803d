"""Static-shape key-value caches.

Rollback costs nothing. A slot is visible only below the length that the reader
passes, so rejected rows are simply never counted; later rows overwrite them.
Nobody but `commit` and `prefill` writes a cache.
"""

import jax
import jax.numpy as jnp

from specjax.types import KV, Cache


def round_slots(slots: int) -> int:
  """Smallest allowed number of slots that is at least `slots`.

  Multiples of 128 up to 512, then of 512: few shapes, hence few programs,
  and whole blocks for prefill and for the attention walk.
  """
  step = 128 if slots <= 512 else 512
  return -(-slots // step) * step


def block_of(slots: int) -> int:
  """Tokens that prefill feeds at once for a cache of so many slots."""
  return 128 if slots <= 512 else 512


def empty(config, batch: int, slots: int, dtype) -> Cache:
  """A cache of zeros for a `TransformerConfig`."""
  shape = (batch, config.num_kv_heads, slots, config.head_dim)
  return tuple(
    KV(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
    for _ in range(config.num_layers)
  )


def commit(cache: Cache, flight: Cache, path: jax.Array, start: jax.Array):
  """Writes in-flight rows `path` [B, P] at slots start, start + 1, ...

    path [0, 2, 3]   flight  r0 r1 r2 r3
    start 5          cache   .. .. .. .. .. r0 r2 r3

  Rows of the path beyond the accepted ones are written too, and are invisible.
  `start + P` must not exceed the slots: dynamic_update_slice would clamp.
  """

  def one(cache, flight, path, start):  # [G, S, D], [G, N, D], [P], []
    rows = jnp.take(flight, path, axis=1, mode='clip').astype(cache.dtype)
    return jax.lax.dynamic_update_slice_in_dim(cache, rows, start, axis=1)

  put = jax.vmap(one)
  return jax.tree.map(lambda c, f: put(c, f, path, start), cache, flight)
