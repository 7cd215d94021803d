"""A small language model that drafts by speculating itself.

Staged speculative decoding (Spector and Re, arXiv:2308.04623): an inner
drafter proposes, the small model verifies by an exact rule, in one pass, until
there are K tokens for the target to verify. What an exact rule leaves is drawn
from the small model's own distribution q, so `probs` is q, as promised. Tokens
beyond K are dropped for their place alone. The inner drafter may be another
cascade.

The model may be the target itself, which reads a window of its own cache: the
middle level of TriForce (Sun et al., 2024, arXiv:2404.11912). It has neither
weights nor a cache besides, see `drafters.windowed`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import checkpoints, trees
from specjax.arguments import check_path, check_target, named
from specjax.drafters import lm
from specjax.drafters.cascade.speculation import Speculation, rule_for
from specjax.models import cache as caches
from specjax.models import prefill, transformer, variants
from specjax.models.config import narrowed_to
from specjax.models.transformer import Model
from specjax.types import (
  Cache,
  Draft,
  Drafter,
  LoadedDrafter,
  Params,
  Rule,
  Target,
)


class Memory(NamedTuple):
  """The memory of a cascade, by position: shorter texts are still there.

  The last three fields only count. `passes` [B] are those of the model, and
  of the model of each cascade below it, in the steps that a row took; a model
  that drafts alone makes K in each.
  """

  cache: Cache  # of the model; empty where it reads the target's
  inner: Any  # state of the inner drafter
  fed: jax.Array  # [B] tokens of the drafted text in the cache, or beside it
  length: jax.Array  # [B] of the text that was drafted on
  recent: tuple[jax.Array, ...]  # passes to draft on it
  passes: tuple[jax.Array, ...]


def _passes(memory: Any) -> tuple[jax.Array, ...]:
  return memory.passes if isinstance(memory, Memory) else ()


_STATES = (
  'a model whose layers have a state cannot be inside a cascade, where text is '
  'taken back: let it draft alone, or be the target'
)


@functools.cache
def make(
  model: Model,
  inner: Drafter,
  depth: int,
  rule: Rule | None = None,
  shares: bool = False,
) -> Drafter:
  """Returns the drafter; its parameters are `Params(model's, inner's)`.

  Args:
    model: the small model, over the target's vocabulary.
    inner: drafts for it, and remembers by position: text is taken back.
    depth: K.
    rule: exact; by default `rule_for` the inner drafter.
    shares: the model is the target, narrowed, and reads its cache; then the
      parameters are the inner's alone.

  Raises:
    ValueError: a depth below 1; an inner drafter that proposes nothing, has
      taps, learns, is `at_once` or does not fit the rule; a lossy rule. When
      it is traced: a model inside has layers with a state.
  """
  if shares and model.config.recurrent is not None:
    raise ValueError(_STATES)
  inside = Speculation(model, inner, rule or rule_for(inner), depth, shares)

  def both(params):
    if shares:
      return params
    return params.drafter

  def init(params, ctx, hidden):
    own, (batch, slots) = both(params), ctx.tokens.shape
    cache, features = (), hidden
    if not shares:
      cache = transformer.open_cache(
        model, own.target, batch, slots, ctx.source
      )
      cache, features = prefill.prefill(
        model, own.target, ctx.tokens, ctx.length, cache
      )
    state = inner.init(own, ctx._replace(cache=cache), features)
    if caches.states((state, cache)):
      raise ValueError(_STATES)
    none = (jnp.zeros(batch, jnp.int32),) * (1 + len(_passes(state)))
    return Memory(cache, state, ctx.length - 1, ctx.length + 0, none, none)

  def propose(params, memory, ctx, key):
    if shares:  # The target has read all that was committed.
      memory = memory._replace(fed=ctx.length - 1)
    drafted = inside.run(both(params), memory, ctx, key)
    place = ctx.length[:, None] + jnp.arange(depth)
    draft = Draft(
      jnp.take_along_axis(drafted.ctx.tokens, place, 1),
      trees.chain(len(key), depth),
      jnp.full(len(key), depth, jnp.int32),
      drafted.probs[:, :depth],
    )
    before, after = _passes(memory.inner), _passes(drafted.inner)
    return draft, memory._replace(
      cache=drafted.ctx.cache,
      inner=drafted.inner,
      fed=drafted.fed,
      length=ctx.length,
      recent=(drafted.passes, *map(jnp.subtract, after, before)),
    )

  def commit(params, memory, ctx, verdict, hidden):
    # The text of a row that has finished does not grow.
    took = ctx.length > memory.length
    added = [jnp.where(took, x, 0) for x in memory.recent]
    passes = tuple(map(jnp.add, memory.passes, added))
    return memory._replace(passes=passes)

  longest = (model.config.max_positions, inner.positions)
  return Drafter(
    depth,
    depth,
    init,
    propose,
    commit,
    positions=min(x for x in longest if x is not None),
    beyond=inner.depth + inner.beyond,
    predicts=inner.predicts,
  )


def describe(path: str, **options: Any) -> checkpoints.Description | None:
  """The small model of a directory without its weights; see `load`.

  None where there is none, and the target drafts from a window of its cache.
  """
  return lm.describe(path, **options) if path else None


def load(
  target: Target,
  path: str = '',
  inner: Callable[[Target], tuple[Drafter, Any]] | None = None,
  dtype: str = '',
  window: int = 0,
  sinks: int = 0,
) -> LoadedDrafter:
  """The drafter of a checkpoint, for a target; see `lm.read`.

  Args:
    target: what is drafted for.
    path: a Hugging Face directory, of the small model; empty: the target
      itself, which must have a window then.
    inner: what drafts for that model, and its parameters. In a config this is
      a candidate like any other.
    dtype: of the small model's weights and cache; by default the target's.
    window: tokens that the small model sees of a text at most; 0: all. See
      `variants.narrow`.
    sinks: first tokens that it sees besides.

  Raises:
    ValueError: as `make`, or the small model has another vocabulary: only what
      drafts for it may; or there is no such window.
  """
  check_target(target)
  if not callable(inner):
    raise ValueError(
      f'inner must be a function of a target, or in a config a Candidate, got '
      f'{inner!r}'
    )
  positions = target.model.config.max_positions
  narrowed = narrowed_to(window, sinks, positions)
  if not path and narrowed is not None:
    return _of_target(target, inner, dtype, window, sinks)
  check_path(path, 'a language model')
  if lm.compare(target, path) is not None:
    raise ValueError(
      f'{path} has other tokens than the target: the model of a cascade needs '
      "the target's, only what drafts for it may have its own; or draft with "
      'it alone, by lm'
    )
  model, weights = lm.read(
    target, path, dtype=dtype, window=window, sinks=sinks
  )
  # What drafts for it has the target's vocabulary, too.
  vocab = target.model.config.vocab_size
  config = dataclasses.replace(model.config, vocab_size=vocab)
  middle = dataclasses.replace(
    target,
    model=model._replace(config=config),
    params=weights,
    path=path,
    dtype=transformer.dtype_of(weights).name,
    fingerprint=target.fingerprint
    and functools.partial(checkpoints.fingerprint, path),
  )
  drafter, params = _made(inner, middle)
  return LoadedDrafter(
    target.model,
    lambda depth: make(model, drafter, depth),
    Params(weights, params),
    (model, weights),
  )


def _made(inner: Callable, middle: Target) -> tuple[Drafter, Any]:
  """The drafter of a model, and its parameters.

  Raises:
    ValueError: `inner` returned something else.
  """
  made = inner(middle)
  pair = isinstance(made, tuple) and len(made) == 2
  if not pair or not isinstance(made[0], Drafter):
    raise ValueError(
      'inner must return a drafter of some length and its parameters, such as '
      f'(loaded.make(4), loaded.params), got {named(made)}'
    )
  return made


def _of_target(target: Target, inner, dtype: str, window: int, sinks: int):
  """The cascade over the target's own draft from a window."""
  if dtype and dtype != target.dtype:
    raise ValueError(
      f'dtype is {dtype}, but without a path the weights are those of the '
      f'target, in {target.dtype}: leave it out'
    )
  model = variants.narrow(target.model, window, sinks)
  drafter, params = _made(inner, dataclasses.replace(target, model=model))
  return LoadedDrafter(
    target.model, lambda depth: make(model, drafter, depth, shares=True), params
  )
