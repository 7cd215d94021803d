"""Texts that come and go: requests are decoded in the rows of one state.

  submit a b      turn      submit c      turn       cancel b     turn
  row 0   .       a a a     a             a a a .    .            c c c
  row 1   .       b b b     b             b b b b    .            . . .
  waiting a b               c             c          c

A turn fills the rows that are free, takes a few steps, which is one dispatch,
and returns the new tokens. The whole state of a row is written anew, with the
key and the values of its request. So a text is the one it has alone, whatever
is beside it (Yu et al. 2022, "Orca", OSDI, refills rows like this).

Requests that differ in their keys alone are samples of one text. A request
that repeats the one placed before it, with the same objects as its prompt and
its values, begins with a copy of what was read for that: a prompt is read once
for all of its samples, where `group` is 1.

What is compiled depends on no request: the loop once, and reading for each size
of a group and each number of slots that prompts are read into.
"""

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import arguments, sampling
from specjax.arguments import BOUND, check_number
from specjax.loop import generate, token_records
from specjax.loop.buffers import plan_buffers
from specjax.loop.token_records import NOTHING, Logprob, Recording
from specjax.models import cache as caches
from specjax.models import sharding
from specjax.models.prefill import read_sizes as read_sizes
from specjax.requests.goodput import Goodput
from specjax.types import Counts, Params, Spec, SpecState


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


def _repeats(one: 'Request', other: 'Request') -> bool:
  """Returns whether two requests differ in nothing but their keys."""
  same = one.prompt is other.prompt and one.values is other.values
  return same and one.new_tokens == other.new_tokens


class Full(Exception):
  """As many requests wait as may."""


class Request(NamedTuple):
  """One text to be continued."""

  prompt: Sequence[int]  # token ids
  new_tokens: int  # to add at most
  key: jax.Array  # [1], see `generate.row_keys`
  values: sampling.Sampling  # of one row, see `request_sampling.Stages`


class Progress(NamedTuple):
  """The progress of one request in a turn, on the host."""

  id: int
  tokens: list[int]  # the new ones since the last turn
  origins: list[str]  # one a token; empty where they are not recorded
  logprobs: list[Logprob]  # one a token; empty where they are not recorded
  sampled: list[float]  # one a token; empty where they are not recorded
  counts: Counts  # since it began; numpy, without the axis B
  done: bool
  finite: bool  # false: p or q was no number, and the text ended there


class _Waiting(NamedTuple):
  id: int
  request: Request
  bits: np.ndarray  # [1, 2] of its key
  slots: int  # that its prompt is read into


class Pool:
  """Requests in the rows of one state.

  Nobody else may call a pool while it works: it belongs to one thread.
  """

  def __init__(
    self,
    params: Params,
    *,
    spec: Spec,
    values: sampling.Sampling,
    rows: int,
    slots: int,
    source_slots: int | None = None,
    reads: Sequence[int] = (),
    group: int = 1,
    limit: int | None = None,
    recording: Recording = NOTHING,
    policy: Goodput | None = None,
    clock: Callable[[str, Callable[[], SpecState]], SpecState] = (
      lambda part, work: work()
    ),
  ):
    """Opens a pool; nothing is computed before the first turn.

    Args:
      params: of target and drafter.
      spec: what to run.
      values: of one row: their stages are those that all requests have, see
        `request_sampling.Stages`.
      rows: B, texts that are decoded at a time.
      slots: of the buffer of each, see `cache.round_slots`.
      source_slots: size of the buffer of what an encoder reads, for each row.
      reads: slots that prompts are read into, see `read_sizes`; by default the
        whole buffer.
      group: prompts that are read at once, at most, while the others wait. It
        is memory for so many rows more.
      limit: requests that may wait; None: any number.
      recording: records that are kept of each token, see `token_records`.
      policy: chooses the draft length by load; None: that of the spec.
      clock: does the parts of the loop, `clock(part, work)` with part 'read',
        'place' or 'advance'; for programs that take their time.

    Raises:
      ValueError: rows, slots, group or limit below 1; reads that do not fit
        the slots, or are no whole blocks; more log-probabilities than tokens;
        another spec than the policy needs.
    """
    for name, number in (('rows', rows), ('slots', slots), ('group', group)):
      check_number(name, number, 1)
    if limit is not None:
      check_number('limit', limit, 1)
    arguments.check_values(values)
    recording.check(spec)
    if policy is not None:
      policy.check(spec)
    self.params, self.spec, self.rows = params, spec, rows
    self.slots, self.source_slots = caches.round_slots(slots), source_slots
    self.reads = sorted({*reads, self.slots})
    if self.reads[0] < 1 or self.reads[-1] > self.slots:
      raise ValueError(
        f'reads must be from 1 to the {self.slots} slots, got {tuple(reads)}'
      )
    for size in self.reads:
      if size % (block := caches.block_of(size)):
        raise ValueError(
          f'reads has {size}, which is no multiple of a block of {block} tokens'
        )
    self.group, self.limit = group, limit
    self._recording, self._policy, self._clock = recording, policy, clock
    self._values, self._layout = values, _layout(values)
    self._waiting: collections.deque[_Waiting] = collections.deque()
    self._held: dict[int, int] = {}  # row -> id, in the order of placing
    self._given: dict[int, int] = {}  # id -> tokens that were given out
    self._stopped: set[int] = set()  # rows to be stopped before the next step
    self._state: SpecState | None = None
    self._next = 0
    # The request that was read last, and its row, while it is repeated.
    self._kept: tuple[Request, SpecState] | None = None

  @property
  def waiting(self) -> int:
    """Requests that have no row yet."""
    return len(self._waiting)

  @property
  def live(self) -> int:
    """Requests that have a row."""
    return len(self._held)

  def submit(self, request: Request) -> int:
    """Takes a request, and returns the number that it is known by.

    Raises:
      ValueError: it cannot be decoded here; as `generate.start`.
      Full: as many requests wait as `limit` allows.
    """
    planned = plan_buffers(
      self.spec,
      [request.prompt],
      request.new_tokens,
      request.key,
      request.values,
      self.slots,
      self.source_slots,
    )
    if _layout(request.values) != self._layout:
      raise ValueError(
        'values must have the stages and sizes that the pool was opened with: '
        'make them with the same specjax.requests.request_sampling.Stages'
      )
    if self.limit is not None and self.waiting >= self.limit:
      raise Full(f'{self.waiting} requests wait, which is the limit')
    needed = len(planned.texts[0])
    slots = next(size for size in self.reads if size >= needed)
    bits = np.asarray(jax.random.key_data(request.key))
    number, self._next = self._next, self._next + 1
    self._waiting.append(_Waiting(number, request, bits, slots))
    return number

  def cancel(self, number: int) -> bool:
    """Ends a request; its row is free for the next.

    Returns:
      False where it was done before, or was never there.
    """
    for place, one in enumerate(self._waiting):
      if one.id == number:
        del self._waiting[place]
        return True
    for row, held in self._held.items():
      if held == number:
        del self._held[row], self._given[number]
        self._stopped.add(row)
        return True
    return False

  def turn(self, steps: int = 1, *, partial: bool = True) -> list[Progress]:
    """Fills free rows, takes some steps, and returns the progress.

    Args:
      steps: at most. While requests wait, a turn ends with the first row that
        finishes, otherwise with the last; each turn costs a dispatch.
      partial: also of requests that go on; otherwise their tokens come
        with the last ones.

    Returns:
      Of every live request, in the order in which they were given rows.

    Raises:
      ValueError: steps below 1, or more than a device counts.
    """
    check_number('steps', steps, 1, BOUND)
    self._fill()
    if not self._held:
      return []
    assert self._state is not None
    if self._stopped:
      rows = np.isin(np.arange(self.rows), [*self._stopped])
      self._state = stop(self._state, rows)
      self._stopped.clear()
    self._advance(steps)
    return self._collect(partial)

  def warm_up(self) -> None:
    """Compiles all that any request will run; no request may be live.

    Raises:
      ValueError: one is.
    """
    if self._held:
      raise ValueError(f'{self.live} requests are live: warm up before them')
    blank = Request([0], 0, generate.row_keys(0, [0]), self._values)
    bits = np.asarray(jax.random.key_data(blank.key))
    for size in {*split(2 * self.group - 1, self.group)}:
      for slots in self.reads if size <= self.rows else ():
        self._place([_Waiting(-1, blank, bits, slots)] * size, range(size))
    assert self._state is not None
    self._state = stop(self._state, np.ones(self.rows, bool))
    if self._policy is not None:
      state = self._laid(self._state)
      self._state = self._policy.warm_up(self.params, state, spec=self.spec)
    else:
      self._advance(0)

  def _next_group(self, room: int) -> list[_Waiting]:
    """The first that wait, as long as they are read into as many slots.

    One that repeats the one before it is not among them: it is not read.
    """
    first, count = self._waiting[0], 0
    before = self._kept and self._kept[0]
    for one in self._waiting:
      again = before is not None and _repeats(one.request, before)
      if one.slots != first.slots or count == room or (again and count):
        break
      before, count = one.request, count + 1
      if again:
        break
    size = split(count, self.group)[0]
    return [self._waiting.popleft() for _ in range(size)]

  def _fill(self) -> None:
    free = [row for row in range(self.rows) if row not in self._held]
    while free and self._waiting:
      chosen = self._next_group(len(free))
      here = [free.pop(0) for _ in chosen]
      self._place(chosen, here)
      self._stopped -= {*here}
      numbers = [one.id for one in chosen]
      self._held |= zip(here, numbers, strict=True)
      self._given |= dict.fromkeys(numbers, 0)

  def _place(self, chosen: Sequence[_Waiting], rows: Sequence[int]) -> None:
    first = chosen[0].request
    if self._kept is not None and _repeats(first, self._kept[0]):
      key, placement = self._keys(chosen), self.spec.target.placement
      key = key if placement is None else placement.put_rows(key)
      fresh = self._kept[1]._replace(key=key)
    else:
      fresh = self._read(chosen)
    more = self._waiting and _repeats(self._waiting[0].request, first)
    self._kept = (first, fresh) if more and len(chosen) == 1 else None
    if self._state is None:
      self._state = self._laid(empty(fresh, self.rows))
    state, at = self._state, np.array(rows)
    state = self._clock('place', lambda: place(state, fresh, at))
    self._state = self._laid(state)

  def _laid(self, state: SpecState) -> SpecState:
    """The state as a step leaves it: then each program is compiled once."""
    return sharding.laid(self.spec.target, state)

  def _advance(self, steps: int) -> None:
    placement = self.spec.target.placement
    end = generate.StopWhen(steps, 1 if self._waiting else self.rows)
    end = sharding.numbers(placement, end)
    assert self._state is not None
    state = self._laid(self._state)
    advance = self._policy.advance if self._policy else generate.generate
    self._state = self._clock(
      'advance', lambda: advance(self.params, state, end, spec=self.spec)
    )

  def _read(self, chosen: Sequence[_Waiting]) -> SpecState:
    requests = [one.request for one in chosen]
    # Put together on the host: no program depends on who comes together.
    values = jax.tree.map(
      lambda *x: jax.device_put(np.concatenate(x)),
      *(r.values for r in requests),
    )
    slots = chosen[0].slots
    read = functools.partial(
      generate.start,
      self.params,
      [request.prompt for request in requests],
      spec=self.spec,
      new_tokens=np.array([request.new_tokens for request in requests]),
      key=self._keys(chosen),
      values=values,
      slots=self.slots,
      source_slots=self.source_slots,
      read_slots=None if slots == self.slots else slots,
      recording=self._recording,
    )
    return self._clock('read', read)

  def _keys(self, chosen: Sequence[_Waiting]) -> jax.Array:
    bits = np.concatenate([one.bits for one in chosen])
    impl = jax.random.key_impl(chosen[0].request.key)
    return jax.random.wrap_key_data(jax.device_put(bits), impl=impl)

  def _collect(self, partial: bool) -> list[Progress]:
    state = self._state
    assert state is not None
    done = np.array(state.done)
    rows = [row for row in self._held if partial or done[row]]
    if not rows:
      return []
    begin = {row: self._given[self._held[row]] for row in rows}
    found = []
    for row, new in zip(rows, token_records.read(state, begin), strict=True):
      number = self._held[row]
      found.append(Progress(number, *new[:-1]))
      self._given[number] = new.end
      if new.done:
        del self._held[row], self._given[number]
    return found


def _layout(values: sampling.Sampling) -> Any:
  """The part of values that is compiled: their structure, shapes and types."""
  leaves, structure = jax.tree.flatten(values)
  return structure, [(np.shape(x)[1:], np.dtype(x.dtype)) for x in leaves]
