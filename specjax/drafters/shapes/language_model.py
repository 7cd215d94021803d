"""The walker of a language model, which has read the text itself."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.checkpoints.vocabularies import reading
from specjax.checkpoints.vocabularies.reading import Reading, Text
from specjax.drafters.shapes.step_model import Step, Walker
from specjax.models import cache as caches
from specjax.models import cache_attention, prefill, transformer, variants
from specjax.models.config import TransformerConfig
from specjax.models.transformer import Model
from specjax.types import Cache


class Fed(NamedTuple):
  """Tokens that were fed and are not judged yet."""

  flight: Cache  # the end of the text up to the root, then rows of the tree
  base: jax.Array  # [B] position of the first of these; may be negative
  known: jax.Array  # [B] tokens in the cache: rows before these are not seen


@functools.cache
def walk(model: Model, read: Reading = reading.SAME) -> Walker:
  """The walker of a model; its parameters are those of `read`.

  Args:
    model: the draft; over the target's vocabulary, where `read` is not given.
    read: how it reads the text.
  """
  width = read.width
  ours = isinstance(model.config, TransformerConfig)
  blocked = ours and model.config.attention is cache_attention.blocked
  if read.at_once and blocked:
    at_once = cache_attention.walk(at_once=read.at_once)
    model = variants.with_cache_attention(model, at_once)

  def init(params, ctx, hidden, rows):
    weights = read.weights(params.drafter)
    tokens, ends = read.begin(params.drafter, ctx)
    cache = transformer.open_cache(model, weights, *tokens.shape, ctx.source)
    # Tokens behind these are fed by each step anew, see `start`.
    last = read.last(params.drafter, ends, ctx)
    cache, _ = prefill.prefill(model, weights, tokens, last.known + 1, cache)
    flight = caches.open_block(cache, model.config, rows + width - 1)
    return Text(cache, ends), Fed(flight, last.base, last.known)

  def forward(params, state, block, tokens, at, offset, mask):
    hides = (block.known - block.base)[:, None, None]
    rows = jnp.arange(mask.shape[-1])
    out = model.forward(
      read.weights(params.drafter),
      tokens,
      block.base[:, None] + offset,
      state.cache,
      block.known,
      mask & (rows >= hides),
      block.flight,
      at,
    )
    return out.hidden, block._replace(flight=out.flight)

  def logits(params, hidden):
    made = model.head(read.weights(params.drafter), hidden)
    return read.logits(params.drafter, made)

  def start(params, state, block, ctx):
    # The last drafted token of the step before was never fed. Feeding the
    # last two tokens at every step costs less than asking whether it stayed:
    #
    #   tokens  ... a b | x1 x2        cache holds all before a
    #   flight      a b   x1           rows 0, 1, 2
    #
    # A row of one token has no a: its row 0 is masked out. Where the draft
    # has other tokens b may be several: pairs are fed from the first that is
    # in no cache on, so that most steps feed one.
    last = read.last(params.drafter, state.ends, ctx)
    flight = caches.begin_block(state.cache, block.flight)
    block = Fed(flight, last.base, last.known)
    two, slots = jnp.arange(2), caches.rows_of(flight)

    def feed_two(at, block):
      tokens = jax.lax.dynamic_slice_in_dim(last.tokens, at, 2, 1)
      mask = jnp.broadcast_to(
        jnp.arange(slots) <= at + two[:, None], (*tokens.shape, slots)
      )
      return forward(params, state, block, tokens, at, at + two, mask)

    begin = width - 2
    if width > 2:
      unfed = (width - (last.known - last.base)).max()
      _, block = jax.lax.while_loop(
        lambda carry: carry[0] < begin,
        lambda carry: (carry[0] + 2, feed_two(*carry)[1]),
        (width - 2 * ((unfed + 1) // 2), block),
      )
    hidden, block = feed_two(begin, block)
    return Step(logits(params, hidden[:, -1:]), (), block)

  def feed(params, state, block, ctx, row, depth, tokens, features, sees):
    before = width - 1
    mask = jnp.pad(sees, ((0, 0), (0, 0), (before, 0)), constant_values=True)
    offset = jnp.full(tokens.shape[1], before + depth)
    tokens = read.translate(params.drafter, tokens)
    hidden, block = forward(
      params, state, block, tokens, before + row, offset, mask
    )
    return Step(logits(params, hidden), (), block)

  def commit(params, state, block, ctx, verdict, hidden):
    # What was drawn and never fed has no row here, and is never in the way:
    # its slot lies beyond what the next step looks at.
    before = width - 1
    rows = jnp.broadcast_to(jnp.arange(before), (len(ctx.length), before))
    path = jnp.concatenate([rows, verdict.path + before], 1)
    # From the first row that is not in the cache on.
    index = jnp.arange(path.shape[1]) + (block.known - block.base)[:, None]
    path = jnp.take_along_axis(path, index % path.shape[1], 1)
    ends = read.extend(params.drafter, state.ends, ctx, verdict.path.shape[1])
    count = read.last(params.drafter, ends, ctx).known - block.known
    cache = caches.commit(state.cache, block.flight, path, block.known, count)
    return Text(cache, ends)

  return Walker(
    init,
    start,
    feed,
    commit,
    positions=model.config.max_positions,
  )
