"""A state whose rows are refilled, and the sizes that prompts are read in."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.loop import generate, token_records
from specjax.types import Spec, SpecState

_SMALLEST_READ, _LARGEST_READ = 32, 512


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


@functools.partial(jax.jit, donate_argnames='state')
def stop(state: SpecState, rows: jax.Array) -> SpecState:
  """The state with some rows [B] finished where they are; it is donated."""
  return state._replace(done=state.done | rows)


class LoopParts(NamedTuple):
  """What the loop is made of; `benchmarks` takes the time of each.

  warm_up(params, state, spec) -> state: compiles what `advance` will run, where
    that is more than one program.
  """

  read: Callable[..., SpecState] = generate.start
  place: Callable[..., SpecState] = place
  advance: Callable[..., SpecState] = generate.generate
  check: Callable[[Spec], None] = token_records.Telling().check
  warm_up: Callable[..., SpecState] | None = None


def telling(*, origins: bool = True, logprobs: int | None = None) -> LoopParts:
  """Parts of a loop that tells more of its tokens, see `told.Telling`.

  Raises:
    ValueError: `logprobs` is no number from 0 to 20.
  """
  what = token_records.Telling(origins, logprobs)
  return LoopParts(
    read=functools.partial(token_records.start, what),
    advance=functools.partial(token_records.generate, what),
    check=what.check,
  )


PARTS = LoopParts()
WITH_ORIGINS = telling()


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


def read_sizes(slots: int) -> tuple[int, ...]:
  """Slots that prompts are read into, for a buffer of so many.

    128   ->   32 64 128        4096   ->   32 64 128 256 512 4096

  A prompt of 20 tokens is then read at the price of 32, and not of a block of
  the buffer: 128 tokens, or 512 beyond 512 slots (`cache.block_of`). Larger
  ones are read in such blocks, of which only those in use count.
  """
  sizes = [_SMALLEST_READ]
  while 2 * sizes[-1] < min(slots, 2 * _LARGEST_READ):
    sizes.append(2 * sizes[-1])
  return *sizes, slots
