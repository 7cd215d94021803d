"""Counts of a corpus as drafts of negligible cost.

The unigram and bigram approximations of Leviathan et al. (arXiv:2211.17192,
section 4.1). A bigram table keeps the 32 most frequent successors of every
token; the mass of all others is spread over them as unigrams. `probs` is
exactly that distribution after the sampling pipeline.
"""

import functools

import jax
import jax.numpy as jnp

from specjax import sampling, trees
from specjax.arguments import check_path, check_target
from specjax.drafters.heads import frequencies
from specjax.drafters.heads.frequencies import SUCCESSORS as SUCCESSORS
from specjax.drafters.heads.frequencies import Tables
from specjax.drafters.heads.frequencies import count as count
from specjax.drafters.heads.frequencies import read as read
from specjax.drafters.heads.frequencies import save as save
from specjax.drafters.shapes import stateless
from specjax.types import Draft, Drafter, LoadedDrafter, Target


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


@functools.cache
def make(depth: int) -> Drafter:
  """Returns the drafter; its parameters are `Tables`."""
  if depth < 1:
    raise ValueError(f'depth must be at least 1, got {depth}')

  def draft_row(tables, token, values, history, key):

    def draw(carry, step):
      (token, above), (i, coins) = carry, step
      # Not 0, whose logarithm would leave nothing if the rest is forbidden.
      likely = distribution_after(tables, token)
      likely = jnp.maximum(likely, jnp.finfo(likely.dtype).tiny)
      q, _ = sampling.next_distribution(jnp.log(likely), values, history, above)
      token = sampling.draw(coins, q)
      return (token, above.at[i].set(token)), (token, q)

    none = jnp.full(depth, -1, jnp.int32)
    steps = jnp.arange(depth), sampling.coins(key, depth)
    return jax.lax.scan(draw, (token, none), steps)[1]

  def draft(params, ctx, key):
    batch = ctx.length.shape[0]
    last = jnp.take_along_axis(ctx.tokens, ctx.length[:, None] - 1, 1)[:, 0]
    row = functools.partial(draft_row, params.drafter)
    tokens, probs = jax.vmap(row)(last, ctx.sampling, ctx.history, key)
    size = jnp.full(batch, depth, jnp.int32)
    return Draft(tokens, trees.chain(batch, depth), size, probs)

  return stateless.make(depth, depth, draft)


def load(target: Target, path: str) -> LoadedDrafter:
  """The drafter of the tables in a directory, for a target.

  Raises:
    ValueError: there are none, or of another vocabulary.
  """
  check_target(target)
  check_path(path, 'tables')
  return LoadedDrafter(target.model, make, frequencies.read_for(target, path))
