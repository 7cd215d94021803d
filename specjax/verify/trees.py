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


def _children(draft: Draft, rows: jax.Array) -> jax.Array:
  """Returns the nodes [..., N] that hang below rows [...]."""
  exists = jnp.arange(draft.tokens.shape[0]) < draft.size
  return (draft.parents == rows[..., None]) & exists


def recursive_accept(draft: Draft, scores: Scores) -> jax.Array:
  """min(1, R(x) / q(x)), R being what earlier siblings have left of p.

  Recursive rejection: with replacement SpecInfer's multi-step speculative
  sampling (Miao et al., arXiv:2305.09781), without replacement Sequoia's rule
  (Chen et al., arXiv:2402.12374), where `probs` is conditional on the earlier
  siblings. On a chain it is token verification.
  """
  if draft.tokens.shape[0] == 0:
    return jnp.zeros(0, scores.probs.dtype)
  exists = jnp.arange(draft.tokens.shape[0]) < draft.size
  return residuals(draft, scores.probs, exists)[0]


def recursive_rest(draft: Draft, scores: Scores, row: jax.Array) -> jax.Array:
  """The rest of p after the rejected children of a row."""
  p = scores.probs[row]
  if draft.tokens.shape[0] == 0:
    return p
  q = drafted_probs(draft, p.shape[-1], p.dtype)
  rank, below = trees.rank(draft.parents), _children(draft, row)

  def turn(i, left):
    child = jnp.argmax(below & (rank == i))
    return residual(left - q[child], left)

  return jax.lax.fori_loop(0, below.sum(), turn, p)


recursive = Rule(recursive_accept, recursive_rest, lossless=True)


def naive_accept(draft: Draft, scores: Scores) -> jax.Array:
  """p(x) over what earlier siblings have left of p.

  The target's own token is among the children of a row, or it is not: naive
  sampling in SpecInfer (Miao et al., arXiv:2305.09781, section 4.3). How the
  draft was drawn does not matter, and neither does q.
  """
  p = scores.probs
  if draft.tokens.shape[0] == 0:
    return jnp.zeros(0, p.dtype)
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
  return jax.lax.fori_loop(0, most, turn, (jnp.zeros(nodes, p.dtype), p))[0]


def naive_rest(draft: Draft, scores: Scores, row: jax.Array) -> jax.Array:
  """p without the children of a row."""
  p = scores.probs[row]
  if draft.tokens.shape[0] == 0:
    return p
  tried = jnp.where(_children(draft, row), draft.tokens, len(p))
  return residual(p.at[tried].set(0, mode='drop'), p)


naive = Rule(naive_accept, naive_rest, lossless=True, placed=True)


def refuses_dependent(drafter: Drafter) -> str:
  if drafter.independent:
    return ''
  return (
    'it needs siblings that are independent draws: use a drafter such as '
    'specjax.drafters.lm.load with replacement=True, or the rule '
    'specjax.verify.recursive'
  )


def _transport(draft: Draft, scores: Scores, rows: jax.Array):
  """rho [R] of rows, overlap beta(rho) and the chance that a child is accepted.

  rho solves 1 - (1 - beta)^k = rho beta with beta = sum(min(p / rho, q)) for
  the k children of a row; q [R, V] is returned too. The upper end of the
  bisection keeps what is left of p from being negative.
  """
  p = scores.probs[rows]
  below = _children(draft, rows)
  q = drafted_probs(draft, p.shape[-1], p.dtype)[jnp.argmax(below, -1)]
  k = below.sum(-1).astype(p.dtype)

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
  above = draft.parents
  rho, _, _, q = _transport(draft, scores, jnp.arange(len(above) + 1))
  p = at_tokens(scores.probs[above], draft.tokens)
  return jnp.minimum(
    quotient(p, rho[above] * at_tokens(q[above], draft.tokens)), 1
  )


def k_seq_rest(draft: Draft, scores: Scores, row: jax.Array) -> jax.Array:
  """The rest of p after the candidates of a row, all rejected."""
  rho, beta, chance, q = (x[0] for x in _transport(draft, scores, row[None]))
  p = scores.probs[row]
  # beta is 0 where p and q have nothing in common: nothing was accepted.
  share = quotient(chance, rho * beta)
  return residual(p - jnp.minimum(p, rho * q) * share, p)


k_seq = Rule(k_seq_accept, k_seq_rest, lossless=True, refuses=refuses_dependent)
