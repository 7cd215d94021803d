"""Counts of a corpus as drafts of negligible cost.

The unigram and bigram approximations of Leviathan et al. (arXiv:2211.17192,
section 4.1). A bigram table keeps the 32 most frequent successors of every
token; the mass of all others is spread over them as unigrams. `probs` is
exactly that distribution after the sampling pipeline.
"""

import functools

import jax
import jax.numpy as jnp

from specjax.arguments import check_path, check_target
from specjax.drafters.heads import frequencies
from specjax.drafters.heads.frequencies import SUCCESSORS as SUCCESSORS
from specjax.drafters.heads.frequencies import Tables
from specjax.drafters.heads.frequencies import count as count
from specjax.drafters.heads.frequencies import read as read
from specjax.drafters.heads.frequencies import save as save
from specjax.drafters.shapes import chain
from specjax.drafters.shapes.step_model import Step, Walker
from specjax.types import Drafter, LoadedDrafter, Target


def distribution_after(tables: Tables, token: jax.Array) -> jax.Array:
  """q [V] after one token: its successors, backed off to unigrams.

  A place of the table that no pair was counted for says nothing about its
  token, which is then backed off like all others.
  """
  top, share = tables.successor[token], tables.share[token]
  seen = share > 0
  others = tables.unigram.at[top].multiply(jnp.where(seen, 0, 1))
  left = jnp.maximum(1 - share.sum(), 0)
  total = others.sum()
  backed_off = others * jnp.where(total > 0, left / total, 0)
  return backed_off.at[top].add(share)


def _say(params, tokens: jax.Array) -> Step:
  """The distributions after tokens [B, T], whatever comes before these."""
  after = functools.partial(distribution_after, params.drafter)
  return Step(jnp.log(jax.vmap(jax.vmap(after))(tokens)), (), ())


def _start(params, state, block, ctx) -> Step:
  last = jnp.take_along_axis(ctx.tokens, ctx.length[:, None] - 1, 1)
  return _say(params, last)


def _feed(
  params, state, block, ctx, row, depth, tokens, features, sees
) -> Step:
  return _say(params, tokens)


_WALKER = Walker(
  init=lambda params, ctx, hidden, rows: ((), ()),
  start=_start,
  feed=_feed,
  commit=lambda params, state, block, ctx, verdict, hidden: (),
)


def make(depth: int) -> Drafter:
  """Returns the drafter, a chain; its parameters are `Tables`."""
  return chain.make(_WALKER, depth)


def load(target: Target, path: str) -> LoadedDrafter:
  """The drafter of the tables in a directory, for a target.

  Raises:
    ValueError: there are none, or of another vocabulary.
  """
  check_target(target)
  check_path(path, 'tables')
  return LoadedDrafter(target.model, make, frequencies.read_for(target, path))
