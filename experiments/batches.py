"""The ways to decode many prompts, each timed alike: prompts apart.

Nothing is compiled while time is taken (`Side.warm_up`), and what the host
does between two dispatches counts as decoding.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax.bench import measure
from specjax.bench.config import ManyPrompts, SamplingValues
from specjax.bench.loading.checks import values
from specjax.bench.measure import Decoding
from specjax.loop import generate
from specjax.requests import continuous
from specjax.requests.goodput import Goodput
from specjax.types import LoadedDrafter

_STEPS, _TURNS = 24, 5  # of a measurement of a full step


class Pass(NamedTuple):
  """All prompts, decoded once. A unit is a prompt, a batch, or so many."""

  texts: list[list[int]]
  tokens: np.ndarray  # [units]
  calls: np.ndarray  # [units] target calls of all rows
  seconds: np.ndarray  # [units] of decoding
  reading: np.ndarray  # [units] of reading prompts
  shares: dict  # of a continuous pass, see `Clock.shares`
  # Row-steps by draft length, where it is chosen by load.
  by_length: dict[int, int] | None = None
  # Seconds of a full step, of the lengths that it had.
  step: float | None = None


class Clock:
  """The parts of a continuous run, and the seconds that each takes."""

  def __init__(self, rows: int, policy: Goodput | None = None):
    self.rows, self.policy = rows, policy
    self.by_length: dict[int, int] = {}
    self.seconds = {'read': 0.0, 'place': 0.0, 'advance': 0.0}
    self.chunks: list[tuple[int, int]] = []  # row-steps taken, and possible
    self.filled = 0  # chunks before the last prompt was placed
    self.calls = np.zeros(rows, int)  # of the target, so far

  def __call__(self, part: str, work: Callable[[], Any]) -> Any:
    """Does one part of the loop, see `pool.Pool`, and takes its time."""
    begin = time.perf_counter()
    state = jax.block_until_ready(work())
    self.seconds[part] += time.perf_counter() - begin
    if part == 'place':
      self.filled = len(self.chunks)
    if part == 'advance':
      self.count(np.array(state.counts.target_calls) - self.calls)
    if part != 'read':
      self.calls = np.array(state.counts.target_calls)
    return state

  def count(self, taken: np.ndarray) -> None:
    """Counts the steps [B] that rows took in a chunk."""
    if self.policy is not None:
      length = self.policy.choices[-1]
      self.by_length[length] = self.by_length.get(length, 0) + int(taken.sum())
    # As many steps as the row took that was live for longest.
    self.chunks.append((int(taken.sum()), int(taken.max()) * self.rows))

  def mean_step(self, full: Mapping[int, float]) -> float:
    """Seconds of a full step, of the lengths that were taken."""
    if self.policy is None:
      (step,) = full.values()
      return step
    taken = self.by_length
    return sum(full[n] * k for n, k in taken.items()) / sum(taken.values())

  def shares(self, seconds: float, step: float) -> dict:
    """What the efficiency is the product of, and why rows were idle.

    Args:
      seconds: of decoding, altogether.
      step: seconds of a full step.
    """
    taken, possible = np.array(self.chunks).T
    idle = possible - taken
    total = possible.sum()
    return {
      'occupancy': taken.sum() / total,
      'full_step_over_step': (
        step * total / self.rows / self.seconds['advance']
      ),
      'share_of_steps': self.seconds['advance'] / seconds,
      'idle_until_the_chunk_ended': idle[: self.filled].sum() / total,
      'idle_without_a_prompt': idle[self.filled :].sum() / total,
      'place_seconds': self.seconds['place'],
      'host_seconds': (
        seconds - self.seconds['advance'] - self.seconds['place']
      ),
    }


def _policy(ways: dict[int, Decoding]) -> Goodput:
  """A policy over some draft lengths of one drafter."""
  longest = ways[max(ways)]
  loaded = LoadedDrafter(
    longest.spec.target,
    lambda length: ways[length].spec.drafter,
    longest.params.drafter,
  )
  own = {n: (way.spec, way.params) for n, way in ways.items()}
  return Goodput(loaded, tuple(ways), ways=own)


class Side:
  """Plain decoding or one drafter, with its prompts and their lengths."""

  def __init__(
    self,
    x: ManyPrompts,
    stages: SamplingValues,
    many: Decoding,
    one: Decoding,
    texts,
    slots,
    by_load: dict[int, Decoding] | None = None,
  ):
    """Takes what runs.

    Args:
      x: the settings.
      stages: of the sampling pipeline.
      many: rows together; of the longest length, where it is chosen by load.
      one: a single row.
      texts: the prompts.
      slots: of the buffers of tokens and sources.
      by_load: the ways of all lengths to choose from.
    """
    self.stages, self.by_load = stages, by_load
    self.policy = None if by_load is None else _policy(by_load)
    self.x, self.many, self.one = x, many, one
    self.texts, self.slots = texts, slots
    random = np.random.default_rng(x.seed)
    size = len(texts)
    self.new = random.integers(x.shortest, x.max_new_tokens + 1, size)
    self.order = np.argsort(-self.new, kind='stable')

  def job(self, indices, new) -> measure.Job:
    x, texts = self.x, [self.texts[i] for i in indices]
    own = values(self.stages, self.many.spec, len(texts), x.temperatures[0])
    indices = np.asarray(indices)
    return measure.Job(texts, indices, own, new, x.seed, *self.slots)

  def batch(self, chosen, rows: int) -> measure.Job:
    """Some prompts; rows beyond the last of them are given no tokens."""
    indices = np.resize(chosen, rows)
    inside = np.arange(rows) < len(chosen)
    return self.job(indices, np.where(inside, self.new[indices], 0))

  def batches(self, way: Decoding, rows: int) -> Pass:
    """In batches of so many rows; a unit is a batch.

    Those that may grow longest come first, as where rows are refilled: batches
    are then of texts that are nearly as long.
    """
    texts, units = [[] for _ in self.texts], []
    for first in range(0, len(self.texts), rows):
      own = self.order[first : first + rows]
      run = measure.decode(way, self.batch(own, rows))
      for i, text in zip(own, run.texts, strict=False):
        texts[i] = text
      counts = run.counts.tokens.sum(), run.counts.target_calls.sum()
      units.append((*counts, run.seconds, run.prefill_seconds))
    return Pass(texts, *np.array(units).T, {})

  def refilled(self, chunk: int, count: int, **options):
    """Results of the first prompts, with rows that are refilled."""
    x, job = self.x, self.job(range(count), self.new[:count])
    slots, source_slots = self.slots
    return continuous.decode(
      self.many.params,
      job.prompts,
      spec=self.many.spec,
      new_tokens=job.new_tokens,
      key=generate.row_keys(job.seed, job.indices),
      values=job.values,
      rows=x.batch,
      chunk=chunk,
      group=x.group,
      slots=slots,
      source_slots=source_slots,
      policy=self.policy,
      **options,
    )

  def continuous(self, chunk: int, full: Mapping[int, float]) -> Pass:
    """With rows that are refilled; a unit is `batch` texts as they finish.

    Args:
      chunk: steps of a turn, at most.
      full: seconds of a full step, of each draft length.
    """
    rows, count = self.x.batch, len(self.texts)
    clock, texts = Clock(rows, self.policy), [[] for _ in self.texts]
    marks, sums = [(0, 0, 0.0, 0.0)], np.zeros(2)
    begin = time.perf_counter()
    outputs = self.refilled(chunk, count, clock=clock)
    for i, result in enumerate(outputs, 1):
      if not result.finite:
        raise measure.NotFinite('the target gave logits that are not finite')
      texts[result.prompt] = result.tokens
      sums += result.counts.tokens, result.counts.target_calls
      if i % rows == 0 or i == count:
        read = clock.seconds['read']
        marks.append((*sums, time.perf_counter() - begin - read, read))
    units = np.diff(np.array(marks), axis=0)
    step = clock.mean_step(full)
    shares = clock.shares(units[:, 2].sum(), step)
    return Pass(texts, *units.T, shares, clock.by_length or None, step)

  def full_steps(self) -> dict[int, float]:
    """Seconds of a full step of each draft length that there is."""
    ways = self.by_load or {self.many.spec.drafter.depth: self.many}
    return {n: self.full_step(way) for n, way in ways.items()}

  def full_step(self, way: Decoding) -> float:
    """Seconds of a step in which every row is live: the median of turns."""
    x, times = self.x, []
    depth = way.spec.drafter.depth
    steps = max(1, min(_STEPS, x.max_new_tokens // (depth + 1)))
    rows = np.arange(x.batch) % len(self.texts)
    job = self.job(rows, x.max_new_tokens)
    for _ in range(_TURNS):
      run = measure.decode(way, job, steps)
      times.append(run.seconds / run.counts.target_calls.max())
    return float(np.median(times))

  def warm_up(self) -> None:
    """Compiles everything that will be timed."""
    many = [self.many, *(self.by_load or {}).values()]
    for way, rows in ((self.one, 1), *((way, self.x.batch) for way in many)):
      measure.decode(way, self.batch(self.order[:rows], rows), 1, timed=False)
    size = 1
    while size <= min(self.x.group, self.x.batch, len(self.texts)):
      for _ in self.refilled(1, size):
        pass
      size *= 2
