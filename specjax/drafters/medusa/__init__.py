"""Medusa: heads on the target's last feature, one for each place ahead.

Cai et al., arXiv:2401.10774. Head k is a residual block before the frozen
language model head and says what follows k tokens later, whatever comes in
between: p_k = softmax(head(h + SiLU(h W_k))). Head 0 there is the target's own
next token; here the first drafted token is that of head 1. An output layer of
its own, which Medusa starts from the language model's, and biases are options:
that layer would cost a small target more bytes than all the rest.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax.arguments import check_number
from specjax.drafters.heads import modules
from specjax.drafters.heads.trainable import Trainable
from specjax.drafters.medusa import module
from specjax.drafters.shapes import chain, parallel
from specjax.drafters.shapes.step_model import Walker
from specjax.models import linear
from specjax.models.transformer import Model
from specjax.types import LoadedDrafter, Target

_DECAY = 0.8  # of the loss from head to head


class State(NamedTuple):
  """The feature that the next token was drawn from."""

  feature: jax.Array  # [B, E] of the last cached token
  length: jax.Array  # [B] tokens of the text then


@functools.cache
def walk(target: Model, reading: module.Reading = module.USUAL) -> Walker:
  """The walker of heads; it drafts at most one token of each."""

  def say(params, state):
    logits = module.apply(target, params, state.feature, reading)
    return parallel.Block(logits)

  def init(params, ctx, hidden, rows):
    batch = len(ctx.length)
    last = jnp.maximum(ctx.length - 2, 0)
    state = State(hidden[jnp.arange(batch), last, 0], ctx.length + 0)
    return state, parallel.empty(say, params, state)

  def start(params, state, block, ctx):
    return parallel.begin(say(params, state))

  def commit(params, state, block, ctx, verdict, hidden):
    # Fewer than were accepted where the text ended; none in a finished row.
    new = ctx.length - state.length
    last = hidden[jnp.arange(len(hidden)), jnp.maximum(new - 1, 0), 0]
    feature = jnp.where(new[:, None] > 0, last, state.feature)
    return State(feature, ctx.length + 0)

  last = target.config.num_layers - 1
  return Walker(init, start, parallel.feed, commit, taps=(last,))


def _check_depth(depth: int, count: int) -> None:
  """Raises a ValueError where there are not so many heads."""
  if depth > count:
    raise ValueError(
      f'a draft of depth {depth} is deeper than the {count} heads: choose a '
      f'gamma of at most {count}, or train more'
    )


def trainable(
  target: Model, count: int = 4, bias: bool = False, unembedding: bool = False
) -> Trainable:
  """Heads to train, for places 1 to `count` ahead.

  Args:
    target: the target model.
    count: of the heads.
    bias: whether the block before the output layer has one.
    unembedding: whether each head has an output layer of its own.

  Raises:
    ValueError: there is no head.
  """
  check_number('count', count, 1)
  walker = walk(target)
  config = {'kind': module.KIND.name, 'count': count}
  options = {'bias': bias, 'unembedding': unembedding}
  config |= {name: True for name, given in options.items() if given}

  def init(key, target_params):
    """Zeros before the target's output layer: all begin as its own head."""
    shapes = module.Heads(target, config).shapes()
    made = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    if unembedding:
      own = linear.output_layer(target_params)
      made['unembedding'] = jax.tree.map(
        lambda x: own.astype(x.dtype), made['unembedding']
      )
    return made

  def ahead(params, seen):
    """Logits of the heads and of the target where they look; both [K, ...]."""
    logits = jnp.moveaxis(
      module.apply(target, params, seen.hidden[:, :, 0]), 2, 0
    )
    for k in range(1, count + 1):
      yield logits[k - 1, :, :-k], seen.logits[:, k:], seen.tokens[:, k:]

  def loss(params, seen, key):
    # Position t sees token t; head k learns the distribution after token t + k.
    return {
      f'head{k}': _DECAY**k * seen.judge(goal, logits, seen.weights[:, k:])
      for k, (logits, goal, _) in enumerate(ahead(params, seen), 1)
    }

  def measure(params, seen, begin):
    """How often the i-th guess of head k is the target's greedy token."""
    said = ahead(params, seen.behind(begin))
    places = ((logits, goal) for logits, goal, _ in said)
    return parallel.count_hits(places)

  def drafter(depth):
    _check_depth(depth, count)
    return chain.make(walker, depth)

  return Trainable(config, walker.taps, init, loss, drafter, measure)


_read = functools.partial(modules.read, module.KIND)


def load(
  target: Target, path: str, *, tree: int = 0, **options: Any
) -> LoadedDrafter:
  """The drafter of trained or published heads; as deep as there are heads.

  Args:
    target: what is drafted for.
    path: directory of the heads, or their name on the Hub.
    tree: nodes of the static tree with the most accepted tokens, by the
      measured accuracies of the heads; 0: none.
    **options: of `heads.modules.Options` and `shapes.shape.Shape`; `read_as`
      has values of `medusa.module.Reading`.

  Raises:
    ValueError: no such heads; and of a depth, that they are fewer.
  """
  parallel.check_tree(tree, options)
  read, options = modules.load_head(_read, target, path, options, False)
  reading = read.head.reading

  def walk_to(depth: int) -> Walker:
    _check_depth(depth, read.config['count'] - reading.skip)
    return walk(target.model, reading)

  return parallel.load(target, walk_to, read, tree, options)


alternatives = functools.partial(
  modules.alternatives,
  _read,
  lambda read, _: module.near(read.head.reading, read.config['count']),
)
