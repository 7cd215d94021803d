"""Medusa: heads on the target's last feature, one for each place ahead.

Cai et al., arXiv:2401.10774. Head k is a residual block before the frozen
language model head and says what follows k tokens later, whatever comes in
between: p_k = softmax(head(h + SiLU(h W_k))). Head 0 there is the target's own
next token; here the first drafted token is that of head 1. Its own output
layer, which Medusa starts from the language model's, stays the language
model's here: it would cost a small target more bytes than all the rest.
"""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import trees
from specjax.drafting import chain, heads, shape
from specjax.drafting.heads import Trainable, soft_cross_entropy
from specjax.drafting.walker import Step, Walker
from specjax.models import linear
from specjax.models.linear import multiply
from specjax.models.transformer import Model
from specjax.types import Drafter, LoadedDrafter, Target

KIND = 'medusa'
_GUESSES = 10  # of each head that are counted
_DECAY = 0.8  # of the loss from head to head


class State(NamedTuple):
  """The feature that the next token was drawn from."""

  feature: jax.Array  # [B, E] of the last cached token
  length: jax.Array  # [B] tokens of the text then


class Block(NamedTuple):
  """What all heads say at the last committed token."""

  logits: jax.Array  # [B, K, V]


def _apply(target: Model, params, feature):
  """Logits [..., K, V] of all heads after features [..., E]."""
  h = target.norm(params.target, feature)
  y = multiply(h, params.drafter['residual'])
  y = y.reshape(*h.shape[:-1], -1, h.shape[-1])
  return target.head(params.target, h[..., None, :] + jax.nn.silu(y))


@functools.cache
def walk(target: Model, count: int) -> Walker:
  """The walker of so many heads; it drafts at most one token of each."""

  def init(params, ctx, hidden, rows):
    del rows  # Unused.
    batch = len(ctx.length)
    last = jnp.maximum(ctx.length - 2, 0)
    state = State(hidden[jnp.arange(batch), last, 0], ctx.length + 0)
    shapes = jax.eval_shape(
      functools.partial(_apply, target), params, state.feature
    )
    return state, Block(jnp.zeros(shapes.shape, shapes.dtype))

  def start(params, state, block, ctx):
    del block, ctx  # Unused.
    block = Block(_apply(target, params, state.feature))
    return Step(block.logits[:, :1], (), block)

  def feed(params, state, block, ctx, row, depth, tokens, features, sees):
    del params, state, ctx, row, features, sees  # Unused.
    logits = jax.lax.dynamic_index_in_dim(block.logits, depth, 1)
    rows = tokens.shape[1]
    logits = jnp.broadcast_to(logits, (len(logits), rows, logits.shape[-1]))
    return Step(logits, (), block)

  def commit(params, state, block, ctx, verdict, hidden):
    del params, block, verdict  # Unused.
    # Fewer than were accepted where the text ended; none in a finished row.
    new = ctx.length - state.length
    last = hidden[jnp.arange(len(hidden)), jnp.maximum(new - 1, 0), 0]
    feature = jnp.where(new[:, None] > 0, last, state.feature)
    return State(feature, ctx.length + 0)

  return Walker(init, start, feed, commit, taps=(target.config.num_layers - 1,))


def _check_depth(depth: int, count: int) -> int:
  """The depth; a ValueError where there are not so many heads."""
  if depth > count:
    raise ValueError(
      f'a draft of depth {depth} is deeper than the {count} heads: choose a '
      f'gamma of at most {count}, or train more'
    )
  return depth


def trainable(target: Model, count: int = 4) -> Trainable:
  """Heads to train, for places 1 to `count` ahead.

  Raises:
    ValueError: there is no head.
  """
  if count < 1:
    raise ValueError(f'count must be at least 1, got {count}')
  walker, width = walk(target, count), target.config.width

  def init(key, target_params):
    del key, target_params  # Zeros: every head begins as the target's own.
    return {'residual': jnp.zeros((width, count * width))}

  def ahead(params, seen):
    """Logits of the heads and of the target where they look; both [K, ...]."""
    logits = jnp.moveaxis(_apply(target, params, seen.hidden[:, :, 0]), 2, 0)
    for k in range(1, count + 1):
      yield logits[k - 1, :, :-k], seen.logits[:, k:], seen.tokens[:, k:]

  def loss(params, seen, key):
    del key  # Unused.
    # Position t sees token t; head k learns the distribution after token t + k.
    return {
      f'head{k}': _DECAY**k
      * soft_cross_entropy(goal, logits, jnp.ones(logits.shape[:2]))
      for k, (logits, goal, _) in enumerate(ahead(params, seen), 1)
    }

  def measure(params, seen):
    """How often the i-th guess of head k is the target's greedy token."""
    hits, counted = [], []
    for logits, goal, _ in ahead(params, seen):
      guesses = jax.lax.top_k(logits, _GUESSES)[1]
      hits.append((guesses == goal.argmax(-1)[..., None]).sum((0, 1)))
      counted.append(logits.shape[0] * logits.shape[1])
    return {'hits': jnp.stack(hits), 'counted': jnp.array(counted)}

  return Trainable(
    {'kind': KIND, 'count': count},
    walker.taps,
    init,
    loss,
    lambda depth: chain.make(walker, _check_depth(depth, count)),
    measure,
  )


def accuracies(config: dict[str, Any]) -> list[list[float]]:
  """Share [K, R] of held-out places that the i-th guess of a head got right.

  No guess has more than a better one of its head: where more were counted,
  that is chance.
  """
  rows = zip(config['hits'], config['counted'], strict=True)
  return [
    [hit / counted for hit in itertools.accumulate(hits, min)]
    for hits, counted in rows
  ]


def load(
  target: Target, path: str, tree: int = 0, **options: Any
) -> LoadedDrafter:
  """The drafter of trained heads, for a target; as deep as there are heads.

  Args:
    target: what is drafted for.
    path: directory of the heads.
    tree: nodes of the static tree with the most accepted tokens, by the
      measured accuracies of the heads; 0: none.
    **options: of `drafting.shape.Shape`.

  Raises:
    ValueError: no such heads; and of a depth, that they are fewer.
  """
  if tree and options.get('parents'):
    raise ValueError('tree and parents are both given: choose one of them')
  shape.check(target, options)
  config, params = heads.read(path, KIND, target.fingerprint, target.dtype)
  count, width = config['count'], target.model.config.width
  need = {'residual': jnp.empty((width, count * width))}
  params = heads.fit(params, need, path)
  if columns := target.model.config.columns:
    params = {n: linear.to_blocks(w, columns) for n, w in params.items()}
  walker = walk(target.model, count)

  def make(depth: int) -> Drafter:
    _check_depth(depth, count)
    best = {}
    if tree:
      ahead = accuracies(config)[:depth]
      best = {'parents': trees.most_accepted(ahead, tree)}
    return shape.build(walker, depth, options | best)

  return LoadedDrafter(target.model, make, params)
