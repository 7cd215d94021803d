"""Exact rules for chains: token by token, and the block as a whole."""

import jax
import jax.numpy as jnp

from specjax.types import Draft, Drafter, Rule, Scores
from specjax.verify.judge import at_tokens, drafted_probs


def refuses_trees(drafter: Drafter) -> str:
  """Why a rule for chains cannot take a drafter; empty where it can."""
  if drafter.nodes == drafter.depth:
    return ''
  return (
    f'it judges chains, and this drafter makes trees of {drafter.nodes} nodes '
    f'of depth {drafter.depth}: use specjax.verify.recursive, or a drafter of '
    'chains'
  )


def quotient(p: jax.Array, q: jax.Array) -> jax.Array:
  """p / q, and 0 where q is 0: such a token cannot have been drawn."""
  return jnp.where(q > 0, p / jnp.where(q > 0, q, 1), 0)


def residual(weights: jax.Array, otherwise: jax.Array) -> jax.Array:
  """norm(max(weights, 0)) of [..., V]; `otherwise` where nothing is left.

  Nothing is left only where no rejection was possible.
  """
  left = jnp.maximum(weights, 0)
  total = left.sum(-1, keepdims=True)
  return jnp.where(total > 0, left / jnp.where(total > 0, total, 1), otherwise)


def token_accept(draft: Draft, scores: Scores) -> jax.Array:
  """min(1, p(x) / q(x)) of every node of a chain.

  Leviathan et al., arXiv:2211.17192, Algorithm 1; Chen et al.,
  arXiv:2302.01318, Algorithm 2. A chosen token has q = 1, so this is also
  "sample from the target and see whether it matches": no rule of its own.
  """
  p = at_tokens(scores.probs[:-1], draft.tokens)
  if draft.probs is None:
    return p
  return jnp.minimum(quotient(p, at_tokens(draft.probs, draft.tokens)), 1)


def token_rest(draft: Draft, scores: Scores, row: jax.Array) -> jax.Array:
  """norm(max(p - q, 0)) after a rejection, p after the whole chain."""
  p = scores.probs[row]
  nodes = draft.tokens.shape[0]
  if nodes == 0:
    return p
  node = jnp.minimum(row, nodes - 1)
  if draft.probs is None:
    left = jnp.where(jnp.arange(p.shape[-1]) == draft.tokens[node], 0, p)
  else:
    left = p - draft.probs[node]
  return jnp.where(row < draft.size, residual(left, p), p)


token = Rule(token_accept, token_rest, lossless=True, refuses=refuses_trees)


def block_weights(draft: Draft, scores: Scores) -> jax.Array:
  """[N+1]: min(w p(x) / q(x), 1) along the chain, from w = 1 at the root."""
  p = at_tokens(scores.probs[:-1], draft.tokens)
  q = at_tokens(
    drafted_probs(draft, scores.probs.shape[-1], p.dtype), draft.tokens
  )

  def longer(weight, ratio):
    weight = jnp.minimum(weight * ratio, 1)
    return weight, weight

  one = jnp.ones((), p.dtype)
  _, weights = jax.lax.scan(
    longer, one, quotient(p, q), unroll=max(1, min(len(p), 16))
  )
  return jnp.concatenate([one[None], weights])


def block_accept(draft: Draft, scores: Scores) -> jax.Array:
  """Chance of each token to stay, given that the one before it does.

  Sun et al., arXiv:2403.10444, Algorithm 2, accepts the longest prefix whose
  own coin falls below h_i, whatever became of shorter ones. So the chance that
  at least i tokens stay is S_i = 1 - prod_{j >= i} (1 - h_j), and walking from
  the root with chances S_i / S_{i-1} accepts i tokens exactly as often. Where
  the draft ends early, h = w there, as at the end of a whole block.
  """
  nodes = draft.tokens.shape[0]
  weights = block_weights(draft, scores)
  q = drafted_probs(draft, scores.probs.shape[-1], weights.dtype)
  left = jnp.maximum(weights[:-1, None] * scores.probs[:-1] - q, 0).sum(-1)
  lost = left + 1 - weights[:-1]
  stops = jnp.where(lost > 0, left / jnp.where(lost > 0, lost, 1), 1)
  place = jnp.arange(nodes + 1)
  stops = jnp.where(place < draft.size, jnp.append(stops, 0), weights)
  stops = jnp.where(place <= draft.size, stops, 0)

  def at_least(after, stop):
    stays = stop + (1 - stop) * after
    return stays, stays

  _, stays = jax.lax.scan(
    at_least,
    jnp.zeros((), stops.dtype),
    stops,
    reverse=True,
    unroll=min(nodes + 1, 16),
  )
  return jnp.minimum(quotient(stays[1:], stays[:-1]), 1)


def block_rest(draft: Draft, scores: Scores, row: jax.Array) -> jax.Array:
  """norm(max(w p - q, 0)) before the end of the block, p at its end."""
  p = scores.probs[row]
  nodes = draft.tokens.shape[0]
  if nodes == 0:
    return p
  weight = block_weights(draft, scores)[row]
  q = drafted_probs(draft, p.shape[-1], p.dtype)[jnp.minimum(row, nodes - 1)]
  return jnp.where(row < draft.size, residual(weight * p - q, p), p)


block = Rule(block_accept, block_rest, lossless=True, refuses=refuses_trees)
