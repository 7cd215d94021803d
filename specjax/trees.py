"""Token trees as parent rows: depths, ancestor masks, chains."""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def fixed(batch: int, parents: Sequence[int]) -> np.ndarray:
  """Parents [B, N] of a tree that is the same in every row and at every step.

  Its masks are computed when a program is traced, since it is no JAX array.
  """
  row = np.asarray(parents, np.int32)
  return np.broadcast_to(row, (batch, len(row)))


def chain(batch: int, nodes: int) -> np.ndarray:
  """Parents [B, N] of a chain: 0, 1, 2, ..."""
  return fixed(batch, range(nodes))


def each(function: Callable[..., Any], parents: Any, *others: jax.Array) -> Any:
  """Calls a function of one sequence with the parents [B, N] of each."""
  alike = isinstance(parents, np.ndarray) and len(parents)
  if not alike or (parents != parents[0]).any():
    return jax.vmap(function)(parents, *others)
  if others:
    return jax.vmap(lambda *one: function(parents[0], *one))(*others)
  made = function(parents[0])
  return jax.tree.map(
    lambda x: jnp.broadcast_to(x, (len(parents), *x.shape)), made
  )


def above(parents: jax.Array, tokens: jax.Array, depth: int) -> jax.Array:
  """Drafted tokens on the path to every row, its own last: [N+1, K].

  One sequence; -1 fills up to the depth K.

    parents 0 1 0    tokens a b c    above  . .
                                            a .
                                            a b
                                            c .
  """
  level, mask = ancestors(parents)
  place = level[1:, None] - 1 == jnp.arange(depth)
  path = mask[:, 1:, None] & place
  return jnp.where(path, tokens[:, None], -1).max(1, initial=-1)


def ancestors(parents: Any) -> tuple[Any, Any]:
  """Depth [N+1] of every row and its ancestor-or-self mask [N+1, N+1].

  One sequence; row 0 is the root. Both are numpy arrays where the parents are
  one, and take no part in a compiled program.

    parents 0 1 0    depth 0 1 2 1    mask  1 . . .
                                            1 1 . .
                                            1 1 1 .
                                            1 . . 1
  """
  rows = parents.shape[0] + 1
  depth, mask = np.zeros(rows, np.int32), np.eye(rows, dtype=bool)
  if isinstance(parents, np.ndarray):
    for row, above in enumerate(parents, 1):
      depth[row] = depth[above] + 1
      mask[row] |= mask[above]
    return depth, mask

  def hang(i, carry):
    depth, mask = carry
    above = parents[i - 1]
    return (
      depth.at[i].set(depth[above] + 1),
      mask.at[i].set(mask[above].at[i].set(True)),
    )

  start = jnp.asarray(depth), jnp.asarray(mask)
  if rows == 1:
    return start
  return jax.lax.fori_loop(1, rows, hang, start, unroll=rows <= 16)


def rank(parents: jax.Array) -> jax.Array:
  """How many siblings come before each node, [N]; one sequence."""
  place = jnp.arange(parents.shape[0])
  same = parents == parents[:, None]
  return (same & (place < place[:, None])).sum(-1)


def child(parents: jax.Array, chosen: jax.Array) -> jax.Array:
  """The chosen node below every row, [N+1]; N where there is none.

  Args:
    parents: [N].
    chosen: [N], at most one node of each parent.
  """
  nodes = parents.shape[0]
  below = (parents == jnp.arange(nodes + 1)[:, None]) & chosen
  return jnp.where(below.any(-1), jnp.argmax(below, -1), nodes)


def first(parents: jax.Array, tokens: jax.Array) -> jax.Array:
  """First sibling with the same token as each node, [N]; itself as a rule.

  One sequence. Such siblings are one text, drawn twice.
  """
  same = (parents == parents[:, None]) & (tokens == tokens[:, None])
  return jnp.argmax(same, -1).astype(jnp.int32)


def branching(widths: tuple[int, ...]) -> tuple[int, ...]:
  """Parent rows of a tree in which every node of depth i has widths[i].

  widths 2 1    parents 0 0 1 2
  """
  parents, level, rows = [], [0], 1
  for width in widths:
    above = [row for row in level for _ in range(width)]
    parents += above
    level = list(range(rows, rows + len(above)))
    rows += len(above)
  return tuple(parents)


def most_accepted(
  accuracies: Sequence[Sequence[float]], nodes: int
) -> tuple[int, ...]:
  """Parent rows of the tree that most often holds what comes, level by level.

  Medusa's (arXiv:2401.10774, section 3.3): a node is worth the product of the
  accuracies on its path, and the best nodes are taken. A guess of a head comes
  after its earlier ones, which it is a draw after, even where it was measured
  to be the better one.

  Args:
    accuracies: [K, R] chance that the i-th guess for place k is right.
    nodes: N, of the tree; fewer where there are no more guesses.

  Raises:
    ValueError: no place, or no node.
  """
  if nodes < 1 or not accuracies:
    raise ValueError(
      f'a tree needs a node and a place, got {nodes} and {len(accuracies)}'
    )

  def offer(path, worth):
    """A node, best first; its path is the rank of every guess."""
    chances = accuracies[len(path) - 1]
    return (-worth * chances[path[-1]], path, worth)

  heap = [offer((0,), 1.0)]
  chosen: list[tuple[int, ...]] = []
  while heap and len(chosen) < nodes:
    value, path, above = heapq.heappop(heap)
    chosen.append(path)
    if len(path) < len(accuracies):
      heapq.heappush(heap, offer((*path, 0), -value))
    if path[-1] + 1 < len(accuracies[len(path) - 1]):
      heapq.heappush(heap, offer((*path[:-1], path[-1] + 1), above))
  chosen.sort(key=lambda path: (len(path), path))
  rows = {path: row for row, path in enumerate(chosen, 1)}
  return tuple(rows.get(path[:-1], 0) for path in chosen)
