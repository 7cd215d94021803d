"""An exact rule for independent siblings, two of which are judged together.

Khisti et al., arXiv:2410.18234: the best rule for two candidates selects one of
them first, and then judges it as if it were alone, against the distribution of
what is selected in place of q. Their selection solves a linear program. Here it
is made of sums, which is ours, and accepts nearly as much as the bound
(docs/rules.md).

With tokens ordered by p / q, the larger first, and Q_i, P_i the sums of q and p
up to the i-th one, the first i are selected with chance F_i = 1 - (1 - Q_i)**2
at most. So F_i + 1 - P_i bounds the acceptance. Where it is smallest, the order
is cut in two, and a candidate from before the cut goes before one from behind
it. Behind the cut the best distribution is p. Before it, it is w = min(p, c q),
with c such that the sum is F at the cut. Selecting the earlier token would
select those up to i too often, by G_i = F_i - W_i: so with some chance the
later one is taken.

  the earlier token gives way   s_i, whatever the other one is
  or the later one comes first  k_j, whatever the other one is

Either chance follows from G, is cut to [0, 1], and gives a distribution; the
one under which more is accepted is taken.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import trees
from specjax.types import Draft, Rule, Scores
from specjax.verify.chains import quotient, residual
from specjax.verify.judge import at_tokens, drafted_probs
from specjax.verify.trees import refuses_dependent, residuals


class Selection(NamedTuple):
  """The selection from two tokens of q; everything by token, [V]."""

  rank: jax.Array  # place in the order
  late: jax.Array  # whether it comes behind the cut
  gives: jax.Array  # chance to give way to a later token
  takes: jax.Array  # chance to come before an earlier token
  law: jax.Array  # distribution of the token that is selected


def select(p: jax.Array, q: jax.Array) -> Selection:
  """The selection for p [V] and q [V]."""
  order = jnp.argsort(-quotient(p, q))
  q = quotient(q, q.sum())[order]
  p = jnp.where(q > 0, p[order], 0)  # Other tokens are never candidates.
  upto, p_upto, tail = jnp.cumsum(q), jnp.cumsum(p), jnp.cumsum(q[::-1])[::-1]
  zero = jnp.zeros(1, p.dtype)
  most = 1 - (tail - q) ** 2  # F
  cut = jnp.argmin(jnp.concatenate([zero, most - p_upto]))
  late = jnp.arange(len(q)) >= cut
  q_cut, p_cut, most_cut = (
    jnp.concatenate([zero, x])[cut] for x in (upto, p_upto, most)
  )

  # The sum of min(p, c q) is the least of sums that are linear in c.
  above = quotient(most_cut - p_cut + p_upto, upto)
  above = jnp.where(late, 0, above).max()
  wanted = jnp.where(late, p, jnp.minimum(p, above * q))
  excess = jnp.maximum(most - jnp.cumsum(wanted), 0)  # G

  outside = jnp.where(late, 0, 1 - q_cut)  # Behind the cut.
  behind = jnp.where(late, tail - q, jnp.maximum(q_cut - upto, 0))
  before = jnp.maximum(upto - q - jnp.where(late, q_cut, 0), 0)

  place = jnp.arange(len(q))
  first = (place == 0) | (place == cut)

  def chance(sums, sign):
    """A chance whose products with q add up to the sums, within a part."""
    step = sums - jnp.where(first, sums if sign < 0 else 0, jnp.roll(sums, 1))
    return jnp.clip(quotient(sign * step, q), 0, 1)

  def sums_before(x):
    every = jnp.cumsum(x) - x
    return every - jnp.where(late, (x * ~late).sum(), 0)

  gives = jnp.where(behind > 0, chance(quotient(excess, 2 * behind), 1), 0)
  takes = chance(quotient(excess, 2 * (before + q)), -1)
  taken = takes * q
  taken_behind = (
    jnp.where(late, (taken * late).sum(), (taken * ~late).sum())
    - sums_before(taken)
    - taken
  )
  alike = q + 2 * outside + 2 * behind
  by_giving = q * (alike - 2 * gives * behind + 2 * sums_before(gives * q))
  by_taking = q * (alike - 2 * taken_behind + 2 * takes * before)
  giving = jnp.minimum(p, by_giving).sum() >= jnp.minimum(p, by_taking).sum()
  found = (
    late,
    jnp.where(giving, gives, 0),
    jnp.where(giving, 0, takes),
    jnp.where(giving, by_giving, by_taking),
  )
  rank = jnp.zeros_like(order).at[order].set(place)
  return Selection(rank, *(x[rank] for x in found))


def _judge(
  selection: Callable[..., Selection], draft: Draft, scores: Scores
) -> tuple[jax.Array, jax.Array]:
  """Acceptance [N] of every node, and what is left [N+1, V] of p at a row.

  The third child of a row and later ones are judged by what is left, as under
  `recursive`; so is the child of a row that has no other.
  """
  p, nodes = scores.probs, draft.tokens.shape[0]
  exists, rank = jnp.arange(nodes) < draft.size, trees.rank(draft.parents)
  drafted = drafted_probs(draft, p.shape[-1], p.dtype)
  children = [
    trees.child(draft.parents, (rank == i) & exists) for i in range(2)
  ]
  paired = children[1] < nodes
  one, two = (jnp.minimum(child, nodes - 1) for child in children)
  made = jax.vmap(selection)(p, drafted[one])
  tokens = draft.tokens[one], draft.tokens[two]
  rank_of, late = ([at_tokens(x, t) for t in tokens] for x in made[:2])
  in_order = rank_of[0] < rank_of[1]
  early = jnp.where(in_order, *tokens)
  other = jnp.where(in_order, *tokens[::-1])
  swap = at_tokens(made.gives, early) + at_tokens(made.takes, other)
  swap = jnp.where(late[0] == late[1], swap, 0)
  selects = jnp.where(in_order, 1 - swap, swap)  # The first of the two.
  selects = jnp.where(tokens[0] == tokens[1], 1, selects)
  stays = [
    jnp.minimum(quotient(at_tokens(p, t), at_tokens(made.law, t)), 1)
    for t in tokens
  ]
  earlier = selects * stays[0]
  later = quotient((1 - selects) * stays[1], 1 - earlier)
  above = draft.parents
  together = paired[above] & (rank < 2)
  left = jnp.where(paired[:, None], residual(p - made.law, p), p)
  accept, left = residuals(draft, left, exists & ~together)
  both = jnp.where(rank == 0, earlier[above], later[above])
  return jnp.where(together, jnp.minimum(both, 1), accept), left


def rule_of(selection: Callable[..., Selection]) -> Rule:
  """The rule with a selection (p [V], q [V]) -> `Selection`."""

  def accept(draft: Draft, scores: Scores) -> jax.Array:
    if draft.tokens.shape[0] == 0:
      return jnp.zeros(0, scores.probs.dtype)
    return _judge(selection, draft, scores)[0]

  def rest(draft: Draft, scores: Scores, row: jax.Array) -> jax.Array:
    if draft.tokens.shape[0] == 0:
      return scores.probs[row]
    return _judge(selection, draft, scores)[1][row]

  return Rule(accept, rest, lossless=True, refuses=refuses_dependent)


importance = rule_of(select)
