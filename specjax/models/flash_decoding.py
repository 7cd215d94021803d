"""Attention over a cache and a block in two kernels, for GPUs.

Programs of a first kernel share the slots in use of a text, so that few texts
and heads fill a GPU. A second kernel merges what they found (Dao et al.,
Flash-Decoding for long-context inference, 2023). The host learns no length, and
slots in no use are not read.

JAX compiles the kernels by Triton. On a CPU it interprets them.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from specjax.models.attention import View
from specjax.types import KV

_DTYPES = 'bfloat16', 'float16', 'float32'
_FEWEST = 16  # sides of a product of Triton, powers of 2
_ROWS = 64  # queries of a program, at most
_NUMBERS = 8192  # of the values that it gathers, at most
_QUERIES = 512  # of a group of heads, at most
_SLOTS = 128  # of a turn, at most
_BYTES = 16384  # of the keys of a turn, at most: a GPU's caches hold two turns
_PROGRAMS = 128  # at work at once, about as many as a GPU has processors


def _power(least: int) -> int:
  """Returns the least side of a product that is at least so long."""
  return max(_FEWEST, 1 << (least - 1).bit_length())


def fits(q: jax.Array, cache: KV, flight: KV, bias, sink) -> bool:
  """Returns true where the kernels attend; see `AtOnce.fits`."""
  del sink
  t, _, r, d = q.shape[1:]
  types = {x.dtype.name for x in (q, cache.k, cache.v, flight.k, flight.v)}
  slots = cache.v.shape[2]
  return (
    bias is None
    and len(types) == 1
    and types <= {*_DTYPES}
    and cache.k.shape[2] == d == _power(d)
    and slots % _slots_of_turn(cache.k) == 0
    and t * r <= _QUERIES
    and _power(flight.v.shape[2]) * d * flight.v.dtype.itemsize <= 2 * _BYTES
  )


def _slots_of_turn(keys: jax.Array) -> int:
  """Returns the slots whose keys and values a program reads at once."""
  each = keys.shape[2] * keys.dtype.itemsize
  return max(_FEWEST, min(_SLOTS, _BYTES // each))


def _share(
  q_ref,  # [rows, D]
  k_ref,  # [D, S]
  v_ref,  # [S, D]
  length_ref,  # []
  near_k_ref,  # [D, N]
  near_v_ref,  # [N, D]
  seen_ref,  # [rows, N]
  *refs,  # [rows] of windows and of sinks' logits, where there are; results
  queries: int,
  block: int,
  size: int,
  windowed: bool,
  sinks: int,
  cap: float | None,
):
  """Attends to every n-th turn of slots; the first one to the block, too."""
  *given, value_ref, top_ref, total_ref = refs
  first_ref, sink_ref = given[:windowed], given[windowed:]
  share, shares = pl.program_id(1), pl.num_programs(1)
  rows, width = q_ref.shape
  real = pl.program_id(2) * rows + jnp.arange(rows) < queries
  inside = jnp.arange(near_v_ref.shape[0]) < block
  q = triton.load(q_ref, mask=real[:, None], other=0.0)
  length = length_ref[...]
  first: Any = None
  if first_ref:
    first = triton.load(first_ref[0], mask=real, other=length)
  lowest = jnp.finfo(jnp.float32).min

  def add(k, v, keep, part):
    top, total, value = part
    score = triton.dot(q, k)
    if cap is not None:
      score = cap * jnp.tanh(score / cap)
    # What is not seen lies so far below any `top` that its weight is 0.
    score = jnp.where(keep, score, lowest / 2)
    new = jnp.maximum(top, score.max(1))
    weight, scale = jnp.exp(score - new[:, None]), jnp.exp(top - new)
    value = value * scale[:, None] + triton.dot(weight.astype(v.dtype), v)
    return new, total * scale + weight.sum(1), value

  def read_block(part):
    if sink_ref:  # A logit without a token is one that was read before.
      logit = triton.load(sink_ref[0], mask=real, other=0.0)
      part = logit, jnp.ones_like(logit), part[2]
    k = triton.load(near_k_ref, mask=inside[None], other=0.0)
    v = triton.load(near_v_ref, mask=inside[:, None], other=0.0)
    both = real[:, None] & inside[None]
    seen = triton.load(seen_ref, mask=both, other=0)
    return add(k, v, seen > 0, part)

  def turn(i, part):
    at = (begin + share + i * shares) * size
    slots = pl.ds(at, size)
    slot = at + jnp.arange(size)
    keep = jnp.broadcast_to(slot[None] < length, (rows, size))
    if first_ref:
      near = slot[None] >= first[:, None]
      keep &= near | (slot[None] < sinks) if sinks else near
    return add(k_ref[:, slots], v_ref[slots, :], keep, part)

  part = (
    jnp.full((rows,), lowest / 4, jnp.float32),
    jnp.zeros((rows,), jnp.float32),
    jnp.zeros((rows, width), jnp.float32),
  )
  part = jax.lax.cond(share == 0, read_block, lambda part: part, part)
  begin: Any = 0  # Where there are sinks all turns are read.
  if first_ref and not sinks:
    begin = jnp.maximum(first.min(), 0) // size
  # `pl.cdiv` would make numbers of 64 bits where JAX has these.
  left = (length + (size - 1)) // size - begin - share
  turns = jnp.maximum((left + (shares - 1)) // shares, 0)
  top, total, value = jax.lax.fori_loop(0, turns, turn, part)
  triton.store(top_ref, top, mask=real)
  triton.store(total_ref, total, mask=real)
  triton.store(value_ref, value, mask=real[:, None])


def _merge(
  value_ref,  # [shares, rows, D]
  top_ref,  # [shares, rows]
  total_ref,  # [shares, rows]
  out_ref,  # [rows, D]
  *,
  queries: int,
):
  """Merges what the programs of `_share` found."""
  shares, rows, _ = value_ref.shape
  real = pl.program_id(1) * rows + jnp.arange(rows) < queries
  tops = triton.load(top_ref, mask=real[None], other=0.0)
  totals = triton.load(total_ref, mask=real[None], other=0.0)
  top = tops.max(0)
  total = (totals * jnp.exp(tops - top[None])).sum(0)

  def add(share, made):
    part = triton.load(top_ref.at[share], mask=real, other=0.0)
    value = triton.load(value_ref.at[share], mask=real[:, None], other=0.0)
    return made + value * jnp.exp(part - top)[:, None]

  made = jnp.zeros(out_ref.shape, jnp.float32)
  made = jax.lax.fori_loop(0, shares, add, made)
  # A row that sees nothing (padding) has total 0: it gets 0, not NaN.
  made /= jnp.maximum(total, 1e-30)[:, None]
  triton.store(out_ref, made.astype(out_ref.dtype), mask=real[:, None])


def attend(q, cache, view: View, flight, mask, bias, sink):
  """See `AtOnce.attend`; the queries of a group are its rows."""
  del bias
  b, t, g, r, d = q.shape
  first = view.first
  if first is not None:
    place = view.length[:, None, None] + jnp.cumsum(mask, -1) - 1
    near = place >= first[..., None]
    if view.sinks:
      near |= place < view.sinks
    mask &= near
    first = jnp.repeat(first.astype(jnp.int32), r, 1)
  seen = jnp.repeat(mask.astype(jnp.int32), r, 1)
  if sink is not None:
    sink = jnp.tile(sink.astype(jnp.float32), (1, t))
  q = q.transpose(0, 2, 1, 3, 4).reshape(b, g, t * r, d)
  run = functools.partial(_run, sinks=view.sinks, cap=view.cap)
  with jax.named_scope('walk'):
    made = jax.lax.platform_dependent(
      *(q, KV(cache.k, cache.v), view.length.astype(jnp.int32)),
      *(KV(flight.k, flight.v), seen, first, sink),
      cpu=functools.partial(run, interpret=True),
      default=run,
    )
  return made.reshape(b, g, t, r, d).transpose(0, 2, 1, 3, 4)


def _run(
  q, cache, length, block, seen, first, sink, *, sinks, cap, interpret=False
):
  b, g, m, d = q.shape
  slots, count = cache.v.shape[2], block.v.shape[2]
  rows = max(_FEWEST, min(_power(m), _ROWS, _NUMBERS // d))
  size, near = _slots_of_turn(cache.k), _power(count)
  most = max(1, min(slots // size, _PROGRAMS // (b * g)))
  shares = 1 << (most.bit_length() - 1)
  tiles = pl.cdiv(m, rows)
  given = [x for x in (first, sink) if x is not None]
  row = pl.BlockSpec((None, rows), lambda i, j, n: (i // g, n))
  head = pl.BlockSpec((None, rows), lambda i, j, n: (i % g, n))

  def of_group(*shape, tiled=False):
    def index(i, j, n):
      return i // g, i % g, *((n if tiled else 0), *[0] * (len(shape) - 1))

    return pl.BlockSpec((None, None, *shape), index)

  call = functools.partial(
    pl.pallas_call,
    interpret=interpret,
    compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
  )
  parts = call(
    functools.partial(
      _share,
      queries=m,
      block=count,
      size=size,
      windowed=first is not None,
      sinks=sinks,
      cap=cap,
    ),
    grid=(b * g, shares, tiles),
    in_specs=[
      of_group(rows, d, tiled=True),
      of_group(d, slots),
      of_group(slots, d),
      pl.BlockSpec((None,), lambda i, j, n: (i // g,)),
      of_group(d, near),
      of_group(near, d),
      pl.BlockSpec((None, rows, near), lambda i, j, n: (i // g, n, 0)),
      *[row] * (first is not None),
      *[head] * (sink is not None),
    ],
    out_specs=[
      pl.BlockSpec((None, None, rows, d), lambda i, j, n: (i, j, n, 0)),
      *[pl.BlockSpec((None, None, rows), lambda i, j, n: (i, j, n))] * 2,
    ],
    out_shape=[
      jax.ShapeDtypeStruct((b * g, shares, m, *more), jnp.float32)
      for more in ((d,), (), ())
    ],
  )(q, *cache, length, *block, seen, *given)
  return call(
    functools.partial(_merge, queries=m),
    grid=(b * g, tiles),
    in_specs=[
      pl.BlockSpec((None, shares, rows, d), lambda i, n: (i, 0, n, 0)),
      *[pl.BlockSpec((None, shares, rows), lambda i, n: (i, 0, n))] * 2,
    ],
    out_specs=pl.BlockSpec(
      (None, None, rows, d), lambda i, n: (i // g, i % g, n, 0)
    ),
    out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
  )(*parts)
