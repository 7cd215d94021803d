"""The layouts that weights have for few rows, and which is the fastest.

A CPU multiplies few rows by whole weights, or by weights in blocks of columns
(`transformer.block`). Which takes less time depends on the machine, the model
and the rows, so it is measured before anything is compared: of plain decoding
with the very loop, on whole texts; of a draft's and a target's passes with a
loop of nothing but the pass, which compiles in a fraction of the time.

A loop is timed only long after its prompt was read: the first steps behind a
prefill take longer, and would favour what takes fewer of them.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from experiments.measuring import costs, measure
from specjax.models import linear, transformer
from specjax.models.transformer import Model
from specjax.types import Source

WHOLE, BLOCKED = 'whole', 'blocked'
TURNS = 5
_SECONDS = 0.1  # of a timed loop of passes, at least
_STEPS = 8  # likewise


class Form(NamedTuple):
  """A model with its weights in one layout."""

  model: Model
  params: Any


@dataclasses.dataclass(frozen=True)
class Choice:
  """A layout, and the seconds of a step in each that there is.

  `seconds` is None where nothing was measured.
  """

  layout: str
  seconds: Mapping[str, float] | None = None

  def fields(self) -> dict:
    """As a row has it."""
    found = None if self.seconds is None else dict(self.seconds)
    return {'layout': self.layout, 'seconds_per_step': found}


def forms(model: Model, params: Any, rows: int) -> dict[str, Form]:
  """A model in every layout that it has on this device for so many rows."""
  found = {WHOLE: Form(model, params)}
  few = jax.default_backend() == 'cpu' and rows <= linear.FEW_ROWS
  if few and model.placement is None:
    blocked = Form(*transformer.block(model, params))
    before, after = (jax.tree.leaves(x) for x in (params, blocked.params))
    if [x.shape for x in before] != [x.shape for x in after]:
      found[BLOCKED] = blocked
  return found


def names(found: Mapping[str, Form], rows: int) -> list[str]:
  """Of these layouts, those that so many rows at once may take."""
  return [n for n in found if n != BLOCKED or rows <= linear.FEW_ROWS]


class Chooser(Protocol):
  """Decides which layout something takes."""

  def plain(self, ways: Mapping[str, measure.Decoding]) -> Choice:
    """Of plain decoding, which there is in each of these layouts."""

  def tokens(
    self, layouts: Sequence[str], make: Callable[[str], Form], rows: int
  ) -> Choice:
    """Of passes over so many tokens of every text; `make` takes a layout."""


class Guess:
  """Blocks wherever there are any: for whom time does not matter."""

  def plain(self, ways):
    return Choice([*ways][-1])

  def tokens(self, layouts, make, rows):
    del make, rows  # Unused.
    return Choice(layouts[-1])


class Race:
  """The layout of the least median time, of turns that take turns."""

  def __init__(
    self,
    job: measure.Job,
    turns: int = TURNS,
    done: Callable[[str], Any] = lambda what: None,
  ):
    """Takes a greedy job, the number of turns, and what is told of a race."""
    self.job, self.turns, self.done = job, turns, done

  def plain(self, ways):
    if len(ways) == 1:
      return Choice(*ways)
    self.done('plain decoding')
    for way in ways.values():
      measure.decode(way.spec, way.params, self.job, 1, timed=False)
    return self.choose(
      {
        name: functools.partial(costs.seconds_per_step, way, self.job)
        for name, way in ways.items()
      }
    )

  def tokens(self, layouts, make, rows):
    if len(layouts) == 1:
      return Choice(*layouts)
    self.done(f'passes over {rows} tokens')
    loops = {name: _loop(make(name), self.job, rows) for name in layouts}
    fastest = min(loop(_STEPS) for loop in loops.values())
    steps = max(_STEPS, int(_SECONDS / fastest))
    found = self.choose(
      {name: functools.partial(x, steps) for name, x in loops.items()}
    )
    _feed.clear_cache()
    return found

  def choose(self, clocks: Mapping[str, Callable[[], float]]) -> Choice:
    """The name of the least median of what these return, called in turns."""
    times: dict[str, list[float]] = {name: [] for name in clocks}
    order = [*clocks]
    for _ in range(self.turns):
      for name in order:
        times[name].append(clocks[name]())
      order = order[1:] + order[:1]
    medians = {name: float(np.median(x)) for name, x in times.items()}
    return Choice(min(medians, key=medians.__getitem__), medians)


@functools.partial(jax.jit, static_argnames='model')
def _feed(params, tokens, cache, used, steps, *, model):
  """Feeds a block [B, T] so many times, each time what came out of it."""
  mask, offset = transformer.causal(*tokens.shape)

  def turn(_, tokens):
    out = model.forward(
      params, tokens, used[:, None] + offset, cache, used, mask
    )
    best = jnp.argmax(model.head(params, out.hidden), -1)
    return best.astype(tokens.dtype)

  return jax.lax.fori_loop(0, steps, turn, tokens)


def _loop(form: Form, job: measure.Job, rows: int) -> Callable[[int], float]:
  """Seconds of a pass over so many tokens of every text, once compiled."""
  batch = len(job.prompts)
  source = None
  if form.model.encode is not None:
    shape = batch, job.source_slots
    source = Source(jnp.zeros(shape, jnp.int32), jnp.full(batch, shape[1]))
  begun = max(map(len, job.prompts)) if source is None else 1
  used = min(begun + np.max(job.new_tokens) // 2, job.slots - rows)
  args = (
    form.params,
    jnp.zeros((batch, rows), jnp.int32),
    transformer.open_cache(form.model, form.params, batch, job.slots, source),
    jnp.full(batch, used, jnp.int32),
  )

  def run(steps: int) -> float:
    count = jnp.asarray(steps, jnp.int32)
    begin = time.perf_counter()
    jax.block_until_ready(_feed(*args, count, model=form.model))
    return (time.perf_counter() - begin) / steps

  run(_STEPS)
  return run
