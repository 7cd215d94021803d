"""An independent small language model that drafts a tree.

Every level of a static tree is fed at once. Siblings are drawn with
replacement, as the k independent chains of SpecTr and SpecInfer are
(arXiv:2310.15141, arXiv:2305.09781), or without, as in Sequoia
(arXiv:2402.12374): then `probs` is the law of a node given its earlier
siblings.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import cache as caches
from specjax import sampling, trees
from specjax.drafters import lm
from specjax.models import reading, transformer
from specjax.models.transformer import Model
from specjax.types import Cache, Draft, Drafter


class Memory(NamedTuple):
  """What the draft has read, and what it fed but nobody has judged yet."""

  cache: Cache
  flight: Cache  # the token before the root, the root, and the nodes fed
  base: jax.Array  # [B] position of the first of these; -1 where there is none


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
  rank = trees.rank(jnp.array(parents)).tolist()
  levels = []
  for here in range(1, depth[-1] + 1):
    begin, end = depth.index(here) - 1, len(depth) - depth[::-1].index(here) - 1
    rows = sorted({*parents[begin:end]})
    place = [rows.index(parent) for parent in parents[begin:end]]
    ranks = rank[begin:end]
    levels.append(Level(begin, end, rows, place, ranks, max(ranks) + 1))
  return levels


def remaining(q, drawn, logits, temperature):
  """The law [V] of a sibling that repeats no earlier one; one sequence.

  Where the earlier ones have used up all of q, any other token may come: a
  uniform one (Sequoia), or at temperature 0 the draft's next best.

  Args:
    q: [V] law of the first sibling.
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


def draw_siblings(u, logits, values, history, above, replacement):
  """Tokens [W] below one row and the laws [W, V] they were drawn from."""
  q, logits = sampling.law(logits, values, history, above)
  drawn = jnp.zeros(q.shape, bool)
  tokens, laws = [], []
  for coin in u:
    law = q
    if tokens and not replacement:
      law = remaining(q, drawn, logits, values.temperature)
    token = sampling.draw(coin, law)
    drawn = drawn.at[token].set(True)
    tokens.append(token)
    laws.append(law)
  return jnp.stack(tokens), jnp.stack(laws)


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
  model: Model, parents: tuple[int, ...], replacement: bool = False
) -> Drafter:
  """Returns the drafter; its parameters are the model's.

  Args:
    model: the draft, over the target's vocabulary.
    parents: [N] rows, ordered by depth; see `trees.branching`.
    replacement: draw siblings independently; equal texts are merged. The tree
      of k independent chains of length d has widths k, 1, 1, ...

  Raises:
    ValueError: no such tree, or more children than tokens.
  """
  levels = levels_of(parents)
  vocab = model.config.vocab_size
  widest = max(level.width for level in levels)
  if not replacement and widest > vocab:
    raise ValueError(
      f'parents has {widest} siblings, but the vocabulary {vocab} tokens'
    )
  depth, nodes = len(levels), len(parents)
  fed = levels[-1].begin + 2  # The last level is drawn and never fed.
  row_depth, mask = trees.layout(jnp.asarray(parents, jnp.int32))
  # The token before the root comes before everything.
  offset = np.append(0, np.asarray(row_depth) + 1)[:fed]
  sees = np.pad(np.asarray(mask), ((1, 0), (1, 0)), constant_values=True)
  sees = np.tril(sees)[:fed, :fed]

  def init(params, ctx, hidden):
    del hidden  # Unused.
    batch, slots = ctx.tokens.shape
    cache = transformer.open_cache(
      model, params.drafter, batch, slots, ctx.source
    )
    cache, _ = reading.prefill(
      model, params.drafter, ctx.tokens, ctx.length, cache
    )
    flight = caches.empty(model.config, batch, fed, cache[0].k.dtype)
    return Memory(cache, flight, ctx.length - 2)

  def propose(params, memory, ctx, key):
    batch = ctx.length.shape[0]
    base = ctx.length - 2
    u = jax.vmap(lambda k: jax.random.uniform(k, (nodes,)))(key)

    def feed(new, at, flight):
      """Logits [B, T, V] after tokens [B, T] at rows at, at + 1, ..."""
      rows = np.arange(at, at + new.shape[1])
      mask = sees[rows] & ~((base < 0)[:, None, None] & (np.arange(fed) == 0))
      out = model.forward(
        params.drafter,
        new,
        base[:, None] + offset[rows],
        memory.cache,
        jnp.maximum(base, 0),
        mask,
        flight,
        at,
      )
      return model.head(params.drafter, out.hidden), out.flight

    above = jax.vmap(
      lambda tokens: trees.above(jnp.array(parents), tokens, depth)
    )
    index = jnp.maximum(base[:, None] + jnp.arange(2), 0)
    new, at = jnp.take_along_axis(ctx.tokens, index, 1), 0
    flight, row = memory.flight, -1  # Tree row of what is fed first.
    tokens = jnp.zeros((batch, nodes), jnp.int32)
    probs = []
    for level in levels:
      logits, flight = feed(new, at, flight)
      coins = np.zeros((len(level.rows), level.width), int)
      coins[level.place, level.rank] = np.arange(level.begin, level.end)
      draw = functools.partial(draw_siblings, replacement=replacement)
      draw = jax.vmap(jax.vmap(draw, in_axes=(0, 0, None, None, 0)))
      drawn, laws = draw(
        u[:, coins],
        logits[:, np.array(level.rows) - row],
        ctx.sampling,
        ctx.history,
        above(tokens)[:, np.array(level.rows)],
      )
      # Made anew: jax remembers an array as the precision then in force had it.
      node = np.array(level.place), np.array(level.rank)
      new = drawn[:, *node]
      tokens = tokens.at[:, level.begin : level.end].set(new)
      probs.append(laws[:, *node])
      at, row = level.begin + 2, level.begin + 1
    hung = jnp.broadcast_to(jnp.asarray(parents, jnp.int32), (batch, nodes))
    if replacement:
      hung = jax.vmap(functools.partial(merge, parents, levels))(tokens)
    size = jnp.full(batch, nodes, jnp.int32)
    draft = Draft(tokens, hung, size, jnp.concatenate(probs, 1))
    return draft, Memory(memory.cache, flight, base)

  def commit(params, memory, ctx, verdict, hidden):
    del params, ctx, hidden  # Unused.
    # Rows of the flight; the last level has none, and is never in the way:
    # its slot lies beyond what the next step looks at.
    path = jnp.pad(verdict.path + 1, ((0, 0), (1, 0)))
    alone = (memory.base < 0)[:, None]
    path = jnp.where(alone, jnp.roll(path, -1, 1), path)
    start = jnp.maximum(memory.base, 0)
    cache = caches.commit(memory.cache, memory.flight, path, start)
    return memory._replace(cache=cache)

  return Drafter(
    depth,
    nodes,
    init,
    propose,
    commit,
    init_params=model.init,
    positions=model.config.max_positions,
    independent=replacement,
  )


def load(
  target: Model,
  depth: int,
  path: str,
  widths: tuple[int, ...] = (2, 2),
  replacement: bool = False,
  max_length: int | None = None,
) -> tuple[Drafter, Any]:
  """The drafter of a checkpoint, for a target.

  Args:
    target: the target model.
    depth: K.
    path: a Hugging Face directory.
    widths: children of a node of depth 0, 1, ...; one each beyond these.
    replacement: draw siblings independently. `widths` of (k,) then makes k
      independent chains.
    max_length: longest sequence of the run, see `checkpoints.load`.

  Raises:
    ValueError: widths below 1.
  """
  if not widths or min(widths) < 1:
    raise ValueError(f'widths must be integers of at least 1, got {widths}')
  model, params = lm.read(target, path, max_length)
  widths = (*widths, *[1] * depth)[:depth]
  return make(model, trees.branching(widths), replacement), params
