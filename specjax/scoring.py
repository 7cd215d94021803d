"""A draft is fed to a model and judged, and what was accepted is written.

The loop does this with the target, and a cascade with each of its models
within a step (`drafters.cascade`): both are made of these parts.
"""

import functools

import jax
import jax.numpy as jnp

from specjax import cache as caches
from specjax import sampling, trees, verify
from specjax.models.transformer import Model, Output
from specjax.types import (
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


def propose(drafter: Drafter, params: Params, memory, ctx: Context, key):
  """A draft with indices as the loop has them, and the drafter's state.

  A law with a NaN says nothing, and neither does what was drawn from it: as 0
  it is accepted by no rule, and leaves p as it is.
  """
  draft, memory = drafter.propose(params, memory, ctx, key)
  if draft.probs is not None:
    says = jnp.isfinite(draft.probs.sum(-1, keepdims=True))
    draft = draft._replace(probs=jnp.where(says, draft.probs, 0))
  draft = draft._replace(
    tokens=draft.tokens.astype(jnp.int32),
    parents=draft.parents.astype(jnp.int32),
    size=draft.size.astype(jnp.int32),
  )
  return draft, memory


def feed(
  model: Model, weights, ctx: Context, draft: Draft, taps=()
) -> tuple[Output, jax.Array]:
  """One pass over the last committed token and a draft on top of it.

  Args:
    model: whose cache the context has.
    weights: of the model.
    ctx: the text.
    draft: N nodes.
    taps: layers whose features to return.

  Returns:
    The output of the pass, and logits [B, N+1, V] after every row.
  """
  root = jnp.take_along_axis(ctx.tokens, ctx.length[:, None] - 1, 1)
  depth, mask = jax.vmap(trees.layout)(draft.parents)
  out = model.forward(
    weights,
    jnp.concatenate([root, draft.tokens], 1),
    ctx.length[:, None] - 1 + depth,
    ctx.cache,
    ctx.length - 1,
    mask,
    taps=taps,
  )
  return out, model.head(weights, out.hidden)


def decide(
  key: jax.Array,
  logits: jax.Array,
  ctx: Context,
  draft: Draft,
  *,
  rule: Rule,
  depth: int,
  laws=sampling.laws,
  judge=verify.judge,
) -> tuple[Scores, Verdict]:
  """What a draft is judged by, and the verdict; keys [B] are consumed.

  Args:
    key: one a row.
    logits: of `feed`.
    ctx: the text.
    draft: N nodes.
    rule: that judges.
    depth: K of the drafter.
    laws: as `sampling.laws`.
    judge: as `verify.judge`.
  """
  tokens_above = functools.partial(trees.above, depth=depth)
  above = jax.vmap(tokens_above)(draft.parents, draft.tokens)
  scores = laws(logits, ctx.sampling, ctx.history, above)
  decided = functools.partial(judge, rule=rule, depth=depth)
  return scores, jax.vmap(decided)(key, draft, scores)


def finite(draft: Draft, scores: Scores) -> jax.Array:
  """Whether rows [B] of a step were drafted and are judged by laws at all.

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


def no_laws(model: Model, weights, shape: tuple[int, int], dtype) -> jax.Array:
  """Zeros [B, N, V] in the type of a model's laws.

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
  """Texts [B, S] with the first count [B] of new [B, P] at length [B].

  All P places are written, the rest with zeros, and must be there.
  """
  kept = jnp.arange(new.shape[1]) < count[:, None]
  return put(tokens, jnp.where(kept, new, 0), length)


def write(
  cache: Cache, flight: Cache, verdict: Verdict, length, commit=caches.commit
) -> Cache:
  """The cache with the accepted path behind the text, as `cache.commit`.

  Args:
    cache: of the model.
    flight: of its pass.
    verdict: whose path is written.
    length: [B] of the text before it.
    commit: as `cache.commit`.
  """
  # No token is negative: this only makes the write depend on what was read
  # of the cache, without which the compiler copies the cache at every step.
  start = length - 1 + (verdict.next_token < 0)
  return commit(cache, flight, verdict.path, start)
