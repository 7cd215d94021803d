"""The layouts that weights have on a CPU, and which is the fastest.

whole     weights as they are; a library's product uses all cores
native    in blocks of columns (`variants.to_native`), which the kernel of
          `specjax.native` multiplies on all cores, where there is a C compiler
uniform   weights as they are, in passes of one shape (`models.uniform`): for
          the bits of a row, where the kernel does not compute

Which of the first two takes less time depends on the machine, the model and the
rows. So it is measured with a loop of nothing but passes of the model, which
compiles in a fraction of the time that a decoding loop takes.

Layouts add in different orders, so their logits differ by float rounding. A
greedy text may differ where two tokens are tied within that rounding. Of whole
weights it may between batch sizes and draft lengths, too; in blocks a row has
the same bits whatever is beside it, but for what `parting` names, and so it has
in uniform passes. `specjax parity` tells ties from bugs.
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
from specjax.models import (
  cache_attention,
  linear,
  transformer,
  uniform,
  variants,
)
from specjax.models.config import TransformerConfig
from specjax.models.transformer import Model
from specjax.types import Source, Target, Weights

AUTO, WHOLE, NATIVE, UNIFORM = 'auto', 'whole', 'native', 'uniform'
LAYOUTS = (AUTO, WHOLE, NATIVE)
TURNS = 5
FEWEST_TOKENS = 64  # new ones of a text, below which `choose` takes no time
_DIGITS = 1024  # of a logit that say what a pass is fed next
_SECONDS = 0.1  # of a timed loop of passes, at least
_PASSES = 8  # of a timed loop, at least
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
    """Fields of a row."""
    seconds = None if self.seconds is None else dict(self.seconds)
    return {'layout': self.layout, 'seconds_per_step': seconds}


def has_kernel() -> bool:
  """Returns True where JAX computes on a CPU and the kernel is there."""
  return jax.default_backend() == 'cpu' and native.available()


def to_native(model: Model, params: Weights) -> Arranged | None:
  """A model with whole weights, as the kernel multiplies it.

  None where there is no kernel, JAX does not compute on the CPU, the model is
  on a mesh or of other code, or no weight can be in blocks.
  """
  ours = isinstance(model.config, TransformerConfig)
  if model.placement is not None or not ours or not has_kernel():
    return None
  arranged = Arranged(*variants.to_native(model, params))
  return arranged if linear.has_blocks(arranged.params) else None


def parting(model: Model, params: Weights) -> str:
  """Names what gives a row other bits beside others than alone, in blocks.

  Returns '' where nothing does: each row of a pass has the bits that plain
  decoding gives it then, whatever the tree, the batch, and the part of its text
  that is in the cache.

  Args:
    model: the model.
    params: its weights or their shapes, whole or in blocks.
  """
  if reason := uniform.refuses(model):
    return reason
  config = model.config
  if not has_kernel():
    return (
      f'there is no kernel for its products ({native.reason() or "no CPU"})'
    )
  if not config.native:
    tied = config.tied_embeddings
    params = jax.eval_shape(lambda x: linear.to_native(x, tied), params)
    config = variants.for_native(model).config
  kernel = config.attention is cache_attention.kernel
  for size in {config.at(i).head_dim for i in range(config.num_layers)}:
    if not kernel or not native.attends(size, native.COLUMNS):
      return f'heads of {size} entries are not attended by the kernel'
  table = params['embedding']
  head = table.head if isinstance(table, linear.Table) else table
  if config.tied_embeddings and not linear.is_blocked(head):
    return 'the kernel does not multiply embedding'
  leaves = jax.tree_util.tree_flatten_with_path(
    params, is_leaf=linear.is_blocked
  )[0]
  for path, w in leaves:
    names = [str(getattr(key, 'key', '')) for key in path]
    if linear.is_blocked(w):
      continue
    if {*names} & {*linear.NAMES} and w.ndim > 1:
      return f'the kernel does not multiply {"/".join(filter(None, names))}'
  dtype = transformer.dtype_of(params).name
  if dtype not in native.DTYPES:
    return f'the kernel does not attend in {dtype}'
  return ''


def for_bits(model: Model, params: Weights) -> tuple[str, str]:
  """Returns the layout whose rows have the bits of plain decoding.

  Args:
    model: the model.
    params: its weights or their shapes, whole or in blocks.

  Returns:
    Native, or else uniform, and ''; or '' and why there is none.
  """
  reason = parting(model, params)
  if not reason:
    return NATIVE, ''
  blocked = linear.has_blocks(params)
  reason = uniform.refuses(model) or (reason if blocked else '')
  return ('', reason) if reason else (UNIFORM, '')


def arrange(model: Model, params: Weights) -> dict[str, Arranged]:
  """A model with whole weights in every layout that it has here."""
  arranged = {WHOLE: Arranged(model, params)}
  if (made := to_native(model, params)) is not None:
    arranged[NATIVE] = made
  return arranged


def fastest(
  clocks: Mapping[str, Callable[[], float]], turns: int = TURNS
) -> LayoutChoice:
  """Returns the layout with the smallest median time.

  Clocks take turns, so that a drift of the machine's speed meets all of them.
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
  fed = jnp.zeros((batch, tokens), jnp.int32)
  lengths = jnp.full(batch, used, jnp.int32)
  cache = transformer.open_cache(model, params, batch, buffer.slots, source)

  # A program of its own, which goes with the clock.
  feed = jax.jit(functools.partial(_feed, model))

  def run(passes: int) -> float:
    count = jnp.asarray(passes, jnp.int32)
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
  """Returns the layout in which a pass over some tokens of a text is fastest.

  Args:
    layouts: of one model; a single one is not measured.
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

  Only a target of `layout='auto'`, a model of specjax with float weights on a
  single CPU device, has a choice. It is made once for a batch size and a number
  of tokens, by a race of about a second, and kept with the target. Weights in
  blocks are kept, too, once they have won: they take as much memory again. A
  call that adds fewer than `FEWEST_TOKENS` tokens to every text takes whole
  weights, whatever was chosen for others, since a race would take longer than
  it could save.

  Args:
    target: with its weights.
    buffer: the cache of the call.
    tokens: of every text that a pass scores.
    new_tokens: of the longest text.
  """
  whole = Arranged(target.model, target.params)
  if (
    target.layout != AUTO
    or not isinstance(target.model.config, TransformerConfig)
    or new_tokens < FEWEST_TOKENS
    or not all(
      jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(whole[1])
    )
  ):
    return whole
  memory, key = target.remembered, (buffer.batch, tokens)
  if key not in memory:
    made = memory.get(NATIVE) or to_native(*whole)
    layouts = {WHOLE: whole} | ({NATIVE: made} if made else {})
    # A layer of each kind and the head: they compile quickly.
    config = target.model.config
    kinds = [config.has_state(i) for i in range(config.num_layers)]
    count = 1 + max(kinds.index(kind) for kind in {*kinds})
    short = {
      name: Arranged(variants.first_layers(x.model, count), x.params)
      for name, x in layouts.items()
    }
    memory[key] = race(short, buffer, tokens, *_QUICK).layout
    if memory[key] == NATIVE:
      memory[NATIVE] = made
  return memory[NATIVE] if memory[key] == NATIVE else whole
