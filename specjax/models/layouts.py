"""The layouts that weights have for few rows, and which is the fastest.

whole     weights as they are; a library's product uses all cores
native    in blocks of columns (`variants.block`), which a kernel multiplies on
          all cores, see `specjax.native`
blocked   in such blocks, multiplied by JAX, on one core
cores     these, with the cores as devices of a mesh that splits them

Which takes less time depends on the machine, the model and the rows, so it is
measured, with a loop of nothing but passes of the model: it compiles in a
fraction of the time that a decoding loop takes. Where there is the kernel, it
races with whole weights alone. Otherwise blocks and cores do, and how many
columns a block has is measured once a process, on a single product: as many as
its instructions hold well, 64 with AVX-512 and 16 with AVX2.

There are `cores` where JAX has several CPU devices, which has to be said before
the first of them is used: `jax.config.update('jax_num_cpu_devices', 2)`.

Layouts add in different orders, so their logits differ by float rounding. A
greedy text may differ where two tokens are tied within that rounding, as it
may between batch sizes and draft lengths; `specjax parity` tells such ties
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

from specjax import native
from specjax.models import cache as caches
from specjax.models import linear, transformer, variants
from specjax.models.block_width import COLUMNS as COLUMNS
from specjax.models.block_width import columns as columns
from specjax.models.sharding import Placement, make_mesh
from specjax.models.transformer import Model
from specjax.types import Source, Target, Weights

AUTO, WHOLE, BLOCKED, CORES = 'auto', 'whole', 'blocked', 'cores'
NATIVE = 'native'
LAYOUTS = (AUTO, WHOLE, NATIVE, BLOCKED, CORES)
# Rows at once, batch times tokens, up to which a layout is tried.
_MOST_ROWS = {BLOCKED: linear.FEW_ROWS, CORES: linear.FEW_ROWS}
TURNS = 5
FEWEST_TOKENS = 64  # new ones of a text, below which `choose` takes no time
_DIGITS = 1024  # of a logit that say what a pass is fed next
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

  @property
  def measured(self) -> Mapping[str, float]:
    """Seconds of each layout; of the one that there is 0, unmeasured."""
    return self.seconds or {self.layout: 0.0}

  def fields(self) -> dict:
    """As a row has it."""
    seconds = None if self.seconds is None else dict(self.seconds)
    blocks = {} if self.layout == WHOLE else {'columns': width_in(self.layout)}
    return {'layout': self.layout, 'seconds_per_step': seconds} | blocks


def width_in(layout: str) -> int:
  """Columns of a block in a layout that has blocks."""
  return native.COLUMNS if layout == NATIVE else columns()


def make(
  layout: str, model: Model, params: Weights, width: int | None = None
) -> Arranged | None:
  """A model on a single device in another layout; None where it has none.

  Args:
    layout: WHOLE, NATIVE, BLOCKED or CORES.
    model: with whole weights.
    params: its weights.
    width: of a block, by default `width_in` the layout.
  """
  if layout == WHOLE:
    return Arranged(model, params)
  for_kernel = layout == NATIVE
  if for_kernel and not (
    native.available() and transformer.dtype_of(params).name in native.DTYPES
  ):
    return None
  width = width or width_in(layout)
  blocked = Arranged(*variants.block(model, params, width, for_kernel))
  before, after = (jax.tree.leaves(x) for x in (params, blocked.params))
  if [x.shape for x in before] == [x.shape for x in after]:
    return None
  return _over_cores(blocked) if layout == CORES else blocked


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
  """A model in every layout that is tried on this machine for so many rows."""
  arranged = {WHOLE: Arranged(model, params)}
  if jax.default_backend() != 'cpu' or model.placement is not None:
    return arranged
  for layout in tried():
    made = make(layout, model, params) if fits(layout, rows) else None
    if made is not None:
      arranged[layout] = made
  return arranged


def tried() -> tuple[str, ...]:
  """Layouts besides whole weights that are tried: the kernel, or the others."""
  return (NATIVE,) if native.available() else (BLOCKED, CORES)


def fits(layout: str, rows: int) -> bool:
  """Whether a layout is for so many rows at once, batch times tokens."""
  return rows <= _MOST_ROWS.get(layout, rows)


def for_few(model: Model, params: Weights, rows: int) -> Arranged:
  """A model in the first layout that is tried; nothing is measured."""
  layout = tried()[0]
  made = None
  if jax.default_backend() == 'cpu' and fits(layout, rows):
    made = make(layout, model, params)
  return made or Arranged(model, params)


def allowed(layouts: Mapping[str, Arranged], rows: int) -> list[str]:
  """Of these layouts, those that so many rows at once may take."""
  return [layout for layout in layouts if fits(layout, rows)]


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
  """Feeds a block [B, T] so many times, each time by what came out of it.

  By digits of the largest logit, not by its index: to find that takes a tenth
  of the time of a small model, and decoding does not do it.
  """
  mask, offset = transformer.causal(*tokens.shape)

  def turn(_, tokens):
    out = model.forward(
      params, tokens, used[:, None] + offset, cache, used, mask
    )
    best = model.head(params, out.hidden).max(-1)
    digits = (jnp.abs(best) * _DIGITS).astype(tokens.dtype)
    return digits % model.config.vocab_size

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
  has a choice, between `whole` and `native`, or `blocked` without the kernel.
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
  other = tried()[0]
  if (
    target.layout != AUTO
    or new_tokens < FEWEST_TOKENS
    or not fits(other, rows)
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
    blocked = memory.get(other) or make(other, *whole)
    if blocked is not None:
      layouts[other] = blocked
    # A single layer and the head: they compile quickly, and layers are alike.
    short = {
      name: Arranged(variants.first_layers(x.model, 1), x.params)
      for name, x in layouts.items()
    }
    memory[key] = race(short, buffer, tokens, *_QUICK).layout
    if memory[key] == other:
      memory[other] = layouts[other]
  return memory[other] if memory[key] == other else whole
