"""Static-shape key-value caches.

Rollback costs nothing. A slot is visible only below the length that the reader
passes, so rejected rows are simply never counted; later rows overwrite them.
Nobody but `commit` and `prefill` writes a cache.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax.types import KV, Cache, CrossKV


def round_slots(slots: int) -> int:
  """Smallest allowed number of slots that is at least `slots`.

  Multiples of 128 up to 512, then of 512: few shapes, hence few programs,
  and whole blocks for prefill and for the attention walk.
  """
  step = 128 if slots <= 512 else 512
  return -(-slots // step) * step


def fit_slots(name: str, slots: int | None, needed: int, who: str) -> int:
  """Slots of a buffer: those asked for, by default what is needed.

  Raises:
    ValueError: they are not enough; calls them and who needs more by name.
  """
  if slots is not None and round_slots(slots) < needed:
    raise ValueError(f'{name} is {slots}, but {who} needs {needed}')
  return round_slots(slots) if slots else needed


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


def with_source(cache: Cache, sources, length: jax.Array) -> Cache:
  """The same cache beside what each layer reads of a source [B, G, R, D]."""
  # + 0: states are donated, so that each layer needs a buffer of its own.
  return tuple(
    CrossKV(kv.k, kv.v, source, length + 0)
    for kv, source in zip(cache, sources, strict=True)
  )


def replace(
  cache: Cache, flight: Cache, put: Callable[[jax.Array, jax.Array], jax.Array]
) -> Cache:
  """The cache with put(k of the cache, k of the block), and so for v.

  What a layer keeps of a source stays what it is.
  """
  return tuple(
    kv._replace(k=put(kv.k, new.k), v=put(kv.v, new.v))
    for kv, new in zip(cache, flight, strict=True)
  )


def put(block: jax.Array, rows: jax.Array, at) -> jax.Array:
  """A block in flight [B, G, N, D] with rows [B, G, T, D] from `at` on.

  Every row is chosen anew: where a slice is updated, a CPU copies the block
  three times, since an attention that reads it makes an update of its own.
  """
  index = jnp.arange(block.shape[2]) - at
  here = (index >= 0) & (index < rows.shape[2])
  spread = jnp.take(rows, index, axis=2, mode='clip').astype(block.dtype)
  return jnp.where(here[:, None], spread, block)


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

  def put(cache, flight):
    return jax.vmap(one)(cache, flight, path, start)

  return replace(cache, flight, put)
