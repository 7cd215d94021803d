"""No drafting: plain autoregressive decoding as the loop with K = 0."""

import functools
from typing import Literal

import jax.numpy as jnp

from specjax.drafters.shapes import stateless
from specjax.types import Draft, Drafter, LoadedDrafter, Target


@functools.cache
def make() -> Drafter:
  """Returns the drafter of depth 0."""

  def draft(params, ctx, key):
    batch = ctx.length.shape[0]
    none = jnp.zeros((batch, 0), jnp.int32)
    return Draft(none, none, jnp.zeros(batch, jnp.int32), None)

  return stateless.make(0, 0, draft)


def load_none(target: Target, path: Literal[''] = '') -> LoadedDrafter:
  """Returns a drafter that drafts nothing, at any draft length."""
  del path  # Unused: it has no weights.
  return LoadedDrafter(target.model, lambda depth: make())
