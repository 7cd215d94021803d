"""DFlash: a block of masked places, drafted in one pass.

Chen et al., arXiv:2602.06036; the module is `dflash.module`. The target's
features of the text are remembered as keys and values, and those of a block are
forgotten with it. No place knows what is drawn at another, so that the whole
draft costs one pass, and a draft of any shape has its true probabilities, see
`shapes.parallel`. A head with a correction adds what the token before a place
says, see `dflash.corrections`: then each path of a tree has its own logits.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax.arguments import check_number
from specjax.drafters.dflash import training
from specjax.drafters.dflash.module import KIND, Head, Sizes, near
from specjax.drafters.heads import modules, overrides
from specjax.drafters.heads.trainable import Trainable
from specjax.drafters.shapes import chain, parallel
from specjax.drafters.shapes.step_model import Step, Walker
from specjax.models import cache as caches
from specjax.models.transformer import Model
from specjax.types import Cache, LoadedDrafter, Target


class State(NamedTuple):
  """Slot i of the cache is of the target's features of token i."""

  cache: Cache
  length: jax.Array  # [B] tokens of the text then


@functools.cache
def walk(head: Head, rows: int) -> Walker:
  """The walker of a head that drafts blocks of so many rows.

  The first row is the last committed token; the others are masks.
  """

  def last_token(ctx):
    return jnp.take_along_axis(ctx.tokens, ctx.length[:, None] - 1, 1)

  def say(params, state, ctx):
    tokens, last = last_token(ctx)[:, 0], ctx.length - 1
    places = head.say(params, tokens, last, state.cache, last, rows)
    if head.sizes.in_turn:
      return head.prepare(params, places)
    return parallel.Block(places.logits)

  def step(params, block, at, tokens, state) -> Step:
    place = jax.tree.map(
      lambda x: jax.lax.dynamic_index_in_dim(x, at, 1), block
    )
    made, confidence = head.correct(params, place, tokens, state)
    if confidence is not None:
      confidence = jax.nn.sigmoid(confidence)
    return Step(made.logits, made.state, block, confidence)

  def read(params, hidden, positions):
    made = head.read(params, hidden, positions)
    return jax.tree.map(lambda x: x.astype(hidden.dtype), made)

  def init(params, ctx, hidden, fed):
    del fed  # No drafted token is.
    at = jnp.broadcast_to(jnp.arange(ctx.tokens.shape[1]), ctx.tokens.shape)
    state = State(read(params, hidden, at), ctx.length + 0)
    return state, parallel.empty(say, params, state, ctx)

  def start(params, state, block, ctx):
    del block  # Of the draft before.
    block = say(params, state, ctx)
    if not head.sizes.in_turn:
      return parallel.begin(block)
    begin = head.state(ctx.length.shape, params.drafter['norm']['scale'].dtype)
    return step(params, block, 0, last_token(ctx), begin[:, None])

  def feed(params, state, block, ctx, row, depth, tokens, features, sees):
    return step(params, block, depth, tokens, features)

  def commit(params, state, block, ctx, verdict, hidden):
    del block  # Its keys and values were forgotten.
    begin = state.length - 1
    path = jnp.zeros_like(verdict.path) + jnp.arange(verdict.path.shape[1])
    new = read(params, hidden, begin[:, None] + path)
    cache = caches.commit(state.cache, new, path, begin)
    return State(cache, ctx.length + 0)

  feeds = feed if head.sizes.in_turn else parallel.feed
  return Walker(init, start, feeds, commit, taps=head.sizes.taps)


def _rows(head: Head, depth: int, block: int = 0) -> int:
  """Rows of the block of a draft; a ValueError where they are too many."""
  rows = max(block, depth + 1 - head.sizes.anchored)
  if rows > head.sizes.block:
    raise ValueError(
      f'a draft of depth {depth} needs a block of {rows}, but the head was '
      f'trained with blocks of {head.sizes.block}: choose a gamma of at most '
      f'{head.sizes.depth}'
    )
  return rows


def trainable(
  target: Model,
  taps: tuple[int, ...] = (),
  anchors: int = 32,
  decay: float = 0.0,
  **sizes: Any,
) -> Trainable:
  """A head to train.

  Args:
    target: the target model.
    taps: layers that it reads; by default the first, the middle and the last.
    anchors: blocks of each window of a step, at random places.
    decay: the loss of place k is weighted by exp(-(k - 1) / decay); 0: half a
      block, as in the paper for blocks of 8.
    **sizes: of `dflash.module.Sizes`.
  """
  layers = target.config.num_layers
  taps = tuple(taps) or tuple(sorted({0, layers // 2, layers - 1}))
  check_number('anchors', anchors, 1)
  head = Head(target, Sizes(taps, **sizes))
  decay = decay or head.sizes.block / 2

  def init(key, target_params):
    """The last norm begins as that of the target, whose head reads it."""
    own, norm = head.init(key), target_params['norm']['scale']
    plus = 1.0 if target.config.norm_plus_one else 0.0
    return own | {'norm': {'scale': plus + norm.astype(jnp.float32)}}

  return Trainable(
    {'kind': KIND.name, **dataclasses.asdict(head.sizes)},
    taps,
    init,
    functools.partial(training.loss, head, anchors, decay),
    lambda depth: chain.make(walk(head, _rows(head, depth)), depth),
    functools.partial(training.measure, head),
  )


_read = functools.partial(modules.read, KIND)


def load(
  target: Target, path: str, *, tree: int = 0, block: int = 0, **options: Any
) -> LoadedDrafter:
  """The drafter of a trained or published head, for a target.

  Args:
    target: what is drafted for.
    path: directory of the head, or its name on the Hub.
    tree: nodes of the static tree with the most accepted tokens, by the
      measured accuracies of the places; 0: none.
    block: rows of the block, where they are more than gamma + 1.
    **options: of `heads.modules.Options`, `heads.frequencies.Reduction` and
      `shapes.shape.Shape`; `read_as` has values of `Sizes`.
  """
  parallel.check_tree(tree, options)
  check_number('block', block, 0)
  read, options = modules.load_head(_read, target, path, options)

  def walk_to(depth: int) -> Walker:
    return walk(read.head, _rows(read.head, depth, block))

  return parallel.load(target, walk_to, read, tree, options)


def alternatives(
  target: Target,
  path: str,
  read_as: Mapping[str, Any] = overrides.AS_STORED,
  block: int = 0,
  **options: Any,
) -> dict[str, dict[str, Any]]:
  """Other options for `load`, one mistake away, by what they change."""
  del options  # Unused: they are of the shape.
  head = _read(target, path, read_as).head
  found = overrides.options(near(head.sizes, target.model.config), read_as)
  rows = head.sizes.block
  return found | ({} if block == rows else {'whole block': {'block': rows}})
