"""The layouts that weights have for few rows, and which is the fastest.

A CPU multiplies few rows by whole weights, or by weights in blocks of columns
(`variants.block`). Which takes less time depends on the machine, the model
and the rows, so it is measured, with a loop of nothing but passes of the
model: it compiles in a fraction of the time that a decoding loop takes.

Layouts add in different orders, so their logits differ by float rounding. A
greedy text may differ where two tokens are tied within that rounding, as it
may between batch sizes and draft lengths; `experiments.parity` tells such ties
from bugs.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import cache as caches
from specjax.models import linear, transformer, variants
from specjax.models.transformer import Model
from specjax.types import Source, Target, Weights

AUTO, WHOLE, BLOCKED = 'auto', 'whole', 'blocked'
LAYOUTS = (AUTO, WHOLE, BLOCKED)
TURNS = 5
FEWEST_TOKENS = 64  # new ones of a text, below which `choose` takes no time
_SECONDS = 0.1  # of a timed loop of passes, at least
_PASSES = 8  # likewise
_QUICK = 3, 0.05, 2  # turns, seconds and passes of `choose`


class Arranged(NamedTuple):
  """A model with its weights in one layout."""

  model: Model
  params: Weights


@dataclasses.dataclass(frozen=True)
class LayoutChoice:
  """A layout, and the seconds of a step in each that there is.

  `seconds` is None where nothing was measured.
  """

  layout: str
  seconds: Mapping[str, float] | None = None

  def fields(self) -> dict:
    """As a row has it."""
    seconds = None if self.seconds is None else dict(self.seconds)
    return {'layout': self.layout, 'seconds_per_step': seconds}


def arrange(model: Model, params: Weights, rows: int) -> dict[str, Arranged]:
  """A model in every layout that it has on this device for so many rows."""
  arranged = {WHOLE: Arranged(model, params)}
  few = jax.default_backend() == 'cpu' and rows <= linear.FEW_ROWS
  if few and model.placement is None:
    blocked = Arranged(*variants.block(model, params))
    before, after = (jax.tree.leaves(x) for x in (params, blocked.params))
    if [x.shape for x in before] != [x.shape for x in after]:
      arranged[BLOCKED] = blocked
  return arranged


def allowed(layouts: Mapping[str, Arranged], rows: int) -> list[str]:
  """Of these layouts, those that so many rows at once may take."""
  return [n for n in layouts if n != BLOCKED or rows <= linear.FEW_ROWS]


def fastest(
  clocks: Mapping[str, Callable[[], float]], turns: int = TURNS
) -> LayoutChoice:
  """The layout of the least median of what its clock returns.

  Clocks are called in turns, so that a drift of the machine's speed meets them
  alike.
  """
  times: dict[str, list[float]] = {name: [] for name in clocks}
  order = [*clocks]
  for _ in range(turns):
    for name in order:
      times[name].append(clocks[name]())
    order = order[1:] + order[:1]
  medians = {name: float(np.median(x)) for name, x in times.items()}
  return LayoutChoice(min(medians, key=medians.__getitem__), medians)


class Buffer(NamedTuple):
  """The cache that passes are timed with."""

  batch: int
  slots: int  # of each text
  used: int  # of these
  source_slots: int | None = None  # of what an encoder reads


def _feed(model, params, tokens, cache, used, passes):
  """Feeds a block [B, T] so many times, each time what came out of it."""
  mask, offset = transformer.causal(*tokens.shape)

  def turn(_, tokens):
    out = model.forward(
      params, tokens, used[:, None] + offset, cache, used, mask
    )
    best = jnp.argmax(model.head(params, out.hidden), -1)
    return best.astype(tokens.dtype)

  return jax.lax.fori_loop(0, passes, turn, tokens)


def _clock(
  arranged: Arranged, buffer: Buffer, tokens: int
) -> Callable[[int], float]:
  """Seconds of a pass over so many tokens of every text, once compiled."""
  model, params = arranged
  batch = buffer.batch
  source = None
  if model.encode is not None:
    shape = batch, buffer.source_slots or caches.round_slots(1)
    source = Source(jnp.zeros(shape, jnp.int32), jnp.full(batch, shape[1]))
  args = (
    params,
    jnp.zeros((batch, tokens), jnp.int32),
    transformer.open_cache(model, params, batch, buffer.slots, source),
    jnp.full(batch, min(buffer.used, buffer.slots - tokens), jnp.int32),
  )

  # A program of its own, which goes with the clock.
  feed = jax.jit(functools.partial(_feed, model))

  def run(passes: int) -> float:
    count = jnp.asarray(passes, jnp.int32)
    begin = time.perf_counter()
    jax.block_until_ready(feed(*args, count))
    return (time.perf_counter() - begin) / passes

  run(1)
  return run


def race(
  layouts: Mapping[str, Arranged],
  buffer: Buffer,
  tokens: int,
  turns: int = TURNS,
  seconds: float = _SECONDS,
  passes: int = _PASSES,
) -> LayoutChoice:
  """The layout in which a pass over some tokens of every text is fastest.

  Args:
    layouts: of one model; of a single one nothing is measured.
    buffer: the cache to measure with.
    tokens: of every text that a pass feeds.
    turns: of each layout.
    seconds: of a turn, at least.
    passes: of a turn, at least.
  """
  if len(layouts) == 1:
    return LayoutChoice(next(iter(layouts)))
  clocks = {
    name: _clock(arranged, buffer, tokens) for name, arranged in layouts.items()
  }
  least = min(clock(passes) for clock in clocks.values())
  count = max(passes, int(seconds / least))
  return fastest(
    {name: functools.partial(x, count) for name, x in clocks.items()}, turns
  )


def choose(
  target: Target, buffer: Buffer, tokens: int, new_tokens: int
) -> Arranged:
  """The target in the layout that scores so many tokens of a batch fastest.

  Only a target of `layout='auto'`, with float weights on a CPU, has a choice.
  It is made once for a batch size and a number of tokens, by a race of about a
  second, and kept with the target, as the weights in blocks are once they have
  won: they take as much memory again. A call that adds fewer than
  `FEWEST_TOKENS` tokens to every text takes the weights as they are, whatever
  was chosen for others, since a race would take longer than it could save.

  Args:
    target: with its weights.
    buffer: the cache of the call.
    tokens: of every text that a pass scores.
    new_tokens: of the longest text.
  """
  whole = Arranged(target.model, target.params)
  rows = buffer.batch * tokens
  if (
    target.layout != AUTO
    or new_tokens < FEWEST_TOKENS
    or rows > linear.FEW_ROWS
    or not all(
      jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(whole[1])
    )
  ):
    return whole
  memory, key = target.remembered, (buffer.batch, tokens)
  if key not in memory:
    if BLOCKED in memory:
      layouts = {WHOLE: whole, BLOCKED: memory[BLOCKED]}
    else:
      layouts = arrange(*whole, rows)
    # A single layer and the head: they compile quickly, and layers are alike.
    short = {
      name: Arranged(variants.first_layers(x.model, 1), x.params)
      for name, x in layouts.items()
    }
    memory[key] = race(short, buffer, tokens, *_QUICK).layout
    if memory[key] == BLOCKED:
      memory[BLOCKED] = layouts[BLOCKED]
  return memory[BLOCKED] if memory[key] == BLOCKED else whole
