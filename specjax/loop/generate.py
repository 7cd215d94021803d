"""The speculative step and the loop around it: one program, one dispatch.

  propose -> score -> judge -> commit -> tell the drafter

Plain decoding is the same loop with a drafter of depth 0, so a baseline is
measured by the very code it is a baseline for.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import arguments, sampling, verify
from specjax.loop import counting, scoring, token_records
from specjax.loop.buffers import StopWhen as StopWhen
from specjax.loop.buffers import plan_buffers
from specjax.loop.buffers import slots_for as slots_for
from specjax.loop.buffers import stop_when as stop_when
from specjax.models import cache as caches
from specjax.models import devices, prefill, sharding, transformer
from specjax.types import (
  Context,
  Counts,
  Params,
  Scores,
  Source,
  Spec,
  SpecState,
  Verdict,
)


@jax.jit
def _fold_in(root, indices):
  return jax.vmap(functools.partial(jax.random.fold_in, root))(indices)


def row_keys(seed: int, indices) -> jax.Array:
  """Keys [B] of rows: they depend on the prompt's index, not on its slot."""
  rows = arguments.rows_of(seed, indices)
  return _fold_in(jax.random.key(seed, impl='threefry2x32'), rows)


@functools.partial(jax.jit, static_argnames=('target', 'taps', 'read_slots'))
def read_prompts(
  weights, tokens, length, source, *, target, taps, read_slots=None
):
  """Returns cache and features of prompts: one program for every drafter."""
  batch, slots = tokens.shape
  read = read_slots or slots
  cache = transformer.open_cache(target, weights, batch, read, source)
  cache, features = prefill.prefill(
    target, weights, tokens[:, :read], length, cache, taps
  )
  if read == slots:
    return cache, features
  return caches.grow(cache, slots), caches.pad(features, 1, slots)


@functools.partial(
  jax.jit,
  static_argnames=('drafter', 'target', 'read_slots', 'recording'),
  donate_argnames=('tokens', 'cache'),
)
def _begin(
  params,
  tokens,
  length,
  limit,
  cache,
  hidden,
  key,
  values,
  source,
  *,
  drafter,
  target,
  read_slots=None,
  recording=token_records.NOTHING,
):
  """The state of rows after prefill."""
  batch = len(length)
  history = sampling.history(values, tokens, length, target.config.vocab_size)
  ctx = Context(tokens, length, cache, values, history, source)
  state = SpecState(
    tokens=tokens,
    length=length,
    start=length + 0,  # A buffer of its own: the state is donated.
    limit=limit,
    done=length >= limit,
    finite=jnp.ones(batch, bool),
    cache=cache,
    drafter=caches.remember(drafter.init, params, ctx, hidden, read_slots),
    key=key,
    sampling=values,
    history=history,
    counts=counting.none(batch, drafter.depth),
    source=source,
    records=recording.blank(tokens.shape),
  )
  placement = target.placement
  return state if placement is None else placement.constrain_state(state)


def start(
  params: Params,
  prompts,
  *,
  spec: Spec,
  new_tokens,
  key: jax.Array,
  values: sampling.Sampling,
  slots: int | None = None,
  source_slots: int | None = None,
  read_slots: int | None = None,
  recording: token_records.Recording = token_records.NOTHING,
) -> SpecState:
  """Prefills prompts and returns the state before the first step.

  Args:
    params: of target and drafter.
    prompts: a list of B non-empty lists of token ids. The encoder of an
      encoder-decoder reads them, and each text begins with its start token.
    spec: what to run.
    new_tokens: tokens to add to each row, a number or [B].
    key: [B] keys, see `row_keys`.
    values: sampling values, see `sampling.make`.
    slots: size of the buffer; by default what the longest row needs.
    source_slots: size of the buffer of what an encoder reads.
    read_slots: of the caches that the prompts are read into, which then grow
      to the whole buffer; by default that. All tokens must fit. Fewer than a
      block (`cache.block_of`) are read at the price of as many tokens.
    recording: records to be kept of each new token, see `token_records`.

  Raises:
    ValueError: an empty prompt, a token outside the vocabulary, more tokens
      than the target has positions or the buffer slots, values for another
      vocabulary, another end of the text or another number of rows, more
      log-probabilities than tokens.
  """
  planned = plan_buffers(
    spec, prompts, new_tokens, key, values, slots, source_slots
  )
  recording.check(spec)
  arguments.check_params(params)
  if read_slots is not None:
    prefill.check_slots(read_slots, planned.texts, planned.slots)
  source = None
  if planned.sources is not None and planned.source_slots is not None:
    source = Source(*prefill.pad(planned.sources, planned.source_slots))
  tokens, lengths = prefill.pad(planned.texts, planned.slots)
  limits = jax.device_put(planned.limit)
  if (placement := spec.target.placement) is not None:
    rows = tokens, lengths, limits, key, values, source
    tokens, lengths, limits, key, values, source = placement.put_rows(rows)
  cache, hidden = read_prompts(
    params.target,
    tokens,
    lengths,
    source,
    target=spec.target,
    taps=spec.drafter.taps,
    read_slots=read_slots,
  )
  state = _begin(
    params,
    tokens,
    lengths,
    limits,
    cache,
    hidden,
    key,
    values,
    source,
    drafter=spec.drafter,
    target=spec.target,
    read_slots=read_slots,
    recording=recording,
  )
  return sharding.laid(spec.target, state)


def context(state: SpecState) -> Context:
  """The part of a state that a drafter sees."""
  return Context(
    state.tokens,
    state.length,
    state.cache,
    state.sampling,
    state.history,
    state.source,
  )


def _emit(state, draft, verdict, eos):
  """Tokens of the step and how many of them stay.

  Returns:
    emitted [B, K+1], count [B], whether there was room for K + 1 tokens [B],
    ended by eos [B].
  """
  emitted = scoring.emitted(draft, verdict)
  place, end = jnp.arange(emitted.shape[1]), verdict.num_accepted[:, None]
  stops = jnp.zeros(emitted.shape, bool)
  for token in eos:
    stops |= emitted == token
  stops &= place <= end
  stopped = stops.any(1)
  first = jnp.argmax(stops, 1)
  full = verdict.num_accepted + 1
  count = jnp.where(stopped, jnp.minimum(first + 1, full), full)
  room = state.limit - state.length
  # What was drawn may not decide whether a step is counted: of steps with too
  # little room, those that accept less would be.
  return emitted, jnp.minimum(count, room), room >= emitted.shape[1], stopped


class StepParts(NamedTuple):
  """The parts of a step; programs that measure replace some of them."""

  split: Callable[..., Any] = scoring.split
  distributions: Callable[..., Scores] = sampling.distributions
  judge: Callable[..., Verdict] = verify.judge
  finite: Callable[..., Any] = scoring.finite
  emit: Callable[..., Any] = _emit
  write: Callable[..., Any] = caches.commit
  tally: Callable[..., Counts] = counting.add
  overlap: Callable[..., Any] = verify.overlap
  remember: Callable[..., Any] = sampling.remember


PARTS = StepParts()


def step(
  params: Params, state: SpecState, *, spec: Spec, parts: StepParts = PARTS
) -> SpecState:
  """One speculative step of every row; finished rows stay as they are.

  Raises:
    ValueError: the state was used up by `generate`, or is of another spec.
  """
  arguments.check_state(state, spec)
  drafter = spec.drafter
  keep, to_draft, to_judge = parts.split(state.key)
  if spec.rule.placed:  # Each place has its coins, whatever the steps are.
    keep = state.key
    to_draft = jax.vmap(jax.random.fold_in)(to_draft, state.length)
  ctx = context(state)
  with jax.named_scope('propose'):
    draft, memory = scoring.propose(
      drafter, params, state.drafter, ctx, to_draft
    )
  with jax.named_scope('score'):
    # A finished row is not fed.
    fed = draft._replace(size=jnp.where(state.done, -1, draft.size))
    out, logits = scoring.feed(
      spec.target, params.target, ctx, fed, drafter.taps
    )
  with jax.named_scope('judge'):
    scores, verdict = scoring.decide(
      to_judge,
      logits,
      ctx,
      draft,
      rule=spec.rule,
      depth=drafter.depth,
      distributions=parts.distributions,
      judge=parts.judge,
    )
    beta = jax.vmap(parts.overlap)(draft, scores)
  with jax.named_scope('commit'):
    finite = state.finite & (state.done | parts.finite(draft, scores))
    live = ~state.done & finite
    emitted, count, room, stopped = parts.emit(state, draft, verdict, spec.eos)
    count = jnp.where(live, count, 0)
    tokens = scoring.append(state.tokens, emitted, count, state.length)
    cache = scoring.write(
      state.cache, out.flight, verdict, state.length, parts.write
    )
    length = state.length + count
    counts = parts.tally(state.counts, draft, verdict, count, room, live, beta)
    records = state.records
    if records is not None:
      before = state.length - state.start
      records = token_records.add(
        records, draft, verdict, scores, logits, count, before
      )
  with jax.named_scope('tell'):
    history = parts.remember(state.history, state.sampling, emitted, count)
    ctx = ctx._replace(
      tokens=tokens, length=length, cache=cache, history=history
    )
    # A finished row stays where it is: nothing was accepted.
    verdict = verdict._replace(
      num_accepted=jnp.where(live, verdict.num_accepted, 0)
    )
    memory = drafter.commit(
      params, memory, ctx, verdict, scoring.along(out.taps, verdict.path)
    )
  new = state._replace(
    tokens=tokens,
    length=length,
    done=state.done | ~finite | (live & stopped) | (length >= state.limit),
    finite=finite,
    cache=cache,
    drafter=memory,
    key=keep,
    history=history,
    counts=counts,
    records=records,
  )
  new = scoring.same_types(new, state)
  placement = spec.target.placement
  if placement is None:  # On a mesh the caches would be gathered for this.
    return devices.lay_caches(spec.target.config.device, new)
  return placement.constrain_state(new)


@functools.partial(
  jax.jit, static_argnames=('spec', 'parts'), donate_argnames='state'
)
def loop(
  params: Params,
  state: SpecState,
  steps,
  *,
  spec: Spec,
  parts: StepParts = PARTS,
) -> SpecState:
  """The compiled program of `generate`, which checks what this is given."""

  def more(carry):
    i, state = carry
    if not isinstance(steps, StopWhen):
      return (i < steps) & ~state.done.all()
    finished = state.done.sum(dtype=jnp.int32)
    return (i < steps.steps) & (finished < steps.finished)

  def turn(carry):
    i, state = carry
    return i + 1, step(params, state, spec=spec, parts=parts)

  zero = jnp.zeros((), jnp.int32)
  return jax.lax.while_loop(more, turn, (zero, state))[1]


_LOOPS: dict[Any, Any] = {}  # by where they leave a state


def loop_for(spec: Spec, state: SpecState):
  """Returns the compiled `loop` that leaves a state as it lies in memory.

  Inside a program a state lies nowhere yet, and `loop` is a part of it.
  """
  leaves, structure = jax.tree.flatten(state)
  traced = any(isinstance(x, jax.core.Tracer) for x in leaves)
  if traced or spec.target.config.device.cache is None:
    return loop
  formats = (x.format if x.ndim == 4 else x.sharding for x in leaves)
  key = structure, tuple(formats)
  if key not in _LOOPS:
    _LOOPS[key] = jax.jit(
      inspect.unwrap(loop),
      static_argnames=('spec', 'parts'),
      donate_argnames='state',
      out_shardings=jax.tree.unflatten(*key),
    )
  return _LOOPS[key]


def count_programs() -> int:
  """Returns how many programs of the loop are compiled."""
  return sum(x._cache_size() for x in (loop, *_LOOPS.values()))


def generate(
  params: Params,
  state: SpecState,
  steps,
  *,
  spec: Spec,
  parts: StepParts = PARTS,
) -> SpecState:
  """Runs at most `steps` steps, fewer when every row has finished.

  A whole generation, a chunk for streaming and a single step are the same
  program: `steps` is traced.

  Args:
    params: of target and drafter.
    state: from `start`, or what the call before returned. It is donated: its
      buffers are taken over, and only the state that is returned goes on.
    steps: a number, or `StopWhen`.
    spec: what to run.
    parts: of a step.

  Raises:
    ValueError: the state was used up or is of another spec; negative steps.
  """
  arguments.check_state(state, spec)
  steps = arguments.int32_steps(steps)
  run = loop_for(spec, state)
  return run(params, state, steps, spec=spec, parts=parts)
