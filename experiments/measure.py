"""Measurements: what was accepted, what it cost, how long it took.

Times are taken around one dispatch, with nothing compiled and nothing
transferred inside. Methods take turns on the same prompts, so a drift of the
machine's speed meets them alike.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import generate, sampling
from specjax.drafters import plain
from specjax.generate import PARTS, Parts
from specjax.types import Counts, Draft, Drafter, Params, Spec, SpecState


class NotFinite(RuntimeError):
  """The target's logits were not finite."""


class Log(NamedTuple):
  """What every step did; n is the most steps of a row."""

  accepted: np.ndarray  # [B, n] -1 where the row had finished or was cut short
  drafted: np.ndarray  # [B, n]
  length: np.ndarray  # [B, n] committed tokens when the step began


@dataclasses.dataclass
class Run:
  """One batch of prompts, decoded once."""

  texts: list[list[int]]  # new tokens of each row
  counts: Counts  # numpy, rows first
  seconds: float  # of decoding
  prefill_seconds: float
  compilations: int
  log: Log | None = None


@dataclasses.dataclass(frozen=True)
class Job:
  """What is decoded: prompts with their keys and sampling values."""

  prompts: list[list[int]]
  indices: np.ndarray  # of the prompts in the experiment: they seed the keys
  values: sampling.Sampling
  new_tokens: int
  seed: int
  slots: int
  source_slots: int | None = None  # of prompts that an encoder reads


def _start(spec: Spec, params: Params, job: Job):
  return generate.start(
    params,
    job.prompts,
    spec=spec,
    new_tokens=job.new_tokens,
    key=generate.row_keys(job.seed, job.indices),
    values=job.values,
    slots=job.slots,
    source_slots=job.source_slots,
  )


def decode(
  spec: Spec,
  params: Params,
  job: Job,
  steps: int | None = None,
  timed: bool = True,
  parts: Parts = PARTS,
) -> Run:
  """Decodes a job and takes the time.

  Args:
    spec: what runs.
    params: its parameters.
    job: what is decoded.
    steps: at most so many; by default as many as there are new tokens.
    timed: whether the time counts: then the program must be compiled, and
      nothing may be transferred while it runs.
    parts: of a step.

  Raises:
    NotFinite: the target's logits are NaN or infinite.
  """
  begin = time.perf_counter()
  state = _start(spec, params, job)
  jax.block_until_ready(state)
  prefilled = time.perf_counter()
  bound = jnp.asarray(job.new_tokens if steps is None else steps, jnp.int32)
  jax.block_until_ready(bound)
  before = generate.generate._cache_size()
  with jax.transfer_guard('disallow' if timed else 'allow'):
    ready = time.perf_counter()
    state = generate.generate(params, state, bound, spec=spec, parts=parts)
    jax.block_until_ready(state)
    seconds = time.perf_counter() - ready
  compilations = generate.generate._cache_size() - before
  if timed and compilations:
    raise RuntimeError('a program was compiled inside the timed region')
  return _run(state, seconds, prefilled - begin, compilations)


def _run(state: SpecState, seconds, prefill_seconds, compilations) -> Run:
  """What is kept of a final state."""
  state = jax.device_get(state._replace(cache=(), drafter=(), key=None))
  if not state.finite.all():
    raise NotFinite('the target gave logits that are NaN or infinite')
  texts = [
    row[a:b].tolist()
    for row, a, b in zip(state.tokens, state.start, state.length, strict=True)
  ]
  return Run(texts, state.counts, seconds, prefill_seconds, compilations)


def record(spec: Spec, params: Params, job: Job) -> Run:
  """Decodes a job one step at a time and keeps a log; its time means nothing.

  The program is that of `decode`, so the texts are, too.

  Raises:
    NotFinite: the target's logits are NaN or infinite.
  """

  def look(state):
    counts = state.counts
    return jax.device_get((counts.histogram, counts.drafted, state.length))

  before = generate.generate._cache_size()
  state = _start(spec, params, job)
  one = jnp.ones((), jnp.int32)
  seen = [look(state)]
  while not state.done.all():
    state = generate.generate(params, state, one, spec=spec, parts=PARTS)
    seen.append(look(state))
  histogram, drafted, length = (np.stack(x) for x in zip(*seen, strict=True))
  # A whole step adds one to one place of the histogram, any other none.
  added = np.diff(histogram, axis=0)  # [n, B, K+1]
  accepted = np.where(added.any(-1), added.argmax(-1), -1)
  log = Log(accepted.T, np.diff(drafted, axis=0).T, length[:-1].T)
  compilations = generate.generate._cache_size() - before
  return dataclasses.replace(_run(state, 0.0, 0.0, compilations), log=log)


def compile_all(
  ways: list[tuple[Spec, Params, Job]], done: Callable[[], Any]
) -> float:
  """Takes one step of each: compiles everything that will be timed.

  Args:
    ways: (spec, params, job), every spec once.
    done: called after each.

  Returns:
    How many programs of the loop a way compiled on average.
  """
  before = generate.generate._cache_size()
  for spec, params, job in ways:
    decode(spec, params, job, steps=1, timed=False)
    done()
  return (generate.generate._cache_size() - before) / len(ways)


@functools.cache
def _idle(
  parents: tuple[int, ...], depth: int, drawn: bool, vocab: int
) -> Drafter:
  """Proposes zeros at no cost: a step with it is scoring, rule and commit."""
  base, nodes = plain.make(), len(parents)

  def propose(params, state, ctx, key):
    del params, key  # Unused.
    batch = ctx.length.shape[0]
    probs = jnp.full((batch, nodes, vocab), 1 / vocab) if drawn else None
    return Draft(
      jnp.zeros((batch, nodes), jnp.int32),
      jnp.broadcast_to(jnp.array(parents, jnp.int32), (batch, nodes)),
      jnp.full(batch, nodes, jnp.int32),
      probs,
    ), state

  return base._replace(depth=depth, nodes=nodes, propose=propose)


@dataclasses.dataclass(frozen=True)
class Costs:
  """Costs in plain steps, medians over interleaved repetitions."""

  plain_seconds: float  # one plain step
  v: float  # scoring, judging and committing gamma + 1 tokens
  c: float  # drafting, divided by the draft depth


def idle(spec: Spec, params: Params, job: Job) -> Spec:
  """The spec with a drafter that proposes as many tokens at no cost."""

  def propose(params):
    state = _start(spec, params, job)
    ctx = generate.context(state)
    return spec.drafter.propose(params, state.drafter, ctx, state.key)[0]

  depth, nodes = spec.drafter.depth, spec.drafter.nodes
  drawn = jax.eval_shape(propose, params).probs is not None
  parents = range(depth)
  if nodes != depth:  # A tree: one of its own shape.
    parents = np.asarray(jax.jit(propose)(params).parents[0]).tolist()
  vocab = spec.target.config.vocab_size
  return dataclasses.replace(
    spec, drafter=_idle(tuple(parents), depth, drawn, vocab)
  )


def costs(
  full: tuple[Spec, Params],
  base: tuple[Spec, Params],
  job: Job,
  repeats: int,
) -> Costs:
  """Measures c and v at the loop's own shapes; everything must be compiled.

  Plain steps, full steps and steps that draft nothing are run in turn, each
  as a loop of its own; c is what drafting adds to a step.

  Args:
    full: the method's spec and parameters.
    base: plain decoding.
    job: whose shapes are used.
    repeats: medians are taken over so many turns.
  """
  depth = full[0].drafter.depth
  steps = max(1, min(32, job.new_tokens // (depth + 1)))
  ways = (base, (idle(*full, job), base[1]), full)
  times = np.zeros((repeats, len(ways)))
  for i in range(repeats):
    for j, way in enumerate(ways):
      run = decode(*way, job, steps)
      times[i, j] = run.seconds / run.counts.target_calls.max()
  one, scored, whole = times.T
  return Costs(
    plain_seconds=float(np.median(one)),
    v=float(np.median(scored / one)),
    c=float(np.median((whole - scored) / one) / depth),
  )
