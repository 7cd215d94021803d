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
