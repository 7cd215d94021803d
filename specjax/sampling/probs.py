"""The distribution of the next token: temperature, top-k, top-p, min-p.

A cut is found by a search over the bits of the probabilities: no sort.
"""

import functools

import jax
import jax.numpy as jnp

from specjax.sampling.logits import process
from specjax.types import History, Sampling, Scores


def _bits(dtype) -> jnp.dtype:
  return jnp.dtype(f'int{jnp.finfo(dtype).bits}')


def _reaches(probs, pattern):
  """Returns the probabilities [V] that are at least the float of a pattern."""
  # Patterns beyond infinity are NaN, which nothing reaches.
  return probs >= jax.lax.bitcast_convert_type(pattern, probs.dtype)


def bisect(probs, holds):
  """Pattern of the cut, a bit a turn; see `_keep_from`.

  It ends when a single probability is left between the bounds, mostly long
  before the last bit.
  """
  bits = _bits(probs.dtype)
  width = bits.itemsize * 8

  def more(carry):
    i, _, at_low, at_high = carry
    return (i < width - 1) & (at_low - at_high > 1)

  def turn(carry):
    i, low, at_low, at_high = carry
    middle = low | jnp.asarray(1, bits) << (width - 2 - i).astype(bits)
    mask = _reaches(probs, middle)
    count, enough = jnp.sum(mask, dtype=jnp.int32), holds(mask)
    return (
      i + 1,
      jnp.where(enough, middle, low),
      jnp.where(enough, count, at_low),
      jnp.where(enough, at_high, count),
    )

  size = jnp.int32(probs.shape[-1])
  start = jnp.int32(0), jnp.zeros((), bits), size, jnp.int32(0)
  return jax.lax.while_loop(more, turn, start)[1]


def by_digits(probs, holds):
  """Pattern of the cut, four bits a turn; see `_keep_from`.

  There is no loop, for whose end the host of a GPU would wait.
  """
  bits = _bits(probs.dtype)
  width = bits.itemsize * 8
  low = jnp.zeros((), bits)
  for shift in range(width - 4, -1, -4):
    largest = 7 if shift == width - 4 else 15  # The first bit is the sign.
    patterns = low | jnp.arange(1, largest + 1, dtype=bits) << shift
    enough = jax.vmap(lambda x: holds(_reaches(probs, x)))(patterns)
    low |= jnp.sum(enough, dtype=bits) << shift
  return low


def _keep_from(probs, holds):
  """Probabilities [V] from the largest t on for which holds(mask) is true.

  `mask` is true where a probability is at least t. Non-negative floats order as
  their bits do, so a search over the bits is exact.

  Args:
    probs: [V].
    holds: of a mask [V]; true where all are kept, and monotone.
  """
  low = jax.lax.platform_dependent(
    probs,
    cpu=functools.partial(bisect, holds=holds),
    default=functools.partial(by_digits, holds=holds),
  )
  return jnp.where(_reaches(probs, low), probs, 0)


def _keep_top_k(probs, k):
  k = jnp.where(k > 0, k, probs.shape[-1])
  return _keep_from(probs, lambda mask: jnp.sum(mask) >= k)


def _keep_top_p(probs, top_p):
  # The sum of all may fall short of 1 by rounding: the bound follows it.
  goal = top_p.astype(probs.dtype) * probs.sum()

  def enough(mask):
    return jnp.sum(jnp.where(mask, probs, 0)) >= goal

  return jnp.where(top_p >= 1, probs, _keep_from(probs, enough))


def _keep_min_p(probs, min_p):
  return jnp.where(probs >= min_p.astype(probs.dtype) * probs.max(), probs, 0)


def _first_largest(x):
  """Index of the first of the largest of x [V].

  Two reductions, which are faster than top_k on a CPU, and which a compiler
  leaves on the device that has the row. Beyond the end where x has NaN.
  """
  place = jnp.arange(x.shape[-1])
  return jnp.where(x == x.max(), place, x.shape[-1]).min()


def distribution(logits: jax.Array, sampling: Sampling) -> jax.Array:
  """The distribution [V] of processed logits: temperature and what follows it.

  One sequence. Tokens whose probability equals the one at a cut are all kept;
  the greedy token is the first of the largest logits. As the temperature goes
  to 0 what is left is uniform over the largest logits: without ties that is
  the greedy token. Logits that are NaN or +inf, or all -inf, give no
  distribution: its sum is then not 1, or its largest logit not finite.
  """
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  greedy = sampling.temperature == 0
  best = _first_largest(logits)
  scale = jnp.where(greedy, 1, sampling.temperature).astype(logits.dtype)
  # Divided by a low temperature before the largest is subtracted, several
  # logits would be infinite.
  weights = jnp.exp((logits - logits.max()) / scale)
  probs = weights / weights.sum()
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


def next_distribution(
  logits: jax.Array, values: Sampling, history: History, above: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The distribution [V] of the next token, and the processed logits [V].

  For drafts: where none of the tokens that may come has a chance, since a
  draft with other tokens cannot draw them, they have what the stages make of
  equal logits. The arguments are those of `process`; one sequence.
  """
  processed = process(logits, values, history, above)
  if values.forbidden is not None or values.constraint is not None:
    even = process(jnp.zeros_like(logits), values, history, above)
    processed = jnp.where(processed.max() == -jnp.inf, even, processed)
  return distribution(processed, values), processed


def distributions(
  logits: jax.Array, values: Sampling, history: History, above: jax.Array
) -> Scores:
  """The target's distributions after every row of a scored block.

  Where none of the tokens that may come has a chance, it is no distribution.

  Args:
    logits: [B, N+1, V] of the target.
    values: of the rows.
    history: of the rows.
    above: [B, N+1, K] as `trees.above` gives it.
  """

  def after(logits, values, history, above):
    processed = process(logits, values, history, above)
    return Scores(distribution(processed, values), processed)

  block = jax.vmap(after, in_axes=(0, None, None, 0))
  return jax.vmap(block)(logits, values, history, above)
