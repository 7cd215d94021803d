"""Texts that come and go: requests are decoded in the rows of one state.

  submit a b      turn      submit c      turn       cancel b     turn
  row 0   .       a a a     a             a a a .    .            c c c
  row 1   .       b b b     b             b b b b    .            . . .
  waiting a b               c             c          c

A turn fills the rows that are free, takes a few steps, which is one dispatch,
and says what has come. A row's whole state is written anew, with the key and
the values of its request, so a text is the one it has alone, whatever is beside
it (Yu et al. 2022, "Orca", OSDI, refills rows likewise).

What is compiled depends on no request: the loop once, and reading for each size
of a group and each number of slots that prompts are read into.
"""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import arguments, sampling
from specjax.arguments import BOUND, check_number
from specjax.loop import generate
from specjax.loop.buffers import Fitted, fit
from specjax.loop.token_records import Logprob, read
from specjax.models import cache as caches
from specjax.models import sharding
from specjax.requests.refilling import PARTS as PARTS
from specjax.requests.refilling import WITH_ORIGINS as WITH_ORIGINS
from specjax.requests.refilling import LoopParts, empty, split, stop
from specjax.requests.refilling import read_sizes as read_sizes
from specjax.requests.refilling import telling as telling
from specjax.types import Counts, Params, Spec, SpecState


class Full(Exception):
  """As many requests wait as may."""


class Request(NamedTuple):
  """One text to be continued."""

  prompt: Sequence[int]  # token ids
  new_tokens: int  # to add at most
  key: jax.Array  # [1], see `generate.row_keys`
  values: sampling.Sampling  # of one row, see `stages.Stages.values`


class Progress(NamedTuple):
  """What became of one request in a turn, on the host."""

  id: int
  tokens: list[int]  # the new ones since the last turn
  origins: list[str]  # of these, see `told`; empty where not asked for
  logprobs: list[Logprob]  # likewise
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
    parts: LoopParts = PARTS,
  ):
    """Opens a pool; nothing is computed before the first turn.

    Args:
      params: of target and drafter.
      spec: what to run.
      values: of one row: their stages are those that all requests have, see
        `stages.Stages.values`.
      rows: B, texts that are decoded at a time.
      slots: of the buffer of each, see `cache.round_slots`.
      source_slots: likewise of what an encoder reads.
      reads: slots that prompts are read into, see `read_sizes`; by default the
        whole buffer.
      group: prompts that are read at once, at most, while the others wait. It
        is memory for so many rows more.
      limit: requests that may wait; None: any number.
      parts: what the loop is made of; `telling(logprobs=5)` also tells where
        each token came from, and log-probabilities.

    Raises:
      ValueError: rows, slots, group or limit below 1; reads that do not fit
        the slots, or are no whole blocks; more log-probabilities than tokens.
    """
    for name, number in (('rows', rows), ('slots', slots), ('group', group)):
      check_number(name, number, 1)
    if limit is not None:
      check_number('limit', limit, 1)
    arguments.check_values(values)
    parts.check(spec)
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
    self.group, self.limit, self.parts = group, limit, parts
    self._values, self._layout = values, _layout(values)
    self._waiting: collections.deque[_Waiting] = collections.deque()
    self._held: dict[int, int] = {}  # row -> id, in the order of placing
    self._told: dict[int, int] = {}  # id -> tokens that were told
    self._stopped: set[int] = set()  # rows to be stopped before the next step
    self._state: SpecState | None = None
    self._next = 0

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
      Full: too many wait.
    """
    fitted = fit(
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
    return self._enqueue(request, fitted)

  def _enqueue(self, request: Request, fitted: Fitted) -> int:
    needed = len(fitted.texts[0])
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
        del self._held[row], self._told[number]
        self._stopped.add(row)
        return True
    return False

  def turn(self, steps: int = 1, *, partial: bool = True) -> list[Progress]:
    """Fills free rows, takes some steps, and says what has come.

    Args:
      steps: at most. While requests wait, a turn ends with the first row that
        finishes, otherwise with the last; each turn costs a dispatch.
      partial: also of requests that go on; otherwise their tokens are told
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
    if self.parts.warm_up is not None:
      state = self._laid(self._state)
      self._state = self.parts.warm_up(self.params, state, spec=self.spec)
    else:
      self._advance(0)

  def _next_group(self, room: int) -> list[_Waiting]:
    """The first that wait, as long as they are read into as many slots."""
    first, count = self._waiting[0], 0
    for one in self._waiting:
      if one.slots != first.slots or count == room:
        break
      count += 1
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
      self._told |= dict.fromkeys(numbers, 0)

  def _place(self, chosen: Sequence[_Waiting], rows: Sequence[int]) -> None:
    fresh = self._read(chosen)
    if self._state is None:
      self._state = self._laid(empty(fresh, self.rows))
    state = self.parts.place(self._state, fresh, np.array(rows))
    self._state = self._laid(state)

  def _laid(self, state: SpecState) -> SpecState:
    """The state as a step leaves it: then each program is compiled once."""
    return sharding.laid(self.spec.target.placement, state)

  def _advance(self, steps: int) -> None:
    placement = self.spec.target.placement
    end = generate.Until(steps, 1 if self._waiting else self.rows)
    end = sharding.numbers(placement, end)
    assert self._state is not None
    state = self._laid(self._state)
    self._state = self.parts.advance(self.params, state, end, spec=self.spec)

  def _read(self, chosen: Sequence[_Waiting]) -> SpecState:
    requests = [one.request for one in chosen]
    # Put together on the host: no program depends on who comes together.
    bits = np.concatenate([one.bits for one in chosen])
    values = jax.tree.map(
      lambda *x: jnp.asarray(np.concatenate(x)), *(r.values for r in requests)
    )
    impl = jax.random.key_impl(requests[0].key)
    slots = chosen[0].slots
    return self.parts.read(
      self.params,
      [request.prompt for request in requests],
      spec=self.spec,
      new_tokens=np.array([request.new_tokens for request in requests]),
      key=jax.random.wrap_key_data(jnp.asarray(bits), impl=impl),
      values=values,
      slots=self.slots,
      source_slots=self.source_slots,
      read_slots=None if slots == self.slots else slots,
    )

  def _collect(self, partial: bool) -> list[Progress]:
    state = self._state
    assert state is not None
    done = np.array(state.done)
    rows = [row for row in self._held if partial or done[row]]
    if not rows:
      return []
    tokens, start, length, finite, counts = sharding.fetch(
      (state.tokens, state.start, state.length, state.finite, state.counts)
    )
    found = []
    for row in rows:
      number, new = self._held[row], int(length[row] - start[row])
      told, self._told[number] = self._told[number], new
      begin, end = start[row] + told, length[row]
      own = read(counts, row, told, new)
      found.append(
        Progress(
          number,
          tokens[row, begin:end].tolist(),
          own.origins,
          own.logprobs,
          own.counts,
          bool(done[row]),
          bool(finite[row]),
        )
      )
      if done[row]:
        del self._held[row], self._told[number]
    return found


def _layout(values: sampling.Sampling) -> Any:
  """What of values is compiled: which there are, their shapes and types."""
  leaves, structure = jax.tree.flatten(values)
  return structure, [(np.shape(x)[1:], np.dtype(x.dtype)) for x in leaves]
