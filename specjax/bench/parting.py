"""Names the operation at which the bits of a row part from plain decoding's.

A text is scored again in two ways, over the cache that the smaller one fills:

  plain decoding     t0   t1   t2   t3   t4     a pass each, one row
  a block            t0 . t1 . t2 . t3 . t4     one pass, five rows

Blocks follow one another from the prompt to the place where texts part. In the
first block that parts each row is compared with its row of plain decoding,
output by output of the modules, in the order in which they are computed. The
first output with other bits, behind equal ones, names the operation.

Outputs that are kept may change how a compiler fuses a pass. So the block is
found by logits, keys and values alone, and an operation is named only where the
passes that keep all outputs give the same logits, to the bit.
"""

import collections
import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from specjax.models import cache as caches
from specjax.models import linear, prefill, sharding, transformer, uniform
from specjax.models.config import TransformerConfig
from specjax.types import Source

NOWHERE, HIDDEN = 'no operation', 'no module alone'
# What is computed between the modules of a layer, by the module that reads it.
_BEFORE = {'out': 'attention', 'down': 'activation'}
_HEAD, _MODEL = 'head', 'the model'

Rows = dict[str, list[Any]]  # arrays [B, T, ...] by their operation


class Scoring(NamedTuple):
  """A way to score a text: all that decides about rounding."""

  target: transformer.Model
  weights: Any  # in the dtype that is computed in
  rows: int  # tokens scored at once
  batch: int
  slots: int
  source_slots: int | None = None  # for the text that an encoder reads


class Parting(NamedTuple):
  """Where bits of a row first part.

  Attributes:
    operation: the module whose output parts, such as `layer0/qkv`, `norm` or
      `head`; or what lies between modules: `layer0/keys` (after the rotation),
      `layer0/attention`, `layer0/activation`, or what a module reads. Of passes
      of one shape (`models.uniform`) only keys, layers, `norm` and `head` are
      told apart. `prefill`, where only reading the prompts in a batch parts.
      `the model` of other code. `NOWHERE`, where all passes have the same bits:
      what parts the texts is outside of them. `HIDDEN`, where passes that keep
      their outputs have other bits than those that do not.
    rows: fewest rows of a text in a pass at which it parts; None where there is
      no such operation.
  """

  operation: str
  rows: int | None = None


def read_source(way: Scoring, sources, batch: int) -> Source | None:
  """Returns what the encoder reads of one prompt, in every row."""
  if sources is None:
    return None
  needed = caches.round_slots(len(sources[0]))
  slots = caches.fit_slots(
    'source_slots', way.source_slots, needed, 'the prompt'
  )
  return Source(*prefill.pad(sources * batch, slots))


def _row_arrays(value, shape) -> Iterator[tuple[str, Any]]:
  """Yields arrays [B, T, ...] that a module returned, and what names end in.

  Args:
    value: of the module.
    shape: (B, T, rows of the pass): it may have rows behind those of tokens,
      see `devices.DeviceForm`.
  """
  batch, tokens, rows = shape
  parts = value if type(value) is tuple else (value,)
  for x in parts:
    if hasattr(x, 'k'):  # A block of keys and values.
      yield '/keys', jnp.moveaxis(x.k, 3, 1)[:, :tokens]
      yield '/keys', jnp.moveaxis(x.v, 2, 1)[:, :tokens]
    elif getattr(x, 'shape', ())[:2] in ((batch, tokens), (batch, rows)):
      yield '', x[:, :tokens]


def _listener(notes: Rows, shape) -> Callable[..., Any]:
  """Notes what modules read and return in a pass; see `_row_arrays`."""

  def note(name, value):
    for end, x in _row_arrays(value, shape):
      notes.setdefault(name + end, []).append(x)

  def listen(call, args, kwargs, context):
    path = context.module.path
    if not path or context.method_name != '__call__':
      return call(*args, **kwargs)
    *layer, last = path
    name = '/'.join(path)
    if last == 'out':  # A layer returns its keys at the end: keep their place.
      notes['/'.join([*layer, 'keys'])] = []
    between = _BEFORE.get(last) if len(path) == 2 else None
    note(
      '/'.join([*layer, between]) if between else f'what {name} reads', args[:1]
    )
    made = call(*args, **kwargs)
    note(name, made)
    return made

  return listen


@functools.partial(jax.jit, static_argnames='target')
def _read(weights, tokens, length, source, *, target):
  """The cache of all but the last of `length` [B] tokens [B, S]."""
  cache = transformer.open_cache(target, weights, *tokens.shape, source)
  return prefill.prefill(target, weights, tokens, length, cache)[0]


@functools.partial(jax.jit, static_argnames=('target', 'named'))
def _pass(weights, tokens, used, cache, *, target, named):
  """Rows of a pass over a block [B, T], and the cache with it.

  Args:
    weights: of the target.
    tokens: of the block.
    used: [B] slots of the cache.
    cache: before the block.
    target: the model.
    named: keep all outputs, not the logits, keys and values alone.
  """
  batch, rows = tokens.shape
  mask, offset = transformer.causal(batch, rows)
  at = used[:, None] + offset
  notes: Rows = collections.OrderedDict()
  listen: Any = contextlib.nullcontext()
  taps, apart = range(0), {}
  shape = batch, rows, rows
  if named and uniform.is_uniform(target):  # Modules are called in loops.
    taps = range(target.config.num_layers)
  elif named:
    padded = linear.pad_rows(tokens[..., None], target.config.device.rows)
    shape = batch, rows, padded.shape[1]
    listen = nn.intercept_methods(_listener(notes, shape))
    apart = {'apart': True}
  with listen:
    out = target.forward(
      weights, tokens, at, cache, used, mask, taps=tuple(taps), **apart
    )
  for i in taps:
    block = _row_arrays(out.flight[i], shape)
    notes[f'layer{i}/keys'] = [x for _, x in block]
    notes[f'layer{i}'] = [out.taps[:, :, i]]
  if taps:
    notes['norm'] = [out.hidden]
  logits = target.head(weights, out.hidden)
  notes[_HEAD] = [logits]
  if not named:
    flight = out.flight if type(out.flight) is tuple else ()
    made = _row_arrays((logits, *flight), shape)
    notes = {_MODEL: [x for _, x in made]}
  count = jnp.full(batch, rows)
  return notes, caches.commit(cache, out.flight, offset, used, count)


class _Walk(NamedTuple):
  """A text that is scored in two ways, block by block."""

  few: Scoring
  many: Scoring
  tokens: np.ndarray  # [S]

  def read(self, way: Scoring, length: int, sources):
    tokens = np.broadcast_to(self.tokens, (way.batch, len(self.tokens)))
    source = read_source(way, sources, way.batch)
    lengths = np.full(way.batch, length, np.int32)
    return _read(way.weights, tokens, lengths, source, target=way.target)

  def step(self, way, begin: int, rows: int, cache, named: bool):
    """Rows of one pass from a place on, and the cache with them."""
    block = self.tokens[begin : begin + rows]
    tokens = np.broadcast_to(block, (way.batch, rows))
    used = np.full(way.batch, begin, np.int32)
    found, cache = _pass(
      way.weights, tokens, used, cache, target=way.target, named=named
    )
    return sharding.fetch(found), cache

  def in_few(self, begin: int, cache, named: bool):
    """The rows of a block as the smaller way has them; and the cache."""
    made = []
    for at in range(begin, begin + self.many.rows, self.few.rows):
      rows, cache = self.step(self.few, at, self.few.rows, cache, named)
      made.append(rows)
    joined = {
      name: [
        np.concatenate(x, 1) for x in zip(*(m[name] for m in made), strict=True)
      ]
      for name in made[0]
    }
    return joined, cache

  def in_block(self, begin: int, rows: int, cache, named: bool) -> Rows:
    """The rows of a block at once, over the cache of the smaller way."""
    batch = self.many.batch
    if batch != self.few.batch:
      cache = jax.tree.map(
        lambda x: jnp.broadcast_to(x[:1], (batch, *x.shape[1:])), cache
      )
    return self.step(self.many, begin, rows, cache, named)[0]

  def name(self, begin: int, cache, found: Rows, wanted: Rows) -> Parting:
    """Names what parts in a block, whose rows without names are known."""
    few, many = self.few, self.many
    named = isinstance(many.target.config, TransformerConfig)
    if named:
      kept = self.in_block(begin, many.rows, cache, True)
      kept_few, _ = self.in_few(begin, cache, True)
      if _differ(kept[_HEAD][0], found[_MODEL][0]):
        return Parting(HIDDEN)
      if _differ(kept_few[_HEAD][0], wanted[_MODEL][0]):
        return Parting(HIDDEN)
      found, wanted = kept, kept_few
    operation = _first(found, wanted)
    if operation is None:
      return Parting(HIDDEN)
    for rows in range(few.rows + (few.batch == many.batch), many.rows):
      block = self.in_block(begin, rows, cache, named)
      if _first(block, wanted) == operation:
        return Parting(operation, rows)
    return Parting(operation, many.rows)


def _differ(rows, wanted) -> bool:
  """Returns true if rows [B, T, ...] have other bits than the first wanted."""
  if len(wanted) != len(rows):  # All texts of a batch are the same.
    wanted = wanted[:1]
  wanted = np.broadcast_to(wanted[:, : rows.shape[1]], rows.shape)
  return rows.tobytes() != wanted.tobytes()


def _first(found: Rows, wanted: Rows) -> str | None:
  """The first name whose arrays have other bits; None: all are the same."""
  for name, arrays in found.items():
    pairs = zip(arrays, wanted.get(name, ()), strict=False)
    if any(_differ(*pair) for pair in pairs):
      return name
  return None


def find(ways: list[Scoring], prompt, new) -> Parting | None:
  """Names the first operation whose bits part while a text is decoded.

  The last block ends with the text, and so the first begins within the prompt.
  If the prompt is too short for that, the first block begins with the prompt,
  and behind the text come tokens that are 0.

  Args:
    ways: the two that are compared, of one set of weights.
    prompt: of the text.
    new: tokens behind it, up to the place where the texts part.

  Returns:
    The operation; None where ways have weights of their own, or there are not
    two of them.
  """
  if len(ways) != 2 or ways[0].weights is not ways[1].weights:
    return None
  few, many = sorted(ways, key=lambda way: way.rows * way.batch)
  (text,), sources = prefill.split(few.target.config, [prompt])
  length = len(text) + len(new)
  tokens = np.zeros(few.slots, np.int32)
  tokens[:length] = *text, *new
  walk, size = _Walk(few, many, tokens), many.rows
  lowest = max(len(text) - 1 - size, -1)
  begins = range(length - size, lowest, -size)[::-1]
  if not begins or begins[0] >= len(text):
    begins = range(0, length, size)
  cache = walk.read(few, begins[0] + 1, sources)
  for begin in begins:
    wanted, after = walk.in_few(begin, cache, False)
    found = walk.in_block(begin, size, cache, False)
    if _first(found, wanted):
      return walk.name(begin, cache, found, wanted)
    cache = after
  if few.batch != many.batch:
    caches_of = (walk.read(way, length, sources) for way in (many, few))
    one, other = (jax.tree.leaves(sharding.fetch(x)) for x in caches_of)
    if any(
      _differ(x[:, None], y[:, None]) for x, y in zip(one, other, strict=True)
    ):
      return Parting('prefill')
  return Parting(NOWHERE)
