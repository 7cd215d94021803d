"""The layouts that weights have for few rows, and which is the fastest.

whole     weights as they are; a library's product uses all cores
blocked   in blocks of columns (`variants.block`), on one core
cores     these blocks, with the cores as devices of a mesh that splits them

Which takes less time depends on the machine, the model and the rows, so it is
measured, with a loop of nothing but passes of the model: it compiles in a
fraction of the time that a decoding loop takes. How many columns a block has
is measured once a process, on a single product: as many as its instructions
hold well, 64 with AVX-512 and 16 with AVX2.

There are `cores` where JAX has several CPU devices, which has to be said before
the first of them is used: `jax.config.update('jax_num_cpu_devices', 2)`.

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
from specjax.sharding import Placement, make_mesh
from specjax.types import Source, Target, Weights

AUTO, WHOLE, BLOCKED, CORES = 'auto', 'whole', 'blocked', 'cores'
LAYOUTS = (AUTO, WHOLE, BLOCKED, CORES)
TURNS = 5
FEWEST_TOKENS = 64  # new ones of a text, below which `choose` takes no time
_SECONDS = 0.1  # of a timed loop of passes, at least
_PASSES = 8  # likewise
_QUICK = 3, 0.05, 2  # turns, seconds and passes of `choose`
COLUMNS = (16, 32, 64)  # of a block, tried
_TRIAL = 4, 512, 2048  # rows, inputs and outputs of a product to try them on
_TRIALS = 12, 10  # turns of each, and products of a turn


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

  @property
  def measured(self) -> Mapping[str, float]:
    """Seconds of each layout; of the one that there is 0, unmeasured."""
    return self.seconds or {self.layout: 0.0}

  def fields(self) -> dict:
    """As a row has it."""
    seconds = None if self.seconds is None else dict(self.seconds)
    blocks = {} if self.layout == WHOLE else {'columns': columns()}
    return {'layout': self.layout, 'seconds_per_step': seconds} | blocks


def _products(w: jax.Array, x: jax.Array, count: jax.Array) -> jax.Array:
  """So many products of rows with a weight, each with what the last gave."""

  def turn(_, x):
    y = linear.multiply(x, w)
    return x + y.mean(-1, keepdims=True)

  return jax.lax.fori_loop(0, count, turn, x)


@functools.cache
def columns() -> int:
  """Columns of a block: of the fastest product on this machine.

  The least time of each counts, which other work on the machine hardly moves.
  """
  rows, inputs, outputs = _TRIAL
  turns, products = _TRIALS
  x, run = jnp.zeros((rows, inputs)), jax.jit(_products)

  def seconds(w: jax.Array) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(run(w, x, products))
    return time.perf_counter() - begin

  whole = jnp.zeros((inputs, outputs))
  weights = {count: linear.to_blocks(whole, count) for count in COLUMNS}
  # The first turn compiles.
  times = [{n: seconds(w) for n, w in weights.items()} for _ in range(turns)]
  return min(weights, key=lambda count: min(turn[count] for turn in times[1:]))


def make(
  layout: str, model: Model, params: Weights, width: int | None = None
) -> Arranged | None:
  """A model on a single device in another layout; None where it has none.

  Args:
    layout: WHOLE, BLOCKED or CORES.
    model: with whole weights.
    params: its weights.
    width: of a block, by default `columns()`.
  """
  if layout == WHOLE:
    return Arranged(model, params)
  blocked = Arranged(*variants.block(model, params, width or columns()))
  before, after = (jax.tree.leaves(x) for x in (params, blocked.params))
  if [x.shape for x in before] == [x.shape for x in after]:
    return None
  return blocked if layout == BLOCKED else _over_cores(blocked)


def _over_cores(blocked: Arranged) -> Arranged | None:
  """Blocks that are split over the CPU's devices, of which heads go evenly."""
  model, params = blocked
  devices, heads = jax.local_devices(backend='cpu'), model.config.num_heads
  count = max(n for n in range(1, len(devices) + 1) if heads % n == 0)
  if count == 1:
    return None
  placement = Placement(make_mesh(1, count, devices))
  places = transformer.shardings(model.config, placement)
  return Arranged(
    transformer.place(model, placement), jax.device_put(params, places)
  )


def arrange(model: Model, params: Weights, rows: int) -> dict[str, Arranged]:
  """A model in every layout that it has on this machine for so many rows."""
  arranged = {WHOLE: Arranged(model, params)}
  few = jax.default_backend() == 'cpu' and rows <= linear.FEW_ROWS
  if few and model.placement is None:
    for layout in (BLOCKED, CORES):
      made = make(layout, model, params)
      if made is not None:
        arranged[layout] = made
  return arranged


def allowed(layouts: Mapping[str, Arranged], rows: int) -> list[str]:
  """Of these layouts, those that so many rows at once may take."""
  return [n for n in layouts if n == WHOLE or rows <= linear.FEW_ROWS]


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


def clock(
  arranged: Arranged, buffer: Buffer, tokens: int
) -> Callable[[int], float]:
  """Takes a number of passes over so many tokens of every text.

  Returns:
    A function of that number, at least 1, which is compiled: the seconds of a
    pass.
  """
  model, params = arranged
  batch = buffer.batch
  source = None
  if model.encode is not None:
    shape = batch, buffer.source_slots or caches.round_slots(1)
    source = Source(jnp.zeros(shape, jnp.int32), jnp.full(batch, shape[1]))
  used = min(buffer.used, buffer.slots - tokens)
  rows = (
    jnp.zeros((batch, tokens), jnp.int32),
    jnp.full(batch, used, jnp.int32),
    source,
  )
  if model.placement is not None:
    rows = model.placement.put_rows(rows)
  fed, lengths, source = rows
  cache = transformer.open_cache(model, params, batch, buffer.slots, source)

  # A program of its own, which goes with the clock.
  feed = jax.jit(functools.partial(_feed, model))

  def run(passes: int) -> float:
    count = jnp.asarray(passes, jnp.int32)
    if model.placement is not None:
      count = model.placement.put_whole(count)
    begin = time.perf_counter()
    jax.block_until_ready(feed(params, fed, cache, lengths, count))
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
    name: clock(arranged, buffer, tokens) for name, arranged in layouts.items()
  }
  least = min(run(passes) for run in clocks.values())
  count = max(passes, int(seconds / least))
  return fastest(
    {name: functools.partial(x, count) for name, x in clocks.items()}, turns
  )


def choose(
  target: Target, buffer: Buffer, tokens: int, new_tokens: int
) -> Arranged:
  """The target in the layout that scores so many tokens of a batch fastest.

  Only a target of `layout='auto'`, with float weights on a single CPU device,
  has a choice, between `whole` and `blocked`.
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
    or jax.default_backend() != 'cpu'
    or target.model.placement is not None
    or not all(
      jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(whole[1])
    )
  ):
    return whole
  memory, key = target.remembered, (buffer.batch, tokens)
  if key not in memory:
    layouts = {WHOLE: whole}
    blocked = memory.get(BLOCKED) or make(BLOCKED, *whole)
    if blocked is not None:
      layouts[BLOCKED] = blocked
    # A single layer and the head: they compile quickly, and layers are alike.
    short = {
      name: Arranged(variants.first_layers(x.model, 1), x.params)
      for name, x in layouts.items()
    }
    memory[key] = race(short, buffer, tokens, *_QUICK).layout
    if memory[key] == BLOCKED:
      memory[BLOCKED] = layouts[BLOCKED]
  return memory[BLOCKED] if memory[key] == BLOCKED else whole
