"""Copied continuations, and the tree that they make."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Copies(NamedTuple):
  """Continuations copied from M places; of equal weight the first is best."""

  tokens: jax.Array  # [M, K]
  size: jax.Array  # [M] tokens that were there to copy
  matched: jax.Array  # [M] tokens before the place that agree; 0: no place


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
    chain: take the best child at every node, and no other; then N = K.

  Returns:
    tokens [N], parents [N] and how many there are.
  """
  count, depth = copies.tokens.shape
  place, step = jnp.arange(count), jnp.arange(depth)
  exists = step < copies.size[:, None]  # [M, K]
  alike = copies.tokens[:, None] == copies.tokens
  alike = jnp.cumprod(alike & exists[:, None] & exists, 2).astype(bool)
  first = jnp.argmax(alike, 1)  # [M, K] which copy stands for the node
  votes = jnp.where(alike, weight[:, None], 0).sum(1)
  node = exists & (first == place[:, None])
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
  row = jnp.zeros(flat.shape[0] + spare, jnp.int32)
  row = row.at[at].set(jnp.arange(1, nodes + 1, dtype=jnp.int32))
  upper = jnp.maximum(level - 1, 0)
  above = row[upper * count + first[copy, upper]]
  tokens = jnp.where(inside, copies.tokens[copy, level], 0)
  parents = jnp.where(inside & (level > 0), above, 0)
  return tokens, parents, inside.sum().astype(jnp.int32)
