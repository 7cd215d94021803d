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
from specjax.drafters.shapes.parallel import Masked
from specjax.drafters.shapes.step_model import Walker
from specjax.models import cache as caches
from specjax.types import Cache


class State(NamedTuple):
  """Pair i, of feature i and token i + 1, is slot i of the cache."""

  cache: Cache
  features: jax.Array  # [B, K, F] after the last pair and the masks behind it
  length: jax.Array  # [B] tokens of the text then


def _forward(
  head: Head, params, tokens, features, drafts: Masked, cache=None, used=None
):
  """Features [B, R + M, F] after pairs and after masks, and the flight.

  Args:
    head: with a mask.
    params: `Params`.
    tokens: [B, R] of the pairs.
    features: [B, R, F] of the pairs.
    drafts: masks behind them.
    cache: of the pairs before these; None: there are none.
    used: [B] how many those are.
  """
  at, mask = drafts.at, head.read_mask(params).astype(features.dtype)
  count = at.shape[1] - tokens.shape[1]
  tokens = jnp.pad(
    tokens, ((0, 0), (0, count)), constant_values=head.sizes.mask_token
  )
  masks = jnp.broadcast_to(mask, (len(tokens), count, len(mask)))
  features = jnp.concatenate([features, masks], 1)
  at = at if used is None else at + used[:, None]
  attention = at, cache, used, drafts.sees, None, 0
  return head.forward(params, tokens, features, *attention)


@functools.cache
def walk(head: Head, depth: int) -> Walker:
  """The walker of a head with masks that says `depth` places."""

  def say(params, state):
    return parallel.Block(head.logits(params, state.features))

  def init(params, ctx, hidden, fed):
    del fed  # No drafted token is.
    cache, last = head.read_text(params, ctx, hidden)
    features = last[:, None]
    if depth > 1:
      none = ctx.tokens[:, :0], features[:, :0]
      drafts = parallel.with_masks(jnp.zeros_like(ctx.length), 0, depth - 1)
      used = ctx.length - 1
      ahead, _ = _forward(head, params, *none, drafts, cache, used)
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
    pairs = tokens, head.read(params, hidden)
    drafts = parallel.with_masks(new, rows, depth - 1)
    made, flight = _forward(head, params, *pairs, drafts, state.cache, begin)
    path = jnp.broadcast_to(jnp.arange(rows), (batch, rows))
    cache = caches.commit(state.cache, flight, path, begin)
    features = parallel.ahead(made, rows, new, state.features)
    return State(cache, features, ctx.length + 0)

  return Walker(init, start, parallel.feed, commit, taps=head.sizes.taps)


def say_along(head: Head, params, tokens, hidden, drafts: Masked) -> jax.Array:
  """Logits [B, R + M, V] after the pairs of texts and after masks.

  Args:
    head: with a mask.
    params: `Params`.
    tokens: [B, R + 1].
    hidden: [B, R + 1, len(taps), E] of the target.
    drafts: masks behind the R pairs.
  """
  pairs = tokens[:, 1:], head.read(params, hidden[:, :-1])
  features, _ = _forward(head, params, *pairs, drafts)
  return head.logits(params, features)


def loss(head: Head, masks: masked.Masks, params, seen, key):
  """Pair i, which ends in token i + 1, and the masks behind it."""
  rows = seen.behind(1)
  drafts = masks.draw(key, rows.weights)
  logits = say_along(head, params, seen.tokens, seen.hidden, drafts)
  return {'token': masked.judge(drafts, rows, logits)}
