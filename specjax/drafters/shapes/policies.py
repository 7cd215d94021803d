"""How long a draft is: pure functions that a chain asks at every token.

A policy looks at tokens that stay, so the draft's length is a stopping time
and the output keeps its distribution (`types.Drafter`). Confidence is the
draft's own probability of the token it drew, at temperature 1: after the stages
of the pipeline that change logits, before the temperature, so that greedy
drafts have one too.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax.arguments import BOUND


class Policy(NamedTuple):
  """A draft length; every function is of one row.

  start() -> memory: before the first step, a pytree of scalars.
  goes_on(memory, drafted, confidence, reach) -> bool: whether to draft
    another after `drafted` tokens. `confidence` is that of the last, `reach`
    the product of all so far.
  learn(memory, drafted, accepted) -> memory: after the verdict.
  """

  goes_on: Callable[..., jax.Array]
  start: Callable[[], Any] = lambda: ()
  learn: Callable[..., Any] = lambda memory, drafted, accepted: memory


@functools.cache
def confidence(threshold: float) -> Policy:
  """Stops after a token of less confidence than the threshold.

  The "assistant confidence threshold" of assisted generation (Mamou et al.,
  arXiv:2405.04304; 0.4 there), and Kangaroo's early stop (arXiv:2404.18911).

  Raises:
    ValueError: the threshold is outside [0, 1].
  """
  if not 0 <= threshold <= 1:
    raise ValueError(f'threshold must be in [0, 1], got {threshold}')

  def goes_on(memory, drafted, confidence, reach):
    del memory, drafted, reach  # Unused.
    return confidence >= threshold

  return Policy(goes_on)


@functools.cache
def heuristic(first: int = 5) -> Policy:
  """Two tokens more after a draft that was accepted whole, else one less.

  The schedule "heuristic" of assisted generation in Hugging Face
  transformers; between 1 and K.

  Args:
    first: tokens of the first draft.

  Raises:
    ValueError: `first` is no whole number of at least 1.
  """
  if not 1 <= first < BOUND or first != int(first):
    raise ValueError(f'first must be a whole number of at least 1, got {first}')

  def goes_on(memory, drafted, confidence, reach):
    del confidence, reach  # Unused.
    return drafted < memory

  def learn(memory, drafted, accepted):
    # No more than two beyond what was drafted: K may have ended it.
    longer = jnp.minimum(memory, drafted) + 2
    return jnp.where(accepted == drafted, longer, jnp.maximum(memory - 1, 1))

  return Policy(goes_on, lambda: jnp.int32(first), learn)


class Rates(NamedTuple):
  """Sums that fade, of what the steps of a row gave and cost."""

  tried: jax.Array  # tokens judged
  accepted: jax.Array
  emitted: jax.Array  # tokens, bonus included
  cost: jax.Array  # plain steps of the target


@functools.cache
def expected(
  cost: float = 0.1, scoring: float = 0.05, fade: float = 0.9
) -> Policy:
  """Drafts on while the next token is worth its cost.

  A token is reached and accepted with a chance of about reach * alpha, and
  costs `cost` + `scoring` plain steps. A step's tokens over its cost is the
  rate that every token of a draft must keep up with (the ratio is largest
  where its margin equals it, Dinkelbach 1967); the rate and alpha are those
  of the row so far. `reach` counts as the chance that all so far are accepted,
  as far as confidence says it (EAGLE-2, arXiv:2406.16858, Figure 6).

  Args:
    cost: of drafting a token, in plain steps: c.
    scoring: of scoring one more token, in plain steps: (v - 1) / gamma.
    fade: weight of a step after the next one.

  Raises:
    ValueError: a cost is no finite number of at least 0, or both are 0, or
      `fade` is outside [0, 1).
  """
  if not (cost >= 0 and scoring >= 0 and 0 < cost + scoring < math.inf):
    raise ValueError(
      'cost and scoring must be finite and not negative, nor both 0, got '
      f'{cost} and {scoring}'
    )
  if not 0 <= fade < 1:
    raise ValueError(f'fade must be in [0, 1), got {fade}')
  margin = cost + scoring

  def start():
    # As after a step of one token, accepted with a chance of 0.7.
    values = 1.0, 0.7, 1.7, 1 + margin
    return Rates(*(jnp.float32(x) for x in values))

  def goes_on(memory, drafted, confidence, reach):
    del drafted, confidence  # Unused.
    alpha = memory.accepted / memory.tried
    return reach * alpha * memory.cost >= margin * memory.emitted

  def learn(memory, drafted, accepted):
    tried = jnp.minimum(accepted + 1, drafted)
    step = Rates(tried, accepted, accepted + 1, 1 + margin * drafted)
    return jax.tree.map(
      lambda old, new: (fade * old + new).astype(old.dtype), memory, step
    )

  return Policy(goes_on, start, learn)
