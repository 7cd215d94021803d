"""Rules as a researcher might write them: wrong ones, and one that is right.

Each is named on the command line of `experiments.certify`.
"""

import jax.numpy as jnp

from specjax import verify
from specjax.types import Rule
from specjax.verify import chains
from specjax.verify.judge import at_tokens, drafted_probs


def _ratio(draft, scores):
  """p(x) / q(x) [N] of every node of a chain."""
  p = at_tokens(scores.probs[:-1], draft.tokens)
  q = drafted_probs(draft, scores.probs.shape[-1], p.dtype)
  return chains.quotient(p, at_tokens(q, draft.tokens))


def _unguarded(draft, scores):
  """No number where q cannot draw the token, which then is never judged."""
  p = at_tokens(scores.probs[:-1], draft.tokens)
  q = drafted_probs(draft, scores.probs.shape[-1], p.dtype)
  return jnp.minimum(p / at_tokens(q, draft.tokens), 1)


def _chain_rule(accept=chains.token_accept, rest=chains.token_rest) -> Rule:
  return verify.token._replace(accept=accept, rest=rest)


def _leftover_to_first(draft, scores, row):
  """What is left of p is not normalised: token 0 gets the rest."""
  p = scores.probs[row]
  q = drafted_probs(draft, p.shape[-1], p.dtype)
  left = jnp.maximum(p - q[jnp.minimum(row, len(q) - 1)], 0)
  left = left.at[0].add(1 - left.sum())
  return jnp.where(row < draft.size, left, p)


def _by_logits(draft, scores):
  """Judged at temperature 1, whatever the temperature is."""
  logits = scores.logits.astype(scores.probs.dtype)
  top = jnp.exp(logits - logits.max(-1, keepdims=True))
  soft = scores._replace(probs=top / top.sum(-1, keepdims=True))
  return chains.token_accept(draft, soft)


def _ties_fail(draft, scores):
  """Where p(x) and q(x) are equal a coin is thrown all the same."""
  ratio = _ratio(draft, scores)
  return jnp.where(ratio == 1, 0.75, jnp.minimum(ratio, 1))


def _first_sibling_only(draft, scores, row):
  """Behind two rejected siblings only the first is taken from p."""
  one = draft._replace(size=jnp.minimum(draft.size, 1))
  return verify.recursive.rest(one, scores, row)


leftover_to_first = _chain_rule(rest=_leftover_to_first)
by_logits = _chain_rule(_by_logits)
ties_fail = _chain_rule(_ties_fail)
first_sibling_only = verify.recursive._replace(rest=_first_sibling_only)
# Bad input.
wrong_shape = _chain_rule(lambda draft, scores: scores.probs)
whole_numbers = _chain_rule(rest=lambda draft, scores, row: jnp.arange(3))
no_numbers = _chain_rule(
  lambda draft, scores: jnp.nan * chains.token_accept(draft, scores)
)
raises = _chain_rule(lambda draft, scores: scores.probs[:, draft.nothing])
# It never heard of chosen tokens, but is right otherwise.
drawn_only = _chain_rule(
  lambda draft, scores: chains.token_accept(
    draft._replace(probs=1 * draft.probs), scores
  )
)
unguarded = _chain_rule(_unguarded)
no_rule = 'a text'
# Breaks the contract, not the distribution.
above_one = _chain_rule(_ratio)
