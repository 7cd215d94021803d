"""Token trees as parent rows: depths, ancestor masks, chains."""

import jax
import jax.numpy as jnp


def chain(batch: int, nodes: int) -> jax.Array:
  """Parents [B, N] of a chain: 0, 1, 2, ..."""
  return jnp.broadcast_to(jnp.arange(nodes, dtype=jnp.int32), (batch, nodes))


def above(parents: jax.Array, tokens: jax.Array, depth: int) -> jax.Array:
  """Drafted tokens on the path to every row, its own last: [N+1, K].

  One sequence; -1 fills up to the depth K.

    parents 0 1 0    tokens a b c    above  . .
                                            a .
                                            a b
                                            c .
  """
  level, mask = layout(parents)
  place = level[1:, None] - 1 == jnp.arange(depth)
  path = mask[:, 1:, None] & place
  return jnp.where(path, tokens[:, None], -1).max(1, initial=-1)


def layout(parents: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Depth [N+1] of every row and its ancestor-or-self mask [N+1, N+1].

  One sequence; row 0 is the root.

    parents 0 1 0    depth 0 1 2 1    mask  1 . . .
                                            1 1 . .
                                            1 1 1 .
                                            1 . . 1
  """
  rows = parents.shape[0] + 1
  depth = jnp.zeros(rows, jnp.int32)
  mask = jnp.eye(rows, dtype=bool)

  def hang(i, carry):
    depth, mask = carry
    above = parents[i - 1]
    return (
      depth.at[i].set(depth[above] + 1),
      mask.at[i].set(mask[above].at[i].set(True)),
    )

  if rows == 1:
    return depth, mask
  return jax.lax.fori_loop(1, rows, hang, (depth, mask), unroll=rows <= 16)


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
