"""How long a draft is: pure functions that a chain asks at every token.

A policy looks at tokens that stay, so the draft's length is a stopping time
and the output keeps its distribution (`types.Drafter`). Confidence is the
draft's own probability of the token it drew, at temperature 1: after the stages
of the pipeline that change logits, before the temperature, so that greedy
drafts have one too. Entropy is that of the same distribution, in nats. A model
that says itself how likely its tokens are accepted, as DSpark's heads do, has
that as its confidence (`step_model.Step`).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.arguments import BOUND

_LEAST = 1e-30  # confidence whose logarithm is taken


class Last(NamedTuple):
  """The last drafted token, as a policy sees it; scalars."""

  drafted: jax.Array  # tokens so far, this one included
  confidence: jax.Array  # see above
  entropy: jax.Array  # of the distribution that it was drawn from
  reach: jax.Array  # product of `Policy.chance` of all so far


class Policy(NamedTuple):
  """A draft length; every function is of one row.

  goes_on(memory, last) -> bool: whether to draft another after a `Last`.
  start() -> memory: before the first step, a pytree of scalars.
  learn(memory, drafted, accepted) -> memory: after the verdict.
  chance(drafted, confidence, entropy) -> chance: guesses whether the last
    token is accepted; `Last.reach` multiplies these.
  """

  goes_on: Callable[..., jax.Array]
  start: Callable[[], Any] = lambda: ()
  learn: Callable[..., Any] = lambda memory, drafted, accepted: memory
  chance: Callable[..., jax.Array] = lambda drafted, confidence, entropy: (
    confidence
  )


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

  return Policy(lambda memory, last: last.confidence >= threshold)


@functools.cache
def entropy(threshold: float = 0.3) -> Policy:
  """Stops after a token of a distribution with much entropy H.

  SVIP (Zhang et al., arXiv:2411.18462) drafts on while sqrt(0.15 H) is at most
  a threshold, 0.3 in the authors' code: `1 - sqrt(c H)` estimates a lower bound
  of the acceptance. The token that was drawn last is kept, as there.

  Raises:
    ValueError: the threshold is no finite number of at least 0.
  """
  if not 0 <= threshold < math.inf:
    raise ValueError(
      f'threshold must be finite and not negative, got {threshold}'
    )

  def goes_on(memory, last):
    return jnp.sqrt(0.15 * last.entropy) <= threshold

  return Policy(goes_on)


class Bound(NamedTuple):
  """The bound of `adaedl`, and what it follows."""

  least: jax.Array  # lambda
  rate: jax.Array  # a fading mean of accepted / drafted


@functools.cache
def adaedl(
  first: float = 0.3, wanted: float = 0.9, move: float = 0.01
) -> Policy:
  """Stops where a bound of the acceptance is below one that adapts, lambda.

  AdaEDL (Agrawal et al., arXiv:2410.18351) stops where 1 - sqrt(0.2 H) is below
  lambda. Lambda follows the share of accepted tokens, after Draft & Verify
  (Zhang et al., arXiv:2309.08168): rate = (rate + accepted / drafted) / 2, and
  lambda moves up by a tenth of `move` where the rate is below `wanted`, else
  down.

  Args:
    first: lambda of the first draft; the default is a choice of this library.
    wanted: share of accepted tokens.
    move: ten times what lambda moves by after a step.

  Raises:
    ValueError: a number is outside [0, 1].
  """
  if not all(0 <= x <= 1 for x in (first, wanted, move)):
    raise ValueError(
      'first, wanted and move must be in [0, 1], got '
      f'{first}, {wanted} and {move}'
    )

  def goes_on(memory, last):
    return 1 - jnp.sqrt(0.2 * last.entropy) >= memory.least

  def learn(memory, drafted, accepted):
    rate = (memory.rate + accepted / jnp.maximum(drafted, 1)) / 2
    side = jnp.where(rate < wanted, 1, -1)
    new = Bound(memory.least + 0.1 * move * side, rate)
    return jax.tree.map(lambda x: x.astype(jnp.float32), new)

  return Policy(
    goes_on, lambda: Bound(jnp.float32(first), jnp.float32(0)), learn
  )


@functools.cache
def learned(
  constant: float,
  by_confidence: float,
  by_entropy: float,
  by_place: float,
  risk: float = 0.7,
) -> Policy:
  """Stops once the chance that any token is rejected exceeds `risk`.

  After SpecDec++ (Huang et al., arXiv:2405.19715), whose predictor is a network
  on the draft's hidden states. Here it is logistic in the logarithm of the
  confidence, the entropy, and the number of tokens drafted before.

  Raises:
    ValueError: a weight is not finite, or `risk` is outside [0, 1].
  """
  weights = constant, by_confidence, by_entropy, by_place
  if not all(map(math.isfinite, weights)):
    raise ValueError(f'weights must be finite, got {weights}')
  if not 0 <= risk <= 1:
    raise ValueError(f'risk must be in [0, 1], got {risk}')

  def chance(drafted, confidence, entropy):
    sure = jnp.log(jnp.maximum(confidence, _LEAST))
    return jax.nn.sigmoid(
      constant
      + by_confidence * sure
      + by_entropy * entropy
      + by_place * (drafted - 1)
    )

  return Policy(lambda memory, last: 1 - last.reach <= risk, chance=chance)


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

  def learn(memory, drafted, accepted):
    # No more than two beyond what was drafted: K may have ended it.
    longer = jnp.minimum(memory, drafted) + 2
    return jnp.where(accepted == drafted, longer, jnp.maximum(memory - 1, 1))

  return Policy(
    lambda memory, last: last.drafted < memory, lambda: jnp.int32(first), learn
  )


class Arms(NamedTuple):
  """What a row has seen of each length: tuples of scalars."""

  length: jax.Array  # of the next draft
  played: tuple[jax.Array, ...]
  gained: tuple[jax.Array, ...]


@functools.cache
def bandit(cost: float = 0.1, scoring: float = 0.05, *lengths: float) -> Policy:
  """Chooses among constant lengths by what each gave this row so far.

  UCB1 (Auer et al. 2002), after BanditSpec (arXiv:2505.15141), a bandit over
  the settings of speculation. A step's reward is its tokens over its cost,
  divided by the largest that any length can have. Each length is tried once.

  Args:
    cost: of drafting a token, in plain steps: c.
    scoring: of scoring one more token, in plain steps: (v - 1) / gamma.
    *lengths: tokens of a draft; by default 1, 2, 4 and 8.

  Raises:
    ValueError: a cost is no finite number of at least 0, or a length is no
      whole number of at least 1.
  """
  if not (0 <= cost < math.inf and 0 <= scoring < math.inf):
    raise ValueError(
      f'cost and scoring must be finite and not negative, got {cost} and '
      f'{scoring}'
    )
  arms = lengths or (1, 2, 4, 8)
  for length in arms:
    if not 1 <= length < BOUND or length != int(length):
      raise ValueError(
        f'lengths must be whole numbers of at least 1, got {length}'
      )
  each, margin = np.array(arms, np.int32), cost + scoring
  largest = ((each + 1) / (1 + margin * each)).max()

  def start():
    none = (jnp.float32(0),) * len(arms)
    return Arms(jnp.int32(each[0]), none, none)

  def learn(memory, drafted, accepted):
    mine = each == memory.length
    reward = (accepted + 1) / (1 + margin * drafted) / largest
    played = jnp.stack(memory.played) + mine
    gained = jnp.stack(memory.gained) + mine * reward
    times = jnp.maximum(played, 1)
    index = gained / times + jnp.sqrt(2 * jnp.log(played.sum()) / times)
    best = jnp.where(played > 0, index, jnp.inf).argmax()
    kinds = (tuple(x.astype(jnp.float32)) for x in (played, gained))
    return Arms(jnp.asarray(each)[best], *kinds)

  return Policy(lambda memory, last: last.drafted < memory.length, start, learn)


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

  def goes_on(memory, last):
    alpha = memory.accepted / memory.tried
    return last.reach * alpha * memory.cost >= margin * memory.emitted

  def learn(memory, drafted, accepted):
    tried = jnp.minimum(accepted + 1, drafted)
    step = Rates(tried, accepted, accepted + 1, 1 + margin * drafted)
    return jax.tree.map(
      lambda old, new: (fade * old + new).astype(old.dtype), memory, step
    )

  return Policy(goes_on, start, learn)
