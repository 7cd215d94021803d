"""Steps of the loop, timed on random weights and caches of zeros.

What a step costs does not depend on the numbers: no text is read, and a state
is set back to the same length before each measurement. Ways to step take turns,
so that a drift of the machine's speed meets them alike, and reading memory may
take a turn as well.
"""

import dataclasses
import functools
import os
import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import native, sampling, trees, verify
from specjax.bench import results
from specjax.bench.config import Size, TargetSize
from specjax.bench.memory import available
from specjax.cli import progress
from specjax.cli.fields import Between, Count, Seed, check_fields
from specjax.drafters import lm, plain
from specjax.errors import UserError, need
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.models import layouts, variants
from specjax.models.attention import CacheAttention
from specjax.models.transformer import Model
from specjax.training.recipes import check_size
from specjax.training.train_pair import model_of
from specjax.types import Draft, Drafter, Params, Rule, Spec, SpecState

POSITIONS = 1 << 20  # More than any cache here has slots.


@dataclasses.dataclass
class RandomModels:
  """Sizes of random models, and how their steps are timed.

  Attributes:
    name: rows go to runs/<name>-<hash of the settings>, or to `results`.
    target: sizes of the target.
    draft: sizes of the draft, over the same vocabulary.
    dtype: of weights and cache.
    gamma: drafted tokens, where they are not swept.
    batches: rows swept.
    contexts: tokens in use swept.
    rates: acceptance swept.
    megabytes: of the array that bandwidth is measured with.
    steps: timed at once, fewer where the cache has no room for them.
    repeats: of each measurement, in turns; medians are taken.
    seed: of weights and sampling.
    results: folder for rows and summary.
    compilation_cache: folder of compiled programs; auto: the user's; off: none.
    quick: toy sizes, to see that it runs.
  """

  name: str
  target: TargetSize
  draft: Size
  dtype: Literal['float32', 'bfloat16', 'float16'] = 'float32'
  gamma: Count = 4
  batches: tuple[Count, ...] = (1, 4, 16, 64)
  contexts: tuple[Count, ...] = (128, 512, 2048, 8192)
  rates: tuple[Annotated[float, Between(0, 0.999)], ...] = (0.5, 0.7, 0.9)
  megabytes: Count = 256
  steps: Count = 16
  repeats: Count = 9
  seed: Seed = 0
  results: str = ''
  compilation_cache: str = 'auto'
  quick: bool = False
  SWEPT: ClassVar[tuple[str, ...]] = ('batches', 'contexts')

  def shrink(self) -> None:
    """Leaves the quick version: toy sizes."""
    for size in (self.target, self.draft):
      size.width, size.mlp_width, size.head_dim = 32, 64, 8
      size.num_layers, size.num_heads, size.num_kv_heads = 1, 2, 1
    self.target.vocab_size, self.gamma, self.batches = 256, 2, (1, 2)
    self.steps, self.repeats, self.megabytes = 2, 2, 1

  def check_values(self) -> None:
    """Checks the values.

    Raises:
      UserError: names the field, the value and the remedy.
    """
    check_fields(self)
    check_size('target', self.target)
    check_size('draft', self.draft)
    memory = available(1)
    need(
      memory is None or self.megabytes * 2**20 < memory,
      f'megabytes is {self.megabytes}, more than the memory of {memory} bytes: '
      'choose less',
    )
    for name in self.SWEPT:
      sizes = getattr(self, name)
      need(
        sizes and len({*sizes}) == len(sizes),
        f'{name} must have different sizes, got {sizes}',
      )
    need(self.rates, 'rates is empty: give at least one')

  def facts(self, program: str, *names: str) -> dict:
    """Returns the fields that all rows have; `names` are settings."""
    return {
      'program': program,
      'config': self.name,
      'target': vars(self.target).copy(),
      'draft': vars(self.draft).copy(),
      **{n: getattr(self, n) for n in ('dtype', 'steps', 'repeats', *names)},
      'load_before': os.getloadavg()[0],
      **results.conditions(),
    }


@functools.partial(jax.jit, static_argnames=('shape', 'dtype'))
def _leaf(key, shape, dtype):
  return 0.02 * jax.random.normal(key, shape, dtype)


def random_weights(model: Model, seed: int, dtype) -> Any:
  """Normal weights, scales of one, made on the device one by one.

  So no more than the weights and one of them is held at once, and nothing of
  it by the host.
  """
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  leaves, tree = jax.tree.flatten(shapes)
  keys = jax.random.split(jax.random.key(seed), len(leaves))
  return jax.tree.unflatten(
    tree,
    [
      _leaf(key, x.shape, dtype) if x.ndim > 1 else jnp.ones(x.shape, dtype)
      for key, x in zip(keys, leaves, strict=True)
    ],
  )


def for_kernel(model: Model, weights: Any) -> tuple[Model, Any]:
  """Returns a model in the kernel's layout where there is a kernel."""
  return layouts.to_native(model, weights) or (model, weights)


class Timed(NamedTuple):
  """A few steps, once."""

  seconds: float  # per step
  tokens: float  # per step and row


def _blank(spec, params, batch, slots, seed) -> SpecState:
  """A greedy state of zeros as `generate.start` makes it; reads nothing."""
  values = sampling.make(batch, 0.0)
  key = generate.row_keys(seed, range(batch))

  def start(params):
    return generate.start(
      params,
      [[0]] * batch,
      spec=spec,
      new_tokens=1,
      key=key,
      values=values,
      slots=slots,
    )

  shapes = jax.eval_shape(start, params)
  rest = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype), shapes._replace(key=(), sampling=())
  )
  return rest._replace(
    key=key,
    sampling=jax.tree.map(jnp.array, values),
    finite=jnp.ones(batch, bool),
  )


class Loop:
  """A spec with a state that is stepped and set back."""

  def __init__(
    self,
    spec: Spec,
    params: Params,
    *,
    used: int,
    slots: int,
    steps: int,
    batch: int = 1,
    seed: int = 0,
  ):
    """Compiles, and takes a step.

    Args:
      spec: what runs.
      params: its parameters.
      used: tokens in use when the time begins.
      slots: of the cache.
      steps: timed at once, at most.
      batch: rows.
      seed: of the rows' keys.

    Raises:
      ValueError: there is no room for a step.
    """
    room = (slots - used) // (spec.drafter.depth + 1) - 1
    if room < 1:
      raise UserError(
        f'{used} tokens in use leave no room for a step in {slots} slots: '
        'choose more slots or fewer tokens'
      )
    self.spec, self.params, self.batch = spec, params, batch
    self.steps = min(steps, room)
    self.state = _blank(spec, params, batch, slots, seed)
    self.used = jnp.full(batch, used, jnp.int32)
    self.end = jnp.full(batch, slots, jnp.int32)
    self.count = jnp.asarray(self.steps, jnp.int32)
    self.run(timed=False)

  def set_back(self) -> None:
    """Makes the texts as long as they were at first."""
    self.state = self.state._replace(
      length=self.used + 0,
      limit=self.end + 0,
      done=jnp.zeros(self.batch, bool),
      counts=jax.tree.map(jnp.zeros_like, self.state.counts),
    )
    jax.block_until_ready(self.state)

  def run(self, timed: bool = True) -> Timed:
    """Takes the steps.

    Raises:
      RuntimeError: something was compiled inside the time, or a row ended.
    """
    self.set_back()
    before = generate.count_programs()
    with jax.transfer_guard('disallow' if timed else 'allow'):
      begin = time.perf_counter()
      self.state = generate.generate(
        self.params, self.state, self.count, spec=self.spec
      )
      jax.block_until_ready(self.state)
      seconds = time.perf_counter() - begin
    if timed and generate.count_programs() != before:
      raise RuntimeError('a program was compiled inside the timed region')
    counts = jax.device_get(self.state.counts)
    if (counts.target_calls != self.steps).any():
      raise RuntimeError('a row ended, or its logits were not finite')
    return Timed(seconds / self.steps, counts.tokens.mean() / self.steps)


@functools.cache
def idle(gamma: int, vocab: int) -> Drafter:
  """Draws nothing and calls it a draft: a step with it is the target's part.

  Scoring, judging and committing of gamma + 1 tokens, with a q for each.
  """

  def propose(params, state, ctx, key):
    del params, key  # Unused.
    batch = ctx.length.shape[0]
    return Draft(
      jnp.zeros((batch, gamma), jnp.int32),
      trees.chain(batch, gamma),
      jnp.full(batch, gamma, jnp.int32),
      jnp.full((batch, gamma, vocab), 1 / vocab, jnp.float32),
    ), state

  return plain.make()._replace(depth=gamma, nodes=gamma, propose=propose)


def take_turns(ways: Mapping[Any, Any], repeats: int) -> dict[Any, list]:
  """Calls every way so many times, one after the other.

  Args:
    ways: functions without arguments, by name.
    repeats: of each.

  Returns:
    What each returned.
  """
  returned: dict[Any, list] = {name: [] for name in ways}
  for _ in progress.over('measuring', range(repeats), alike=1):
    for name, way in ways.items():
      returned[name].append(way())
  return returned


def milliseconds(runs: list[Timed]) -> dict:
  """The median of a step and the range of its middle half."""
  low, middle, high = 1e3 * np.percentile(
    [r.seconds for r in runs], (25, 50, 75)
  )
  return {'step_ms': middle, 'step_ms_quartiles': [low, high]}


class Bench:
  """Models of a configuration, and loops over them.

  Args:
    x: has sizes of a `target` and a `draft`, their `dtype` and `seed`, the
      tokens in use (`used`), and `steps` and `repeats` of a measurement.
  """

  def __init__(self, x):
    self.x = x

  @functools.lru_cache(maxsize=1)  # noqa: B019  One vocabulary at a time.
  def models(self, vocab: int) -> tuple[Model, Params, Model]:
    """Target, parameters and draft, for the kernel where there is one."""
    x, dtype = self.x, jnp.dtype(self.x.dtype)
    made = []
    for i, size in enumerate((x.target, x.draft)):
      model = model_of(size, vocab, POSITIONS)
      made.append(for_kernel(model, random_weights(model, x.seed + i, dtype)))
    (target, weights), (draft, own) = made
    return target, Params(weights, own), draft

  def loop(
    self,
    gamma: int = 0,
    *,
    drafts: bool = False,
    drafter: Drafter | None = None,
    rule: Rule = verify.token,
    batch: int = 1,
    used: int | None = None,
    slots: int | None = None,
    vocab: int | None = None,
    over_cache: CacheAttention | None = None,
  ) -> Loop:
    """Steps of gamma drafted tokens, from the draft or at no cost.

    They attend as their layout does, unless an attention is given. A drafter
    without weights of its own may draft instead.
    """
    x = self.x
    vocab = vocab or x.target.vocab_size
    used = used or x.used
    target, params, draft = self.models(vocab)
    if over_cache is not None:
      target = variants.with_cache_attention(target, over_cache)
      draft = variants.with_cache_attention(draft, over_cache)
    if drafts:
      drafter = lm.make(draft, gamma)
    elif drafter is not None:
      params = params._replace(drafter=None)
    drafter = drafter or (idle(gamma, vocab) if gamma else plain.make())
    room = x.steps * (gamma + 1) + gamma + 1
    with progress.phase(f'compiling: gamma {gamma}, batch {batch}'):
      return Loop(
        Spec(target, drafter, rule),
        params,
        used=used,
        slots=slots or caches.round_slots(used + room),
        steps=x.steps,
        batch=batch,
        seed=x.seed,
      )

  def time(self, loops: dict) -> dict:
    """Runs of each loop, in turns."""
    ways = {name: loop.run for name, loop in loops.items()}
    return take_turns(ways, self.x.repeats)


def seconds(runs: list[Timed]) -> float:
  """The median of a step."""
  return float(np.median([r.seconds for r in runs]))


def _by_the_kernel(x, v):
  columns = x.reshape(-1, 512, native.COLUMNS)
  return native.product(v[None, :512].astype(jnp.float32), columns)


class Reader:
  """Programs that read an array once: the fastest one counts.

  Sums of blocks, a matrix-vector product, a product in blocks, and one by the
  kernel, which has all cores where XLA has one.
  """

  def __init__(self, size: int, dtype=jnp.float32):
    """Makes and compiles.

    Args:
      size: bytes of the array; beyond the caches unless these are meant.
      dtype: of its entries.
    """
    width = jnp.dtype(dtype).itemsize
    blocks = max(1, size // (width * 512 * 64))
    self.x = jnp.ones((blocks, 512, 64), dtype)
    self.vector = jnp.ones(512 * 64, dtype)
    programs = [
      lambda x, v: x.sum((1, 2)),
      lambda x, v: x.reshape(blocks, -1) @ v,
      lambda x, v: (v[:512, None] * x).sum(-2),
    ]
    if (
      jax.default_backend() == 'cpu'
      and native.available()
      and self.x.dtype.name in native.DTYPES
    ):
      programs.append(_by_the_kernel)
    self.programs = [jax.jit(program) for program in programs]
    self.read()

  def read(self) -> np.ndarray:
    """Bytes a second of each program, once."""
    rates = []
    for program in self.programs:
      begin = time.perf_counter()
      jax.block_until_ready(program(self.x, self.vector))
      rates.append(self.x.nbytes / (time.perf_counter() - begin))
    return np.array(rates)


def read_bandwidth(size: int, repeats: int = 5) -> float:
  """Bytes a second, the best of so many repetitions; see `Reader`."""
  reader = Reader(size)
  return max(reader.read().max() for _ in range(repeats))
