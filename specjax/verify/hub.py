"""An exact rule for two candidates, one of them the draft's likeliest token.

Sun et al., arXiv:2411.05289, SpecHub. Of two siblings one is the hub a, the
likeliest token of q; the drafter draws a pair (x, a) with chance q(x), and
(a, x) with chance q(a) r(x), r being q without a (`Drafter.hub`). So few pairs
are possible that p is spread over them in closed form, in this order:

  pair    accepts    of what is left of p and of the pair's chance
  (x, a)  x
  (a, x)  x
  (a, x)  a
  (x, a)  a
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import trees
from specjax.types import Draft, Drafter, Rule, Scores
from specjax.verify.chains import quotient, residual
from specjax.verify.judge import at_tokens, drafted_probs


class Plan(NamedTuple):
  """How p is spread over the pairs below every row; R is N+1."""

  hub: jax.Array  # [R] the token a
  first: jax.Array  # [R, V] chance that x is accepted where (x, a) is drafted
  second: jax.Array  # [R, V] chance that x is where (a, x) is drafted
  hub_first: jax.Array  # [R] chance that a is where (a, x) is, x rejected
  hub_second: jax.Array  # [R] chance that a is where (x, a) is, x rejected
  left: jax.Array  # [R, V] what is left of p


def plan(draft: Draft, scores: Scores) -> Plan:
  """Spreads p over the pairs below every row.

  A row with one child has no pairs (x, a): what would be a hub there is judged
  alone, as any other token is.
  """
  p, nodes = scores.probs, draft.tokens.shape[0]
  exists, rank = jnp.arange(nodes) < draft.size, trees.rank(draft.parents)
  one, two = (
    trees.child(draft.parents, (rank == i) & exists) for i in range(2)
  )
  known = [jnp.minimum(child, nodes - 1) for child in (one, two)]
  drafted = drafted_probs(draft, p.shape[-1], p.dtype)
  q = jnp.where((one < nodes)[:, None], drafted[known[0]], 0)
  hub = jnp.argmax(q, -1)
  is_hub = jnp.arange(p.shape[-1]) == hub[:, None]
  alone = two == nodes
  others = jnp.where(is_hub, 0, q)
  behind = jnp.where(
    (draft.tokens[known[0]] == hub)[:, None],
    drafted[known[1]],
    residual(others, others),
  )
  of_hub = jnp.where(is_hub, q, 0).sum(-1)
  pairs = jnp.where(alone[:, None], 0, of_hub[:, None] * behind)

  first = jnp.minimum(others, p)  # Of tokens but the hub.
  second = jnp.minimum(pairs, jnp.where(is_hub, 0, p) - first)
  p_hub = jnp.where(is_hub, p, 0).sum(-1)
  lost = jnp.where(alone, of_hub, (pairs - second).sum(-1))
  hub_first = jnp.minimum(p_hub, lost)
  lost_second = jnp.where(alone, 0, (others - first).sum(-1))
  hub_second = jnp.minimum(p_hub - hub_first, lost_second)
  left = p - first - second
  left -= jnp.where(is_hub, (hub_first + hub_second)[:, None], 0)
  return Plan(
    hub,
    quotient(first, others),
    quotient(second, pairs),
    quotient(hub_first, lost),
    quotient(hub_second, lost_second),
    left,
  )


def accept(draft: Draft, scores: Scores) -> jax.Array:
  """The chances of the order above, for nodes in the order of the draft."""
  nodes, above = draft.tokens.shape[0], draft.parents
  if nodes == 0:
    return jnp.zeros(0, scores.probs.dtype)
  planned = plan(draft, scores)
  exists, rank = jnp.arange(nodes) < draft.size, trees.rank(above)
  one, two = (
    jnp.minimum(trees.child(above, (rank == i) & exists)[above], nodes - 1)
    for i in range(2)
  )
  hub = planned.hub[above]
  hub_is_first = draft.tokens[one] == hub
  # 0 where there is no second sibling.
  other = at_tokens(planned.second[above], draft.tokens[two])
  # The hub stays where the token behind it does not, and conversely.
  takes_hub = (1 - other) * planned.hub_first[above]
  earlier = jnp.where(
    hub_is_first,
    takes_hub,
    at_tokens(planned.first[above], draft.tokens[one]),
  )
  later = jnp.where(
    hub_is_first, quotient(other, 1 - takes_hub), planned.hub_second[above]
  )
  return jnp.minimum(jnp.where(rank == 0, earlier, later), 1)


def rest(draft: Draft, scores: Scores, row: jax.Array) -> jax.Array:
  """What is left of p where neither candidate was accepted."""
  p = scores.probs[row]
  if draft.tokens.shape[0] == 0:
    return p
  return residual(plan(draft, scores).left[row], p)


def _refuses(drafter: Drafter) -> str:
  if drafter.hub or drafter.nodes == drafter.depth:
    return ''
  return (
    'it needs two siblings, one of them the likeliest token: use a drafter '
    'such as specjax.drafters.lm.load with widths=(2,) and hub=True, or the '
    'rule specjax.verify.recursive'
  )


hub = Rule(accept, rest, lossless=True, refuses=_refuses)
