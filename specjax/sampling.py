"""From logits to the one distribution that is drafted, verified and drawn.

The order is temperature, top-k, top-p, min-p, as in Hugging Face `generate`;
at temperature 0 the distribution is one-hot and the others are skipped. p and
q go through the same function: this is what makes any of these settings exact
(Leviathan et al., arXiv:2211.17192, section 2.2).

Sampling must not eat the speed-up: no sort, no Gumbel noise over the
vocabulary. A cut is found by bisection over the bits of the probabilities, a
token by inverting the cumulative distribution in two levels with one uniform.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_BLOCK = 64  # entries that the first level of the inversion sums up


class Sampling(NamedTuple):
  """Values of the pipeline's stages, one a row; None leaves a stage out.

  Which stages exist is part of the compiled program; their values are not.
  """

  temperature: jax.Array  # [B] 0 is greedy
  top_k: jax.Array | None = None  # [B] 0 keeps all
  top_p: jax.Array | None = None  # [B] in (0, 1]
  min_p: jax.Array | None = None  # [B] in [0, 1), relative to the largest


def make(
  batch: int,
  temperature=1.0,
  top_k=None,
  top_p=None,
  min_p=None,
) -> Sampling:
  """Checks values (scalars or [B]) and spreads them over the rows.

  Raises:
    ValueError: names the value that is out of range.
  """

  def spread(name, value, dtype, valid, allowed):
    if value is None:
      return None
    array = np.asarray(value)
    if not np.all(valid(array)):
      raise ValueError(f'{name} must be {allowed}, got {value}')
    return jnp.broadcast_to(jnp.asarray(array, dtype), (batch,))

  return Sampling(
    spread(
      'temperature',
      temperature,
      jnp.float32,
      lambda x: np.isfinite(x) & (x >= 0),
      'a finite number of at least 0',
    ),
    spread('top_k', top_k, jnp.int32, lambda x: x >= 0, 'at least 0 (0: all)'),
    spread(
      'top_p', top_p, jnp.float32, lambda x: (x > 0) & (x <= 1), 'in (0, 1]'
    ),
    spread(
      'min_p', min_p, jnp.float32, lambda x: (x >= 0) & (x < 1), 'in [0, 1)'
    ),
  )


def _largest_bits(holds, dtype):
  """Largest non-negative float t for which holds(t), by bisection.

  Non-negative floats order as their bits do, so the answer is exact after as
  many turns as there are bits. `holds` must be true at 0 and monotone.
  """
  width = jnp.finfo(dtype).bits
  bits = jnp.dtype(f'int{width}')

  def turn(i, low):
    middle = low | jnp.asarray(1, bits) << (width - 2 - i).astype(bits)
    value = jax.lax.bitcast_convert_type(middle, dtype)
    # Patterns beyond infinity are NaN, for which nothing holds.
    return jnp.where(holds(value), middle, low)

  low = jax.lax.fori_loop(0, width - 1, turn, jnp.zeros((), bits))
  return jax.lax.bitcast_convert_type(low, dtype)


def _keep_top_k(probs, k):
  k = jnp.where(k > 0, k, probs.shape[-1])
  cut = _largest_bits(lambda t: jnp.sum(probs >= t) >= k, probs.dtype)
  return jnp.where(probs >= cut, probs, 0)


def _keep_top_p(probs, top_p):
  # The sum of all may fall short of 1 by rounding: the bound follows it.
  goal = top_p.astype(probs.dtype) * probs.sum()
  cut = _largest_bits(
    lambda t: jnp.sum(jnp.where(probs >= t, probs, 0)) >= goal, probs.dtype
  )
  return jnp.where((probs >= cut) | (top_p >= 1), probs, 0)


def _keep_min_p(probs, min_p):
  return jnp.where(probs >= min_p.astype(probs.dtype) * probs.max(), probs, 0)


def distribution(logits: jax.Array, sampling: Sampling) -> jax.Array:
  """The law [V] of the next token; one sequence, values scalar.

  Tokens whose probability equals the one at a cut are all kept; the greedy
  token is the first of the largest logits.
  """
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  greedy = sampling.temperature == 0
  _, best = jax.lax.top_k(logits, 1)
  scale = jnp.where(greedy, 1, sampling.temperature).astype(logits.dtype)
  probs = jax.nn.softmax(logits / scale)
  for value, keep in (
    (sampling.top_k, _keep_top_k),
    (sampling.top_p, _keep_top_p),
    (sampling.min_p, _keep_min_p),
  ):
    if value is not None:
      probs = keep(probs, value)
      probs = probs / probs.sum()
  one_hot = (jnp.arange(logits.shape[-1]) == best).astype(probs.dtype)
  return jnp.where(greedy, one_hot, probs)


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
