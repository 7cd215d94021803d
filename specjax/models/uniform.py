"""A model whose passes all have one shape, so that a row has the same bits.

How a compiler adds up depends on shapes: one row, a draft, a batch, a block of
a prompt. Here each of them is laid out as a pass of `ROWS` rows, zeros behind,
in a loop of its own. What is a row's own is computed by the same operations in
the same order then, wherever the row lies. Attention goes through the slots of
a text in blocks, a few rows at a time. A drafted token stands in the block that
will hold it, not behind the cache.

On a GPU or TPU a product of so many rows takes about the time of one, since
weights take longest to read. On a CPU it does not.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from specjax.models import cache as caches
from specjax.models import cache_attention, transformer
from specjax.models.attention import (
  AtOnce,
  Partial,
  View,
  attend_some,
)
from specjax.models.config import TransformerConfig
from specjax.models.transformer import Model, Output
from specjax.types import KV

ROWS = 128  # of every pass
_SLOTS = 512  # of a block of keys
_QUERIES = 8  # rows that attend at once


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
  return getattr(model.config, 'attention', None) is _attention(0, 0)


@functools.cache
def uniform(model: Model) -> Model:
  """Returns the model with passes of one shape; the same parameters.

  Args:
    model: with weights that are whole, on a single device; see `refuses`.
  """
  config = dataclasses.replace(model.config, attention=_attention(0, 0))

  def forward(
    params,
    tokens,
    positions,
    cache,
    length,
    mask,
    flight=None,
    at=0,
    taps=(),
  ):
    if cache is None:  # Whole texts, which no pass repeats.
      return model.forward(
        params, tokens, positions, cache, length, mask, flight, at, taps
      )
    run = functools.partial(_one_pass, config, params, taps=taps)
    if tokens.shape[1] > ROWS:
      run = functools.partial(_in_turns, run)
    together = _together(*tokens.shape)
    if flight is not None or tokens.shape[1] > ROWS:
      together = 1
    given = tokens, positions, cache, length, mask, flight
    return _in_groups(lambda x: run(*x, at), given, together)

  def head(params, hidden):
    rows = hidden.reshape(-1, hidden.shape[-1])
    padded = caches.pad(rows, 0, -(-len(rows) // ROWS) * ROWS)
    made = _each(
      lambda x: model.head(params, x),
      padded.reshape(-1, ROWS, padded.shape[-1]),
    )
    made = made.reshape(len(padded), -1)[: len(rows)]
    return made.reshape(*hidden.shape[:-1], -1)

  made = transformer.build(config)
  return made._replace(forward=forward, head=head)


def _together(texts: int, rows: int) -> int:
  """How many texts share a pass: they divide all, and their rows fit."""
  return max(
    k
    for k in range(1, texts + 1)
    if (texts % k == 0 and k * rows <= ROWS) or k == 1
  )


def _each(compute, xs):
  """compute(x) of every x in xs [N, ...], one after another.

  The compiler does not learn the number. It would make no loop of one turn, and
  compile what is in it together with what is round it.
  """
  count = len(jax.tree.leaves(xs)[0])
  shapes = jax.eval_shape(compute, jax.tree.map(lambda x: x[0], xs))

  def turn(i, made):
    one = compute(jax.tree.map(lambda x: x[i], xs))
    return jax.tree.map(lambda x, y: x.at[i].set(y), made, one)

  turns = jax.lax.optimization_barrier(jnp.int32(count))
  start = jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), shapes)
  with jax.named_scope(f'each{count}'):  # For `bench.compiled`.
    return jax.lax.fori_loop(0, turns, turn, start)


def _in_groups(run, given, together: int) -> Output:
  """Runs so many texts of [B, ...] at a time."""
  groups = jax.tree.map(
    lambda x: x.reshape(len(x) // together, together, *x.shape[1:]), given
  )
  made = _each(run, groups)
  return jax.tree.map(
    lambda x: x.reshape(len(x) * together, *x.shape[2:]), made
  )


def _in_turns(
  run, tokens, positions, cache, length, mask, flight, at
) -> Output:
  """Feeds more than `ROWS` rows of a text, each block behind the one before."""
  made = []
  for begin in range(0, tokens.shape[1], ROWS):
    rows = slice(begin, begin + ROWS)
    end = at + min(begin + ROWS, tokens.shape[1])
    part = run(
      tokens[:, rows],
      positions[:, rows],
      cache,
      length,
      mask[:, rows, :end],
      flight,
      at + begin,
    )
    flight = part.flight
    made.append(part)
  hidden = jnp.concatenate([x.hidden for x in made], 1)
  tapped = jnp.concatenate([x.taps for x in made], 1)
  return Output(hidden, tapped, flight)


def _one_pass(
  config, params, tokens, positions, cache, length, mask, flight, at, taps
) -> Output:
  """A pass over [B, T] tokens, B * T of them at most `ROWS`."""
  batch, count = tokens.shape
  rows = batch * count
  inner = dataclasses.replace(config, attention=_attention(batch, count))

  def flat(x):
    return caches.pad(x.reshape(1, rows), 1, ROWS)

  if flight is not None:
    flight = caches.grow(flight, at + ROWS)

  out = transformer.build(inner).forward(
    *(params, flat(tokens), flat(positions)),
    *(cache, length, mask, flight, at, taps),
  )

  def lift(x):
    return x[0, :rows].reshape(batch, count, *x.shape[2:])

  def block(kv):
    if flight is not None:
      end = at + count
      return KV(kv.k[..., :end], kv.v[:, :, :end])
    k, v = kv.k[0, ..., :rows], kv.v[0, :, :rows]
    k = k.reshape(*k.shape[:2], batch, count)
    v = v.reshape(len(v), batch, count, v.shape[-1])
    return KV(jnp.moveaxis(k, 2, 0), v.swapaxes(0, 1))

  return Output(lift(out.hidden), lift(out.taps), tuple(map(block, out.flight)))


@functools.cache
def _attention(batch: int, count: int) -> AtOnce:
  """Attention of the rows of `_one_pass`.

  Of no rows it marks the model, and a draft that is made of its layers attends
  as others do.
  """
  attend = functools.partial(_attend, batch, count)
  return AtOnce(lambda *_: batch > 0, attend, cache_attention.blocked)


def _attend(batch, count, q, cache, view: View, flight, mask, bias):
  """Attention of `ROWS` rows [1, ROWS, G, H/G, D], of which B * T are real.

  Args:
    batch: B texts.
    count: T rows of each.
    q: queries.
    cache: KV of the texts.
    view: what rows see of it; `first` [1, ROWS].
    flight: KV of the rows, in the order of q, behind those before them.
    mask: [B, T, N].
    bias: None.
  """
  del bias
  rows, nodes = batch * count, mask.shape[-1]
  padded = -(-rows // _QUERIES) * _QUERIES
  # What a row sees of the block, in the order of the text.
  order = jnp.argsort(~mask, axis=-1, stable=True).reshape(rows, nodes)
  text = jnp.arange(rows) // count
  column = text[:, None] * count + order
  seen = mask.sum(-1).reshape(rows)
  first = jnp.zeros(rows, jnp.int32)
  if view.first is not None:
    first = view.first[0, :rows]
  slots = -(-cache.v.shape[2] // _SLOTS) * _SLOTS
  keys, values = caches.pad(cache.k, 3, slots), caches.pad(cache.v, 2, slots)
  dtype = jnp.promote_types(q.dtype, jnp.float32)

  def attend_few(given):
    q, text, column, used, seen, first = given
    lowest = jnp.finfo(dtype).min
    part = Partial(
      jnp.full(q.shape[:-1], lowest / 4, dtype),
      jnp.zeros(q.shape[:-1], dtype),
      jnp.zeros((*q.shape[:-1], cache.v.shape[-1]), dtype),
    )

    def turn(i, part):
      begin = i * _SLOTS
      slot = begin + jnp.arange(_SLOTS)
      behind = slot - used[:, None]
      new = (behind >= 0) & (behind < seen[:, None])
      index = jnp.take_along_axis(
        column, jnp.clip(behind, 0, nodes - 1), 1, mode='clip'
      )
      k = jax.lax.dynamic_slice_in_dim(keys, begin, _SLOTS, 3)[text]
      v = jax.lax.dynamic_slice_in_dim(values, begin, _SLOTS, 2)[text]
      more = jnp.moveaxis(flight.k[0][..., index], 2, 0).astype(k.dtype)
      k = jnp.where(new[:, None, None], more, k)
      more = jnp.moveaxis(flight.v[0][:, index], 1, 0).astype(v.dtype)
      v = jnp.where(new[:, None, :, None], more, v)
      inside = slot >= first[:, None]
      if view.sinks:
        inside |= slot < view.sinks
      keep = (inside & (behind < seen[:, None]))[:, None, None]
      # A compiler may leave out the rounding of weights to 16 bits or not.
      k, v = k.astype(dtype), v.astype(dtype)
      return attend_some(q, k, v, keep, view.cap, None, part)

    part = jax.lax.fori_loop(0, slots // _SLOTS, turn, part)
    return part.value / jnp.maximum(part.total, 1e-30)[..., None]

  few = jax.tree.map(
    lambda x: caches.pad(x[:rows], 0, padded).reshape(
      -1, _QUERIES, *x.shape[1:]
    ),
    (q[0].astype(dtype), text, column, view.length[text], seen, first),
  )
  made = _each(attend_few, few).astype(q.dtype)
  made = made.reshape(1, padded, *made.shape[2:])
  return caches.pad(made[:, :ROWS], 1, ROWS)
