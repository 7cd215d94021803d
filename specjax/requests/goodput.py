"""A draft length for the load: constant for a few steps, chosen between them.

How long a draft should be depends on what is accepted and on what a step costs:
with more rows or longer texts scoring a draft costs more, and no draft may pay
at all. Between two chunks of steps a `Goodput` takes the length K with the most
tokens a second,

  tau(K) / T(K, L),   tau(K) = 1 + sum over k <= K of a_1 ... a_k

a_k is the share of drafts whose k-th token was accepted where those before it
were, of all rows together, in sums that fade; T is a fixed table of seconds a
step by length of the longest text, measured once where the programs are
compiled (`measure`). A step of a pool costs the same however many of its rows
are live, so a table is of one number of rows. K = 0 is plain decoding: the
draft reads nothing meanwhile, and reads the texts again when it is asked.

A length depends on verdicts of chunks before the last one, on lengths of texts
and on the table: on nothing that its own steps draw, and on no clock. So every
row keeps its distribution, and at temperature 0 its tokens. Which coins it
meets depends on its neighbours: a sampled text is not the one that it would be
alone, unless `choices` of a run are given to another as `replay`. It is decided
while the chunk before is at work, so that the device does not wait for it.

The goodput of Liu et al. (arXiv:2406.14066), without a confidence of single
tokens.
"""

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.arguments import is_whole, named
from specjax.loop import generate
from specjax.models import sharding
from specjax.requests import mixed_lengths
from specjax.types import LoadedDrafter, Params, Spec, SpecState

LENGTHS = (0, 1, 2, 4, 8)
GAIN = 0.03  # that a change must promise
REST = 4  # chunks between two changes, at least
PROBE = 64  # chunks after which the longest draft is tried again
VERDICTS = 16  # that are asked of it then: steps times live rows, at least
HORIZON = 32  # chunks that reading the texts again is spread over
_FADE = 0.95  # weight of a chunk after the next one
_FORGET = 0.995  # the same of places that are not tried
_PRIOR = (0.7, 4.0)  # acceptance before anything was seen, and its weight
_FEW, _MANY, _TURNS = 2, 8, 10  # steps, and turns, of a measurement
_MOST = 0.75  # of many steps: what a chunk may take besides them


@dataclasses.dataclass(frozen=True)
class Table:
  """Seconds of a step, measured once.

  Attributes:
    reach: lengths of the longest text that were measured, rising.
    seconds: of a step more, for each of them, by draft length.
    reading: of the draft that reads all texts again, for each of them.
    begin: of what a chunk takes besides its steps, for each of them.
  """

  reach: tuple[int, ...]
  seconds: Mapping[int, tuple[float, ...]]
  reading: tuple[float, ...]
  begin: tuple[float, ...]

  def place(self, longest: int) -> int:
    """Which of `reach` a text of this length belongs to."""
    place = int(np.searchsorted(self.reach, longest))
    return min(place, len(self.reach) - 1)


def typical(took: Mapping[Any, Sequence[float]]) -> dict[Any, float]:
  """Seconds of each of several things that took turns.

  A machine that is slower for a while is so for a whole turn: each is compared
  with all others of its turn, and the median of that is multiplied by the
  median turn.
  """
  seconds = np.array([*took.values()])  # [things, turns]
  turns = np.exp(np.log(np.maximum(seconds, 1e-9)).mean(0))
  shares = np.median(seconds / turns, axis=1)
  return dict(zip(took, (shares * np.median(turns)).tolist(), strict=True))


@jax.jit
def _fill(state: SpecState, longest) -> SpecState:
  """A copy of a state, all of whose rows are live and so long."""
  rows = jnp.ones_like(state.length)
  return jax.tree.map(jnp.copy, state)._replace(
    length=rows * jnp.asarray(longest, rows.dtype),
    start=rows,
    limit=rows * jnp.asarray(state.tokens.shape[1], rows.dtype),
    done=jnp.zeros_like(state.done),
    finite=jnp.ones_like(state.finite),
  )


def measure(ways: Mapping[int, tuple[Params, Spec]], state: SpecState) -> Table:
  """Times steps of every draft length, on rows of a state; it stays as it is.

  Args:
    ways: parameters and spec by draft length; the state is laid out for the
      longest.
    state: of rows; what they hold does not matter.
  """
  longest, rows = max(ways), len(state.done)
  room = (_MANY + 2) * (longest + 1)
  last = max(2, state.tokens.shape[1] - room)
  reach = tuple(sorted({max(2, last // 4), max(2, last // 2), last}))
  found: dict[int, list[float]] = {n: [] for n in ways}
  reading, begin = [], []
  for length in reach:
    asked = [(draft, steps) for draft in ways for steps in (_FEW, _MANY)]
    took: dict[tuple | None, list[float]] = {n: [] for n in [*asked, None]}
    for turn in range(_TURNS + 1):
      for what, seconds in took.items():
        draft, steps = what or (longest, 0)
        params, spec = ways[draft]
        placement = spec.target.placement
        filled = sharding.laid(spec.target, _fill(state, length))
        jax.block_until_ready(filled)
        before = jax.device_get(filled.counts.target_calls)
        began = time.perf_counter()
        if steps:
          filled, _ = mixed_lengths.run(
            params,
            filled,
            sharding.numbers(placement, generate.stop_when(steps, rows)),
            spec=spec,
          )
        elif 0 in ways:  # Only then texts are read again.
          filled = mixed_lengths.read_again(params, filled, spec=spec)
        jax.block_until_ready(filled)
        end = time.perf_counter()
        # Fewer steps where all texts ended.
        calls = jax.device_get(filled.counts.target_calls)
        taken = int((calls - before).max())
        if turn:  # The first compiles.
          seconds.append((end - began) * max(steps, 1) / max(taken, 1))
    medians = typical(took)
    few, many = (
      np.array([medians[draft, steps] for draft in ways])
      for steps in (_FEW, _MANY)
    )
    # What a chunk takes besides is alike for all lengths, and found by all.
    besides = few - _FEW * (many - few) / (_MANY - _FEW)
    begin.append(float(np.clip(np.median(besides), 0.0, _MOST * many.min())))
    for draft, seconds_of in zip(ways, many.tolist(), strict=True):
      found[draft].append((seconds_of - begin[-1]) / _MANY)
    reading.append(medians[None])
  costs = {n: tuple(v) for n, v in found.items()}
  return Table(reach, costs, tuple(reading), tuple(begin))


def _rising(lengths: Any) -> tuple[int, ...]:
  """Draft lengths, each once; a ValueError where they are none."""
  given = tuple(lengths) if isinstance(lengths, Iterable) else ()
  whole = all(map(is_whole, given))
  if not given or not whole or min(given) < 0 or max(given) < 1:
    raise ValueError(
      'lengths must be whole numbers from 0 on, one of them at least 1, such '
      f'as {LENGTHS}, got {named(lengths)}'
    )
  return tuple(sorted({*map(int, given)}))


class Goodput:
  """Chooses draft lengths, for one pool of rows.

  Attributes:
    lengths: that may be chosen, rising.
    choices: the lengths of all chunks so far, to be replayed.
    table: of costs; None until it is measured.
  """

  def __init__(
    self,
    drafter: LoadedDrafter,
    lengths: Sequence[int] = LENGTHS,
    *,
    table: Table | None = None,
    replay: Sequence[int] = (),
    ways: Mapping[int, tuple[Spec, Params]] | None = None,
  ):
    """Opens a policy; nothing is measured yet.

    Args:
      drafter: what drafts.
      lengths: draft lengths to choose from; 0 is plain decoding.
      table: of costs, see `measure`; None: measured before the first step.
      replay: lengths of the first chunks, `choices` of an earlier run.
      ways: of lengths whose steps have a target and a drafter of their own, as
        with few rows, where each is fastest with weights laid out for it: its
        spec and parameters. The drafter of 0 is not asked.

    Raises:
      ValueError: a drafter of one length; lengths that the drafter cannot
        draft, or that are not in the table; 0 where it reads the target's
        features, which are then lost.
    """
    if not isinstance(drafter, LoadedDrafter):
      raise ValueError(
        'drafter must be what a loader returns, such as '
        f'specjax.drafters.lm.load(target, path), got {named(drafter)}'
      )
    self.lengths = _rising(lengths)
    self.drafters, self._ways = {}, dict(ways or {})
    for length in self.lengths:
      longest = length or self.lengths[-1]
      if longest in self._ways:
        made = self._ways[longest][0].drafter
      else:
        made = drafter.make(longest)
      if length == 0 and made.taps:
        raise ValueError(
          'lengths: 0 is for drafters that read the text alone, and this one '
          "reads the target's features: leave 0 out"
        )
      if length and made.depth != length:
        raise ValueError(
          f'lengths: the drafter drafts {made.depth} tokens where {length} are '
          'asked for: leave that length out'
        )
      self.drafters[length] = (
        made if length else mixed_lengths.without_drafts(made)
      )
    for length in self.lengths:
      if table is not None and length not in table.seconds:
        raise ValueError(
          f'table has no costs of length {length}: measure it with the same '
          'lengths'
        )
    self.table, self._replay = table, list(replay)
    unknown = {*self._replay} - {*self.lengths}
    if unknown:
      raise ValueError(
        f'replay has the lengths {sorted(unknown)}, which are none of '
        f'{self.lengths}'
      )
    longest = self.lengths[-1]
    share, weight = _PRIOR
    self._tried = np.full(longest, weight)
    self._accepted = np.full(longest, share * weight)
    self.choices: list[int] = []
    self._current: int | None = None
    self._rested = self._unprobed = 0
    self._behind = False
    # Parameters and spec of a pool, and those of the lengths for it.
    self._of: tuple[Params | None, Spec | None] = (None, None)
    self._made: dict[int, tuple[Params, Spec]] = {}
    self._trial = False  # the next chunk is to see what its length gives
    self._planned: int | None = None  # length of the next chunk
    self._open: Any = None  # what the chunk under way will have judged

  # The choice.

  def rates(self) -> np.ndarray:
    """Acceptance [K] of each place, of those that were judged."""
    weight = _PRIOR[1]
    rates = self._accepted / self._tried
    # A place that was hardly seen is like the one before it.
    for k in range(1, len(rates)):
      seen = min(1.0, self._tried[k] / weight - 1)
      rates[k] = seen * rates[k] + (1 - seen) * rates[k - 1]
    return rates

  def tau(self, length: int) -> float:
    """Tokens of a step that are expected."""
    return 1.0 + float(np.cumprod(self.rates()[:length]).sum())

  def worth(self, length: int, longest: int, steps: int) -> float:
    """Tokens a second and row that are expected of a length."""
    assert self.table is not None
    at = self.table.place(longest)
    steps = max(steps, 1)
    seconds = self.table.seconds[length][at] + self.table.begin[at] / steps
    if length and self._behind:
      seconds += self.table.reading[at] / (HORIZON * steps)
    return self.tau(length) / seconds

  def _decide(self, longest: int, steps: int) -> int:
    """The length of the next chunk.

    Args:
      longest: tokens of the longest live text.
      steps: of the chunk.
    """
    length = self._best(longest, steps)
    self._trial = self._is_due() and length == self.lengths[-1]
    if self._trial or length == self._current:
      self._rested += 1
    else:
      self._current, self._rested = length, 1
    self._unprobed = 0 if length == self.lengths[-1] else self._unprobed + 1
    return length

  def _best(self, longest: int, steps: int) -> int:
    if len(self.choices) < len(self._replay):
      return self._replay[len(self.choices)]
    worth = {n: self.worth(n, longest, steps) for n in self.lengths}
    best = max(worth, key=worth.__getitem__)
    current = self._current
    if current is None:
      return best
    if self._is_due():
      return self.lengths[-1]  # For one chunk; the choice stays.
    if self._rested < REST or worth[best] < (1 + GAIN) * worth[current]:
      return current
    return best

  def _is_due(self) -> bool:
    """Returns whether it is time to try the longest draft again."""
    away = self._current not in (None, self.lengths[-1])
    return away and self._unprobed >= PROBE

  def learn(self, tried, accepted) -> None:
    """Learns from the verdicts of a chunk.

    Args:
      tried: [K] drafts whose k-th token was judged.
      accepted: [K] of these, accepted.

    Raises:
      ValueError: more were accepted than tried, or these are no counts.
    """
    counts = np.asarray(tried, float), np.asarray(accepted, float)
    possible = (counts[1] >= 0) & (counts[1] <= counts[0])
    if not possible.all() or not np.isfinite(counts[0]).all():
      raise ValueError(
        'accepted must be counts of at least 0 and at most those tried, got '
        f'{accepted} of {tried}'
      )
    # What is not tried is forgotten, too, but slowly.
    fade = np.where(np.asarray(tried) > 0, _FADE, _FORGET)
    share, weight = _PRIOR
    self._tried = weight + fade * (self._tried - weight) + tried
    before = share * weight
    self._accepted = before + fade * (self._accepted - before) + accepted

  # The loop.

  def check(self, spec: Spec) -> None:
    """Raises a ValueError unless a spec drafts the longest of the lengths."""
    if spec.drafter != self.drafters[self.lengths[-1]]:
      raise ValueError(
        f'spec must have the drafter of the longest length, '
        f'drafter.make({self.lengths[-1]})'
      )

  def _way(
    self, params: Params, spec: Spec, length: int
  ) -> tuple[Params, Spec]:
    """Parameters and spec of the steps of a length.

    Made once: a program is found faster by a spec that it was called with.
    """
    if self._of[0] is not params or self._of[1] is not spec:
      self._of, self._made = (params, spec), {}
    if length not in self._made:
      own, weights = self._ways.get(length, (spec, params))
      drafter = self.drafters[length]
      made = dataclasses.replace(spec, target=own.target, drafter=drafter)
      self._made[length] = weights, made
    return self._made[length]

  def _steps(self, params, state, steps, spec, length):
    """Steps of one length, whatever it was before."""
    if length and self._behind:
      state = mixed_lengths.read_again(params, state, spec=spec)
      state = sharding.laid(spec.target, state)
    self._behind = not length
    params, run = self._way(params, spec, length)
    state, sums = mixed_lengths.run(params, state, steps, spec=run)
    return sharding.laid(spec.target, state), sums

  def advance(
    self, params: Params, state: SpecState, steps: Any, *, spec: Spec
  ) -> SpecState:
    """Runs `generate.generate` with the length that is chosen."""
    if self.table is None:
      state = self.warm_up(params, state, spec=spec)
    # One look at the device, when the chunk before has ended.
    length, done, sums = jax.device_get((state.length, state.done, self._open))
    longest = int(length[~done].max()) if (~done).any() else int(length.max())
    steps = generate.stop_when(steps, len(done))
    most = int(steps.steps)
    chosen = self._planned
    if chosen is None:
      chosen = self._decide(longest, most)
    self.choices.append(chosen)
    if self._trial:  # It may be slow, and few steps of many rows do.
      few = min(most, -(-VERDICTS // max(1, int((~done).sum()))))
      steps = generate.StopWhen(few, int(steps.finished))
      steps = sharding.numbers(spec.target.placement, steps)
    state, self._open = self._steps(params, state, steps, spec, chosen)
    # While the device is at work: the host would keep it waiting.
    if sums is not None:
      self.learn(*sums)
    self._planned = self._decide(longest, most)
    return state

  def warm_up(
    self, params: Params, state: SpecState, *, spec: Spec
  ) -> SpecState:
    """Compiles the programs of all lengths; measures the table if needed."""
    if self.table is None:
      ways = {n: self._way(params, spec, n) for n in self.lengths}
      self.table = measure(ways, state)
    none = generate.stop_when(0, len(state.done))
    none = sharding.numbers(spec.target.placement, none)
    for length in self.lengths:  # The longest comes last, and is not behind.
      state, _ = self._steps(params, state, none, spec, length)
    return state
