"""No drafting: plain autoregressive decoding as the loop with K = 0."""

import functools

import jax.numpy as jnp

from specjax.types import Draft, Drafter


@functools.cache
def make() -> Drafter:
  """Returns the drafter of depth 0."""

  def init(params, ctx, hidden):
    del params, ctx, hidden  # Unused.
    return ()

  def propose(params, state, ctx, key):
    del params, key  # Unused.
    batch = ctx.length.shape[0]
    none = jnp.zeros((batch, 0), jnp.int32)
    return Draft(none, none, jnp.zeros(batch, jnp.int32), None), state

  def commit(params, state, ctx, verdict, hidden):
    del params, ctx, verdict, hidden  # Unused.
    return state

  return Drafter(0, 0, init, propose, commit)
