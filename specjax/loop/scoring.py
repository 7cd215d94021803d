"""A draft is fed to a model and judged, and what was accepted is written.

The loop does this with the target, and a cascade with each of its models
within a step (`drafters.cascade`): both are made of these parts.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling, trees, verify
from specjax.models import cache as caches
from specjax.models.transformer import Model, Output
from specjax.types import (
  KV,
  Cache,
  Context,
  Draft,
  Drafter,
  Params,
  Rule,
  Scores,
  Verdict,
)


def split(keys: jax.Array):
  """Keys [B] to keep, to draft with and to judge with."""
  made = jax.vmap(lambda key: jax.random.split(key, 3))(keys)
  return made[:, 0], made[:, 1], made[:, 2]


def placed(keys: jax.Array, ctx: Context, draft: Draft) -> jax.Array:
  """Keys [B, N+1] of the tokens behind rows, by their places in the text."""
  depth, _ = trees.each(trees.ancestors, draft.parents)
  places = ctx.length[:, None] + depth
  return jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(keys, places)


def along(rows: jax.Array, path: jax.Array) -> jax.Array:
  """rows [B, N, ...] gathered along path [B, P]."""
  index = path.reshape(*path.shape, *(1,) * (rows.ndim - 2))
  return jnp.take_along_axis(rows, index, 1)


def put(rows: jax.Array, new: jax.Array, at: jax.Array) -> jax.Array:
  """rows [B, N, ...] with new [B, P, ...] in place of those from at [B] on."""
  update = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=0)
  return jax.vmap(update)(rows, new, at)


def same_types(new, old):
  """A pytree in the types of another.

  Index types follow the precision in force; a loop's own do not change.
  """
  return jax.tree.map(
    lambda x, y: x if x.dtype == y.dtype else x.astype(y.dtype), new, old
  )


class DraftError(ValueError):
  """A drafter broke its contract; the message says how."""


def _check(drafter: Drafter, made: Any, batch: int) -> None:
  """Checks what `propose` returned, when it is traced.

  Raises:
    DraftError: names what is wrong.
  """
  name = getattr(drafter.propose, '__qualname__', repr(drafter.propose))
  module = getattr(drafter.propose, '__module__', '')
  who = f'{module}.{name} must return'
  pair = isinstance(made, tuple) and len(made) == 2
  if not pair or not isinstance(made[0], Draft):
    raise DraftError(f'{who} (Draft, state), got {kind_of(made)}')
  draft, nodes = made[0], (batch, drafter.nodes)
  wanted = {
    'tokens': ('integers', nodes),
    'parents': ('integers', nodes),
    'size': ('integers', nodes[:1]),
  }
  if draft.probs is not None:  # Drawn, not chosen.
    wanted['probs'] = 'floats', (*nodes, *jnp.shape(draft.probs)[-1:])
  for field, (kind, shape) in wanted.items():
    value = getattr(draft, field)
    right = jnp.floating if kind == 'floats' else jnp.integer
    if (
      not hasattr(value, 'dtype')
      or not jnp.issubdtype(value.dtype, right)
      or value.shape != shape
    ):
      raise DraftError(
        f'{who} {field} as {kind}{list(shape)}, got {kind_of(value)}'
      )


def kind_of(value: Any) -> str:
  """Returns the type and shape of a value, for a message."""
  if hasattr(value, 'dtype'):
    return f'{value.dtype}{list(value.shape)}'
  if isinstance(value, tuple):
    return f'({", ".join(type(part).__name__ for part in value)})'
  return type(value).__name__


def check_entries(draft: Draft, logits: jax.Array) -> None:
  """Checks that a draft's distributions are over the target's vocabulary.

  Raises:
    DraftError: they are over another.
  """
  if draft.probs is not None and draft.probs.shape[-1] != logits.shape[-1]:
    raise DraftError(
      f'probs of a draft must have the {logits.shape[-1]} entries of the '
      f'target, got {draft.probs.shape[-1]}'
    )


def check_numbers(drafter: Drafter, draft: Draft, vocab_size: int) -> None:
  """Checks that the numbers of a draft keep the contract.

  Its numbers are not known when it is traced, and nothing looks at them in the
  loop: programs check the first draft of a drafter that they do not know.

  Args:
    drafter: who made it.
    draft: of it.
    vocab_size: V.

  Raises:
    DraftError: names what is wrong.
  """
  nodes, depth = drafter.nodes, drafter.depth
  for tokens, parents, size in zip(
    *map(np.asarray, (draft.tokens, draft.parents, draft.size)), strict=True
  ):
    if not 0 <= size <= nodes:
      raise DraftError(f'size must be from 0 to its {nodes} nodes, got {size}')
    level = [0]
    for node, (token, parent) in enumerate(
      zip(tokens[:size], parents[:size], strict=True)
    ):
      if not 0 <= parent <= node:
        raise DraftError(
          f'the parent of node {node} must be a row from 0 to {node}, got '
          f'{parent}'
        )
      level.append(level[parent] + 1)
      if level[-1] > depth:
        raise DraftError(
          f'node {node} is {level[-1]} below the root, but its depth is {depth}'
        )
      if not 0 <= token < vocab_size:
        raise DraftError(
          f'tokens must be from 0 to {vocab_size - 1}, got {token}'
        )


def propose(drafter: Drafter, params: Params, memory, ctx: Context, key):
  """A draft with indices as the loop has them, and the drafter's state.

  A distribution with a number that is not finite becomes 0 everywhere. Then no
  rule accepts the token, and p stays as it is.

  Raises:
    DraftError: the drafter returns other shapes or types than it must.
  """
  made = drafter.propose(params, memory, ctx, key)
  _check(drafter, made, len(ctx.length))
  draft, memory = made
  if draft.probs is not None:
    says = jnp.isfinite(draft.probs).all(-1, keepdims=True)
    draft = draft._replace(probs=jnp.where(says, draft.probs, 0))
  draft = draft._replace(
    tokens=draft.tokens.astype(jnp.int32),
    parents=draft.parents.astype(jnp.int32),
    size=draft.size.astype(jnp.int32),
  )
  return draft, memory


def feed(
  model: Model,
  weights,
  ctx: Context,
  draft: Draft,
  taps=(),
  beside: tuple[Cache, jax.Array] | None = None,
) -> tuple[Output, jax.Array]:
  """One pass over the last committed token and a draft on top of it.

  Args:
    model: whose cache the context has.
    weights: of the model.
    ctx: the text.
    draft: N nodes; a size of -1 is that of a row whose last token is not fed,
      either.
    taps: layers whose features to return.
    beside: where the cache lacks the end of the text: a block whose first rows
      that is, and the tokens [B] in the cache.

  Returns:
    The output of the pass, and logits [B, N+1, V] after every row. Those of
    rows that are not fed say nothing.
  """
  root = jnp.take_along_axis(ctx.tokens, ctx.length[:, None] - 1, 1)
  depth, mask = trees.each(trees.ancestors, draft.parents)
  at, used = 0, ctx.length - 1
  if beside is not None:
    # New rows come behind the whole block, whatever is in use of it:
    #
    #   block  a b . .    new  r x1 x2    flight  a b . . r x1 x2
    block, cached = beside
    at, (batch, new, _) = caches.rows_of(block), mask.shape
    known = jnp.arange(at) < (used - cached)[:, None]
    known = jnp.broadcast_to(known[:, None], (batch, new, at))
    mask, used = jnp.concatenate([known, mask], 2), cached
  tokens = jnp.concatenate([root, draft.tokens], 1)
  rows = tokens.shape[1]
  if model.config.skips_padding:
    mask &= (jnp.arange(rows) <= draft.size[:, None])[..., None]
  out = model.forward(
    weights,
    tokens,
    ctx.length[:, None] - 1 + depth,
    ctx.cache,
    used,
    mask,
    None if beside is None else caches.grow(block, at + rows),
    at,
    taps,
  )
  if beside is not None:
    part = tuple(KV(kv.k[..., at:], kv.v[:, :, at:]) for kv in out.flight)
    out = out._replace(flight=part)
  return out, model.head(weights, out.hidden)


def decide(
  key: jax.Array,
  logits: jax.Array,
  ctx: Context,
  draft: Draft,
  *,
  rule: Rule,
  depth: int,
  distributions=sampling.distributions,
  judge=verify.judge,
) -> tuple[Scores, Verdict]:
  """Returns the scores of a draft and its verdict; keys [B] are consumed.

  Args:
    key: one a row.
    logits: of `feed`.
    ctx: the text.
    draft: N nodes.
    rule: that judges.
    depth: K of the drafter.
    distributions: as `sampling.distributions`.
    judge: as `verify.judge`.
  """
  check_entries(draft, logits)
  tokens_above = functools.partial(trees.above, depth=depth)
  above = trees.each(tokens_above, draft.parents, draft.tokens)
  scores = distributions(logits, ctx.sampling, ctx.history, above)
  if rule.placed:
    key = placed(key, ctx, draft)
  decided = functools.partial(judge, rule=rule, depth=depth)
  return scores, jax.vmap(decided)(key, draft, scores)


def finite(draft: Draft, scores: Scores) -> jax.Array:
  """Returns the rows [B] whose p and q are distributions.

  Probabilities that are no numbers, or all 0, are none. At temperature 0 they
  are numbers even where a logit is infinite, so logits are looked at, too.
  """

  def exists(probs):
    total = probs.sum(-1)
    return jnp.isfinite(total) & (total > 0)

  target = exists(scores.probs) & jnp.isfinite(scores.logits.max(-1))
  if draft.probs is None:
    return target.all(1)
  beyond = jnp.arange(draft.probs.shape[1]) >= draft.size[:, None]
  return target.all(1) & (exists(draft.probs) | beyond).all(1)


def no_probs(model: Model, weights, shape: tuple[int, int], dtype) -> jax.Array:
  """Zeros [B, N, V] in the type of a model's distributions.

  Args:
    model: whose vocabulary counts.
    weights: of the model.
    shape: B and N.
    dtype: of the model's cache.
  """
  hidden = jax.ShapeDtypeStruct((*shape, model.config.width), dtype)
  logits = jax.eval_shape(model.head, weights, hidden)
  wide = jnp.promote_types(logits.dtype, jnp.float32)
  return jnp.zeros(logits.shape, wide)


def emitted(draft: Draft, verdict: Verdict) -> jax.Array:
  """The accepted tokens and the one after them, [B, K+1].

  drafted  x1 x2 x3, two accepted, next y    ->    x1 x2 y .
  """
  place = jnp.arange(verdict.path.shape[1])
  if draft.tokens.shape[1]:
    tokens = along(draft.tokens, jnp.maximum(verdict.path - 1, 0))
    tokens = jnp.roll(tokens, -1, 1)
  else:
    tokens = jnp.zeros_like(verdict.path)
  end = verdict.num_accepted[:, None]
  return jnp.where(place == end, verdict.next_token[:, None], tokens)


def append(tokens: jax.Array, new: jax.Array, count, length) -> jax.Array:
  """Texts [B, S, ...] with the first count [B] of new [B, P, ...] at length.

  All P places are written, the rest with zeros, and must be there.
  """
  mask = jnp.arange(new.shape[1]) < count[:, None]
  mask = mask.reshape(*mask.shape, *(1,) * (new.ndim - 2))
  return put(tokens, jnp.where(mask, new, 0), length)


def write(
  cache: Any, flight: Any, verdict: Verdict, length, commit=caches.commit
) -> Any:
  """The cache with the accepted path behind the text, as `cache.commit`.

  Args:
    cache: of the model.
    flight: of its pass.
    verdict: whose path is written.
    length: [B] of the text before it.
    commit: as `cache.commit`.
  """
  path = verdict.path
  own = isinstance(flight, caches.OwnCache) and commit is caches.commit
  if own and flight.block == path.shape[1]:
    return flight.settled()  # A chain lies behind the text already.
  # No token is negative: this only makes the write depend on what was read
  # of the cache, without which the compiler copies the cache at every step.
  start = length - 1 + (verdict.next_token < 0)
  return commit(cache, flight, path, start, verdict.num_accepted + 1)
