"""Medusa: heads on the target's last feature, one for each place ahead.

Cai et al., arXiv:2401.10774. Head k is a residual block before the frozen
language model head and says what follows k tokens later, whatever comes in
between: p_k = softmax(head(h + SiLU(h W_k))). Head 0 there is the target's own
next token; here the first drafted token is that of head 1. An output layer of
its own, which Medusa starts from the language model's, and biases are options:
that layer would cost a small target more bytes than all the rest.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax.drafters.heads import files, modules, overrides
from specjax.drafters.heads.files import Loaded
from specjax.drafters.heads.trainable import Trainable
from specjax.drafters.medusa import module
from specjax.drafters.shapes import chain, parallel, shape
from specjax.drafters.shapes.step_model import Walker
from specjax.models import linear
from specjax.models.transformer import Model
from specjax.types import LoadedDrafter, Target

KIND = 'medusa'
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
  if count < 1:
    raise ValueError(f'count must be at least 1, got {count}')
  walker = walk(target)
  config = {'kind': KIND, 'count': count}
  options = {'bias': bias, 'unembedding': unembedding}
  config |= {name: True for name, given in options.items() if given}

  def init(key, target_params):
    """Zeros before the target's output layer: all begin as its own head."""
    made = jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype), module.shapes(config, target)
    )
    if unembedding:
      tied = target.config.tied_embeddings
      own = (
        linear.head_of(target_params['embedding'])
        if tied
        else target_params['unembedding']
      )
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


def _read(target: Target, path: str, read_as, dtype: str = '') -> Loaded:
  overrides.check(read_as, module.Reading._fields)
  model = target.model
  return files.load(
    path,
    KIND,
    target,
    lambda config: module.shapes(config, model),
    dtype,
    read_as,
  )


def load(
  target: Target,
  path: str,
  dtype: str = '',
  bits: int | None = None,
  tree: int = 0,
  read_as: Mapping[str, Any] = overrides.AS_STORED,
  **options: Any,
) -> LoadedDrafter:
  """The drafter of trained or published heads; as deep as there are heads.

  Args:
    target: what is drafted for.
    path: directory of the heads, or their name on the Hub.
    dtype: of their weights; by default the target's.
    bits: of a weight, 8 or 4, or 0 for floats; by default 8 where the target's
      weights are of few bits.
    tree: nodes of the static tree with the most accepted tokens, by the
      measured accuracies of the heads; 0: none.
    read_as: values of `Reading`, where heads are others than usual:
      `specjax probe` finds out.
    **options: of `shapes.shape.Shape`.

  Raises:
    ValueError: no such heads; and of a depth, that they are fewer.
  """
  parallel.check_tree(tree, options)
  shape.check(target, options)
  bits = modules.choose_bits(target, bits)
  model, loaded = target.model, _read(target, path, read_as, dtype)
  config = loaded.config
  reading = overrides.pick(module.Reading, loaded.read_as)
  loaded = loaded._replace(params=modules.lay(loaded.params, target, bits))

  def walk_to(depth: int) -> Walker:
    _check_depth(depth, config['count'] - reading.skip)
    return walk(model, reading)

  return parallel.load(target, walk_to, loaded, tree, options)


def alternatives(
  target: Target,
  path: str,
  read_as: Mapping[str, Any] = overrides.AS_STORED,
  **options: Any,
) -> dict[str, dict[str, Any]]:
  """Other options for `load`, one mistake away, by what they change."""
  del options  # Unused: they are of the shape.
  loaded = _read(target, path, read_as)
  reading = overrides.pick(module.Reading, loaded.read_as)
  found = module.near(reading, loaded.config['count'])
  return overrides.options(found, read_as)
