"""An exact rule for independent chains: block verification of the best one.

Thomas and Pal, arXiv:2602.16961, greedy multi-path block verification. From the
root on, the child whose p(x) / q(x) is largest is followed, and block
verification judges this one path. The best of several paths is not distributed
as q, so its own distribution takes the place of q. With one chain that is q,
and the rule is `chains.block`.

With A the chance that a chain ranks below a row, and x the chance that it
passes through the row, the best of K chains passes through it with chance
(A + x)**K - A**K. Where q is near p the best path is further from p than any
one of them: there the rule accepts less than block verification of one chain.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.types import Draft, Drafter, Rule, Scores
from specjax.verify import chains
from specjax.verify.judge import drafted_probs


class _Path(NamedTuple):
  """The followed path, as a chain of N nodes, most of which do not exist."""

  rows: jax.Array  # [N+1] of the draft; N+1 behind the end of the path
  draft: Draft
  scores: Scores


def law_of_best(q, lower, through, below, paths):
  """The distribution [V] of the next token of the best path.

  Args:
    q: [V] of the draft.
    lower: [V] chance that a chain ranks below the row and the token.
    through: chance that a chain passes through the row.
    below: chance that a chain ranks below the row; `through` makes it 1.
    paths: K.
  """
  upper = lower + through * q

  # (u**K - l**K) / (u - l), without a difference of numbers that are close.
  def longer(_, carry):
    token, power, row = carry
    return token * lower + power, power * upper, row * below + 1

  one = jnp.ones_like(q), upper, jnp.ones_like(below)
  token, _, row = jax.lax.fori_loop(1, paths, longer, one)
  return q * token / row


def rule_of(law: Callable[..., jax.Array]) -> Rule:
  """The rule, whose best path has the distributions that `law` returns."""

  def follow(draft: Draft, scores: Scores) -> _Path:
    p, nodes = scores.probs, draft.tokens.shape[0]
    drafted = drafted_probs(draft, p.shape[-1], p.dtype)
    exists = jnp.arange(nodes) < draft.size
    paths = ((draft.parents == 0) & exists).sum()

    def goes_on(carry):
      level, row, *_ = carry
      return (level < nodes) & ((draft.parents == row) & exists).any()

    def turn(carry):
      level, row, rows, through, below, best = carry
      child = (draft.parents == row) & exists
      q = drafted[jnp.argmax(child)]
      order = jnp.argsort(chains.quotient(p[row], q))
      rank = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
      lower = (jnp.cumsum(q[order]) - q[order])[rank] * through + below
      best = best.at[level].set(law(q, lower, through, below, paths))
      node = jnp.argmax(jnp.where(child, rank[draft.tokens], -1))
      node = node.astype(jnp.int32)
      token = draft.tokens[node]
      through, below = through * q[token], lower[token]
      total = through + below
      through, below = (chains.quotient(x, total) for x in (through, below))
      rows = rows.at[level + 1].set(node + 1)
      return level + 1, node + 1, rows, through, below, best

    zero, one = jnp.zeros((), jnp.int32), jnp.ones((), p.dtype)
    rows = jnp.full(nodes + 1, nodes + 1, jnp.int32).at[0].set(0)
    start = zero, zero, rows, one, 0 * one, jnp.zeros_like(drafted)
    size, _, rows, *_, best = jax.lax.while_loop(goes_on, turn, start)
    known = jnp.minimum(rows, nodes)
    tokens = draft.tokens[known[1:] - 1]
    chain = Draft(tokens, jnp.arange(nodes), size, best)
    return _Path(rows, chain, Scores(p[known], scores.logits[known]))

  def accept(draft: Draft, scores: Scores) -> jax.Array:
    if draft.tokens.shape[0] == 0:
      return jnp.zeros(0, scores.probs.dtype)
    path = follow(draft, scores)
    stays = chains.block_accept(path.draft, path.scores)
    return jnp.zeros_like(stays).at[path.rows[1:] - 1].set(stays, mode='drop')

  def rest(draft: Draft, scores: Scores, row: jax.Array) -> jax.Array:
    if draft.tokens.shape[0] == 0:
      return scores.probs[row]
    path = follow(draft, scores)
    place = jnp.argmax(path.rows == row)
    return chains.block_rest(path.draft, path.scores, place)

  return Rule(accept, rest, lossless=True, refuses=_refuses)


def _refuses(drafter: Drafter) -> str:
  if drafter.paths or drafter.nodes == drafter.depth:
    return ''
  return (
    'it judges chains that are drawn independently: use a drafter such as '
    'specjax.drafters.lm.load with widths=(k,) and replacement=True, or the '
    'rule specjax.verify.traversal'
  )


multi_path = rule_of(law_of_best)
