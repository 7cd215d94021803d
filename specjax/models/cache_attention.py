"""Ways to attend over a cache: the same result, at another price.

  blocked   walks over the blocks in use, a turn of a loop each
  padded    reads all slots, in use or not, in one product
  few()     padded for few queries and slots, blocked for more
  fused()   hands all slots to the attention of `jax.nn`
  split     lets programs of a GPU share the slots in use, `flash_decoding`
  kernel    hands cache and block to `specjax.native`, which walks, too

`TransformerConfig.attention` chooses one. Reading a cache costs what is read of
it and copied for it:

  CPU        blocked, the default: a step costs what is in use, and hardly
             depends on the maximum (results/limit). With weights in blocks for
             the kernel (`variants.to_native`), kernel.
  GPU        split, by the estimates of its compiler (results/accelerators.md):
             the host waits for each turn of a loop whose length only the device
             knows.
  TPU        few, by those estimates, too. `experiments.step_costs` compares the
             ways on the device at hand.
"""

import functools

import jax
import jax.numpy as jnp

from specjax import native
from specjax.models.attention import (
  AtOnce,
  CacheAttention,
  Partial,
  View,
  attend_some,
  merge,
)
from specjax.types import KV


def _take(x, start, size, axis):
  """x [B, ...] from a place on, one for all rows or one for each, [B]."""
  take = functools.partial(jax.lax.dynamic_slice_in_dim, slice_size=size)
  if not jnp.ndim(start):
    return take(x, start, axis=axis)
  return jax.vmap(functools.partial(take, axis=axis - 1))(x, start)


def _read(q, cache, view, part, start, size):
  """Adds slots start, start + 1, ... of the cache to `part`.

  Where rows start at places of their own, a last block may go beyond the cache:
  it is read from before its start then, and what lies there is not seen twice.
  """
  k, v, slots = cache.k, cache.v, cache.v.shape[2]
  own = jnp.ndim(start) > 0
  at = jnp.minimum(start, slots - size) if own else start
  if size < slots:
    k, v = _take(k, at, size, 3), _take(v, at, size, 2)
  slot = (at[:, None] if own else at) + jnp.arange(size)
  bias = None if view.lift is None else view.lift(slot)
  keep = view.keep(slot, q.shape[2])
  if own:
    keep &= (slot >= start[:, None])[:, None, None]
  return attend_some(q, k, v, keep, view.cap, bias, part)


def padded(q: jax.Array, cache: KV, view: View, part: Partial) -> Partial:
  """Attention to every slot; those that are not in use are masked out."""
  return _read(q, cache, view, part, 0, cache.v.shape[2])


@functools.cache
def walk(whole: int = 512, rest: int = 128, at_once: int = 0) -> CacheAttention:
  """Returns a walk over the blocks in use, in each row from its window on.

    used 1100, whole 512, rest 128    0 .. 511 | 512 .. 1023 | 1024 .. 1151
    window 600, sinks 4               0 .. 127 | 384 ..  895 |  896 .. 1151

  A turn copies its block, whatever part of it is used, and has a price of its
  own: large blocks first, then small ones. A cache of at most one large block,
  or of `at_once` slots, is read at once. Where there is a window, rows begin at
  places of their own: what is read does not depend on how different their
  lengths are.

  Args:
    whole: slots of a large block.
    rest: slots of a small block, which divide those of a large one.
    at_once: slots of a cache that is not worth walking over.

  Raises:
    ValueError: they do not; or, when it is used, they do not divide the slots
      of a cache.
  """
  if not 1 <= rest <= whole or whole % rest:
    raise ValueError(
      f'rest is {rest}: it must divide the {whole} slots of a whole block'
    )

  def attend(q, cache, view, part):
    slots = cache.v.shape[2]
    if slots <= max(whole, at_once):
      return padded(q, cache, view, part)
    if slots % rest:
      raise ValueError(f'a cache of {slots} slots is no multiple of {rest}')
    begin, span = 0, view.length.max()
    if view.first is not None:
      begin = jnp.maximum(view.first.min(1), 0).astype(span.dtype)
      begin = begin // rest * rest
      if view.sinks:
        begin, part = read_sinks(q, cache, view, part, begin)
      span = jnp.maximum(view.length - begin, 0).max()
    turned = span // whole
    for size, start, stop in (
      (whole, jnp.zeros_like(span), turned),
      (rest, turned * (whole // rest), -(-span // rest)),
    ):

      def turn(i, part, size=size):
        return _read(q, cache, view, part, begin + i * size, size)

      part = jax.lax.fori_loop(start, stop, turn, part)
    return part

  def read_sinks(q, cache, view, part, begin):
    # Rows whose window begins behind them see them in blocks of their own; the
    # others begin at 0.
    blocks = -(-view.sinks // rest)
    begin = jnp.where(begin < blocks * rest, 0, begin)
    apart = begin > 0
    away = view._replace(length=jnp.where(apart, view.length, 0))

    def turn(i, part):
      return _read(q, cache, away, part, i * rest, rest)

    stop = jnp.where(apart.any(), blocks, 0)
    return begin, jax.lax.fori_loop(0, stop, turn, part)

  return attend


blocked = walk()


@functools.cache
def few(slots: int, queries: int = 512) -> CacheAttention:
  """Returns `padded` for short caches and few queries, and else `blocked`.

  An accelerator reads unused slots faster than it takes turns of a loop. The
  scores of many queries, as of a prefill, would take much memory.

  Args:
    slots: most slots of a cache that is read at once.
    queries: most queries M of a group of heads.
  """

  def attend(q, cache, view, part):
    short = cache.v.shape[2] <= slots and q.shape[2] <= queries
    return (padded if short else blocked)(q, cache, view, part)

  return attend


@functools.cache
def fused(implementation: str | None = None) -> CacheAttention:
  """Returns attention by `jax.nn.dot_product_attention`.

  Every group of heads of every row is a sequence to it, so that the cache is
  not transposed. It returns the logarithm of the sum of exponentials, by which
  its result is merged with the block, in the type of the keys: in bfloat16
  this shifts the weight of the cache against that of the block by up to a few
  percent. In float64 its softmax is still one of float32.

  Args:
    implementation: None, 'xla' or 'cudnn' (half precision on a GPU only).

  Raises:
    ValueError: when it is used: the model has a soft cap, or latents.
  """

  def attend(q, cache, view, part):
    if view.cap is not None:
      raise ValueError(
        'fused attention has no soft cap, and the model has one: use '
        'cache_attention.blocked or cache_attention.padded'
      )
    b, g, m, d = q.shape
    if cache.k.shape[2] != d:
      raise ValueError(
        'fused attention reads keys and values of one width, and the model has '
        'latents: use cache_attention.blocked or cache_attention.padded'
      )
    slots = cache.v.shape[2]

    def alone(x):  # [B, G, ...] -> a sequence of one head for each group
      return x.reshape(b * g, *x.shape[2:])

    bias = mask = lengths = None
    if view.lift is not None:
      bias = view.lift(jnp.arange(slots)).reshape(b * g, 1, m, slots)
      bias = bias.astype(q.dtype)
    if view.first is None:
      lengths = jnp.repeat(view.length.astype(jnp.int32), g)
    else:
      mask = view.keep(jnp.arange(slots), m)
      mask = jnp.repeat(mask, g, 0)
    value, total = jax.nn.dot_product_attention(
      alone(q.astype(cache.k.dtype))[:, :, None],
      alone(cache.k.swapaxes(2, 3))[:, :, None],
      alone(cache.v)[:, :, None],
      bias,
      mask,
      scale=1.0,
      key_value_seq_lengths=lengths,
      implementation=implementation,
      return_residual=True,
    )
    # Where nothing is seen, neither result means anything.
    sees = view.keep(jnp.arange(slots), m).any(-1)
    sees = jnp.broadcast_to(sees, (b, g, m))
    lowest = jnp.finfo(part.top.dtype).min / 2
    cached = Partial(
      jnp.where(sees, total.reshape(b, g, m), lowest).astype(part.top.dtype),
      sees.astype(part.total.dtype),
      jnp.where(sees[..., None], value.reshape(b, g, m, d), 0),
    )
    return merge(part, cached)

  return attend


def _kernel_fits(q, cache, flight, bias, sink):
  del bias
  types = {x.dtype.name for x in (*cache[:2], *flight)}
  slots, width = cache.v.shape[2], q.shape[-1]
  fits = types <= {*native.DTYPES} and native.attends(width, slots)
  fits = fits and sink is None
  return fits and cache.k.shape[2] == width and native.available()


def _kernel_attend(q, cache, view, flight, mask, bias, sink):
  del sink  # None.
  made = native.attend(
    q,
    (cache.k, cache.v),
    view.length,
    (flight.k, flight.v),
    mask,
    first=view.first,
    sinks=view.sinks,
    cap=view.cap,
    bias=bias,
  )
  return made.astype(q.dtype)


kernel = AtOnce(_kernel_fits, _kernel_attend, otherwise=blocked)


def _split_fits(*given):
  # A tenth of a second to import, which is for programs of GPUs.
  from specjax.models import flash_decoding

  return flash_decoding.fits(*given)


def _split_attend(*given):
  from specjax.models import flash_decoding

  return flash_decoding.attend(*given)


split = AtOnce(_split_fits, _split_attend, few(32768))
