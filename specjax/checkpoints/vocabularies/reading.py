"""Reading a text in the target's tokens, or in the draft's own.

A text of other tokens has a length of its own. `ends` [B, S] remembers, by
position, how many of the draft's tokens the text has up to each of the
target's; text that is taken back needs nothing more.

  text      ' the'   'cat'   's'
  ends         1       3      4        pieces ' the' 'c' 'at' 's'

The draft's cache has room for `ratio` pieces a token, and for `slack` more. Of
a token for which there is none the last pieces are read, so that no write is
ever beyond the cache, whatever is in the text:

  ends[i] = min(ends[i-1] + pieces of token i, ratio * (i + 1) + slack)

A ratio is one at least, in quarters, and its products are rounded down.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints.vocabularies.tables import Tables
from specjax.models import cache as caches
from specjax.models import reduced_vocab_head
from specjax.types import Cache, Context, Weights

SLACK = 64
# A text of 512 slots may need a few more in a draft's own tokens: a cache that
# is no larger than this is still read at once, and not walked over.
AT_ONCE = 640
_FINE = 1024  # slots up to which there are multiples of 128


class Spelled(NamedTuple):
  """Parameters of a draft with another vocabulary."""

  weights: Weights
  tables: Tables


class Text(NamedTuple):
  """The state of a draft that has read a text."""

  cache: Cache
  ends: jax.Array | None  # [B, S]; None: its tokens are the target's


class Last(NamedTuple):
  """The end of a text; W of the draft's tokens, the last one last."""

  tokens: jax.Array  # [B, W]
  base: jax.Array  # [B] position of the first of these; may be negative
  known: jax.Array  # [B] tokens that the cache holds


class Reading(NamedTuple):
  """Pure functions of a draft's own parameters and a context.

  width: W, even: tokens behind those in the cache at most, when a draft begins.
  weights(own) -> the model's.
  begin(own, ctx) -> (tokens [B, S'], ends): the text, for prefill.
  last(own, ends, ctx) -> Last.
  extend(own, ends, ctx, count) -> ends: `count` tokens are new at most.
  translate(own, tokens) -> the draft's tokens, of those that it drafts.
  logits(own, logits) -> those of the target's tokens.
  at_once: slots of a cache that is not walked over, at most; 0: as any cache.
  """

  width: int
  weights: Callable[..., Weights]
  begin: Callable[..., tuple[jax.Array, Any]]
  last: Callable[..., Last]
  extend: Callable[..., Any]
  translate: Callable[..., jax.Array]
  logits: Callable[..., jax.Array]
  at_once: int = 0


def _last_two(own, ends, ctx: Context) -> Last:
  base = ctx.length - 2
  index = jnp.maximum(base[:, None] + jnp.arange(2), 0)
  tokens = jnp.take_along_axis(ctx.tokens, index, 1)
  return Last(tokens, base, jnp.maximum(base, 0))


# The target's tokens are the draft's.
SAME = Reading(
  width=2,
  weights=lambda own: own,
  begin=lambda own, ctx: (ctx.tokens, None),
  last=_last_two,
  extend=lambda own, ends, ctx, count: ends,
  translate=lambda own, tokens: tokens,
  logits=lambda own, logits: logits,
)


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Static sizes of a reading.

  Attributes:
    longest: P, pieces of a token at most.
    ratio: pieces a token that there is room for, all along a text; a multiple
      of 1/4.
    slack: pieces beyond these.
  """

  longest: int
  ratio: float
  slack: int = SLACK

  @property
  def width(self) -> int:
    """An accepted token that was never fed, and the pieces of the next."""
    return 2 * ((self.longest + 2) // 2)

  def longest_text(self, tokens: int) -> int:
    """Tokens of the draft that a text of the target's has at most."""
    return int(min(self.longest, self.ratio) * tokens) + self.slack

  def slots(self, slots: int) -> int:
    """Slots of the draft's cache, for so many slots of the target's."""
    needed = self.longest_text(slots) + self.width - 2
    return caches.round_slots(needed, _FINE)


def sizes_of(tables: Tables) -> Sizes:
  """Room for what the target's tokens have on average, and up to 1/4 more."""
  counts = np.diff(np.asarray(tables.starts))
  longest = int(counts.max())
  if longest == 1:
    return Sizes(1, 1.0, 0)
  return Sizes(longest, float(np.ceil(4 * counts.mean()) / 4))


def length_of(tables: Tables, text: Sequence[int]) -> int:
  """Tokens of the draft that a text has, on the host."""
  counts = np.diff(np.asarray(tables.starts))
  return int(counts[np.asarray(text)].sum())


def _counts(tables: Tables, tokens):
  return tables.starts[tokens + 1] - tables.starts[tokens]


def _room(sizes: Sizes, index):
  return int(4 * sizes.ratio) * (index + 1) // 4 + sizes.slack


def ends_of(sizes: Sizes, tables: Tables, tokens: jax.Array) -> jax.Array:
  """`ends` [B, S] of whole texts [B, S]."""
  total = jnp.cumsum(_counts(tables, tokens), 1)
  spare = _room(sizes, jnp.arange(tokens.shape[1])) - total
  lowest = jax.lax.cummin(spare, axis=1)
  return (total + jnp.minimum(lowest, 0)).astype(jnp.int32)


def _before(ends, index):
  """Pieces of the text before position index [B]."""
  at = jnp.maximum(index - 1, 0)[:, None]
  return jnp.where(index > 0, jnp.take_along_axis(ends, at, 1)[:, 0], 0)


def _window(sizes: Sizes, tables: Tables, ends, ctx: Context, count: int):
  """The last tokens [B, count] of texts, their ends, and their positions."""
  first = ctx.length - count
  index = first[:, None] + jnp.arange(count)
  tokens = jnp.take_along_axis(ctx.tokens, jnp.maximum(index, 0), 1)
  counts = jnp.where(index >= 0, _counts(tables, tokens), 0)
  end, made = _before(ends, first), []
  for i in range(count):
    end = jnp.minimum(end + counts[:, i], _room(sizes, index[:, i]))
    end = jnp.maximum(end, 0)  # Before the text there is nothing.
    made.append(end)
  return tokens, jnp.stack(made, 1).astype(jnp.int32), index


def _piece(tables: Tables, tokens, left):
  """The piece of each token with so many to come, itself included."""
  return tables.pieces[tables.starts[tokens + 1] - jnp.maximum(left, 1)]


def spell(tables: Tables, ends, tokens, slots: int) -> jax.Array:
  """Texts [B, slots] in the draft's tokens, of those [B, S] of the target."""
  place = jnp.arange(slots)

  def one(ends, tokens):
    at = jnp.searchsorted(ends, place, side='right')
    at = jnp.minimum(at, len(tokens) - 1)
    left = jnp.minimum(ends[at] - place, _counts(tables, tokens[at]))
    return _piece(tables, tokens[at], left)

  return jax.vmap(one)(ends, tokens)


@functools.cache
def other(sizes: Sizes) -> Reading:
  """The reading of a draft whose parameters are `Spelled`."""
  width = sizes.width

  def begin(own, ctx):
    ends = ends_of(sizes, own.tables, ctx.tokens)
    slots = sizes.slots(ctx.tokens.shape[1])
    return spell(own.tables, ends, ctx.tokens, slots), ends

  def last(own, ends, ctx):
    # What was drafted is one piece; a token of several was the last one of
    # a text before it was followed by another, and is in the cache.
    #
    #   text  ... a b      a drafted, never fed: W = 1 + P pieces to feed
    tokens, two, _ = _window(sizes, own.tables, ends, ctx, 2)
    length = two[:, 1]
    start = _before(ends, ctx.length - 2)
    known = two[:, 0] - (two[:, 0] - start == 1)
    place = length[:, None] - width + jnp.arange(width)
    of_a = place < two[:, :1]
    pieces = _piece(
      own.tables,
      jnp.where(of_a, tokens[:, :1], tokens[:, 1:]),
      jnp.where(of_a, two[:, :1], two[:, 1:]) - place,
    )
    return Last(pieces, length - width, known)

  def extend(own, ends, ctx, count):
    # One more: that of a cascade's text may be new to the drafter within.
    _, new, index = _window(sizes, own.tables, ends, ctx, count + 1)
    index = jnp.where(index < 0, ends.shape[1], index)
    rows = jnp.arange(len(ends))[:, None]
    return ends.at[rows, index].set(new, mode='drop')

  def translate(own, tokens):
    return _piece(own.tables, tokens, jnp.ones_like(tokens))

  return Reading(
    width,
    lambda own: own.weights,
    begin,
    last,
    extend,
    translate,
    lambda own, logits: reduced_vocab_head.spread(logits, own.tables.places),
    AT_ONCE,
  )
