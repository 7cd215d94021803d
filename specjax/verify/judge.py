"""The walk through a draft, and the verdict it ends in.

Everything here is of one sequence; `vmap` outside.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax import sampling, trees
from specjax.types import Draft, Rule, Scores, Verdict


def drafted_probs(draft: Draft, vocab: int, dtype=jnp.float32) -> jax.Array:
  """q [N, V]: the given one, or one-hot where the token was chosen."""
  if draft.probs is not None:
    return draft.probs
  return jax.nn.one_hot(draft.tokens, vocab, dtype=dtype)


def at_tokens(probs: jax.Array, tokens: jax.Array) -> jax.Array:
  """Entries [N] of probs [N, V] at tokens [N]."""
  return jnp.take_along_axis(probs, tokens[:, None], 1)[:, 0]


def walk(draft: Draft, accept: jax.Array, u: jax.Array, depth: int):
  """The accepted path under coins u [N].

  Nodes are met in order; a node is judged when its parent is where the walk
  stands, and the walk moves there when its coin falls below `accept`. Of
  siblings with the same token the walk stands at the first: the text is the
  same, and children hang there.

    parents 0 0 1    coins fail, pass, -    path 0 2

  Returns:
    path [depth + 1] of rows (the last row repeated beyond its end) and the
    number of accepted nodes.
  """
  nodes = draft.tokens.shape[0]
  path = jnp.zeros(depth + 1, jnp.int32)
  here = count = jnp.zeros((), jnp.int32)
  if nodes == depth:  # A chain has no siblings.
    stand = jnp.arange(1, nodes + 1, dtype=jnp.int32)
  else:
    stand = trees.first(draft.parents, draft.tokens) + 1

  def judge(i, carry):
    here, count, path = carry
    moved = (draft.parents[i] == here) & (u[i] < accept[i]) & (i < draft.size)
    here = jnp.where(moved, stand[i], here)
    count = count + moved
    path = jnp.where(jnp.arange(depth + 1) >= count, here, path)
    return here, count, path

  if nodes:
    here, count, path = jax.lax.fori_loop(
      0, nodes, judge, (here, count, path), unroll=nodes <= 16
    )
  return path, count


def judge(
  key: jax.Array, draft: Draft, scores: Scores, rule: Rule, depth: int
) -> Verdict:
  """Verifies one draft. The key is consumed; of a `placed` rule [N+1] are.

  A chance to be accepted is rounded up to a multiple of 2**-24 in float32: a
  chance of 0 stays 0, and one of 1 is certain.
  """
  nodes = draft.tokens.shape[0]
  dtype = scores.probs.dtype
  if rule.placed:
    coins = jax.vmap(lambda one: jax.random.bits(one, (2,), jnp.uint32))(key)
    own = jax.vmap(sampling.draw)(coins, scores.probs)
    accept = (draft.tokens == own[draft.parents]).astype(dtype)
    path, count = walk(draft, accept, jnp.zeros(nodes, dtype), depth)
    return Verdict(path, count, own[path[-1]])
  bits = jax.random.bits(key, (nodes + 2,), jnp.uint32)
  u = sampling.uniform(bits[2:], dtype)
  path, count = walk(draft, rule.accept(draft, scores), u, depth)
  rest = rule.rest(draft, scores, path[-1])
  return Verdict(path, count, sampling.draw(bits[:2], rest))


def overlap(draft: Draft, scores: Scores) -> jax.Array:
  """beta = sum(min(p, q)) at the root; 0 where nothing was proposed."""
  if draft.tokens.shape[0] == 0:
    return jnp.zeros((), scores.probs.dtype)
  q = drafted_probs(draft, scores.probs.shape[-1], scores.probs.dtype)[0]
  return jnp.where(draft.size > 0, jnp.minimum(scores.probs[0], q).sum(), 0)


@functools.cache
def chance(rule: Rule) -> Callable[[Draft, Scores], jax.Array]:
  """The probability that a rule accepts one of the first tokens of a draft.

  In place of `overlap` (`generate.StepParts`) its mean is alpha under the rule:
  for k candidates of a place, with lenience, or under a `placed` rule. For a
  chain and another exact rule it has the same mean as `overlap` and a larger
  variance, since one draft is looked at instead of all.
  """

  def first(draft: Draft, scores: Scores) -> jax.Array:
    place = jnp.arange(draft.tokens.shape[0])
    below = (draft.parents == 0) & (place < draft.size)
    missed = jnp.where(below, 1 - rule.accept(draft, scores), 1)
    return 1 - jnp.prod(missed)

  return first
