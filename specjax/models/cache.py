"""Static-shape key-value caches.

Rollback costs nothing. A slot is visible only below the length that the reader
passes, so rejected rows are simply never counted; later rows overwrite them.
Nobody but `commit` and `prefill` writes a cache.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from specjax.models import recurrent
from specjax.types import (
  KV,
  Cache,
  CrossKV,
  KVState,
  Recurrence,
)


def round_slots(slots: int, fine: int = 512) -> int:
  """Smallest allowed number of slots that is at least `slots`.

  Multiples of 128 up to 512, or `fine`, then of 512: few shapes, hence few
  programs, and whole blocks for prefill and for the attention walk.
  """
  step = 128 if slots <= fine else 512
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
  """The most tokens that prefill feeds at once into so many slots."""
  return min(slots, 128) if slots <= 512 else 512


def heads(config, layer: int) -> tuple[int, int, int]:
  """Returns the heads in the cache of a layer, and entries of key and value.

  There is no head where the keys and values of another layer are read, or none.
  """
  c = config.at(layer)
  own = c.attends(layer) and c.source(layer) == layer
  count = c.num_kv_heads * own
  if c.latent is not None:
    return count, c.latent.turned, c.latent.rank
  return count, c.head_dim, c.head_dim


def empty(config, batch: int, slots: int, dtype) -> Cache:
  """A cache of zeros for a `TransformerConfig`."""

  def one(layer):
    count, key, value = heads(config, layer)
    kv = KV(
      jnp.zeros((batch, count, key, slots), dtype),
      jnp.zeros((batch, count, slots, value), dtype),
    )
    if not config.has_state(layer):
      return kv
    return KVState(*kv, recurrent.empty(config.recurrent, batch, dtype))

  return tuple(map(one, range(config.num_layers)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnCache:
  """The cache of a model that owns it, see `own.adapt`.

  A pass writes its rows behind the text, so that the block in flight is the
  cache itself with some more rows.

  Attributes:
    leaves: of the caches of B texts, [B, ...].
    structure: of the cache of one text.
    axes: axis of the slots of each leaf of one text; None: it has none.
    block: rows in flight behind the text.
  """

  leaves: list[jax.Array]
  structure: Any = dataclasses.field(metadata={'static': True})
  axes: tuple[int | None, ...] = dataclasses.field(metadata={'static': True})
  block: int = dataclasses.field(default=0, metadata={'static': True})

  @property
  def dtype(self) -> Any:
    """The type of the first leaf of floats."""
    kinds = (x.dtype for x in self.leaves)
    return next(x for x in kinds if jnp.issubdtype(x, jnp.floating))

  @property
  def slots(self) -> int:
    """Slots of each text."""
    pairs = zip(self.leaves, self.axes, strict=True)
    return next(x.shape[axis + 1] for x, axis in pairs if axis is not None)

  def settled(self) -> 'OwnCache':
    """Returns the cache with the block as a part of the texts."""
    return dataclasses.replace(self, block=0)

  def change(self, how: Callable[..., jax.Array]) -> 'OwnCache':
    """Returns the cache with how(leaf, axis) of leaves that have slots.

    Args:
      how: the change; its axis is that of the slots, behind the axis B.
    """
    leaves = [
      x if axis is None else how(x, axis + 1)
      for x, axis in zip(self.leaves, self.axes, strict=True)
    ]
    return dataclasses.replace(self, leaves=leaves)


def block_of_rows(keys: jax.Array, values: jax.Array) -> KV:
  """Lays keys and values [B, T, G, D] out as a cache has them."""
  return KV(keys.transpose(0, 2, 3, 1), values.swapaxes(1, 2))


def with_source(cache: Cache, sources, length: jax.Array) -> Cache:
  """Returns the cache with the keys and values of a source beside it."""
  # + 0: states are donated, so that each layer needs a buffer of its own.
  return tuple(
    CrossKV(kv.k, kv.v, source, length + 0)
    for kv, source in zip(cache, sources, strict=True)
  )


def _each(
  cache: Any,
  flight: Any,
  put: Callable[[jax.Array, jax.Array, int], jax.Array],
  path: jax.Array,
  count: jax.Array | None,
) -> Any:
  """The cache with put(k of the cache, k of the block, axis), and so for v.

  The axis is that of the slots. What a layer keeps of a source stays what it
  is, and a state advances along a path of so many rows.
  """

  def one(old, new):
    moved = old._replace(k=put(old.k, new.k, 3), v=put(old.v, new.v, 2))
    if not isinstance(old, KVState):
      return moved
    if count is None:
      raise ValueError(
        'count: the rows that stay must be known where a layer has a state'
      )
    state = recurrent.advance(old.state, new.state, path, count)
    return moved._replace(state=state)

  pairs = zip(cache, flight, strict=True)
  return tuple(one(old, new) for old, new in pairs)


def fill(
  cache: Any,
  flight: Any,
  begin: jax.Array,
  count: jax.Array,
  fuses: bool = False,
) -> Any:
  """Writes a block that all rows of a batch read at the same slots.

  Args:
    cache: that was read.
    flight: the block, a chain of N rows.
    begin: [] slot of its first row.
    count: [B] rows that are of the text; others are invisible.
    fuses: whether updates are fused with something else: a CPU compiles these
      once for all layers alike, and others anew for each.
  """
  if isinstance(flight, OwnCache):
    return flight.settled()

  def put(old, new, axis):
    return _write_all(old, new, begin, axis, fuses)

  chain = jnp.arange(rows_of(flight))
  path = jnp.broadcast_to(chain, (len(count), len(chain)))
  return _each(cache, flight, put, path, count)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _write_all(cache, flight, begin, axis, fuses):
  """Writes a block for `fill`; layers alike trace it once."""
  rows = flight.astype(cache.dtype)
  if fuses:  # A choice that always falls alike.
    rows = jnp.where(begin >= 0, rows, 0)
  return jax.lax.dynamic_update_slice_in_dim(cache, rows, begin, axis)


def pad(rows: jax.Array, axis: int, size: int) -> jax.Array:
  """The array with zeros behind it, so that an axis has a size."""
  if rows.shape[axis] == size:
    return rows
  missing = [(0, 0)] * rows.ndim
  missing[axis] = (0, size - rows.shape[axis])
  return jnp.pad(rows, missing)


def change(cache: Any, how: Callable[..., jax.Array]) -> Any:
  """The cache with how(array, axis of its slots) of all that have slots."""
  if isinstance(cache, OwnCache):
    return cache.change(how)
  return tuple(kv._replace(k=how(kv.k, 3), v=how(kv.v, 2)) for kv in cache)


def grow(cache: Any, slots: int) -> Any:
  """The cache with empty slots behind its own, so many altogether."""
  return change(cache, lambda x, axis: pad(x, axis, slots))


def remember(init, params, ctx, hidden, read: int | None):
  """A drafter's memory of texts that lie in the first `read` slots.

  It is made for so many, and grows to the whole buffer: a draft that reads the
  texts reads no more than is there. A memory that has other sizes than the
  buffer's is made for the whole.

  Args:
    init: of the drafter.
    params: first argument of `init`.
    ctx: of the texts, with the whole buffer.
    hidden: features of the target.
    read: slots; None: all.
  """
  slots = ctx.tokens.shape[1]
  if read is None or read == slots:
    return init(params, ctx, hidden)
  few = params, ctx._replace(tokens=ctx.tokens[:, :read]), hidden[:, :read]
  small = jax.eval_shape(init, *few)
  whole = jax.eval_shape(init, params, ctx, hidden)
  sizes = (
    size
    for x, y in zip(*map(jax.tree.leaves, (small, whole)), strict=True)
    for size in zip(x.shape, y.shape, strict=True)
  )
  if any(a != b and (a, b) != (read, slots) for a, b in sizes):
    return init(params, ctx, hidden)

  def grow(x, goal):
    missing = [(0, b - a) for a, b in zip(x.shape, goal.shape, strict=True)]
    return jnp.pad(x, missing)

  return jax.tree.map(grow, init(*few), whole)


def states(tree: Any) -> list[Recurrence]:
  """Returns the states of layers that are among caches."""
  found = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Recurrence))
  return [x for x in found if isinstance(x, Recurrence)]


def dtype_of(cache: Any) -> Any:
  """Returns the type of keys and values."""
  return cache.dtype if isinstance(cache, OwnCache) else cache[0].k.dtype


def open_block(cache: Any, config: Any, rows: int) -> Any:
  """Returns a block in flight for so many rows behind the texts of a cache.

  Args:
    cache: of the model.
    config: of the model.
    rows: N.
  """
  if isinstance(cache, OwnCache):
    return dataclasses.replace(cache, block=rows)
  batch = len(jax.tree.leaves(cache)[0])
  blocks = empty(config, batch, rows, dtype_of(cache))

  def one(kv):
    if not isinstance(kv, KVState):
      return kv
    return kv._replace(
      state=recurrent.open_rows(kv.state, config.recurrent, rows)
    )

  return tuple(map(one, blocks))


def begin_block(cache: Any, block: Any) -> Any:
  """Returns a block of an earlier step for the texts of a cache now."""
  if isinstance(cache, OwnCache):
    return dataclasses.replace(cache, block=block.block)
  return block  # None of its rows is seen before it is written.


def rows_of(block: Any) -> int:
  """Returns the rows N of a block in flight."""
  return block.block if isinstance(block, OwnCache) else block[0].v.shape[2]


def put(
  block: KV | None,
  rows: KV,
  at,
  count: int | None = None,
  by_product: bool = False,
  fuses: bool = False,
) -> KV:
  """A block in flight of N slots with the rows of T tokens from `at` on.

  A single row is chosen slot by slot: where a slice is updated, a CPU copies
  the block three times, since the attention that reads it makes an update of
  its own. A pass may have more rows than tokens, see `devices.DeviceForm`. They
  are cut, or put by a product with ones and zeros: a number that is not finite
  then spoils all rows of its text.

  Args:
    block: None: these tokens are all of it.
    rows: keys and values of the pass, those of tokens first.
    at: place [] of the first token, 0 without a block.
    count: T; None: all rows are of tokens.
    by_product: rather than cut, where there are more rows than T.
    fuses: whether several rows are chosen slot by slot, too, see `fill`.
  """
  count = rows.v.shape[2] if count is None else count
  if not by_product:
    rows = KV(rows.k[..., :count], rows.v[:, :, :count])

  def one(block, rows, axis):
    if block is not None:
      rows = rows.astype(block.dtype)
      if rows.shape[axis] == count > 1 and not fuses:
        return jax.lax.dynamic_update_slice_in_dim(block, rows, at, axis)
    slots = jnp.arange(count if block is None else block.shape[axis])
    here = (slots >= at) & (slots < at + count)
    if rows.shape[axis] > count:
      token = jnp.where(here, slots - at, -1)
      ones = jnp.arange(rows.shape[axis])[:, None] == token
      places = 'bgdt,tn->bgdn' if axis == 3 else 'bgtd,tn->bgnd'
      ones = ones.astype(rows.dtype)
      rows = jnp.einsum(places, rows, ones, precision='highest')
    elif count > 1 and block is not None:
      rows = jnp.take(rows, slots - at, axis, mode='clip')
    if block is None:
      return rows
    return jnp.where(here if axis == 3 else here[:, None], rows, block)

  k, v = (None, None) if block is None else (block.k, block.v)
  return KV(one(k, rows.k, 3), one(v, rows.v, 2))


def commit(
  cache: Cache,
  flight: Cache,
  path: jax.Array,
  start: jax.Array,
  count: jax.Array | None = None,
):
  """Writes in-flight rows `path` [B, P] at slots start, start + 1, ...

    path [0, 2, 3]   flight  r0 r1 r2 r3
    start 5          cache   .. .. .. .. .. r0 r2 r3

  Rows of the path beyond the accepted ones are written too, and are invisible.
  `start + P` must not exceed the slots: dynamic_update_slice would clamp. A
  state has no slots, and advances by the first `count` [B] rows alone.
  """

  if isinstance(flight, OwnCache):
    rows = path + start[:, None]
    moved = flight.change(lambda x, axis: _write(x, x, rows, start, axis))
    return moved.settled()
  return _each(
    cache,
    flight,
    lambda old, new, axis: _write(old, new, path, start, axis),
    path,
    count,
  )


@functools.partial(jax.jit, static_argnums=4)
def _write(cache, flight, path, start, axis):
  """Writes rows of a block for `commit`; layers alike trace it once."""

  def one(cache, flight, path, start):  # Of one sequence: an axis less.
    rows = flight
    if flight.shape[axis - 1] > 1 or len(path) > 1:
      rows = jnp.take(flight, path, axis=axis - 1, mode='clip')
    return jax.lax.dynamic_update_slice_in_dim(
      cache, rows.astype(cache.dtype), start, axis=axis - 1
    )

  if len(path) == 1:  # A batch of updates is a scatter, which tests its bounds.
    return one(cache[0], flight[0], path[0], start[0])[None]
  return jax.vmap(one)(cache, flight, path, start)
