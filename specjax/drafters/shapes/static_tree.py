"""A fixed tree, drawn level by level.

Siblings are drawn with replacement, as the k independent chains of SpecTr and
SpecInfer are (arXiv:2310.15141, arXiv:2305.09781), or without, as in Sequoia
(arXiv:2402.12374): then `probs` is the distribution of a node given its earlier
siblings. With a hub one of two siblings is the draft's likeliest token, as in
SpecHub (arXiv:2411.05289).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling, trees
from specjax.drafters.shapes.step_model import Memory, Walker
from specjax.types import Draft, Drafter


class Level(NamedTuple):
  """The nodes of one depth of a static tree; W is the most children."""

  begin: int  # first node
  end: int
  rows: list[int]  # [A] rows that have children here
  place: list[int]  # [end - begin] which of `rows` is each node's parent
  rank: list[int]  # [end - begin] its earlier siblings
  width: int  # W


def levels_of(parents: tuple[int, ...]) -> list[Level]:
  """Splits a tree by depth.

  Raises:
    ValueError: nodes do not come level by level, or there are none.
  """
  depth = [0]
  for row, parent in enumerate(parents, 1):
    if not 0 <= parent < row or depth[parent] + 1 < depth[-1]:
      raise ValueError(
        f'parents must name earlier rows, level by level, got {parents}'
      )
    depth.append(depth[parent] + 1)
  if not parents:
    raise ValueError('parents is empty: a tree needs at least one node')
  rank = [parents[:node].count(above) for node, above in enumerate(parents)]
  levels = []
  for here in range(1, depth[-1] + 1):
    begin, end = depth.index(here) - 1, len(depth) - depth[::-1].index(here) - 1
    rows = sorted({*parents[begin:end]})
    place = [rows.index(parent) for parent in parents[begin:end]]
    ranks = rank[begin:end]
    levels.append(Level(begin, end, rows, place, ranks, max(ranks) + 1))
  return levels


def chains_of(parents: tuple[int, ...]) -> int:
  """Counts the chains that a tree is made of; 0 where it is another one."""
  paths = parents.count(0)
  chains = (0,) * paths + tuple(range(1, len(parents) - paths + 1))
  return paths if parents == chains and len(parents) % paths == 0 else 0


def remaining(q, drawn, logits, temperature):
  """Probabilities [V] of a sibling that repeats no earlier one; one sequence.

  Where the earlier ones have used up all of q, any other token may come: a
  uniform one (Sequoia), or at temperature 0 the draft's next best.

  Args:
    q: [V] distribution of the first sibling.
    drawn: [V] whether an earlier one was this token.
    logits: [V] that q comes from.
    temperature: of the row.
  """
  left = jnp.where(drawn, 0, q)
  total = left.sum()
  lowest = jnp.finfo(logits.dtype).min
  rest = jnp.where(drawn, -jnp.inf, jnp.maximum(logits, lowest))
  next_best = jax.nn.one_hot(jnp.argmax(rest), len(q), dtype=q.dtype)
  uniform = jnp.where(drawn, 0, 1 / (~drawn).sum()).astype(q.dtype)
  spare = jnp.where(temperature == 0, next_best, uniform)
  return jnp.where(total > 0, left / jnp.where(total > 0, total, 1), spare)


def beside_hub(q, drawn, logits, temperature):
  """Probabilities [V] of a second sibling, see `remaining`.

  It is the likeliest token of q, the hub, or any other where that was drawn.
  """
  hub = jnp.arange(len(q)) == jnp.argmax(q)
  others = remaining(q, hub, logits, temperature)
  return jnp.where((hub & drawn).any(), others, hub.astype(q.dtype))


def draw_siblings(coins, logits, values, history, above, law):
  """Tokens [W] below one row, and the probs [W, V] they were drawn from.

  `law` is that of later siblings, such as `remaining`; None: that of the first.
  """
  q, logits = sampling.next_distribution(logits, values, history, above)
  drawn = jnp.zeros(q.shape, bool)
  tokens, distributions = [], []
  for coin in coins:
    probs = q
    if tokens and law:
      probs = law(q, drawn, logits, values.temperature)
    token = sampling.draw(coin, probs)
    drawn = drawn.at[token].set(True)
    tokens.append(token)
    distributions.append(probs)
  return jnp.stack(tokens), jnp.stack(distributions)


def merge(parents, levels, tokens):
  """Parents [N] after equal texts were merged under their first node.

  One sequence. A token drawn twice below one row stays twice, but what was
  drawn below either now competes below the first.

    tokens a a b | c d e    parents 0 0 0 1 2 3    ->    0 0 0 1 1 3
  """
  stand = jnp.arange(len(parents) + 1, dtype=jnp.int32)
  merged = jnp.asarray(parents, jnp.int32)
  for level in levels:
    nodes = np.arange(level.begin, level.end)
    above = stand[np.asarray(parents)[nodes]]
    merged = merged.at[nodes].set(above)
    first = level.begin + trees.first(above, tokens[nodes])
    stand = stand.at[nodes + 1].set(first + 1)
  return merged


@functools.cache
def make(
  walker: Walker,
  parents: tuple[int, ...],
  replacement: bool = False,
  hub: bool = False,
) -> Drafter:
  """Returns the drafter.

  Args:
    walker: what goes from token to token.
    parents: [N] rows, ordered by depth; see `trees.branching`.
    replacement: draw siblings independently; equal texts are merged. The tree
      of k independent chains of length d has widths k, 1, 1, ...
    hub: of two siblings one is the likeliest token.

  Raises:
    ValueError: no such tree, or one without a place for a hub.
  """
  levels = levels_of(parents)
  widest = max(level.width for level in levels)
  if hub and (replacement or widest > 2):
    raise ValueError(
      'hub is of trees with two siblings at most, drawn without replacement: '
      f'got parents {parents} and replacement {replacement}'
    )
  depth, nodes = len(levels), len(parents)
  fed = levels[-1].begin + 1  # The last level is drawn and never fed.
  mask = trees.ancestors(np.array(parents))[1]

  def init(params, ctx, hidden):
    return Memory(*walker.init(params, ctx, hidden, fed))

  def propose(params, memory, ctx, key):
    batch = len(ctx.length)
    coins = jax.vmap(lambda k: sampling.coins(k, nodes))(key)
    above = jax.vmap(
      lambda tokens: trees.above(np.array(parents), tokens, depth)
    )
    law = None if replacement else beside_hub if hub else remaining
    draw = functools.partial(draw_siblings, law=law)
    draw = jax.vmap(jax.vmap(draw, in_axes=(0, 0, None, None, 0)))
    step = walker.start(params, memory.state, memory.block, ctx)
    if not replacement and widest > step.logits.shape[-1]:
      raise ValueError(
        f'parents has {widest} siblings, but the vocabulary '
        f'{step.logits.shape[-1]} tokens'
      )
    tokens, first = jnp.zeros((batch, nodes), jnp.int32), 0
    probs: list[jax.Array] = []
    features = step.features
    for depth_above, level in enumerate(levels):
      if depth_above:
        rows = np.arange(first, level.begin + 1)  # Of the level above.
        step = walker.feed(
          params,
          memory.state,
          step.block,
          ctx,
          first,
          depth_above,
          tokens[:, rows - 1],
          features,
          jnp.broadcast_to(mask[rows, :fed], (batch, len(rows), fed)),
        )
      drawn_for = np.zeros((len(level.rows), level.width), int)
      drawn_for[level.place, level.rank] = np.arange(level.begin, level.end)
      with_children = np.array(level.rows) - first
      drawn, distributions = draw(
        coins[:, drawn_for],
        step.logits[:, with_children],
        ctx.sampling,
        ctx.history,
        above(tokens)[:, np.array(level.rows)],
      )
      # Made anew: jax remembers an array as the precision then in force had it.
      node = np.array(level.place), np.array(level.rank)
      tokens = tokens.at[:, level.begin : level.end].set(drawn[:, *node])
      probs.append(distributions[:, *node])
      first = level.begin + 1
      fed_to = with_children[node[0]]
      features = jax.tree.map(lambda x, i=fed_to: x[:, i], step.features)
    hung = trees.fixed(batch, parents)
    if replacement:
      hung = jax.vmap(functools.partial(merge, parents, levels))(tokens)
    size = jnp.full(batch, nodes, jnp.int32)
    draft = Draft(tokens, hung, size, jnp.concatenate(probs, 1))
    return draft, memory._replace(block=step.block)

  def commit(params, memory, ctx, verdict, hidden):
    state = walker.commit(
      params, memory.state, memory.block, ctx, verdict, hidden
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
    independent=replacement,
    paths=chains_of(parents) if replacement else 0,
    hub=hub,
  )
