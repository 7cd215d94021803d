"""A small language model that drafts by speculating itself.

Staged speculative decoding (Spector and Re, arXiv:2308.04623): an inner
drafter proposes, the small model verifies by an exact rule, in one pass, until
there are K tokens for the target to verify. What an exact rule leaves is drawn
from the small model's own law q, so `probs` is q and the promise holds. Tokens
beyond K are dropped for their place alone. The inner drafter may be another
cascade.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import sampling, scoring, trees, verify
from specjax.drafters import lm
from specjax.models import reading, transformer
from specjax.models.transformer import Model
from specjax.types import (
  Cache,
  Context,
  Draft,
  Drafter,
  Params,
  Rule,
  Verdict,
)


class Memory(NamedTuple):
  """What a cascade remembers, by position: shorter texts are still there.

  The last three fields only count. `passes` [B] are those of the model, and
  of the model of each cascade below it, in the steps that a row took; a model
  that drafts alone makes K in each.
  """

  cache: Cache  # of the model
  inner: Any  # state of the inner drafter
  fed: jax.Array  # [B] tokens of the drafted text that the cache holds
  length: jax.Array  # [B] of the text that was drafted on
  recent: tuple[jax.Array, ...]  # passes to draft on it
  passes: tuple[jax.Array, ...]


class _Drafted(NamedTuple):
  """A text with what is drafted so far."""

  ctx: Context  # as the inner drafter sees it
  inner: Any
  key: jax.Array  # [B]
  probs: jax.Array  # [B, K + room, V]
  fed: jax.Array  # [B]
  passes: jax.Array  # [B]


def _passes(memory: Any) -> tuple[jax.Array, ...]:
  return memory.passes if isinstance(memory, Memory) else ()


def rule_for(drafter: Drafter) -> Rule:
  """The exact rule for a drafter's kind of draft."""
  chain = drafter.nodes == drafter.depth
  return verify.token if chain else verify.recursive


def _wrong(inner: Drafter, depth: int, rule: Rule) -> str:
  """Why there is no such cascade, and the remedy; empty where there is."""
  if depth < 1:
    return f'depth must be at least 1, got {depth}'
  if inner.depth < 1:
    return 'the inner drafter proposes nothing: choose one of depth 1 or more'
  if inner.taps:
    return (
      f'the inner drafter reads layers {inner.taps} of the model, which are '
      'gone where text is taken back: choose one without taps'
    )
  if inner.learns:
    # Rows stand still here while others draft on, and would learn from that.
    return (
      'the inner drafter learns from its verdicts, which depend on the batch '
      'around a row here: choose a policy that does not, such as '
      'specjax.drafting.policies.confidence'
    )
  if not rule.lossless:
    return 'the inner rule is lossy, so it keeps no law: choose an exact one'
  return rule.refuses(inner)


@functools.cache
def make(
  model: Model, inner: Drafter, depth: int, rule: Rule | None = None
) -> Drafter:
  """Returns the drafter; its parameters are `Params(model's, inner's)`.

  Args:
    model: the small model, over the target's vocabulary.
    inner: drafts for it, and remembers by position: text is taken back.
    depth: K.
    rule: exact; by default `rule_for` the inner drafter.

  Raises:
    ValueError: a depth below 1; an inner drafter that proposes nothing, has
      taps, learns or does not fit the rule; a lossy rule.
  """
  rule = rule or rule_for(inner)
  if reason := _wrong(inner, depth, rule):
    raise ValueError(reason)

  def init(params, ctx, hidden):
    del hidden  # Unused.
    weights, (batch, slots) = params.drafter.target, ctx.tokens.shape
    cache = transformer.open_cache(model, weights, batch, slots, ctx.source)
    cache, features = reading.prefill(
      model, weights, ctx.tokens, ctx.length, cache
    )
    state = inner.init(params.drafter, ctx._replace(cache=cache), features)
    none = (jnp.zeros(batch, jnp.int32),) * (1 + len(_passes(state)))
    return Memory(cache, state, ctx.length - 1, ctx.length + 0, none, none)

  def begin(weights, memory, ctx, key):
    # After a whole draft was accepted its last token may never have been fed.
    # Such a row starts one token back, where what follows is known:
    #
    #   text  ... x1 x2 | y    x2 was not fed: it is the first root, and
    #                          whatever is drafted there, y comes next
    #
    # That turn has a key of its own, so that the draft behind y is the same
    # as of a row without it.
    late = memory.fed < ctx.length - 1
    keys = jax.vmap(jax.random.split)(key)
    room = len(key), depth + inner.depth + 1
    drafted = _Drafted(
      ctx._replace(length=ctx.length - late, cache=memory.cache),
      memory.inner,
      jnp.where(late, keys[:, 1], keys[:, 0]),
      scoring.no_laws(model, weights, room, memory.cache[0].k.dtype),
      memory.fed,
      jnp.zeros_like(memory.fed),
    )
    return drafted, keys[:, 0]

  def turn(params, ctx, first, drafted: _Drafted) -> _Drafted:
    """One pass of the model; rows that have all K tokens stand still."""
    here, goal = drafted.ctx, ctx.length + depth
    live, known = here.length < goal, here.length < ctx.length
    keep, to_draft, to_judge = scoring.split(drafted.key)
    draft, state = scoring.propose(inner, params, drafted.inner, here, to_draft)
    out, logits = scoring.feed(model, params.target, here, draft)
    scores, verdict = scoring.decide(
      to_judge, logits, here, draft, rule=rule, depth=inner.depth
    )
    token = jnp.take_along_axis(here.tokens, here.length[:, None], 1)[:, 0]
    verdict = Verdict(
      jnp.where(known[:, None], 0, verdict.path),
      jnp.where(known | ~live, 0, verdict.num_accepted),
      jnp.where(known, token, verdict.next_token),
    )
    new = scoring.emitted(draft, verdict)
    count = jnp.minimum(verdict.num_accepted + 1, goal - here.length)
    after = here._replace(
      tokens=scoring.append(here.tokens, new, count, here.length),
      length=here.length + count,
      cache=scoring.write(here.cache, out.flight, verdict, here.length),
      history=sampling.remember(here.history, new, jnp.where(known, 0, count)),
    )
    q = scoring.along(scores.probs, verdict.path)
    features = scoring.along(out.taps, verdict.path)
    fed = here.length + verdict.num_accepted
    return _Drafted(
      after,
      inner.commit(params, state, after, verdict, features),
      jnp.where(known, first, keep),
      # A known token's q goes to place 0, which the next turn overwrites.
      scoring.put(drafted.probs, q, jnp.maximum(here.length - ctx.length, 0)),
      jnp.where(live, fed, drafted.fed),
      drafted.passes + live,
    )

  def propose(params, memory, ctx, key):
    own, goal = params.drafter, ctx.length + depth
    drafted, first = begin(own.target, memory, ctx, key)
    drafted = jax.lax.while_loop(
      lambda drafted: (drafted.ctx.length < goal).any(),
      lambda drafted: scoring.same_types(
        turn(own, ctx, first, drafted), drafted
      ),
      drafted,
    )
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
    del params, verdict, hidden  # Unused.
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
  )


def load(
  target: Model,
  depth: int,
  path: str,
  inner: Callable[[Model], tuple[Drafter, Any]],
  max_length: int | None = None,
) -> tuple[Drafter, Params]:
  """The drafter of a checkpoint, for a target; see `lm.read`.

  Args:
    target: the target model.
    depth: K.
    path: a Hugging Face directory, of the small model.
    inner: what drafts for that model, and its parameters. In a config this is
      a candidate like any other.
    max_length: longest sequence of the run, see `checkpoints.load`.

  Raises:
    ValueError: as `make`.
  """
  if not callable(inner):
    raise ValueError(
      f'inner must be a function of a model, or in a config a Candidate, got '
      f'{inner!r}'
    )
  model, weights = lm.read(target, path, max_length)
  # What drafts for it has the target's vocabulary, too.
  vocab = target.config.vocab_size
  config = dataclasses.replace(model.config, vocab_size=vocab)
  drafter, params = inner(model._replace(config=config))
  return make(model, drafter, depth), Params(weights, params)
