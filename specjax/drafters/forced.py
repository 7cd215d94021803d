"""Drafts what a constraint leaves no choice about.

Where one token is allowed the target's distribution is one-hot: the token is
accepted for certain, and drafting it costs a look into a table. In front of a
draft model it is the inner drafter of `drafters.cascade`: the model then reads
such tokens in one pass instead of one each.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp

from specjax import arguments, trees
from specjax.drafters.shapes import stateless
from specjax.types import Context, Draft, Drafter, LoadedDrafter, Target


def _run(ctx: Context, depth: int):
  """Tokens [B, K] that must come next, and how many of them [B]."""
  batch = len(ctx.length)
  constraint, state = ctx.sampling.constraint, ctx.history.state
  if constraint is None or state is None:
    return jnp.zeros((batch, depth), jnp.int32), jnp.zeros(batch, jnp.int32)

  constraint = jax.tree.map(jnp.asarray, constraint)  # Numpy's, if not traced.

  def row(constraint, state):
    def turn(state, _):
      here = jnp.maximum(state, 0)
      token = jnp.where(state < 0, -1, constraint.only[here])
      kind = constraint.classes[jnp.maximum(token, 0)].astype(jnp.int32)
      after = constraint.next[here, kind].astype(state.dtype)
      return jnp.where(token < 0, -1, after), token

    unroll = min(depth, 16)
    _, tokens = jax.lax.scan(turn, state, length=depth, unroll=unroll)
    return jnp.maximum(tokens, 0), (tokens >= 0).sum()

  return jax.vmap(row)(constraint, state)


@functools.cache
def make(depth: int) -> Drafter:
  """Returns the drafter; `depth` is K, tokens drafted at most.

  Raises:
    ValueError: the depth is below 1.
  """
  arguments.check_number('depth', depth, 1)

  def draft(params, ctx, key):
    tokens, size = _run(ctx, depth)
    return Draft(tokens, trees.chain(len(size), depth), size, None)

  return stateless.make(depth, depth, draft)


def load(target: Target, path: Literal[''] = '') -> LoadedDrafter:
  """The drafter of forced tokens; it has no weights.

  Args:
    target: what it drafts for.
    path: empty: there are no weights.

  Raises:
    ValueError: the target is none.
  """
  arguments.check_no_path(path)
  arguments.check_target(target)
  return LoadedDrafter(target.model, make)
