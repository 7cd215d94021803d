"""A run that follows a script: every number of its row is known on paper.

A script says what each step drafts, how much of it is right, and how long it
takes. It stands in for models, prompts and the clock; all that turns a step
into counts, and counts and times into a row, is what measures a real run.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from specjax import verify
from specjax.bench import measure, meshes, results, runner, ties
from specjax.bench.config import Checkpoint, Experiment, Mesh
from specjax.bench.methods import Loaded, Method
from specjax.bench.plan import Plan, freeze
from specjax.drafters import plain
from specjax.loop import counting, generate
from specjax.models import table
from specjax.models.layouts import LayoutChoice
from specjax.prompts import Chosen
from specjax.types import Draft, Params, Spec, SpecState, Target, Verdict

DEPTH, NEW, EOS = 3, 12, 128
VOCAB = 129

# A line for each prompt, a place for each new token: how many tokens a step
# that begins there drafts, how many of them are right, and beta in eighths.
# No step begins at a dot: alpha alone, which looks at every prefix, sees one
# wrong token there.
#    drafted         right           beta
SCRIPT = (
  ('3...3.32..3.', '3...1.02..3.', '846215783412'),  # The limit cuts a step.
  ('3..03.......', '2..03.......', '804088000000'),  # So does the end.
  ('3...3...133.', '3...3...001.', '888877654321'),  # The limit fits a step.
  ('001.03...2.0', '001.03...1.0', '007803154260'),  # A text in circles.
  ('3.3..3.33...', '1.2..1.03...', '682574318257'),
  ('3..2.3......', '2..1.3......', '765123468000'),  # The end fits a step.
  ('333...3..3..', '003...2..3..', '126876521483'),
  ('1.3..23.03..', '1.2..01.03..', '531704620803'),  # The text above.
)
PROMPTS = len(SCRIPT)
_ROWS = PROMPTS + 2  # at most in a batch
# Seconds of a step, by what is decoded and the first prompt of the batch.
SECONDS = {
  'plain': (4, 5, 2, 4, 3, 4, 5, 2),
  'scored': (5, 7, 3, 6, 4, 5, 6, 3),
  'whole': (8, 8, 6, 7, 6, 6, 9, 4),
}
# What a step of the method is made of; planted bugs replace some of it.
PARTS = generate.PARTS


def _digits(column: int, dot: int) -> np.ndarray:
  """A column of the script [P, NEW]."""
  lines = [line[column].replace('.', str(dot)) for line in SCRIPT]
  return np.array([list(map(int, line)) for line in lines], np.int32)


DRAFTED, RIGHT, EIGHTHS = _digits(0, 1), _digits(1, 0), _digits(2, 0)


def prompts() -> list[list[int]]:
  """Prompts of one, two and three tokens."""
  return [[16 * i] * (1 + i % 3) for i in range(PROMPTS)]


def successors() -> np.ndarray:
  """The token after every token [V]: texts are chains."""
  after = np.arange(1, VOCAB + 1)
  after[EOS] = EOS
  after[1 * 16 + 5] = EOS  # The second text has 6 tokens,
  after[5 * 16 + 8] = EOS  # the sixth 9,
  after[3 * 16 + 5] = 3 * 16 + 1  # the fourth is five tokens again and again,
  after[7 * 16] = 6 * 16 + 1  # and the last is that of the prompt before it.
  return after


@functools.cache
def built() -> Loaded:
  """What `load_experiment` would return, but for the plan."""
  target = table.build(VOCAB)

  def spec(depth, rule):
    drafter = plain.make()._replace(depth=depth, nodes=depth)
    return Spec(target, drafter, rule, (EOS,))

  nothing = Params(None, None)
  method = Method(
    drafter='scripted', draft='by hand', verifier='token', gamma=DEPTH,
    spec=spec(DEPTH, verify.token), params=nothing,
    single=measure.Decoding(spec(1, verify.observe), nothing),
    verification=LayoutChoice('whole'), drafting=None,
    # As if the rule were one whose chance is counted apart.
    chance=generate.PARTS._replace(overlap=verify.chance(verify.token)),
    brings={'parameters': 0},
  )  # fmt: skip
  chosen = Chosen(prompts(), 'a script', PROMPTS)
  return Loaded(
    plan=None, target=Target(target), prompts={'code': chosen}, forms={},
    drafts={}, base=measure.Decoding(spec(0, verify.token), nothing),
    baseline=LayoutChoice('whole'), methods=(method,),
  )  # fmt: skip


def load_experiment(plan: Plan) -> Loaded:
  return dataclasses.replace(built(), plan=plan)


_SEEN: dict = {}  # steps that were counted: every run has the same ones


def _count(state, *step):
  """Tokens of a step, how many stay, and the state with its counts."""
  given = jax.tree.leaves((state, step))
  drafts = state.counts.tried.shape[1] == DEPTH
  parts = PARTS if drafts else generate.PARTS
  key = parts, *((x.shape, x.tobytes()) for x in given)
  if key not in _SEEN:
    _SEEN[key] = _count_anew(parts, state, *step)
  return _SEEN[key]


def _count_anew(parts, state, *step):
  """The same by the code that is measured with."""
  batch = len(state.length)

  def widen(x):  # One program serves every batch: finished rows fill it up.
    return np.pad(x, [(0, _ROWS - batch)] + [(0, 0)] * (x.ndim - 1))

  state, *step = jax.tree.map(widen, (state, *step))
  state.done[batch:] = True
  counted = jax.device_get(_counted(state, *step, parts=parts))
  return jax.tree.map(lambda x: x[:batch], counted)


@functools.partial(jax.jit, static_argnames='parts')
def _counted(state, draft, verdict, beta, *, parts):
  """What `generate.step` does about tokens and counts."""
  live = ~state.done
  emitted, count, whole, stopped = parts.emit(state, draft, verdict, (EOS,))
  count = jnp.where(live, count, 0)
  counts = parts.tally(state.counts, draft, verdict, count, whole, live, beta)
  length = state.length + count
  done = state.done | (live & stopped) | (length >= state.limit)
  return emitted, count, state._replace(length=length, done=done, counts=counts)


@functools.cache
def _none(batch: int, depth: int):
  return jax.device_get(counting.none(batch, depth))


class Machine:
  """Decodes as the script says; time passes only then."""

  def __init__(self):
    self.now, self.first = 0.0, 0
    self.programs: set = set()
    self.strays = 0  # rows whose key is that of another prompt
    self.replays: list[list[float]] = []

  def perf_counter(self) -> float:
    return self.now

  def start(self, way: measure.Decoding, job: measure.Job) -> SpecState:
    """`measure.start`; takes 1 + K + (number of the first prompt) seconds."""
    self.first = int(job.indices[0])
    self.now += 1 + self.first + way.spec.drafter.depth
    known = prompts()
    for prompt, index in zip(job.prompts, job.indices, strict=True):
      self.strays += known[index] != prompt
    batch = len(job.prompts)
    tokens = np.zeros((batch, 32), np.int32)
    length = np.array([len(p) for p in job.prompts], np.int32)
    for row, prompt in zip(tokens, job.prompts, strict=True):
      row[: len(prompt)] = prompt
    return SpecState(
      tokens=tokens, length=length, start=length, limit=length + job.new_tokens,
      done=np.broadcast_to(job.new_tokens, batch) <= 0,
      finite=np.ones(batch, bool), cache=(), drafter=(), key=(), sampling=(),
      history=(), counts=_none(batch, way.spec.drafter.depth),
    )  # fmt: skip

  def _cache_size(self) -> int:
    return len(self.programs)

  def __call__(self, params, state, steps, *, spec, parts=generate.PARTS):
    """`generate.generate`."""
    method = built().methods[0]
    depth = spec.drafter.depth
    self.programs.add((spec, parts, len(state.length)))
    kind = 'whole' if spec == method.spec else 'scored' if depth else 'plain'
    if kind == 'scored' and params.drafter is not None:
      self.replays.append([int(steps), float(np.asarray(params.drafter[1])[0])])
    with jax.transfer_guard('allow'):
      for _ in range(int(steps)):
        if state.done.all():
          break
        state = self.step(state, spec, parts)
        self.now += SECONDS[kind][self.first]
    return state

  def step(self, state: SpecState, spec: Spec, parts) -> SpecState:
    """One step of every row: propose, score and judge are the script."""
    depth, rows = spec.drafter.depth, np.arange(len(state.length))
    line = state.tokens[:, 0] // 16
    place = np.minimum(state.length - state.start, NEW - 1)
    size = np.minimum(DRAFTED[line, place], depth)
    right = np.minimum(RIGHT[line, place], size)
    beta = np.where(size > 0, EIGHTHS[line, place] / 8, 0)
    if parts.overlap != generate.PARTS.overlap:
      beta = 1.0 * (right > 0)
    if spec.rule == verify.observe:
      right = 0 * right
    text = [state.tokens[rows, state.length - 1]]
    for _ in range(depth + 1):
      text.append(successors()[text[-1]])
    text = np.stack(text[1:], 1)
    chain = np.broadcast_to(np.arange(depth), (len(rows), depth))
    path = np.minimum(np.arange(depth + 1), right[:, None])
    emitted, count, after = _count(
      state._replace(tokens=()),
      Draft(text[:, :depth], chain, size, None),
      Verdict(path, right, text[rows, right]),
      beta,
    )
    tokens = state.tokens.copy()
    for row, new, at, many in zip(
      tokens, emitted, state.length, count, strict=True
    ):
      row[at : at + many] = new[:many]
    return after._replace(tokens=tokens)


def _bug(*_) -> ties.Difference:
  """A difference that is no tie: scripted models have no logits."""
  return ties.Difference(0, (None, None), 0.0, None, 0.0, 0.0, 'bug')


@contextlib.contextmanager
def _by_hand(machine: Machine, rows: int) -> Iterator[None]:
  """The machine decodes, and nothing is read or written."""
  conditions = {'versions': {}, 'device': 'paper', 'commit': None}
  with contextlib.ExitStack() as stack:
    for where, name, made in (
      (measure, 'time', machine),
      (measure, 'start', machine.start),
      (generate, 'generate', machine),
      (generate, 'loop', machine),
      (runner, 'load_experiment', load_experiment),
      (ties, 'explain', _bug),
      (meshes, 'round_rows', lambda *_: rows),
      (results, 'conditions', lambda: conditions),
      (results, 'open_folder', lambda *_: results.Follower([])),
    ):
      stack.enter_context(mock.patch.object(where, name, made))
    yield


class Made(NamedTuple):
  """The row of the run, and what else is checked."""

  row: dict
  strays: int  # rows decoded with the key of another prompt
  replays: list[list[float]]  # steps, and tokens that each is to accept


def make(batch: int = 1, timed: bool = True, rows: int = PROMPTS) -> Made:
  """Runs the script through `runner.Runner`.

  Args:
    batch: prompts decoded together.
    timed: whether time is taken; otherwise every step is recorded.
    rows: that alpha is measured on; a mesh may want more than there are.
  """
  machine = Machine()
  (row,) = run((batch,), timed, rows, machine)
  # The first replay only compiles the program.
  return Made(row, machine.strays, machine.replays[1:])


def run(
  batches: tuple[int, ...], timed: bool, rows: int, machine: Machine
) -> list[dict]:
  """The rows of a run of some batch sizes on a machine; see `make`."""
  x = Experiment(
    'by hand', Checkpoint('by hand'), {}, temperatures=(0.0,),
    max_new_tokens=NEW, batches=batches, timed=timed, quick=True,
    mesh=Mesh(split_draft=False),
  )  # fmt: skip
  with _by_hand(machine, rows):
    one = runner.Runner(freeze(x, {}))
    one.run()
  return one.folder.rows
