"""An exact rule for trees that judges whole paths, from the leaves upwards.

Weng et al., arXiv:2505.12398, traversal verification. A path is as likely to
stay as the target would write all of it, as in block verification, and a path
that is rejected leaves its beginning to be judged: first with what its next
child adds, and alone where there is none. On a chain it is `chains.block`.

                        judged in this order
  0 -- 1 -- 3           0-1-3, 0-1-4, 0-1, 0-2, and 0, which stays if
   \\    \\- 4           nothing else does
    \\- 2
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import trees
from specjax.types import Draft, Rule, Scores
from specjax.verify.chains import quotient, residual
from specjax.verify.judge import drafted_probs


class _Ends(NamedTuple):
  """Where the walk may end, rows as in `types.Draft`."""

  own: jax.Array  # [N+1] chance that it ends there, its children rejected
  left: jax.Array  # [N+1, V] what the children of a row have left of p


def _weigh(draft: Draft, scores: Scores, exists: jax.Array):
  """Chance [N+1] that a row stays when its turn comes, and what is left of p.

  A row begins with w = min(w p(x) / q(x), 1) of the row above, 1 at the root.
  A child that is rejected takes q from w p, and leaves r = max(w p - q, 0):
  then p is norm(r), and w is sum(r) / (sum(r) + 1 - w).
  """
  p, nodes = scores.probs, draft.tokens.shape[0]
  q = drafted_probs(draft, p.shape[-1], p.dtype)

  def turn(i, carry):
    weight, left = carry
    above, token = draft.parents[i], draft.tokens[i]
    w, here, drawn = weight[above], left[above], q[i]
    own = jnp.minimum(w * quotient(here[token], drawn[token]), 1)
    more = jnp.maximum(w * here - drawn, 0)
    total = more.sum()
    lost = total + 1 - w
    fewer = jnp.where(lost > 0, total / jnp.where(lost > 0, lost, 1), 1)
    weight = weight.at[i + 1].set(jnp.where(exists[i], own, 0))
    weight = weight.at[above].set(jnp.where(exists[i], fewer, w))
    rest = jnp.where(exists[i], residual(more, here), here)
    return weight, left.at[above].set(rest)

  start = jnp.zeros(nodes + 1, p.dtype).at[0].set(1)
  return jax.lax.fori_loop(0, nodes, turn, (start, p), unroll=nodes <= 16)


def _before(draft: Draft) -> jax.Array:
  """[N+1, N+1]: whether the turn of the second row is before the first's."""
  _, below = trees.ancestors(draft.parents)  # Whether 1 descends from 2.
  place = jnp.arange(draft.tokens.shape[0])
  elder = (draft.parents == draft.parents[:, None]) & (place < place[:, None])
  under = below[:, 1:].astype(jnp.int32)
  beside = under @ elder.astype(jnp.int32) @ under.T > 0
  return beside | (below.T & ~jnp.eye(len(below), dtype=bool))


def _end(draft: Draft, scores: Scores) -> _Ends:
  """The walk ends at the first row that stays.

  Of siblings with the same token all that was drawn hangs below the first
  one. The others never stay: where the first was rejected, nothing is left of
  p at its token.
  """
  rows = jnp.arange(draft.tokens.shape[0] + 1)
  first = trees.first(draft.parents, draft.tokens) + 1
  first = jnp.concatenate([rows[:1], first])
  twice = rows != first
  exists = (rows[:-1] < draft.size) & ~twice[draft.parents]
  weight, left = _weigh(draft, scores, exists)
  missed = jnp.where(_before(draft), 1 - weight, 1).prod(1)
  ends = missed * weight
  return _Ends(jnp.where(twice, 0, ends), left)


def _accept(draft: Draft, scores: Scores) -> jax.Array:
  """The chances to end below a row, from those to end below it or later."""
  nodes = draft.tokens.shape[0]
  if nodes == 0:
    return jnp.zeros(0, scores.probs.dtype)
  ends = _end(draft, scores)

  def turn(i, carry):
    later, accept = carry  # Of a row: what was not handed to a child yet.
    node = nodes - 1 - i
    above = draft.parents[node]
    later = later.at[above].add(later[node + 1])
    chance = quotient(later[node + 1], later[above])
    return later, accept.at[node].set(chance)

  none = jnp.zeros(nodes, ends.own.dtype)
  start = ends.own, none
  accept = jax.lax.fori_loop(0, nodes, turn, start, unroll=nodes <= 16)[1]
  return jnp.minimum(accept, 1)


def _rest(draft: Draft, scores: Scores, row: jax.Array) -> jax.Array:
  """The rest of p after the children that were judged; p if none was."""
  if draft.tokens.shape[0] == 0:
    return scores.probs[row]
  return _end(draft, scores).left[row]


traversal = Rule(_accept, _rest, lossless=True)
