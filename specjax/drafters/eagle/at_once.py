"""P-EAGLE: an EAGLE head that says all places of a draft in one pass.

Hui et al., arXiv:2602.01469. Behind the pairs of the text stand masks, pairs of
one token and one feature that were learned; each says one place. A mask sees
the pairs and the masks before it, and nothing that is drawn, so that drafts
have their true probabilities in every shape, see `shapes.parallel`.

  pairs  a1 b2 c3 | mm mm       features a to c are the target's
  says          4    5  6       of token 4, 5 and 6

The pass that reads accepted pairs reads the next draft's masks, too. In
training masks stand behind many pairs of a text, see `heads.masked`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.drafters.eagle.module import Head
from specjax.drafters.heads import masked
from specjax.drafters.shapes import parallel
from specjax.drafters.shapes.step_model import Walker
from specjax.models import cache as caches
from specjax.types import Cache


class State(NamedTuple):
  """Pair i, of feature i and token i + 1, is slot i of the cache."""

  cache: Cache
  features: jax.Array  # [B, K, F] after the last pair and the masks behind it
  length: jax.Array  # [B] tokens of the text then


def _with_masks(head: Head, params, tokens, features, count: int):
  """Tokens [B, T + M] and features of T pairs and of M masks behind them."""
  mask = head.read_mask(params).astype(features.dtype)
  masks = jnp.broadcast_to(mask, (len(tokens), count, len(mask)))
  more = (0, 0), (0, count)
  tokens = jnp.pad(tokens, more, constant_values=head.sizes.mask_token)
  return tokens, jnp.concatenate([features, masks], 1)


@functools.cache
def walk(head: Head, depth: int) -> Walker:
  """The walker of a head with masks that says `depth` places."""

  def extend(params, cache, used, tokens, features, new):
    """Features [B, R + K - 1, F] after pairs and after masks, and the flight.

    Args:
      params: `Params`.
      cache: of the pairs before these.
      used: [B] how many those are.
      tokens: [B, R] of the pairs.
      features: [B, R, F] of the pairs.
      new: [B] pairs that are of the text; masks follow the last of them.
    """
    offset, sees = parallel.with_masks(new, tokens.shape[1], depth - 1)
    pairs = _with_masks(head, params, tokens, features, depth - 1)
    attention = used[:, None] + offset, cache, used, sees, None, 0
    return head.forward(params, *pairs, *attention)

  def say(params, state):
    return parallel.Block(head.logits(params, state.features))

  def init(params, ctx, hidden, fed):
    del fed  # No drafted token is.
    cache, last = head.read_text(params, ctx, hidden)
    features = last[:, None]
    if depth > 1:
      none, zero = ctx.tokens[:, :0], jnp.zeros_like(ctx.length)
      used = ctx.length - 1
      ahead, _ = extend(params, cache, used, none, features[:, :0], zero)
      features = jnp.concatenate([features, ahead.astype(last.dtype)], 1)
    state = State(cache, features, ctx.length + 0)
    return state, parallel.empty(say, params, state)

  def start(params, state, block, ctx):
    del block, ctx  # Of the draft before; read when it was judged.
    return parallel.begin(say(params, state))

  def commit(params, state, block, ctx, verdict, hidden):
    del block  # Its masks were forgotten.
    batch, rows = verdict.path.shape
    begin, new = state.length - 1, ctx.length - state.length
    at = begin[:, None] + jnp.arange(1, rows + 1)
    tokens = jnp.take_along_axis(ctx.tokens, at, 1)
    read = head.read(params, hidden)
    made, flight = extend(params, state.cache, begin, tokens, read, new)
    path = jnp.broadcast_to(jnp.arange(rows), (batch, rows))
    cache = caches.commit(state.cache, flight, path, begin)
    features = parallel.ahead(made, rows, new, state.features)
    return State(cache, features, ctx.length + 0)

  return Walker(init, start, parallel.feed, commit, taps=head.sizes.taps)


def say_along(
  head: Head, params, tokens, hidden, drafts: masked.Drafts
) -> jax.Array:
  """Logits [B, R + M, V] after the pairs of texts and after masks.

  Args:
    head: with a mask.
    params: `Params`.
    tokens: [B, R + 1].
    hidden: [B, R + 1, len(taps), E] of the target.
    drafts: behind the R pairs.
  """
  tokens, features = tokens[:, 1:], head.read(params, hidden[:, :-1])
  count = drafts.begin.shape[1] - tokens.shape[1]
  pairs = _with_masks(head, params, tokens, features, count)
  attention = drafts.at, None, None, drafts.sees, None, 0
  features, _ = head.forward(params, *pairs, *attention)
  return head.logits(params, features)


def loss(head: Head, masks: masked.Masks, params, seen, key):
  """Pair i, which ends in token i + 1, and the masks behind it."""
  rows = seen.behind(1)
  drafts = masks.draw(key, rows.weights)
  logits = say_along(head, params, seen.tokens, seen.hidden, drafts)
  return {'token': masked.judge(drafts, rows, logits)}
