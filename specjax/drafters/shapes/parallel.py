"""Drafts whose places are all said at once, at the last committed token.

Given the text, the tokens of such a draft are independent: what a place says
depends on its depth alone. So a chain that is drawn place by place has its true
probabilities, every tree is a product of the same distributions, and the best
tree follows from how often each guess of each place is right (Cai et al.,
arXiv:2401.10774, section 2.3.3).
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import trees
from specjax.arguments import check_number
from specjax.drafters.heads.modules import Read
from specjax.drafters.shapes import shape
from specjax.drafters.shapes.step_model import Step, Walker
from specjax.types import Drafter, LoadedDrafter, Target

_GUESSES = 10  # of each place that are counted


class Block(NamedTuple):
  """Logits of all places behind the last committed token."""

  logits: jax.Array  # [B, K, V]


def empty(say: Callable[..., Any], *args: Any) -> Any:
  """A block of zeros, as say(*args) will fill it."""
  shapes = jax.eval_shape(say, *args)
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def begin(block: Block) -> Step:
  """The first step of a walker that says all places."""
  return Step(block.logits[:, :1], (), block)


def feed(params, state, block, ctx, row, depth, tokens, features, sees) -> Step:
  """`Walker.feed`: whatever was drafted, its depth says what follows."""
  logits = jax.lax.dynamic_index_in_dim(block.logits, depth, 1)
  rows = tokens.shape[1]
  logits = jnp.broadcast_to(logits, (len(logits), rows, logits.shape[-1]))
  return Step(logits, (), block)


class Masked(NamedTuple):
  """R rows of a text and M masks behind some of them, for one pass.

  Mask d of a draft says place d + 1. A mask sees the row before its draft, all
  earlier rows, and the earlier masks of its draft.

    rows 0 1 2 | masks 0,1  1,1  0,2     0,2 sees row 0, mask 0,1 and itself
  """

  begin: jax.Array  # [B, R + M] row that a mask is behind; of rows, their own
  depth: jax.Array  # [R + M] of masks, from 1 on; 0 of rows

  @property
  def at(self) -> jax.Array:
    """Places [B, R + M], counted from the first row."""
    return self.begin + self.depth

  @property
  def sees(self) -> jax.Array:
    """Which rows and masks each sees, [B, R + M, R + M]."""
    one, other = self.begin[:, :, None], self.begin[:, None]
    before = self.depth <= self.depth[:, None]
    return jnp.where(self.depth == 0, other <= one, (other == one) & before)


def with_masks(new: jax.Array, rows: int, masks: int) -> Masked:
  """One draft behind accepted rows.

  Args:
    new: [B] rows that are of the text; masks follow the last of them.
    rows: R, of which masks do not see the others.
    masks: M.
  """
  row = jnp.arange(rows + masks)
  begin = jnp.where(row < rows, row, new[:, None] - 1)
  return Masked(begin, jnp.maximum(row - rows + 1, 0))


def ahead(made: jax.Array, rows: int, new: jax.Array, before: jax.Array):
  """What is said [B, M + 1, F] of all places, of what a pass made.

  Args:
    made: [B, R + M, F] after rows and masks, see `with_masks`.
    rows: R.
    new: [B] rows that are of the text.
    before: [B, M + 1, F] what stays said where there are none: the row is
      finished.
  """
  last = made[jnp.arange(len(made)), jnp.maximum(new - 1, 0)]
  made = jnp.concatenate([last[:, None], made[:, rows:]], 1)
  return jnp.where(new[:, None, None] > 0, made.astype(before.dtype), before)


def count_hits(
  places: Iterable[tuple[jax.Array, jax.Array]],
) -> dict[str, jax.Array]:
  """How often the i-th guess of a place is the target's greedy token.

  Args:
    places: logits [..., V] of each of them, and the target's [..., V] there.

  Returns:
    `hits` [K, R] of the first guesses in `counted` [K] places.
  """
  hits, counted = [], []
  for logits, goal in places:
    guesses = jax.lax.top_k(logits, min(_GUESSES, logits.shape[-1]))[1]
    right = guesses == goal.argmax(-1)[..., None]
    hits.append(right.reshape(-1, right.shape[-1]).sum(0))
    counted.append(goal[..., 0].size)
  return {'hits': jnp.stack(hits), 'counted': jnp.array(counted)}


def accuracies(config: Mapping[str, Any]) -> list[list[float]]:
  """Share [K, R] of held-out places that the i-th guess of a head got right.

  No guess has more than a better one of its head: where more were counted,
  that is chance.
  """
  rows = zip(config['hits'], config['counted'], strict=True)
  return [
    [hit / counted for hit in itertools.accumulate(hits, min)]
    for hits, counted in rows
  ]


def check_tree(tree: int, options: Mapping[str, Any]) -> None:
  """Refuses two shapes at once, before anything is read."""
  check_number('tree', tree, 0)
  shapes = [field.name for field in dataclasses.fields(shape.Shape)]
  given = ' and '.join(name for name in shapes if options.get(name))
  if tree and given:
    raise ValueError(f'tree and {given} are both given: choose one of them')


def load(
  target: Target,
  walk: Callable[[int], Walker],
  read: Read,
  tree: int,
  options: Mapping[str, Any],
) -> LoadedDrafter:
  """The drafters of walkers that say everything at once.

  Args:
    target: what is drafted for.
    walk: (depth) -> the walker; a ValueError where it says fewer places.
    read: the head, whose configuration has its `hits` and how many were
      `counted`, unless it is a published one.
    tree: nodes of the static tree with the most accepted tokens, by the
      measured accuracies of the places; 0: none.
    options: of `shapes.shape.Shape`.

  Raises:
    ValueError: a tree by accuracies that nobody measured.
  """
  config = read.config
  if tree and 'hits' not in config:
    raise ValueError(
      'tree: nobody counted how often the guesses of this head are right; '
      'give widths or parents instead'
    )

  def make(depth: int) -> Drafter:
    walker, best = walk(depth), {}
    if tree:
      ahead = accuracies(config)[:depth]
      best = {'parents': trees.most_accepted(ahead, tree)}
    return shape.build(walker, depth, {**options, **best})

  return LoadedDrafter(target.model, make, read.params, pairing=read.pairing)
