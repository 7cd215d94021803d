"""Prompt lookup: copies what followed an earlier match of the last tokens.

No model and no state (Saxena 2023, "Prompt lookup decoding"; the datastore of
REST, arXiv:2311.08252, is this text alone). Copied tokens are chosen, not
drawn, so `probs` is None. Without a match nothing is proposed.
"""

import functools

import jax
import jax.numpy as jnp

from specjax import trees
from specjax.models.transformer import Model
from specjax.types import Draft, Drafter


def look_up(tokens, length, depth: int, longest: int):
  """Continuation after the best earlier match, of one sequence.

  A match of more tokens wins; among equals the most recent.

    tokens  a b c a b | longest 2     match "a b" at 0    ->    c a b

  Args:
    tokens: [S].
    length: committed tokens.
    depth: tokens to copy.
    longest: longest suffix that is looked for; shorter ones are tried too.

  Returns:
    tokens [depth] and how many of them were there to copy.
  """
  slots = tokens.shape[0]
  place = jnp.arange(slots)
  # matched[i]: how many tokens that end at i agree with the end of the text.
  matched = jnp.zeros(slots, jnp.int32)
  agree = jnp.ones(slots, bool)
  for back in range(longest):
    last = tokens[jnp.maximum(length - 1 - back, 0)]
    agree &= (jnp.roll(tokens, back) == last) & (place >= back)
    agree &= length - 1 - back >= 0
    matched += agree
  earlier = place < length - 1
  rank = jnp.where(earlier & (matched > 0), matched * slots + place, -1)
  best = rank.max()
  begin = jnp.where(best >= 0, best % slots + 1, length)
  size = jnp.minimum(length - begin, depth).astype(jnp.int32)
  index = jnp.minimum(begin + jnp.arange(depth), slots - 1)
  return tokens[index], size


@functools.cache
def make(depth: int, longest: int = 3) -> Drafter:
  """Returns the drafter.

  Args:
    depth: K, tokens copied at most.
    longest: longest suffix of the text that is looked up.
  """
  if depth < 1 or longest < 1:
    raise ValueError(
      f'depth and longest must be at least 1, got {depth} and {longest}'
    )

  def init(params, ctx, hidden):
    del params, ctx, hidden  # Unused.
    return ()

  def propose(params, state, ctx, key):
    del params, key  # Unused.
    find = functools.partial(look_up, depth=depth, longest=longest)
    tokens, size = jax.vmap(find)(ctx.tokens, ctx.length)
    parents = trees.chain(tokens.shape[0], depth)
    return Draft(tokens, parents, size, None), state

  def commit(params, state, ctx, verdict, hidden):
    del params, ctx, verdict, hidden  # Unused.
    return state

  return Drafter(depth, depth, init, propose, commit)


def load(
  target: Model, depth: int, path: str = '', longest: int = 3
) -> tuple[Drafter, None]:
  """The drafter for a target: nothing is read."""
  del target, path  # Unused.
  return make(depth, longest), None
