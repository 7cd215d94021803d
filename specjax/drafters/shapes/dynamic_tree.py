"""The nodes most likely to be accepted, chosen anew at every step.

EAGLE-2 (Li et al., arXiv:2406.16858): a node is worth the product of the
draft's confidences on its path; the best of every level are expanded, and of
all nodes seen the best are kept. Tokens are chosen, so `probs` is None; the
tree's shape is data and its size static.

Where all places are said at once, a beam of N keeps the N most likely
beginnings of all, as the heap of DDTree does (Ringel and Romano,
arXiv:2604.12989). A smaller beam looks at fewer.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.arguments import check_number
from specjax.drafters.shapes.step_model import Memory, Walker
from specjax.types import Draft, Drafter


class Nodes(NamedTuple):
  """Candidates, one level after the other; M so far."""

  tokens: jax.Array  # [B, M]
  parent: jax.Array  # [B, M] candidate above, -1 the root
  worth: jax.Array  # [B, M] sum of log confidences
  row: jax.Array  # [B, M] row in the walker's block, 0 where never fed


def _join(nodes: list[Nodes]) -> Nodes:
  return Nodes(*(jnp.concatenate(x, 1) for x in zip(*nodes, strict=True)))


def _take(x, index):
  """Entries x [B, M, ...] at index [B, W]."""
  wide = index.reshape(*index.shape, *(1,) * (x.ndim - 2))
  return jnp.take_along_axis(x, wide, 1)


@functools.partial(jax.vmap, in_axes=(0, 0, None))
def _put(x, index, values):
  return x.at[index].set(values)


def select(nodes: Nodes, size: int):
  """The `size` best candidates, parents before children; one sequence.

  A node is worth no more than its parent, and of equals the earlier one is
  taken: so parents are taken with their children.

  Returns:
    tokens [size], parents [size] as in `types.Draft`, rows [size + 1].
  """
  best = jnp.sort(jax.lax.top_k(nodes.worth, size)[1])
  above = nodes.parent[best]
  place = jnp.argmax(best == above[:, None], 1) + 1
  parents = jnp.where(above < 0, 0, place)
  rows = jnp.concatenate([jnp.zeros_like(best[:1]), nodes.row[best]])
  return (nodes.tokens[best], parents.astype(jnp.int32), rows.astype(jnp.int32))


@functools.cache
def make(walker: Walker, depth: int, beam: int, nodes: int) -> Drafter:
  """Returns the drafter.

  Args:
    walker: what goes from token to token.
    depth: K, levels.
    beam: nodes expanded at every level, and children looked at of each
      (EAGLE-2: 10).
    nodes: N, nodes kept of beam + (depth - 1) beam^2 (EAGLE-2: 60).

  Raises:
    ValueError: a size below 1, or no more nodes than levels.
  """
  for name, size in (('depth', depth), ('beam', beam), ('nodes', nodes)):
    check_number(name, size, 1)
  nodes = min(nodes, beam + (depth - 1) * beam**2)
  if depth > 1 and nodes <= depth:
    raise ValueError(
      f'{nodes} nodes make no tree of {depth} levels: choose more nodes and a '
      'beam of at least 2, or a chain'
    )
  fed = 1 + (depth - 1) * beam

  def init(params, ctx, hidden):
    state, block = walker.init(params, ctx, hidden, fed)
    rows = jnp.zeros((len(ctx.length), nodes + 1), jnp.int32)
    return Memory(state, (block, rows))

  def children(ctx, logits, above, worth, parent):
    """The best below each node; all [B, W, ...] of the nodes expanded."""
    process = jax.vmap(
      jax.vmap(sampling.next_distribution, in_axes=(0, None, None, 0))
    )
    _, logits = process(logits, ctx.sampling, ctx.history, above)
    log_q, tokens = jax.lax.top_k(jax.nn.log_softmax(logits), beam)
    batch = len(ctx.length)
    # No confidence is above 1, nor impossible: a forbidden token stays last.
    log_q = jnp.clip(log_q, -1e4, 0)
    return Nodes(
      tokens.reshape(batch, -1).astype(jnp.int32),
      jnp.repeat(parent, beam, 1),
      (worth[..., None] + log_q).reshape(batch, -1),
      jnp.zeros((batch, parent.shape[1] * beam), jnp.int32),
    )

  def propose(params, memory, ctx, key):
    del key  # Unused: everything is chosen.
    batch = len(ctx.length)
    block, _ = memory.block
    step = walker.start(params, memory.state, block, ctx)
    if beam > step.logits.shape[-1]:
      raise ValueError(
        f'beam is {beam}, but the vocabulary has {step.logits.shape[-1]} tokens'
      )
    above = jnp.full((batch, 1, depth), -1, jnp.int32)
    root = jnp.full((batch, 1), -1, jnp.int32)
    wide = jnp.promote_types(step.logits.dtype, jnp.float32)
    worth = jnp.zeros((batch, 1), wide)
    # Which rows of the block each expanded node descends from.
    sees = jnp.broadcast_to(jnp.arange(fed) == 0, (batch, 1, fed))
    levels = [children(ctx, step.logits, above, worth, root)]
    offset, features = 0, step.features
    for level in range(1, depth):
      fresh = levels[-1]
      worth, chosen = jax.lax.top_k(fresh.worth, beam)
      from_ = chosen // beam  # Which of those expanded before.
      first = 1 + (level - 1) * beam
      rows = jnp.arange(first, first + beam, dtype=jnp.int32)
      levels[-1] = fresh._replace(row=_put(fresh.row, chosen, rows))
      tokens = _take(fresh.tokens, chosen)
      above = _take(above, from_).at[:, :, level - 1].set(tokens)
      own = rows[:, None] == np.arange(fed)
      sees = _take(sees, from_) | own
      step = walker.feed(
        params,
        memory.state,
        step.block,
        ctx,
        first,
        level,
        tokens,
        jax.tree.map(lambda x, i=from_: _take(x, i), features),
        sees,
      )
      features = step.features
      levels.append(children(ctx, step.logits, above, worth, offset + chosen))
      offset += fresh.tokens.shape[1]
    tokens, parents, rows = jax.vmap(functools.partial(select, size=nodes))(
      _join(levels)
    )
    size = jnp.full(batch, nodes, jnp.int32)
    draft = Draft(tokens, parents, size, None)
    return draft, memory._replace(block=(step.block, rows))

  def commit(params, memory, ctx, verdict, hidden):
    block, rows = memory.block
    path = jnp.take_along_axis(rows, verdict.path, 1)
    state = walker.commit(
      params, memory.state, block, ctx, verdict._replace(path=path), hidden
    )
    return memory._replace(state=state)

  return Drafter(
    depth,
    nodes,
    init,
    propose,
    commit,
    taps=walker.taps,
    positions=walker.positions,
  )
