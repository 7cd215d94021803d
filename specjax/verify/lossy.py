"""Rules that change the output's distribution, and one that never accepts."""

import functools

import jax
import jax.numpy as jnp

from specjax.types import Draft, Rule, Scores
from specjax.verify import chains
from specjax.verify.judge import at_tokens, drafted_probs


def _rest_of_the_target(draft, scores, row):
  return scores.probs[row]


@functools.cache
def simulated(rate: float) -> Rule:
  """Accepts every drafted token with a given probability. Lossy.

  For measuring speed at an acceptance rate that no drafter at hand has; the
  text means nothing.
  """
  if not 0 <= rate <= 1:
    raise ValueError(f'rate must be in [0, 1], got {rate}')

  def accept(draft, scores):
    return jnp.full(draft.tokens.shape, rate, scores.probs.dtype)

  return Rule(accept, _rest_of_the_target, lossless=False)


# Drafts and accepts nothing: the text is the target's own and every position
# is a first position, so the overlap that is counted has mean alpha.
observe = simulated(0.0)._replace(lossless=True)


@functools.cache
def typical(epsilon: float = 0.09, delta: float = 0.3) -> Rule:
  """Accepts a token that is not untypical of the target. Lossy.

  Cai et al., arXiv:2401.10774, section 2.3.1: accept where
  p(x) > min(epsilon, delta exp(-H(p))). The token after the accepted ones is
  drawn from p, so one token always comes from the target. At temperature 0
  this is exact matching. Of several acceptable siblings the first is taken.
  """
  for name, value in (('epsilon', epsilon), ('delta', delta)):
    if not 0 <= value <= 1:
      raise ValueError(f'{name} must be in [0, 1], got {value}')

  def accept(draft, scores):
    p = scores.probs
    entropy = -jax.scipy.special.xlogy(p, p).sum(-1)
    bound = jnp.minimum(epsilon, delta * jnp.exp(-entropy))[draft.parents]
    accepted = at_tokens(p[draft.parents], draft.tokens) > bound
    return accepted.astype(p.dtype)

  return Rule(accept, _rest_of_the_target, lossless=False)


@functools.cache
def lenience(factor: float) -> Rule:
  """Token verification against factor * q instead of q. Lossy below 1.

  Leviathan et al., arXiv:2211.17192, A.5: no token comes with a probability
  above p / factor. Where p is one-hot (temperature 0), a token is accepted if
  its probability before that is at least `factor` times the largest one (the
  printed inequality points the other way).
  """
  if not 0 < factor <= 1:
    raise ValueError(f'factor must be in (0, 1], got {factor}')

  def scaled(draft: Draft, scores: Scores) -> Draft:
    q = drafted_probs(draft, scores.probs.shape[-1], scores.probs.dtype)
    return draft._replace(probs=factor * q)

  def accept(draft, scores):
    sampled = chains.token_accept(scaled(draft, scores), scores)
    soft = jax.nn.softmax(scores.logits[:-1].astype(scores.probs.dtype))
    close = at_tokens(soft, draft.tokens) >= factor * soft.max(-1)
    one_hot = scores.probs[:-1].max(-1) == 1
    return jnp.where(one_hot, close.astype(sampled.dtype), sampled)

  def rest(draft, scores, row):
    return chains.token_rest(scaled(draft, scores), scores, row)

  return Rule(accept, rest, factor == 1, chains.refuses_trees)
