"""A run that follows a script: every number of its row is known on paper.

A script says what each step drafts, how much of it is right, and how long it
takes. It stands in for models, prompts and the clock; the loop, and all that
turns counts and times into a row, are those of a real run.
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

from specjax import trees, verify
from specjax.bench import measure, meshes, results, runner
from specjax.bench.config import Checkpoint, Experiment, Mesh
from specjax.bench.methods import Loaded, Method
from specjax.bench.plan import Plan, freeze
from specjax.drafters import plain
from specjax.drafters.shapes import stateless
from specjax.loop import generate
from specjax.models import table
from specjax.models.layouts import LayoutChoice
from specjax.prompts import Chosen
from specjax.types import Draft, Drafter, Params, Spec, SpecState, Target

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


def _scripted(depth: int) -> Drafter:
  """Drafts as the script says; its parameters are the `successors`."""

  def draft(params, ctx, key):
    del key  # Unused.
    rows = jnp.arange(len(ctx.length))
    line = ctx.tokens[:, 0] // 16
    place = jnp.minimum(ctx.length - 1 - line % 3, NEW - 1)
    size, right, eighths = (
      jnp.asarray(x)[line, place] for x in (DRAFTED, RIGHT, EIGHTHS)
    )
    token = ctx.tokens[rows, ctx.length - 1]
    tokens, probs = [], []
    for i in range(depth):
      token = params.drafter[token]
      other = (token + 1) % VOCAB
      # The target is sure of its token, so this is the overlap.
      q = jnp.zeros((len(rows), VOCAB)).at[rows, token].set(eighths / 8)
      tokens.append(jnp.where(i < right, token, other))
      probs.append(q.at[rows, other].set(1 - eighths / 8))
    return Draft(
      jnp.stack(tokens, 1),
      trees.chain(len(rows), depth),
      jnp.minimum(size, depth),
      jnp.stack(probs, 1),
    )

  return stateless.make(depth, depth, draft)


@functools.cache
def built() -> Loaded:
  """What `load_experiment` would return, but for the plan."""
  target, after = table.build(VOCAB), successors()
  logits = 9.0 * (np.arange(VOCAB) == after[:, None])
  params = Params(jnp.asarray(logits, jnp.float32), jnp.asarray(after))

  def way(drafter, rule):
    return measure.Decoding(Spec(target, drafter, rule, (EOS,)), params)

  method = Method(
    drafter='scripted', draft='by hand', verifier='token', gamma=DEPTH,
    spec=way(_scripted(DEPTH), verify.token).spec, params=params,
    single=way(_scripted(1), verify.observe),
    verification=LayoutChoice('whole'), drafting=None,
    # As if the rule were one whose chance is counted apart.
    chance=generate.PARTS._replace(overlap=verify.chance(verify.token)),
    brings={'parameters': 0},
  )  # fmt: skip
  chosen = Chosen(prompts(), 'a script', PROMPTS)
  return Loaded(
    plan=None, target=Target(target), prompts={'code': chosen}, forms={},
    drafts={}, base=way(plain.make(), verify.token),
    baseline=LayoutChoice('whole'), methods=(method,),
  )  # fmt: skip


def load_experiment(plan: Plan) -> Loaded:
  return dataclasses.replace(built(), plan=plan)


_start, _loop = measure.start, generate.loop


class Machine:
  """Decodes as it always does; time passes as the script says."""

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
    return _start(way, job)

  def _cache_size(self) -> int:
    return len(self.programs)

  def __call__(self, params, state, steps, *, spec, parts=generate.PARTS):
    """`generate.loop`."""
    self.programs.add((spec, parts, len(state.length)))
    kind = 'plain'
    if spec.drafter.depth == DEPTH:
      kind = 'whole' if spec == built().methods[0].spec else 'scored'
      parts = PARTS
    with jax.transfer_guard('allow'):
      if kind == 'scored':
        _, pace = params.drafter
        self.replays.append([int(steps), float(pace[0])])
      before = int(state.counts.target_calls.max())
      state = _loop(params, state, steps, spec=spec, parts=parts)
      taken = int(state.counts.target_calls.max()) - before
    self.now += taken * SECONDS[kind][self.first]
    return state


@contextlib.contextmanager
def _by_hand(machine: Machine, rows: int) -> Iterator[None]:
  """The machine decodes, and nothing is read or written."""
  conditions = {'versions': {}, 'device': 'paper', 'commit': None}
  with contextlib.ExitStack() as stack:
    for where, name, made in (
      (measure, 'time', machine),
      (measure, 'start', machine.start),
      (generate, 'loop', machine),
      (runner, 'load_experiment', load_experiment),
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
