"""Copied continuations, and the tree that they make."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Copies(NamedTuple):
  """Continuations copied from M places; of equal weight the first is best."""

  tokens: jax.Array  # [M, K]
  size: jax.Array  # [M] tokens that were there to copy
  matched: jax.Array  # [M] tokens before the place that agree; 0: no place

  @property
  def exists(self) -> jax.Array:
    """Tells which tokens [M, K] were there to copy."""
    return jnp.arange(self.tokens.shape[1]) < self.size[:, None]

  @property
  def alike(self) -> jax.Array:
    """Tells which copies begin with the same tokens, up to each; [M, M, K]."""
    exists, same = self.exists, self.tokens[:, None] == self.tokens
    return jnp.cumprod(same & exists[:, None] & exists, 2).astype(bool)


def count_agreeing(text, tokens, length, longest: int):
  """Counts the tokens that end at each place and end another text, too.

  Args:
    text: [C] with the places.
    tokens: [S] the other text.
    length: of the other text, which is of one sequence.
    longest: tokens that are compared at most.

  Returns:
    [C] counts.
  """
  place = jnp.arange(text.shape[0])
  matched = jnp.zeros(text.shape[0], jnp.int32)
  agree = jnp.ones(text.shape[0], bool)
  for back in range(longest):
    last = tokens[length - 1 - back]  # From the end where `agree` is false.
    agree &= (jnp.roll(text, back) == last) & (place >= back)
    agree &= length - 1 - back >= 0
    matched += agree
  return matched


def merge(copies: Copies, weight, nodes: int, chain: bool):
  """The nodes with the most votes of the tree that continuations make.

  One sequence. A node is a beginning that some continuations share, and has
  the votes of all of them: never more than the node above, so the best nodes
  are a tree whose parents come first.

    a b (2 votes), a c (1), d e (1)     four nodes    a 3, b 2, c 1, d 1

  Args:
    copies: M continuations of K tokens.
    weight: [M] votes of each.
    nodes: N.
    chain: take the best child at every node, and no other; then N = K, and
      parents are those of a chain beyond its end, too.

  Returns:
    tokens [N], parents [N] and how many there are.
  """
  count, depth = copies.tokens.shape
  place, alike = jnp.arange(count), copies.alike
  first = jnp.argmax(alike, 1)  # [M, K] which copy stands for the node
  votes = jnp.where(alike, weight[:, None], 0).sum(1)
  node = copies.exists & (first == place[:, None])
  if chain:
    going = jnp.ones(count, bool)
    for i in range(depth):
      best = jnp.argmax(jnp.where(going & node[:, i], votes[:, i], 0))
      node = node.at[:, i].set(node[:, i] & going & (place == best))
      going = going & alike[best, :, i]
  # Level by level: of equal votes the upper node comes first.
  flat = jnp.where(node, votes, 0).T.reshape(-1)
  spare = max(0, nodes - flat.shape[0])
  best, at = jax.lax.top_k(jnp.pad(flat, (0, spare)), nodes)
  level, copy = at // count, at % count
  inside = best > 0
  tokens = jnp.where(inside, copies.tokens[copy, level], 0)
  size = inside.sum().astype(jnp.int32)
  if chain:
    return tokens, jnp.arange(depth, dtype=jnp.int32), size
  row = jnp.zeros(flat.shape[0] + spare, jnp.int32)
  row = row.at[at].set(jnp.arange(1, nodes + 1, dtype=jnp.int32))
  upper = jnp.maximum(level - 1, 0)
  above = row[upper * count + first[copy, upper]]
  return tokens, jnp.where(inside & (level > 0), above, 0), size
