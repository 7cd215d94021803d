"""Stages that come before the temperature, some of which look at the text.

A drafted token's ancestors are part of its text. Penalties are computed once
from committed counts, and again only at the few tokens that were drafted.
"""

import jax
import jax.numpy as jnp

from specjax.types import Constraint, History, Sampling


def _penalizes(values):
  penalties = (values.repetition, values.presence, values.frequency)
  return any(x is not None for x in penalties)


def history(
  values: Sampling, tokens: jax.Array, length: jax.Array, vocab_size: int
) -> History:
  """The history that the stages look at, before the first new token.

  Args:
    values: of the rows.
    tokens: [B, S].
    length: [B] tokens of the prompts.
    vocab_size: V.
  """
  batch, slots = tokens.shape
  counts = prompt = new = state = None
  if _penalizes(values):
    counts = jnp.zeros((batch, vocab_size), jnp.int32)
  if values.repetition is not None:
    known = jnp.where(jnp.arange(slots) < length[:, None], tokens, vocab_size)
    mark = jax.vmap(lambda row, ids: row.at[ids].set(True, mode='drop'))
    prompt = mark(jnp.zeros((batch, vocab_size), bool), known)
  if values.min_new_tokens is not None:
    new = jnp.zeros(batch, jnp.int32)
  if values.constraint is not None:
    state = jnp.zeros(batch, jnp.int32)
  return History(new, counts, prompt, state)


def follow(
  constraint: Constraint, state: jax.Array, tokens: jax.Array
) -> jax.Array:
  """The state after tokens [P], negative ones left out; one sequence.

  It is negative where the text is not allowed, and stays so.
  """
  constraint = jax.tree.map(jnp.asarray, constraint)  # Numpy's, if not traced.

  def turn(state, token):
    kind = constraint.classes[jnp.maximum(token, 0)].astype(jnp.int32)
    after = constraint.next[jnp.maximum(state, 0), kind].astype(state.dtype)
    return jnp.where((token >= 0) & (state >= 0), after, state), None

  unroll = max(1, min(len(tokens), 16))
  return jax.lax.scan(turn, state, tokens, unroll=unroll)[0]


def remember(
  history: History, values: Sampling, emitted: jax.Array, size: jax.Array
) -> History:
  """Adds committed tokens: the first size [B] of emitted [B, P]."""
  new, counts, state = history.new, history.counts, history.state
  stays = jnp.arange(emitted.shape[1]) < size[:, None]
  if new is not None:
    new = new + size
  if counts is not None:
    add = jax.vmap(lambda row, ids: row.at[ids].add(1, mode='drop'))
    counts = add(counts, jnp.where(stays, emitted, counts.shape[1]))
  if state is not None:
    assert values.constraint is not None
    known = jnp.where(stays, emitted, -1)
    state = jax.vmap(follow)(values.constraint, state, known)
  return History(new, counts, history.prompt, state)


def _penalize(logits, values, count, seen):
  """Logits of tokens that occur `count` times, and whether in the text."""
  if values.repetition is not None:
    by = values.repetition.astype(logits.dtype)
    other = jnp.where(logits < 0, logits * by, logits / by)
    logits = jnp.where(seen, other, logits)
  if values.presence is not None:
    logits -= jnp.where(count > 0, values.presence.astype(logits.dtype), 0)
  if values.frequency is not None:
    logits -= count.astype(logits.dtype) * values.frequency
  return logits


def _penalize_text(logits, values, history, above):
  """Logits [V] after the committed text and the drafted tokens on top.

  No counts are made for a drafted token's text: only its ancestors' entries
  differ, and each of them knows how often it is among the others.
  """
  vocab, counts = logits.shape[-1], history.counts
  assert counts is not None
  seen = counts > 0
  if history.prompt is not None:
    seen |= history.prompt
  committed = _penalize(logits, values, counts, seen)
  if not above.shape[-1]:
    return committed
  token = jnp.maximum(above, 0)
  count = counts[token] + (above == above[:, None]).sum(-1)
  penalized = _penalize(logits[token], values, count, True)
  place = jnp.where(above >= 0, above, vocab)
  return committed.at[place].set(penalized, mode='drop')


def process(
  logits: jax.Array, values: Sampling, history: History, above: jax.Array
) -> jax.Array:
  """Logits [V] after the stages before the temperature; one sequence.

  Args:
    logits: [V] as the model gives them.
    values: of the sequence.
    history: of its committed text.
    above: [K] tokens drafted after that text, -1 where there is none.
  """
  vocab = logits.shape[-1]
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  if values.logit_bias is not None:
    logits += values.logit_bias
  if _penalizes(values):
    logits = _penalize_text(logits, values, history, above)
  closed = jnp.zeros(vocab, bool)
  if values.forbidden is not None:
    closed |= values.forbidden
  if values.min_new_tokens is not None:
    assert history.new is not None
    assert values.ends is not None
    short = history.new + (above >= 0).sum() < values.min_new_tokens
    ends = (jnp.arange(vocab) == values.ends[:, None]).any(0)
    closed |= ends & short
  if values.constraint is not None:
    assert history.state is not None
    constraint = values.constraint
    state = follow(constraint, history.state, above)
    leads = jnp.asarray(constraint.next)[jnp.maximum(state, 0)]
    leads = leads[jnp.asarray(constraint.classes).astype(jnp.int32)]
    closed |= (leads < 0) & (state >= 0)
  # All are closed only behind a token that may not come itself, which is never
  # reached: nothing is asked there.
  return jnp.where(closed & ~closed.all(), -jnp.inf, logits)
