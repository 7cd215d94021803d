"""Checks prompts and sizes buffers, before anything is read."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax import arguments, sampling
from specjax.models import cache as caches
from specjax.models import prefill
from specjax.types import Spec


class BufferPlan(NamedTuple):
  """Prompts that fit, and the sizes of the buffers that hold them."""

  texts: Sequence[Sequence[int]]  # what the decoder starts from
  sources: Sequence[Sequence[int]] | None  # what an encoder reads
  limit: np.ndarray  # [B] length at which a row ends
  slots: int
  source_slots: int | None


def slots_for(spec: Spec, limit: int) -> int:
  """Slots a buffer needs so that no write of a step is ever clamped."""
  drafter = spec.drafter
  # A model that owns its cache writes all nodes behind the text.
  rows = drafter.depth if spec.target.empty is None else drafter.nodes
  return caches.round_slots(limit + rows + 1 + drafter.beyond)


def _check_rows(count: int, new_tokens, key, values) -> None:
  """Raises a ValueError unless each prompt has its own of everything."""
  if np.shape(new_tokens) not in ((), (count,)):
    raise ValueError(
      f'new_tokens must be one number or {count}, one a prompt, got '
      f'{np.shape(new_tokens)}'
    )
  asked = np.asarray(new_tokens)
  whole = np.issubdtype(asked.dtype, np.integer)
  if not whole or (asked < 0).any() or (asked >= arguments.BOUND).any():
    raise ValueError(
      'new_tokens must be whole numbers of at least 0 (rows that only fill up '
      f'a batch get none) and below {arguments.BOUND}, got '
      f'{arguments.named(new_tokens)}'
    )
  for name, rows in (('key', len(key)), ('values', len(values.temperature))):
    if rows != count:
      raise ValueError(
        f'{name} has {rows} rows for {count} prompts: give each its own'
      )


def _check_room(new_tokens, values: sampling.Sampling) -> None:
  """Raises a ValueError if the shortest allowed text of a row is too long."""
  asked = []
  if values.constraint is not None:
    what = 'the shortest text of its constraint has'
    asked.append((what, values.constraint.least))
  if values.min_new_tokens is not None:
    asked.append(('min_new_tokens asks for', values.min_new_tokens))
  for what, needed in asked:
    least = np.asarray(needed)
    room = np.broadcast_to(np.asarray(new_tokens), least.shape)
    # Rows that only fill up a batch get none.
    short = (room < least) & (room > 0)
    if short.any():
      row = int(np.argmax(short))
      raise ValueError(
        f'new_tokens is {room[row]} for prompt {row}, but {what} {least[row]} '
        'tokens: allow as many'
      )


def plan_buffers(
  spec: Spec,
  prompts: Sequence[Sequence[int]],
  new_tokens,
  key,
  values: sampling.Sampling,
  slots: int | None = None,
  source_slots: int | None = None,
) -> BufferPlan:
  """Checks prompts and all that goes with them; see `generate.start`.

  Raises:
    ValueError: as there; names the field, and the prompt where it is one.
  """
  arguments.check_spec(spec)
  arguments.check_keys(key)
  arguments.check_values(values)
  reason = spec.rule.refuses(spec.drafter)
  if reason:
    raise ValueError(f'the rule does not fit the drafter: {reason}')
  config = spec.target.config
  prefill.check_prompts(config, prompts)
  _check_rows(len(prompts), new_tokens, key, values)
  sampling.check(values, config.vocab_size, spec.eos)
  _check_room(new_tokens, values)
  texts, sources = prefill.split(config, prompts)
  if sources is not None:
    sizes = [len(source) for source in sources]
    needed, widest = caches.round_slots(max(sizes)), int(np.argmax(sizes))
    source_slots = caches.fit_slots(
      'source_slots', source_slots, needed, f'prompt {widest}'
    )
  # Wide, until it is compared: the sum may be more than a device counts.
  limit = np.array([len(text) for text in texts], np.int64)
  limit = limit + np.asarray(new_tokens, np.int64)
  longest = int(np.argmax(limit))
  for who, positions in (
    ('target', config.max_positions),
    ('drafter', spec.drafter.positions),
  ):
    if positions is not None and limit[longest] > positions:
      raise ValueError(
        f'prompt {longest} and its new tokens make {limit[longest]} tokens, '
        f'but the {who} has {positions} positions: shorten one of them'
      )
  needed = slots_for(spec, int(limit[longest]))
  slots = caches.fit_slots('slots', slots, needed, f'prompt {longest}')
  return BufferPlan(texts, sources, limit.astype(np.int32), slots, source_slots)


class StopWhen(NamedTuple):
  """Ends a chunk of steps, at whichever comes first."""

  steps: Any  # number of steps
  finished: Any  # number of rows that have finished


def stop_when(steps, rows: int) -> StopWhen:
  """Ends after a number of steps, or when all of so many rows have finished."""
  if isinstance(steps, StopWhen):
    return steps
  return StopWhen(steps, np.int32(rows))
