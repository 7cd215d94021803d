"""Verification rules, and the one walk that turns coins into a verdict.

A rule is two deterministic functions (`types.Rule`). The loop draws from them
and the tests multiply them out, so what is enumerated is what runs.

Everything here is of one sequence; `vmap` outside.
"""

import functools

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.types import Draft, Rule, Scores, Verdict


def drafted_probs(draft: Draft, vocab: int) -> jax.Array:
  """q [N, V]: the given one, or one-hot where the token was chosen."""
  if draft.probs is not None:
    return draft.probs
  return jax.nn.one_hot(draft.tokens, vocab, dtype=jnp.float32)


def _at_tokens(probs, tokens):
  return jnp.take_along_axis(probs, tokens[:, None], 1)[:, 0]


def token_accept(draft: Draft, scores: Scores) -> jax.Array:
  """min(1, p(x) / q(x)) of every node of a chain.

  Leviathan et al., arXiv:2211.17192, Algorithm 1. A chosen token has q = 1,
  so this is also "sample from the target and see whether it matches".
  """
  p = _at_tokens(scores.probs[:-1], draft.tokens)
  if draft.probs is None:
    return p
  q = _at_tokens(draft.probs, draft.tokens)
  # q = 0 cannot have been drawn; 0 is then the answer that stays exact.
  return jnp.where(q > 0, jnp.minimum(p / jnp.where(q > 0, q, 1), 1), 0)


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
    left = jnp.maximum(p - draft.probs[node], 0)
  total = left.sum()
  left = jnp.where(total > 0, left / jnp.where(total > 0, total, 1), p)
  return jnp.where(row < draft.size, left, p)


token = Rule(token_accept, token_rest, lossless=True)


def _observe_accept(draft, scores):
  del scores  # Unused.
  return jnp.zeros(draft.tokens.shape, jnp.float32)


def _observe_rest(draft, scores, row):
  del draft  # Unused.
  return scores.probs[row]


# Drafts and accepts nothing: the text is the target's own and every position
# is a first position, so the overlap that is counted has mean alpha.
observe = Rule(_observe_accept, _observe_rest, lossless=True)


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

  return Rule(accept, _observe_rest, lossless=False)


def walk(draft: Draft, accept: jax.Array, u: jax.Array, depth: int):
  """The accepted path under coins u [N].

  Nodes are met in order; a node is judged when its parent is where the walk
  stands, and the walk moves there when its coin falls below `accept`.

    parents 0 0 1    coins fail, pass, -    path 0 2

  Returns:
    path [depth + 1] of rows (the last row repeated beyond its end) and the
    number of accepted nodes.
  """
  nodes = draft.tokens.shape[0]
  path = jnp.zeros(depth + 1, jnp.int32)
  here = count = jnp.zeros((), jnp.int32)

  def judge(i, carry):
    here, count, path = carry
    moved = (draft.parents[i] == here) & (u[i] < accept[i]) & (i < draft.size)
    here = jnp.where(moved, i + 1, here)
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
  """Verifies one draft. The key is consumed."""
  nodes = draft.tokens.shape[0]
  dtype = scores.probs.dtype
  u = jax.random.uniform(key, (nodes + 1,), dtype)
  path, count = walk(draft, rule.accept(draft, scores), u[1:], depth)
  rest = rule.rest(draft, scores, path[-1])
  return Verdict(path, count, sampling.draw(u[0], rest))


def overlap(draft: Draft, scores: Scores) -> jax.Array:
  """beta = sum(min(p, q)) at the root; 0 where nothing was proposed."""
  if draft.tokens.shape[0] == 0:
    return jnp.zeros((), scores.probs.dtype)
  q = drafted_probs(draft, scores.probs.shape[-1])[0]
  return jnp.where(draft.size > 0, jnp.minimum(scores.probs[0], q).sum(), 0)
