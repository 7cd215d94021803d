"""Exact rules for trees: several candidates for one place."""

import jax
import jax.numpy as jnp

from specjax import trees
from specjax.types import Draft, Drafter, Rule, Scores
from specjax.verify.chains import quotient, residual
from specjax.verify.judge import at_tokens, drafted_probs


def residuals(
  draft: Draft, p: jax.Array, exists: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Acceptance [N] of every node, and what is left [N+1, V] of p at a row.

  Every row tries its first child, then its second, and so on: all rows at
  once, as often as the widest row has children. Nodes are tried where `exists`
  [N] says so.
  """
  q = drafted_probs(draft, p.shape[-1], p.dtype)
  nodes = draft.tokens.shape[0]
  rank = trees.rank(draft.parents)

  def turn(i, carry):
    accept, left = carry
    child = trees.child(draft.parents, (rank == i) & exists)  # [N+1], N: none
    node = jnp.minimum(child, nodes - 1)
    q_node = q[node]
    chance = quotient(
      at_tokens(left, draft.tokens[node]), at_tokens(q_node, draft.tokens[node])
    )
    accept = accept.at[child].set(jnp.minimum(chance, 1), mode='drop')
    has = (child < nodes)[:, None]
    return accept, jnp.where(has, residual(left - q_node, left), left)

  most = jnp.where(exists, rank + 1, 0).max(initial=0)
  return jax.lax.fori_loop(0, most, turn, (jnp.zeros(nodes, p.dtype), p))


def _recursive(draft: Draft, scores: Scores) -> tuple[jax.Array, jax.Array]:
  exists = jnp.arange(draft.tokens.shape[0]) < draft.size
  return residuals(draft, scores.probs, exists)


def recursive_accept(draft: Draft, scores: Scores) -> jax.Array:
  """min(1, R(x) / q(x)), R being what earlier siblings have left of p.

  Recursive rejection: with replacement SpecInfer's multi-step speculative
  sampling (Miao et al., arXiv:2305.09781), without replacement Sequoia's rule
  (Chen et al., arXiv:2402.12374), where `probs` is conditional on the earlier
  siblings. On a chain it is token verification.
  """
  if draft.tokens.shape[0] == 0:
    return jnp.zeros(0, scores.probs.dtype)
  return _recursive(draft, scores)[0]


def recursive_rest(draft: Draft, scores: Scores, row: jax.Array) -> jax.Array:
  """The rest of p after the rejected children of a row."""
  if draft.tokens.shape[0] == 0:
    return scores.probs[row]
  return _recursive(draft, scores)[1][row]


recursive = Rule(recursive_accept, recursive_rest, lossless=True)


def _untried(draft: Draft, scores: Scores) -> tuple[jax.Array, jax.Array]:
  """Acceptance [N] of every node, and p [N+1, V] without a row's children."""
  p = scores.probs
  nodes, place = draft.tokens.shape[0], jnp.arange(draft.tokens.shape[0])
  rank, exists = trees.rank(draft.parents), place < draft.size

  def turn(i, carry):
    accept, left = carry
    child = trees.child(draft.parents, (rank == i) & exists)  # [N+1], N: none
    token = draft.tokens[jnp.minimum(child, nodes - 1)]
    chance = quotient(at_tokens(left, token), left.sum(-1))
    accept = accept.at[child].set(jnp.minimum(chance, 1), mode='drop')
    row = jnp.arange(nodes + 1)
    tried = left.at[row, token].set(0)
    return accept, jnp.where((child < nodes)[:, None], tried, left)

  most = jnp.where(exists, rank + 1, 0).max(initial=0)
  return jax.lax.fori_loop(0, most, turn, (jnp.zeros(nodes, p.dtype), p))


def naive_accept(draft: Draft, scores: Scores) -> jax.Array:
  """p(x) over what earlier siblings have left of p.

  The target's own token is among the children of a row, or it is not: naive
  sampling in SpecInfer (Miao et al., arXiv:2305.09781, section 4.3). How the
  draft was drawn does not matter, and neither does q.
  """
  if draft.tokens.shape[0] == 0:
    return jnp.zeros(0, scores.probs.dtype)
  return _untried(draft, scores)[0]


def naive_rest(draft: Draft, scores: Scores, row: jax.Array) -> jax.Array:
  """p without the children of a row."""
  p = scores.probs[row]
  if draft.tokens.shape[0] == 0:
    return p
  return residual(_untried(draft, scores)[1][row], p)


naive = Rule(naive_accept, naive_rest, lossless=True, placed=True)


def refuses_dependent(drafter: Drafter) -> str:
  if drafter.independent:
    return ''
  return (
    'it needs siblings that are independent draws: use a drafter such as '
    'specjax.drafters.lm.load with replacement=True, or the rule '
    'specjax.verify.recursive'
  )


def _transport(draft: Draft, scores: Scores):
  """rho [N+1], overlap beta(rho) and the chance that a child is accepted.

  rho solves 1 - (1 - beta)^k = rho beta with beta = sum(min(p / rho, q)) for
  the k children of a row; q [N+1, V] is returned too. The upper end of the
  bisection keeps what is left of p from being negative.
  """
  p = scores.probs
  nodes = draft.tokens.shape[0]
  place = jnp.arange(nodes)
  exists = place < draft.size
  first = trees.child(draft.parents, trees.rank(draft.parents) == 0)
  q = drafted_probs(draft, p.shape[-1], p.dtype)[jnp.minimum(first, nodes - 1)]
  below = draft.parents == jnp.arange(nodes + 1)[:, None]
  k = (below & exists).sum(-1).astype(p.dtype)

  def overlap(rho):
    return jnp.minimum(p / rho[:, None], q).sum(-1)

  def chance(beta):
    return 1 - (1 - jnp.minimum(beta, 1)) ** k

  def halve(_, ends):
    low, high = ends
    middle = (low + high) / 2
    beta = overlap(middle)
    over = chance(beta) > middle * beta
    return jnp.where(over, middle, low), jnp.where(over, high, middle)

  one = jnp.ones_like(k)
  turns = jnp.finfo(p.dtype).nmant + 1
  # One candidate is token verification: rho is 1, and not the end of a search.
  _, rho = jax.lax.fori_loop(0, turns, halve, (one, jnp.maximum(k, 1)))
  rho = jnp.where(k > 1, rho, 1)
  beta = overlap(rho)
  return rho, beta, jnp.where(k > 0, chance(beta), 0), q


def k_seq_accept(draft: Draft, scores: Scores) -> jax.Array:
  """min(1, p(x) / (rho q(x))): Sun et al., arXiv:2310.15141, k-SEQ.

  Every candidate of a row is judged by the same threshold.
  """
  rho, _, _, q = _transport(draft, scores)
  above = draft.parents
  p = at_tokens(scores.probs[above], draft.tokens)
  return jnp.minimum(
    quotient(p, rho[above] * at_tokens(q[above], draft.tokens)), 1
  )


def k_seq_rest(draft: Draft, scores: Scores, row: jax.Array) -> jax.Array:
  """The rest of p after the candidates of a row, all rejected."""
  rho, beta, chance, q = (x[row] for x in _transport(draft, scores))
  p = scores.probs[row]
  # beta is 0 where p and q have nothing in common: nothing was accepted.
  share = quotient(chance, rho * beta)
  return residual(p - jnp.minimum(p, rho * q) * share, p)


k_seq = Rule(k_seq_accept, k_seq_rest, lossless=True, refuses=refuses_dependent)
