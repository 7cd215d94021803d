"""The cost of a step and of its parts: loops that leave parts out.

  whole       draft  score  judge  commit  loop
  scored             score  judge  commit  loop    the draft is known
  judged                    judge  commit  loop    a table is the target
  committed                        commit  loop    nothing is decided
  bare                                     loop    nothing is written

A phase is the difference of two neighbours, so the phases add up to a step.

The loops take turns, and each decodes whole texts: the first steps after a
prefill cost about a quarter more than later ones, so that short loops make
plain decoding, which has the most steps, look slower than it is.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import trees
from specjax.bench import measure
from specjax.bench.measure import Decoding
from specjax.drafters import plain
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.models import prefill, sharding
from specjax.models.transformer import Model, Output
from specjax.stats import metrics
from specjax.types import (
  Draft,
  Drafter,
  Params,
  Scores,
  Spec,
  SpecState,
  Verdict,
)

_NEAR = 3  # methods that are compared with the same seconds of plain decoding


@dataclasses.dataclass(frozen=True)
class Costs:
  """Seconds of a step, of every repetition [R].

  Attributes:
    depth: drafted tokens.
    plain: a step of plain decoding.
    scored: the method's step, its draft known beforehand.
    whole: the method's step.
  """

  depth: int
  plain: np.ndarray
  scored: np.ndarray
  whole: np.ndarray

  @property
  def v(self) -> float:
    """Scoring, judging and committing gamma + 1 tokens, in plain steps.

    Where drafts are often short, of the tokens that steps had to score.
    """
    return float(np.median(self.scored / self.plain))

  @property
  def c(self) -> float:
    """Drafting, divided by the draft depth, in plain steps."""
    drafted = (self.whole - self.scored) / self.plain
    return float(np.median(drafted) / self.depth)

  @functools.cached_property
  def draws(self) -> metrics.Draws:
    """c and v, also of resampled repetitions."""
    drafted = (self.whole - self.scored) / self.plain / self.depth
    return metrics.medians(drafted, self.scored / self.plain)

  def seconds(self) -> dict[str, list[float]]:
    """The measured seconds, as a row has them."""
    return {n: getattr(self, n).tolist() for n in ('plain', 'scored', 'whole')}

  def predict(self, tokens, calls, *plain) -> metrics.Estimate:
    """Predicts the speed-up for the tau of some units.

    Args:
      tokens: of each unit, such as a prompt or a batch.
      calls: of the target, or as many as its rows have time for.
      *plain: tokens and calls of plain decoding, where they are not as many.
    """

    def speed(t, n, *more):
      *plain, c, v = more
      tau = t / n / (plain[0] / plain[1] if plain else 1)
      return metrics.predicted_speedup(tau, c, v, self.depth)

    sums = metrics.Sums(tokens, calls, *plain)
    return metrics.combine(speed, sums, self.draws, positive=True)

  def agreement(
    self, base_seconds, base_calls, seconds, calls
  ) -> metrics.Estimate:
    """Measured over predicted speed-up, of columns by unit; tokens cancel."""

    def over(bs, bn, s, n, c, v):
      step = bs / bn / (s / n)
      return step / metrics.predicted_speedup(1, c, v, self.depth)

    sums = metrics.Sums(base_seconds, base_calls, seconds, calls)
    return metrics.combine(over, sums, self.draws, positive=True)


@functools.cache
def _replay(
  parents: tuple[int, ...], depth: int, drawn: bool, vocab: int
) -> Drafter:
  """Proposes a known text at no cost, right as far as a draft would be.

  Its parameters are that text [B, S], and the `_pace` of a run. Where 1.5
  tokens of a step are to be accepted, one, two, one, two, ... are right. Where
  half of the steps draft, every other one does.
  """
  nodes = len(parents)
  level = trees.ancestors(np.array(parents, np.int32))[0][1:]

  def init(params, ctx, hidden):
    del params, hidden  # Unused.
    batch = ctx.length.shape[0]
    # Not a constant: the compiler would know what a rule makes of it.
    probs = jnp.full((batch, nodes, vocab), 1 / vocab) if drawn else None
    return probs, jnp.zeros(batch, jnp.int32)

  def propose(params, state, ctx, key):
    del key  # Unused.
    text, (accepted, share, drafted) = params.drafter
    probs, turn = state
    before = jnp.floor(turn * share)
    drafts = jnp.floor((turn + 1) * share) > before

    def of_turn(mean):
      return jnp.floor((before + 1) * mean) - jnp.floor(before * mean)

    right = of_turn(accepted / jnp.maximum(share, 1e-6))
    place = jnp.minimum(ctx.length[:, None] - 1 + level, text.shape[1] - 1)
    known = jnp.take_along_axis(text, place, 1)
    tokens = jnp.where(level <= right[:, None], known, (known + 1) % vocab)
    batch = len(tokens)
    draft = Draft(
      tokens,
      jnp.broadcast_to(jnp.array(parents, jnp.int32), (batch, nodes)),
      jnp.where(drafts, of_turn(drafted), 0).astype(jnp.int32),
      probs,
    )
    return draft, (probs, turn + 1)

  return plain.make()._replace(
    depth=depth, nodes=nodes, init=init, propose=propose
  )


def _propose(way: Decoding, params: Params, state: SpecState) -> Draft:
  ctx = generate.context(state)
  return way.spec.drafter.propose(params, state.drafter, ctx, state.key)[0]


def is_drawn(way: Decoding, job: measure.Job) -> bool:
  """Returns True where a drafter gives the distributions of its tokens."""
  propose = functools.partial(_propose, way)
  state = measure.start(way, job)
  return jax.eval_shape(propose, way.params, state).probs is not None


def replay(way: Decoding, job: measure.Job) -> Spec:
  """Returns the spec with a drafter that proposes as much at no cost."""
  spec = way.spec
  depth, nodes = spec.drafter.depth, spec.drafter.nodes
  if not depth:
    return spec
  parents = range(depth)
  if nodes != depth:  # A tree: one of its own shape.
    propose = jax.jit(functools.partial(_propose, way))
    draft = propose(way.params, measure.start(way, job))
    parents = sharding.fetch(draft.parents)[0].tolist()
  vocab = spec.target.config.vocab_size
  drafter = _replay(tuple(parents), depth, is_drawn(way, job), vocab)
  return dataclasses.replace(spec, drafter=drafter)


@functools.cache
def _answers(model: Model) -> Model:
  """A target whose logits are rows of a table [.., V], its parameters."""
  c = model.config

  def forward(
    params, tokens, positions, cache, length, mask, flight=None, at=0, taps=()
  ):
    del length, flight, at  # Unused.
    # The row depends on the step: the compiler can take nothing out of a loop.
    logits = params[positions % len(params)]
    batch, count = tokens.shape
    tapped = jnp.zeros((batch, count, len(taps), c.width), logits.dtype)
    flight = caches.open_block(cache, c, mask.shape[2])
    if not isinstance(cache, caches.OwnCache):

      def rows(layer):
        heads, *widths = caches.heads(c, layer)
        shapes = ((batch, count, heads, width) for width in widths)
        new = (jnp.broadcast_to(logits[:, :, None, :1], s) for s in shapes)
        made = caches.block_of_rows(*new)
        return flight[layer]._replace(k=made.k, v=made.v)

      flight = tuple(map(rows, range(c.num_layers)))
    return Output(logits, tapped, flight)

  def head(params, hidden):
    del params  # Unused.
    return hidden

  empty = model.empty
  if empty is not None:  # The table is no weights to open a cache by.
    weights = model.init(jax.random.key(0))

    def empty(_, batch, slots):
      return model.empty(weights, batch, slots)

  return model._replace(forward=forward, head=head, empty=empty)


@functools.cache
def _table(vocab: int, eos: tuple[int, ...]) -> jax.Array:
  """Logits [8, V] after which no text ends."""
  table = np.random.default_rng(0).normal(size=(8, vocab)).astype(np.float32)
  table[:, list(eos)] = -1e9
  return jnp.asarray(table)


def _no_judge(key, draft, scores, rule, depth):
  del key, draft, rule  # Unused.
  here = (scores.logits[0, 0] > 99).astype(jnp.int32)
  return Verdict(jnp.full(depth + 1, here), here, here + 1)


_UNDECIDED = generate.StepParts(
  distributions=lambda logits, *_: Scores(logits, logits),
  judge=_no_judge,
  finite=lambda draft, scores: jnp.isfinite(scores.logits[:, 0, 0]),
)
_UNWRITTEN = _UNDECIDED._replace(write=lambda cache, *_: cache)


def ways(full: Decoding, replayed: Spec, known: Any) -> dict[str, Decoding]:
  """Returns the loops above of one method.

  Args:
    full: the method.
    replayed: its spec as `replay` makes it.
    known: the text that the replay proposes, and the `_pace` of a run.
  """
  spec = dataclasses.replace(replayed, target=_answers(full.spec.target))
  table = _table(spec.target.config.vocab_size, spec.eos)
  table, known = measure.whole(spec, (table, known))
  params = Params(table, known)
  scored = Decoding(replayed, Params(full.params.target, known))
  if not spec.drafter.depth:
    scored = full  # There is no draft to leave out.
  return {
    'whole': full,
    'scored': scored,
    'judged': Decoding(spec, params),
    'committed': Decoding(spec, params, _UNDECIDED),
    'bare': Decoding(spec, params, _UNWRITTEN),
  }


def known_text(job: measure.Job, run: measure.Run, config) -> jax.Array:
  """Returns prompts and what a run added to them, [B, S]."""
  begins, _ = prefill.split(config, job.prompts)
  # Rows that only fill up the batch have no text.
  pairs = itertools.zip_longest(begins, run.texts, fillvalue=())
  rows = [[*begin, *text] for begin, text in pairs]
  return prefill.pad(rows, caches.round_slots(job.slots))[0]


def _pace(run: measure.Run, drafter: Drafter) -> jax.Array:
  """Returns how a method drafted: three numbers of its steps.

  They are the mean number of drafted tokens that a step kept, the share of the
  passes that had a draft, and the nodes of a draft.
  """
  counts = run.counts
  accepted = counts.tokens.sum() / counts.target_calls.sum() - 1
  share, nodes = 1.0, drafter.nodes
  if steps := counts.histogram.sum():
    drafts = steps - counts.misses.sum()
    share, nodes = drafts / steps, counts.drafted.sum() / max(drafts, 1)
  return jnp.asarray([accepted, share, nodes], jnp.float32)


def _time(way: Decoding, job, steps=None) -> tuple[float, measure.Run]:
  """Seconds of a step, and the run."""
  run = measure.decode(way, job, steps)
  return run.seconds / run.counts.target_calls.max(), run


def seconds_per_step(way: Decoding, job: measure.Job) -> float:
  """Times a step over whole texts, with nothing to compile."""
  return _time(way, job)[0]


def to_compile(
  full: Decoding, replayed: Spec, job: measure.Job, names: Sequence[str]
) -> list[tuple[Decoding, measure.Job]]:
  """Returns some of a method's loops, for `measure.compile_all`."""
  text = jnp.zeros((len(job.prompts), caches.round_slots(job.slots)), jnp.int32)
  loops = ways(full, replayed, (text, jnp.zeros(3, jnp.float32)))
  return [(loops[name], job) for name in names]


class Timer:
  """Seconds of a step of some loops of several methods, turn by turn."""

  def __init__(
    self,
    base: Decoding,
    methods: dict[Any, tuple[Decoding, Spec]],
    names: Sequence[str] = ('whole', 'scored'),
  ):
    """Takes plain decoding, methods with their `replay`, and names of loops.

    Everything must be compiled before a turn is taken.
    """
    self.base, self.methods, self.names = base, methods, names
    self.clear()

  def clear(self) -> None:
    """Forgets the turns so far."""
    names = dict.fromkeys(('plain', *self.names))
    self.times: dict = {m: {n: [] for n in names} for m in self.methods}

  def turn(self, job: measure.Job) -> None:
    """Continues one batch of prompts with every loop.

    Plain decoding and the loops of a few methods follow each other at once:
    the load of the machine changes within seconds, and then meets all of them.

    Args:
      job: a greedy one. Where drafts are never short, the cost of a step hangs
        on shapes alone.
    """
    one, text = 0.0, jnp.zeros(0)
    for number, (method, (full, replayed)) in enumerate(self.methods.items()):
      if number % _NEAR == 0:
        one, run = _time(self.base, job)
        text = known_text(job, run, self.base.spec.target.config)
      whole, run = _time(full, job)
      steps = int(run.counts.target_calls.max())
      loops = ways(full, replayed, (text, _pace(run, full.spec.drafter)))
      times = {'plain': one, 'whole': whole}
      for name in self.names[1:]:
        same = loops[name] is full
        times[name] = whole if same else _time(loops[name], job, steps)[0]
      for name, seconds in times.items():
        self.times[method][name].append(seconds)

  def costs(self, method: Any) -> Costs:
    """Returns the costs of a method, by the turns so far."""
    times = {n: np.array(t) for n, t in self.times[method].items()}
    return Costs(self.methods[method][0].spec.drafter.depth, **times)
