"""Many prompts through a few rows: continuous batching.

A batch takes as long as its longest text. Here a row that has finished gets
the next prompt while the others go on (Yu et al. 2022, "Orca", OSDI, whose
unit is a step; here it is a chunk of a few, which is one dispatch):

  row 0   a a a a a . | d d d d d d | d f f ...      . idle: a had finished
  row 1   b b b b b b | b b b b b b | b b . ...      | between two chunks
  row 2   c c c . . . | e e e e e . | g g g ...

A prompt keeps its own key, values and limit, and its row's whole state is
written anew, so its text is the one it has alone.
"""

import collections
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import generate, sampling
from specjax.inputs import fit
from specjax.types import Counts, Params, Spec, SpecState


class Result(NamedTuple):
  """What became of one prompt, on the host."""

  prompt: int  # its index
  tokens: list[int]  # the new ones
  counts: Counts  # numpy, without the axis B
  finite: bool  # false: p or q was no number, and the text ended there
  done: bool  # false: this is the beginning of the text


@functools.partial(jax.jit, static_argnames='rows')
def empty(fresh: SpecState, rows: int) -> SpecState:
  """A state of finished rows, laid out as those of another state are.

  They hold what its first row holds: whatever a step computes of a finished
  row, it computes of a valid one.
  """
  state = jax.tree.map(
    lambda x: jnp.broadcast_to(x[:1], (rows, *x.shape[1:])), fresh
  )
  return state._replace(done=jnp.ones(rows, bool))


@functools.partial(jax.jit, donate_argnames='state')
def place(state: SpecState, fresh: SpecState, rows: jax.Array) -> SpecState:
  """The state with row i of `fresh` in place of its row `rows[i]`.

  All of the row is replaced, also the slots beyond the prompt: they may hold
  logits that were not finite, and a masked NaN is still one. The state is
  donated.
  """
  return jax.tree.map(
    lambda old, new: old.at[rows].set(new, unique_indices=True), state, fresh
  )


class LoopParts(NamedTuple):
  """What the loop is made of; `benchmarks` takes the time of each."""

  read: Callable[..., SpecState] = generate.start
  place: Callable[..., SpecState] = place
  advance: Callable[..., SpecState] = generate.generate


PARTS = LoopParts()


def split(count: int, group: int) -> list[int]:
  """Powers of two up to `group` that add up to a count, the largest first.

    count 13, group 4    ->    4 4 4 1

  So few programs read any number of prompts, and none reads padding.
  """
  sizes = []
  while count:
    sizes.append(1 << (min(count, group).bit_length() - 1))
    count -= sizes[-1]
  return sizes


def _collect(state, held, partial) -> Iterator[Result]:
  """Results of the rows that hold a prompt and have finished, or of all."""
  done = np.array(state.done)
  rows = [row for row in held if partial or done[row]]
  if not rows:
    return
  tokens, start, length, finite, counts = jax.device_get(
    (state.tokens, state.start, state.length, state.finite, state.counts)
  )
  for row in rows:
    yield Result(
      held[row],
      tokens[row, start[row] : length[row]].tolist(),
      jax.tree.map(lambda x, row=row: np.array(x[row]), counts),
      bool(finite[row]),
      bool(done[row]),
    )


def decode(
  params: Params,
  prompts: Sequence[Sequence[int]],
  *,
  spec: Spec,
  new_tokens,
  key: jax.Array,
  values: sampling.Sampling,
  rows: int,
  chunk: int = 4,
  group: int = 4,
  slots: int | None = None,
  source_slots: int | None = None,
  partial: bool = False,
  parts: LoopParts = PARTS,
) -> Iterator[Result]:
  """Decodes prompts as rows become free, and yields each when it is done.

  Everything is checked at the call; decoding begins with the first result
  that is asked for. What is compiled does not depend on the number of
  prompts: the loop once, and reading for each size of a group.

  Args:
    params: of target and drafter.
    prompts: P lists of token ids, as for `generate.start`.
    spec: what to run.
    new_tokens: tokens to add to each prompt, a number or [P].
    key: [P] keys, see `generate.row_keys`.
    values: sampling values of P rows, see `sampling.make`.
    rows: B, texts that are decoded at a time.
    chunk: steps between two looks at what has finished. A row that finishes
      waits for half of them on average; each look costs one dispatch.
    group: prompts that are read at once, at most, while the others wait. It
      is memory for so many rows more.
    slots: size of the buffer; by default what the longest prompt needs.
    source_slots: likewise of what an encoder reads.
    partial: also yield, after each chunk, how far every other row has come.
    parts: what the loop is made of.

  Returns:
    Results in the order in which they finish; `prompt` restores that of the
    prompts.

  Raises:
    ValueError: as `generate.start`, naming the prompt; rows, chunk or group
      below 1.
  """
  for name, number in (('rows', rows), ('chunk', chunk), ('group', group)):
    if number < 1:
      raise ValueError(f'{name} must be at least 1, got {number}')
  fitted = fit(spec, prompts, new_tokens, key, values, slots, source_slots)
  limits = np.broadcast_to(np.asarray(new_tokens), len(prompts))
  # Taken apart on the host: no program depends on the number of prompts.
  bits, impl = np.asarray(jax.random.key_data(key)), jax.random.key_impl(key)
  given = jax.device_get(values)

  def read(indices: list[int]) -> SpecState:
    return parts.read(
      params,
      [prompts[i] for i in indices],
      spec=spec,
      new_tokens=limits[indices],
      key=jax.random.wrap_key_data(jnp.asarray(bits[indices]), impl=impl),
      values=jax.tree.map(lambda x: jnp.asarray(x[indices]), given),
      slots=fitted.slots,
      source_slots=fitted.source_slots,
    )

  def turns() -> Iterator[Result]:
    waiting, steps = collections.deque(range(len(prompts))), jnp.int32(chunk)
    held: dict[int, int] = {}  # row -> prompt
    state: Any = None
    while waiting or held:
      free = [row for row in range(rows) if row not in held]
      for size in split(min(len(free), len(waiting)), group):
        here = [free.pop(0) for _ in range(size)]
        indices = [waiting.popleft() for _ in here]
        fresh = read(indices)
        state = empty(fresh, rows) if state is None else state
        state = parts.place(state, fresh, np.array(here))
        held |= zip(here, indices, strict=True)
      state = parts.advance(params, state, steps, spec=spec)
      results = list(_collect(state, held, partial))
      ended = {result.prompt for result in results if result.done}
      held = {row: i for row, i in held.items() if i not in ended}
      yield from results

  return turns()
