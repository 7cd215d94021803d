"""Measurements: what was accepted, what it cost, how long it took.

Times are taken around one dispatch, with nothing compiled and nothing
transferred inside. Methods take turns on the same prompts, so a drift of the
machine's speed meets them alike.
"""

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import monitoring

from specjax import sampling
from specjax.bench import memory
from specjax.bench.compiled import hlo
from specjax.cli import progress
from specjax.errors import UserError
from specjax.loop import generate
from specjax.models import sharding
from specjax.types import Counts, Params, Spec, SpecState


class NotFinite(UserError):
  """Logits of the target or the draft were not finite."""


@jax.jit
def _is_finite(leaf):
  return jnp.isfinite(leaf).all()


def not_finite(params: Params) -> NotFinite:
  """Returns the error of logits that are not finite; it names a bad weight."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    floats = jnp.issubdtype(getattr(leaf, 'dtype', int), jnp.floating)
    if floats and not _is_finite(leaf):
      where = jax.tree_util.keystr(path, simple=True, separator='.')
      return NotFinite(
        f'logits are NaN or infinite, as weights are: {where}; replace the '
        'damaged checkpoint'
      )
  return NotFinite(
    'logits of the target or the draft are NaN or infinite, though all weights '
    'are finite: try --dtype=float32'
  )


class Log(NamedTuple):
  """A record of every step; n is the most steps of a row."""

  accepted: np.ndarray  # [B, n] -1 where there was no whole step
  drafted: np.ndarray  # [B, n]
  length: np.ndarray  # [B, n] committed tokens when the step began

  def padded(self, steps: int) -> 'Log':
    """Returns the log with so many more steps, which nobody took."""
    ends, fills = ((0, 0), (0, steps)), (-1, 0, 0)
    columns = zip(self, fills, strict=True)
    return Log(*(np.pad(x, ends, constant_values=fill) for x, fill in columns))


@dataclasses.dataclass
class Run:
  """One batch of prompts, decoded once; all turns of conversations together.

  Attributes:
    texts: new tokens of each row.
    counts: numpy, rows first.
    seconds: of decoding.
    prefill_seconds: of reading the prompts.
    compilations: programs that were compiled meanwhile.
    log: a record of every step, where it was asked for.
    turns: a run for each turn, in which a row that had ended counts nothing;
      empty where prompts have no turns.
    shortened: prompts in which an answer lost its end.
  """

  texts: list[list[int]]
  counts: Counts
  seconds: float
  prefill_seconds: float
  compilations: int
  log: Log | None = None
  turns: list['Run'] = dataclasses.field(default_factory=list)
  shortened: int = 0

  @property
  def steps(self) -> int:
    """Steps of the loop, which rows take together."""
    return sum(
      int(run.counts.target_calls.max()) for run in self.turns or [self]
    )


@dataclasses.dataclass(frozen=True)
class Job:
  """Prompts to decode, with their keys and sampling values."""

  prompts: list[list[int]]
  indices: np.ndarray  # of the prompts in the experiment: they seed the keys
  values: sampling.Sampling
  new_tokens: int | np.ndarray  # of all, or [B]
  seed: int
  slots: int
  source_slots: int | None = None  # of prompts that an encoder reads
  live: int | None = None  # rows; any beyond these only fill up the batch

  def options(self) -> dict[str, Any]:
    """Returns what decoding takes of a job beside its prompts."""
    return {
      'new_tokens': self.new_tokens,
      'key': generate.row_keys(self.seed, self.indices),
      'values': self.values,
      'slots': self.slots,
      'source_slots': self.source_slots,
    }


class Decoding(NamedTuple):
  """A way to decode: a spec with its parameters and the parts of its step."""

  spec: Spec
  params: Params
  parts: generate.StepParts = generate.PARTS


def start(way: Decoding, job: Job) -> SpecState:
  """Returns the state of a job before its first step."""
  return generate.start(way.params, job.prompts, spec=way.spec, **job.options())


def whole(spec: Spec, tree: Any) -> Any:
  """Puts arrays on every device of the target's mesh, if it has one."""
  placement = spec.target.placement
  return tree if placement is None else placement.put_whole(tree)


@contextlib.contextmanager
def _compiled():
  """Yields a list that gets an entry for each program compiled meanwhile."""
  programs: list[str] = []

  def listen(event, seconds, **facts):
    del seconds, facts  # Unused.
    if event.endswith('/backend_compile_duration'):
      programs.append(event)

  monitoring.register_event_duration_secs_listener(listen)
  try:
    yield programs
  finally:
    monitoring.unregister_event_duration_listener(listen)


def decode(
  way: Decoding, job: Job, steps: int | None = None, timed: bool = True
) -> Run:
  """Decodes a job and takes the time.

  Args:
    way: the way to decode.
    job: the prompts.
    steps: at most so many; by default as many as there are new tokens.
    timed: whether the time counts: then the program must be compiled, and
      nothing may be transferred while it runs.

  Raises:
    NotFinite: logits of the target or the draft are NaN or infinite.
  """
  spec, params, parts = way
  begin = time.perf_counter()
  state = start(way, job)
  jax.block_until_ready(state)
  prefilled = time.perf_counter()
  bound = np.max(job.new_tokens) if steps is None else steps
  bound = whole(spec, jnp.asarray(bound, jnp.int32))
  jax.block_until_ready(bound)
  before = generate.count_programs()
  guard = jax.transfer_guard('disallow' if timed else 'allow')
  with _compiled() as programs, guard:
    ready = time.perf_counter()
    state = generate.generate(params, state, bound, spec=spec, parts=parts)
    jax.block_until_ready(state)
    seconds = time.perf_counter() - ready
  compilations = generate.count_programs() - before
  if timed and programs:
    raise RuntimeError('a program was compiled inside the timed region')
  return _run(params, state, job, seconds, prefilled - begin, compilations)


def _run(
  params: Params, state: SpecState, job: Job, seconds, prefill, compilations
) -> Run:
  """Returns what is kept of the final state of a job."""
  state = sharding.fetch(state._replace(cache=(), drafter=(), key=None))
  if not state.finite.all():
    raise not_finite(params)
  texts = [
    row[a:b].tolist()
    for row, a, b in zip(state.tokens, state.start, state.length, strict=True)
  ]
  counts = Counts(*(x[: job.live] for x in state.counts))
  return Run(texts[: job.live], counts, seconds, prefill, compilations)


def one_by_one(
  way: Decoding, state: SpecState
) -> Iterator[tuple[np.ndarray, SpecState]]:
  """Takes one step at a time, until all rows have ended.

  The program is that of `decode`, so the texts are, too.

  Args:
    way: the way to decode.
    state: before the first step; it is donated.

  Yields:
    [B] which rows took the step, and the state behind it, which the next step
    takes over.

  Raises:
    NotFinite: logits of the target or the draft are NaN or infinite.
  """
  spec, params, parts = way
  one = whole(spec, jnp.ones((), jnp.int32))
  live = ~sharding.fetch(state.done)
  while live.any():
    state = generate.generate(params, state, one, spec=spec, parts=parts)
    done, finite = sharding.fetch((state.done, state.finite))
    if not finite.all():
      raise not_finite(params)
    yield live, state
    live = ~done


def record(way: Decoding, job: Job) -> Run:
  """Decodes a job one step at a time and keeps a log; its time means nothing.

  Raises:
    NotFinite: logits of the target or the draft are NaN or infinite.
  """

  def look(state):
    counts = state.counts
    return sharding.fetch((counts.histogram, counts.drafted, state.length))

  before = generate.count_programs()
  state = begin = start(way, job)
  seen = [look(begin)]
  for _, state in one_by_one(way, begin):
    seen.append(look(state))
  histogram, drafted, length = (np.stack(x) for x in zip(*seen, strict=True))
  # A whole step adds one to one place of the histogram, any other none.
  added = np.diff(histogram, axis=0)  # [n, B, K+1]
  accepted = np.where(added.any(-1), added.argmax(-1), -1)
  columns = accepted, np.diff(drafted, axis=0), length[:-1]
  log = Log(*(x.T[: job.live] for x in columns))
  compilations = generate.count_programs() - before
  run = _run(way.params, state, job, 0.0, 0.0, compilations)
  return dataclasses.replace(run, log=log)


def exchanged(way: Decoding, job: Job) -> dict:
  """Counts what devices exchange at a step; see `hlo.loop_collectives`."""
  if way.spec.target.placement is None:
    return {}
  state = start(way, job)
  steps = whole(way.spec, jnp.ones((), jnp.int32))
  loop = generate.loop_for(way.spec, state)
  lowered = loop.lower(way.params, state, steps, spec=way.spec)
  return hlo.loop_collectives(lowered.compile().as_text())


def side_by_side(
  work: Callable[[Any], Any], items: Iterable[Any], specs: Iterable[Spec] = ()
) -> Iterator[Any]:
  """Yields `work(item)` for each item, in their order.

  On a CPU two items are in work at a time: XLA compiles without Python's lock.
  Programs for a mesh must reach all of its devices in one order, and an
  accelerator times kernels while it compiles.

  Args:
    work: takes no time that counts.
    items: the items.
    specs: specs of all that runs.
  """
  one_device = all(spec.target.placement is None for spec in specs)
  if jax.default_backend() != 'cpu' or not one_device:
    yield from map(work, items)
    return
  with futures.ThreadPoolExecutor(2) as pool:
    yield from pool.map(work, items)


def maps_used() -> float:
  """Returns the share of its memory maps that the process uses; 0 if unknown.

  A loop takes some hundred, and Linux allows 65,530 by default.
  """
  maps = pathlib.Path('/proc/self/maps')
  limit = pathlib.Path('/proc/sys/vm/max_map_count')
  if not (maps.exists() and limit.exists()):
    return 0.0
  return maps.read_bytes().count(b'\n') / int(limit.read_text())


def crowded() -> bool:
  """Returns True where compiled programs leave room for as many at most."""
  return maps_used() > 0.5


def make_room() -> None:
  """Forgets all compiled programs where they crowd the process."""
  if crowded():
    jax.clear_caches()


def compile_all(ways: list[tuple[Decoding, Job]]) -> int:
  """Compiles everything that will be timed, by one step of each.

  Args:
    ways: ways to decode, each once, with a job of the right shapes.

  Returns:
    How many programs of the loop were compiled.
  """
  before, specs = generate.count_programs(), [way.spec for way, _ in ways]
  with progress.phase('compiling', len(ways)) as phase:
    for _ in side_by_side(
      lambda pair: decode(*pair, steps=1, timed=False), ways, specs
    ):
      phase.advance()
  programs = generate.count_programs() - before
  for way, job in ways:
    # On a mesh the second call of a program is remembered apart from the
    # first, though nothing is compiled for it.
    if way.spec.target.placement is not None:
      decode(way, job, steps=1, timed=False)
  memory.give_back()
  return programs
