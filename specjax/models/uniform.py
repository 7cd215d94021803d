"""A model whose passes all have one shape, so that a row has the same bits.

How a compiler adds up depends on shapes: one row, a draft, a batch, a block of
a prompt. Here each of them is laid out as passes of `ROWS` rows, zeros behind,
in loops whose length the compiler does not know. What is a row's own is
computed by the same operations in the same order then, wherever the row lies:
draft, batch and text are numbers that a pass reads, not shapes. Attention goes
through the slots of a text in blocks, a few rows at a time. A drafted token
stands in the block that will hold it, not behind the cache.

On a GPU or TPU a product of so many rows takes about the time of one, since
weights take longest to read. On a CPU it does not.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.models import cache as caches
from specjax.models import transformer
from specjax.models.attention import AtOnce, Partial, View, attend_some
from specjax.models.cache_attention import blocked
from specjax.models.config import TransformerConfig
from specjax.models.transformer import Model, Output
from specjax.types import KV

ROWS = 128  # of every pass
_SLOTS = 512  # of a block of keys
_QUERIES = 8  # rows that attend at once


class _Rows(NamedTuple):
  """Says of each row of a pass which text it belongs to and what it sees."""

  text: jax.Array  # [ROWS] of the batch
  above: jax.Array  # [ROWS, ROWS] rows of its text up to itself, in order
  seen: jax.Array  # [ROWS] how many these are; 0: it is no row
  used: jax.Array  # [ROWS] slots of its text in the cache


def refuses(model: Model) -> str:
  """Returns why a model has no uniform passes; '' where it has."""
  config = model.config
  if not isinstance(config, TransformerConfig):
    return 'the model is of other code'
  if model.placement is not None:
    return 'the model is on a mesh'
  for part, name in (
    (config.recurrent, 'layers with a state'),
    (config.experts, 'experts'),
    (config.latent, 'attention to latents'),
    (config.sink_logits, 'logits of sinks'),
    (config.relative, 'biases of distances'),
    (config.encoder, 'an encoder'),
  ):
    if part:
      return f'the model has {name}'
  return ''


def is_uniform(model: Model) -> bool:
  """Returns true for a model that `uniform` made."""
  return getattr(model.forward, 'func', None) is _forward


@functools.cache
def uniform(model: Model) -> Model:
  """Returns the model with passes of one shape; the same parameters.

  A pass over a block that has rows already is as the model's own, and so is one
  without a cache: the decoding loop has neither.

  Args:
    model: with weights that are whole, on a single device; see `refuses`.
  """
  return model._replace(
    forward=functools.partial(_forward, model),
    head=functools.partial(_head, model),
  )


def _forward(
  model: Model,
  params,
  tokens,
  positions,
  cache,
  length,
  mask,
  flight=None,
  at=0,
  taps=(),
) -> Output:
  if cache is None or flight is not None:
    return model.forward(
      params, tokens, positions, cache, length, mask, flight, at, taps
    )
  batch, count = tokens.shape
  if count > ROWS:
    raise ValueError(
      f'{count} rows of a text are fed at once, but with exact=bits a pass has '
      f'{ROWS}: choose a smaller draft'
    )
  together = min(batch, ROWS // count)  # texts of a pass
  passes = -(-batch // together)

  def lay(x):  # [B, T, ...] -> [passes, ROWS, ...]
    x = caches.pad(x, 0, passes * together)
    x = x.reshape(passes, together * count, *x.shape[2:])
    return caches.pad(x, 1, ROWS)

  text = jnp.broadcast_to(jnp.arange(batch)[:, None], (batch, count))
  above = jnp.argsort(~mask, axis=-1, stable=True)
  above += (text % together * count)[..., None]
  rows = _Rows(
    lay(text),
    lay(caches.pad(above, 2, ROWS)),
    lay(mask.sum(-1)),
    lay(jnp.broadcast_to(length[:, None], (batch, count))),
  )
  rows = jax.tree.map(lambda x: x.astype(jnp.int32), rows)
  attention = _attention(-(-together * count // _QUERIES))
  config = dataclasses.replace(model.config, attention=attention)
  inner = transformer.build(config)

  def compute(given):
    tokens, positions, rows = given
    made = inner.forward(
      *(params, tokens[None], positions[None], cache, rows.used, rows),
      taps=taps,
    )
    return jax.tree.map(lambda x: x[0], made)

  made = _each(compute, (lay(tokens), lay(positions), rows))

  def lift(x, axis):  # [passes, ..., ROWS, ...] -> [B, ..., T, ...]
    x = jnp.moveaxis(x, axis, 1)[:, : together * count]
    x = x.reshape(passes * together, count, *x.shape[2:])[:batch]
    return jnp.moveaxis(x, 1, axis)

  block = [KV(lift(kv.k, 3), lift(kv.v, 2)) for kv in made.flight]
  return Output(lift(made.hidden, 1), lift(made.taps, 1), tuple(block))


def _head(model: Model, params, hidden):
  rows = hidden.reshape(-1, hidden.shape[-1])
  padded = caches.pad(rows, 0, -(-len(rows) // ROWS) * ROWS)
  made = _each(
    functools.partial(model.head, params),
    padded.reshape(-1, ROWS, padded.shape[-1]),
  )
  made = made.reshape(len(padded), -1)[: len(rows)]
  return made.reshape(*hidden.shape[:-1], -1)


def _each(compute, xs, turns=None, expected: int | None = None):
  """compute(x) of x in xs [N, ...], one after another.

  The compiler does not learn the number. It would make no loop of one turn, and
  compile what is in it together with what is round it.

  Args:
    compute: returns a tree of arrays.
    xs: a tree of arrays.
    turns: [] how many; zeros for the others. None: all.
    expected: how many that mostly is, for the counts of `bench.compiled`.
  """
  count = len(jax.tree.leaves(xs)[0])
  shapes = jax.eval_shape(compute, jax.tree.map(lambda x: x[0], xs))

  def turn(i, made):
    one = compute(jax.tree.map(lambda x: x[i], xs))
    return jax.tree.map(lambda x, y: x.at[i].set(y), made, one)

  if turns is None:
    turns = jax.lax.optimization_barrier(jnp.int32(count))
  start = jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), shapes)
  with jax.named_scope(f'each{expected or count}'):
    return jax.lax.fori_loop(0, turns, turn, start)


@functools.cache
def _attention(expected: int) -> AtOnce:
  """Attention of a pass; how many times so few rows attend is expected."""
  attend = functools.partial(_attend, expected)
  return AtOnce(lambda *_: True, attend, blocked)


def _attend(expected, q, cache, view: View, flight, rows: _Rows, bias, sink):
  """Attention of the rows [1, ROWS, G, H/G, D] of a pass.

  Args:
    expected: see `_attention`.
    q: queries.
    cache: KV of all texts.
    view: `first` [1, ROWS] slots that rows see.
    flight: KV of the pass.
    rows: in place of a mask.
    bias: None, and so is the next.
    sink: see `AtOnce`.
  """
  del bias, sink
  first = jnp.zeros_like(rows.used)
  if view.first is not None:
    first = view.first[0].astype(first.dtype)
  slots = -(-cache.v.shape[2] // _SLOTS) * _SLOTS
  keys, values = caches.pad(cache.k, 3, slots), caches.pad(cache.v, 2, slots)
  # A compiler may leave out the rounding of weights to 16 bits or not.
  dtype = jnp.promote_types(q.dtype, jnp.float32)

  def attend_few(given):
    q, rows, first = given
    lowest = jnp.finfo(dtype).min
    part = Partial(
      jnp.full(q.shape[:-1], lowest / 4, dtype),
      jnp.zeros(q.shape[:-1], dtype),
      jnp.zeros((*q.shape[:-1], cache.v.shape[-1]), dtype),
    )

    def turn(i, part):
      begin = i * _SLOTS
      slot = begin + jnp.arange(_SLOTS, dtype=jnp.int32)
      behind = slot - rows.used[:, None]
      new = (behind >= 0) & (behind < rows.seen[:, None])
      row = jnp.take_along_axis(rows.above, jnp.clip(behind, 0, ROWS - 1), 1)
      k = jax.lax.dynamic_slice_in_dim(keys, begin, _SLOTS, 3)[rows.text]
      v = jax.lax.dynamic_slice_in_dim(values, begin, _SLOTS, 2)[rows.text]
      more = jnp.moveaxis(flight.k[0][..., row], 2, 0).astype(k.dtype)
      k = jnp.where(new[:, None, None], more, k)
      more = jnp.moveaxis(flight.v[0][:, row], 1, 0).astype(v.dtype)
      v = jnp.where(new[:, None, :, None], more, v)
      inside = slot >= first[:, None]
      if view.sinks:
        inside |= slot < view.sinks
      keep = (inside & (behind < rows.seen[:, None]))[:, None, None]
      k, v = k.astype(dtype), v.astype(dtype)
      return attend_some(q, k, v, keep, view.cap, None, part)

    # A block that no row sees would change no bit.
    end = (rows.used + rows.seen).max()
    part = jax.lax.fori_loop(0, -(-end // _SLOTS), turn, part)
    return part.value / jnp.maximum(part.total, 1e-30)[..., None]

  few = jax.tree.map(
    lambda x: x.reshape(-1, _QUERIES, *x.shape[1:]),
    (q[0].astype(dtype), rows, first),
  )
  turns = -(-(rows.seen > 0).sum() // _QUERIES)
  made = _each(attend_few, few, turns, expected).astype(q.dtype)
  return made.reshape(1, ROWS, *made.shape[2:])
