"""Drafters as users might write them: one that is right, and ones that are not.

Each is a load function for a candidate.
"""

import jax.numpy as jnp

from specjax import trees
from specjax.drafters.shapes import stateless
from specjax.types import Draft, LoadedDrafter


def _load(change=lambda draft: draft, **parts):
  """A load function of a drafter of 7s, with changed drafts and other parts."""

  def make(depth):
    def draft(params, ctx, key):
      del params, key  # Unused.
      batch = len(ctx.length)
      sevens = jnp.full((batch, depth), 7, jnp.int32)
      size = jnp.full(batch, depth, jnp.int32)
      return change(Draft(sevens, trees.chain(batch, depth), size, None))

    return stateless.make(depth, depth, draft)._replace(**parts)

  def load(target, path=''):
    del path  # Unused.
    return LoadedDrafter(target.model, make)

  return load


def _with(**fields):
  """A load function whose drafts have other fields, made from their own."""
  return _load(
    lambda draft: draft._replace(
      **{name: make(getattr(draft, name)) for name, make in fields.items()}
    )
  )


def nothing(target, path=''):
  del target, path  # Unused.


def no_drafter(target, path=''):
  del path  # Unused.
  return LoadedDrafter(target.model, lambda depth: 'drafter')


def no_path(target):
  return target


def _probs(entries, dtype=jnp.float32):
  return lambda draft: draft._replace(
    probs=jnp.ones((*draft.tokens.shape, entries), dtype)
  )


right = _load()
no_pair = _load(propose=lambda *_: None)
no_draft = _load(lambda draft: None)
few_tokens = _with(tokens=lambda x: x[0])
many_tokens = _with(tokens=lambda x: jnp.tile(x, 2))
listed_tokens = _with(tokens=lambda x: [7])
float_tokens = _with(tokens=lambda x: 1.0 * x)
square_size = _with(size=lambda x: x[:, None])
flat_parents = _with(parents=lambda x: x[:, 0])
other_vocabulary = _load(_probs(11))
integer_probs = _load(_probs(2048, jnp.int32))
flat_probs = _with(probs=lambda _: jnp.ones((1, 1)))
grows = _load(commit=lambda *_: jnp.zeros(3))
short = _load(positions=20)
unknown_tokens = _with(tokens=lambda x: x + 5000)
