"""Drawing by inverting the cumulative distribution, in two levels."""

import jax
import jax.numpy as jnp

_BLOCK = 64  # entries that the first level of the inversion sums up


def _first_above(goal, weights):
  """First place whose cumulative sum exceeds the goal, and that sum before it.

  Sums are rounded, in no certain order: a place of weight 0 never counts, and
  where no place is left the last one of any weight is taken.
  """
  sums = jnp.cumsum(weights)
  place = jnp.arange(weights.shape[-1])
  positive = weights > 0
  fits = (sums > goal) & positive
  first = jnp.min(jnp.where(fits, place, weights.shape[-1]))
  chosen = jnp.minimum(first, jnp.max(jnp.where(positive, place, 0)))
  return chosen, jnp.where(chosen > 0, sums[chosen - 1], 0)


def draw(u: jax.Array, weights: jax.Array) -> jax.Array:
  """Draws an index with probability proportional to `weights` [V].

  Inverts the cumulative sums at u in [0, 1): first over sums of blocks, then
  inside one block. Never draws a weight of 0, unless all are.
  """
  size = weights.shape[-1]
  blocks = jnp.pad(weights, (0, -size % _BLOCK)).reshape(-1, _BLOCK)
  sums = blocks.sum(-1)
  goal = u.astype(sums.dtype) * sums.sum()
  block, before = _first_above(goal, sums)
  inside, _ = _first_above(goal - before, blocks[block])
  return (block * _BLOCK + inside).astype(jnp.int32)
