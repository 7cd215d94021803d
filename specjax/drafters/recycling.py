"""Token recycling: what the target nearly said after a token, last time.

Luo et al., arXiv:2408.08696. A table [V, k] holds, for every token, the k
tokens that had the largest logits when the target last read it; a draft is a
tree of them: the candidates of the last token, theirs, and so on. There are no
weights, and what was nearly said in the prompt counts, too.

  read   a b a        after a   b c        tree of 3    a -- b -- d
         k = 2        after b   d a                       \\- c

The table is made of the target's features along the accepted path: what the
target says behind rejected tokens, from which the paper learns too, is left
out. So the table depends on the text alone, as all that is remembered. It is
the head's pass over K + 1 tokens once more, and over the prompt. Each row has a
table of its own, of 4 V k bytes.

Candidates are chosen, not drawn, so `probs` is None. A token that was not read
yet has none, and nothing is drafted below it.
"""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import trees
from specjax.arguments import check_no_path, check_number, check_target
from specjax.models.config import TransformerConfig
from specjax.models.transformer import Model
from specjax.types import Draft, Drafter, LoadedDrafter, Target

_NONE = -1
_AT_ONCE = 16  # tokens of a prompt that the head reads together
# How often the i-th candidate comes next, about: which tree is drafted.
_HITS = (0.45, 0.15, 0.08, 0.05, 0.035, 0.025, 0.02, 0.015)


class State(NamedTuple):
  """The candidates that are remembered."""

  after: jax.Array  # [B, V, k] candidates behind each token; -1: none yet
  length: jax.Array  # [B] tokens of the text then


def template(depth: int, candidates: int, nodes: int) -> tuple[int, ...]:
  """Parent rows of the tree with the most hits, by `_HITS`.

  Args:
    depth: K.
    candidates: k, siblings at most.
    nodes: N; as many as levels are a chain.
  """
  if nodes == depth:
    return tuple(range(depth))
  last = _HITS[-1] * 0.8 ** np.arange(1, candidates)
  hits = (*_HITS, *last.tolist())[:candidates]
  return trees.most_accepted([hits] * depth, nodes)


def _write(after, tokens, found, exists):
  """A table [V, k] with what was found after tokens [T], the last time.

  Args:
    after: the table.
    tokens: that were read, in order.
    found: [T, k].
    exists: [T] which of them were.
  """
  place = jnp.arange(len(tokens))
  again = (tokens == tokens[:, None]) & exists & (place > place[:, None])
  # An index beyond the table is dropped.
  at = jnp.where(exists & ~again.any(1), tokens, len(after))
  return after.at[at].set(found, mode='drop')


def _fill(parents: tuple[int, ...], after, token):
  """Tokens [N], parents [N] and the size of a draft; one sequence.

  Nodes without a candidate are left out, and the others move up.
  """
  rows = [token]
  for i, above in enumerate(parents):
    rank = parents[:i].count(above)
    here = after[jnp.maximum(rows[above], 0), rank]
    rows.append(jnp.where(rows[above] < 0, _NONE, here))
  tokens = jnp.stack(rows)
  exists = tokens >= 0
  moved = jnp.cumsum(exists).astype(jnp.int32) - 1  # Row 0 always exists.
  order = jnp.argsort(~exists, stable=True)
  hung = moved[jnp.array((0, *parents))][order][1:]
  size = exists.sum().astype(jnp.int32) - 1
  inside = jnp.arange(len(parents)) < size
  return (
    jnp.where(inside, tokens[order][1:], 0),
    jnp.where(inside, hung, 0),
    size,
  )


@functools.cache
def make(
  target: Model, depth: int, candidates: int = 8, nodes: int = 16
) -> Drafter:
  """Returns the drafter.

  Args:
    target: what is drafted for; its head says what may follow.
    depth: K, levels of the tree.
    candidates: k, kept for each token.
    nodes: N of the tree; K makes a chain.

  Raises:
    ValueError: a size below 1, fewer nodes than levels, or more candidates
      than tokens.
  """
  check_number('depth', depth, 1)
  check_number('candidates', candidates, 1)
  if nodes < depth:
    raise ValueError(
      f'nodes is {nodes}, but a draft of depth {depth} has as many nodes at '
      'least: choose more nodes, or a smaller gamma'
    )
  vocab = target.config.vocab_size
  if candidates > vocab:
    raise ValueError(
      f'candidates is {candidates}, but the vocabulary has {vocab} tokens: '
      'choose fewer'
    )
  parents = template(depth, candidates, nodes)
  nodes = len(parents)

  def say(params, features):
    """The best tokens [..., k] behind features [..., E] of the last layer."""
    hidden = target.norm(params.target, features)
    logits = target.head(params.target, hidden)
    return jax.lax.top_k(logits, candidates)[1].astype(jnp.int32)

  write = jax.vmap(_write)

  def init(params, ctx, hidden):
    batch, slots = ctx.tokens.shape
    after = jnp.full((batch, vocab, candidates), _NONE, jnp.int32)
    size = min(_AT_ONCE, slots)

    def read(i, after):
      # The last block may begin earlier: what it reads again says the same.
      begin = jnp.minimum(i * size, slots - size)
      take = functools.partial(
        jax.lax.dynamic_slice_in_dim, start_index=begin, slice_size=size, axis=1
      )
      found = say(params, take(hidden)[:, :, 0])
      exists = begin + jnp.arange(size) < ctx.length[:, None] - 1
      return write(after, take(ctx.tokens), found, exists)

    blocks = (ctx.length.max() - 1 + size - 1) // size
    return State(jax.lax.fori_loop(0, blocks, read, after), ctx.length + 0)

  def propose(params, state, ctx, key):
    last = jnp.take_along_axis(ctx.tokens, ctx.length[:, None] - 1, 1)[:, 0]
    fill = jax.vmap(functools.partial(_fill, parents))
    return Draft(*fill(state.after, last), None), state

  def commit(params, state, ctx, verdict, hidden):
    del verdict  # The text says how many stayed; none in a finished row.
    place = jnp.arange(hidden.shape[1])
    at = jnp.minimum(state.length[:, None] - 1 + place, ctx.tokens.shape[1] - 1)
    tokens = jnp.take_along_axis(ctx.tokens, at, 1)
    exists = place < (ctx.length - state.length)[:, None]
    after = write(state.after, tokens, say(params, hidden[:, :, 0]), exists)
    return State(after, ctx.length + 0)

  last = target.config.num_layers - 1
  return Drafter(depth, nodes, init, propose, commit, taps=(last,))


def remembers(
  target: TransformerConfig, candidates: int = 8, nodes: int = 16
) -> int:
  """Bytes of a row's table."""
  return 4 * target.vocab_size * candidates


def load(
  target: Target, path: Literal[''] = '', candidates: int = 8, nodes: int = 16
) -> LoadedDrafter:
  """The drafter for a target; it has no weights.

  Args:
    target: what it drafts for.
    path: empty: there are no weights.
    candidates: k, tokens kept for each.
    nodes: of the tree, for `verify.recursive`; gamma nodes make a chain.

  Raises:
    ValueError: a size that cannot be.
  """
  check_no_path(path)
  check_target(target)
  for name, value in (('candidates', candidates), ('nodes', nodes)):
    check_number(name, value, 1)
  model = target.model
  make(model, 1, candidates, nodes)  # Refuses what no length would make right.
  return LoadedDrafter(
    model, lambda depth: make(model, depth, candidates, nodes)
  )
