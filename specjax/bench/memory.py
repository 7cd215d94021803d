"""The memory of each device: what a run will hold, and what would fit.

It is predicted before weights are read: weights in every layout that is tried,
caches, and the activations of the widest program. The compiler says how much
the program that reads the prompts takes.
"""

import bisect
import contextlib
import ctypes
import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax.bench import meshes, sampling_stages
from specjax.bench.plan import Plan, PlannedDrafter
from specjax.checkpoints import CheckpointError, Description, precision
from specjax.checkpoints.files import open_tensors
from specjax.checkpoints.parameters import FLOATS, WeightForm
from specjax.checkpoints.vocabularies import reading
from specjax.errors import UserError
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.models import layouts, sharding, transformer, variants
from specjax.models.config import TransformerConfig
from specjax.models.sharding import Placement
from specjax.models.transformer import Model
from specjax.types import Source, Target

_LOGITS = 5  # arrays of the size of a step's logits in float32 that it makes
_WATCHED = 16  # texts at once, where drafters look on
_MOST_DEVICES = 64  # of a mesh that is proposed


@dataclasses.dataclass(frozen=True)
class Load:
  """Bytes that each device will hold.

  Attributes:
    parameters: of the target.
    cache: of the target for the widest batch, with what constrains its texts.
    drafts: parameters of all drafts, and the most that one of them remembers.
    layouts: copies of all these parameters in the kernel's layout.
    activations: what computing takes beside these, at its widest; None where
      there are no devices to compile for.
    process: what this process has taken already of a CPU device: the host's
      memory is the device's.
  """

  parameters: int
  cache: int
  drafts: int
  layouts: int = 0
  activations: int | None = None
  process: int = 0

  @property
  def total(self) -> int:
    return sum(value or 0 for value in dataclasses.asdict(self).values())


class Widths(NamedTuple):
  """How much is decoded at once."""

  batch: int  # prompts decoded together
  rows: int  # of the widest batch, on which alpha is measured
  slots: int  # of a cache
  sources: int  # slots of what an encoder reads
  nodes: int  # tokens of the largest draft, at least


def rows_watched(count: int) -> int:
  """Texts that are written at once while drafters look on, of so many.

  All have logits of all drafters, and caches: parts are equal, and small.
  """
  return math.ceil(count / math.ceil(count / _WATCHED))


def widths_of(
  plan: Plan, target: TransformerConfig, longest: int, count: int
) -> Widths:
  """Returns the widths of an experiment; see `predict`.

  Where time is taken, alpha is measured on all prompts of a domain at once.
  Where drafters look on, a CPU writes two parts of them side by side.
  """
  nodes = max(gamma for d in plan.drafters.values() for gamma in d.gammas)
  at_once = count * plan.timed
  if plan.together:
    sides = 1 + (jax.default_backend() == 'cpu')
    at_once = sides * rows_watched(count)
  begun = longest if target.encoder is None else 1
  return Widths(
    meshes.round_rows(plan.batch, plan.mesh),
    meshes.round_rows(max(at_once, plan.batch), plan.mesh),
    caches.round_slots(begun + plan.max_new_tokens + nodes + 1),
    caches.round_slots(longest),
    nodes,
  )


def shapes_of(model: Model, dtype: str) -> Any:
  """Returns the shapes of a model's parameters in a type."""
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), shapes)


def of_parameters(
  config: TransformerConfig, placement: Placement, dtype: str = 'float32'
) -> int:
  """Bytes of a model's parameters on each device, in floats."""
  shapes = shapes_of(transformer.build(config), dtype)
  places = transformer.shardings(config, placement)
  return sharding.bytes_per_device(shapes, places)


def held_by(
  one: Description, placement: Placement, dtype: str, form: WeightForm
) -> int:
  """Bytes of a model's parameters on each device, in their form."""
  ours = isinstance(one.model.config, TransformerConfig)
  if form == FLOATS and ours and placement.mesh.size > 1:
    return of_parameters(one.model.config, placement, dtype)
  return size_of(one.shapes(dtype, form))


def of_cache(
  model: Model,
  placement: Placement,
  rows: int,
  slots: int,
  sources: int,
  dtype: str = 'float32',
) -> int:
  """Bytes of a cache on each device; `sources` are slots of what is read."""
  config = model.config

  def make():
    if model.empty is not None:
      return model.empty(model.init(jax.random.key(0)), rows, slots)
    cache = caches.empty(config, rows, slots, dtype)
    if config.encoder is None:
      return cache
    read = caches.empty(config, rows, sources, dtype)
    return caches.with_source(cache, read, jnp.ones(rows, jnp.int32))

  shapes = jax.eval_shape(make)
  return sharding.bytes_per_device(shapes, placement.of_rows(shapes))


def _of_file(one: PlannedDrafter, target: Target) -> int:
  """Bytes of weights that no description tells of, in four bytes each."""
  if describe := one.beside('describe_head'):
    with contextlib.suppress(CheckpointError):
      return 4 * describe(target).parameters
  if not os.path.isdir(one.path):
    return 0
  with contextlib.suppress(CheckpointError):
    tensors = open_tensors(pathlib.Path(one.path), of_head=True)
    return 4 * sum(math.prod(x.shape) for x in tensors.values())
  return 0


def of_process() -> int:
  """Returns the bytes of the host that this process has; 0 where none says."""
  try:
    told = pathlib.Path('/proc/self/statm').read_text()
  except OSError:  # No Linux.
    return 0
  return int(told.split()[1]) * os.sysconf('SC_PAGE_SIZE')


def give_back() -> None:
  """Gives freed memory back to the system, where its C library keeps it.

  Compiling the programs of two models of 1.5B and 0.5B parameters leaves 0.5
  GB of it.
  """
  with contextlib.suppress(AttributeError, OSError, TypeError):
    ctypes.CDLL(None).malloc_trim(0)


def size_of(shapes: Any) -> int:
  """Returns the bytes of arrays, by their shapes."""
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))


def _forms(plan: Plan, target: Description, dtype: str) -> dict[str, tuple]:
  """The target in every layout that it has, with shapes of its weights."""
  model = target.model
  if plan.form.blocks:
    shapes = target.shapes(dtype, plan.form)
    return {layouts.NATIVE: (variants.for_native(model), shapes)}
  shapes, size = shapes_of(model, dtype), plan.mesh.data * plan.mesh.model
  if size > 1:
    if size <= jax.device_count():
      model = variants.place(model, meshes.make_placement(plan.mesh))
    return {layouts.WHOLE: (model, shapes)}
  models: dict[str, Model] = {}

  def arrange(params):
    arranged = layouts.arrange(model, params)
    models.update({name: one.model for name, one in arranged.items()})
    return {name: one.params for name, one in arranged.items()}

  arranged = jax.eval_shape(arrange, shapes)
  return {name: (models[name], arranged[name]) for name in models}


def _copied(forms: Mapping[str, tuple]) -> int:
  """Bytes of the layouts but the first one, which share what is equal."""
  (_, first), *_ = forms.values()
  whole = jax.tree.leaves(first)
  return sum(
    x.size * x.dtype.itemsize
    for _, params in forms.values()
    for x, before in zip(jax.tree.leaves(params), whole, strict=True)
    if x.shape != before.shape
  )


def _reading(model: Model, params, rows: int, slots: int, sources: int) -> int:
  """Temporary bytes of the program that reads prompts."""

  def put(shapes, places):
    return jax.tree.map(
      lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
      shapes,
      places,
    )

  number = jax.ShapeDtypeStruct((rows,), jnp.int32)
  tokens = jax.ShapeDtypeStruct((rows, slots), jnp.int32)
  source = None
  if model.encode is not None:
    read = jax.ShapeDtypeStruct((rows, sources), jnp.int32)
    source = Source(read, number)
  inputs = tokens, number, source
  if model.placement is not None:
    places = transformer.shardings(model.config, model.placement)
    params = put(params, places)
    inputs = put(inputs, model.placement.of_rows(inputs))
  program = generate.read_prompts.lower(params, *inputs, target=model, taps=())
  found = program.compile().memory_analysis()
  return 0 if found is None else found.temp_size_in_bytes


def _width(c: TransformerConfig, dtype: str, slots: int) -> int:
  """Bytes of a token's activations, about: scores of a layer, MLP, keys."""
  ours = isinstance(c, TransformerConfig)
  mlp_width, heads = (
    (c.mlp_width, c.num_heads) if ours else (4 * c.width, c.num_kv_heads)
  )
  entries = 2 * mlp_width + 6 * c.width
  kept = [caches.heads(c, i) for i in range(c.num_layers)]
  entries += sum(count * (key + value) for count, key, value in kept)
  if c.latent is not None:  # Queries of latents, and what is read for them.
    entries += 2 * heads * sum(kept[0][1:])
  wide = 12 * heads * slots
  if ours and (made := c.recurrent) is not None:
    # Floats of scores of rows among themselves, and of outputs of the maps.
    seen = made.value_heads * caches.block_of(slots)
    wide = max(wide, 16 * seen + 32 * (made.channels + made.values))
  return wide + entries * jnp.dtype(dtype).itemsize


@dataclasses.dataclass(frozen=True)
class _Model:
  """Bytes of a model on each device, for the widest batch."""

  config: TransformerConfig
  dtype: str
  parameters: int
  cache: int
  slots: int  # of the cache
  widened: int  # float32 copies that a CPU computes with in 16 bits

  def reads(self, rows: int) -> int:
    """Bytes of activations where it reads the prompts, about."""
    tokens = caches.block_of(self.slots) * rows
    return tokens * _width(self.config, self.dtype, self.slots)


def predict(
  plan: Plan,
  described: Mapping[str, Description],
  longest: int,
  count: int,
  compiles: bool = True,
) -> Load:
  """Predicts what each device will hold.

  Args:
    plan: of the experiment.
    described: its models, by name; drafts as 'draft <name>'.
    longest: tokens of the longest prompt.
    count: prompts of the largest domain.
    compiles: whether the compiler is asked what the widest step takes, where
      there are devices to compile for.
  """
  placement = meshes.plan_placement(plan.mesh)
  dtypes = plan.dtypes(described)
  w = widths_of(plan, described['target'].model.config, longest, count)

  forms = _forms(plan, described['target'], dtypes['target'])
  on_cpu = jax.default_backend() == 'cpu'

  def measure(name: str) -> _Model:
    one, dtype, slots = described[name], dtypes[name], w.slots
    config = one.model.config
    place = placement if name == 'target' else placement.for_draft
    if one.other is not None:
      slots = reading.sizes_of(one.other.tables).slots(slots)
    held = held_by(one, place, dtype, plan.form)
    return _Model(
      config,
      dtype,
      held,
      # Of a draft that owns its cache, the block in flight is another.
      (1 + (name != 'target' and one.model.empty is not None))
      * of_cache(one.model, place, w.rows, slots, w.sources, dtype),
      slots,
      # The kernel makes fewer of these copies.
      4 * held // 2 * (on_cpu and dtype in precision.NARROW),
    )

  target, weights, memories = measure('target'), 0, [0]
  host = Target(described['target'].model, path=plan.target)
  drafts: list[list[_Model]] = []
  for drafter in plan.drafters.values():
    # One copy serves every draft length.
    levels = {f'draft {level.name}': level for level in drafter.levels()}
    models = [measure(name) for name in levels if name in described]
    weights += sum(one.parameters for one in models)
    weights += sum(
      _of_file(level, host)
      for name, level in levels.items()
      if name not in described
    )
    beside = w.rows * drafter.remembered(target.config)
    memories.append(beside + sum(one.cache for one in models))
    drafts.append(models)
  # Drafts are read again for the target in the kernel's layout.
  copied = _copied(forms) + weights * (len(forms) - 1)
  held = target.cache + sampling_stages.bytes_of(plan, w.rows)
  remembered = sum(memories) if plan.together else max(memories)
  size = plan.mesh.data * plan.mesh.model
  sharing = min(size, jax.local_device_count())  # the memory of a host
  known = Load(
    target.parameters,
    held,
    weights + remembered,
    copied,
    process=of_process() // sharing if on_cpu else 0,
  )
  if not compiles or size > jax.device_count():
    return known
  read = first = _reading(*[*forms.values()][-1], w.batch, w.slots, w.sources)
  first -= target.cache * (w.rows - w.batch) // w.rows
  if w.rows > w.batch:
    read = _reading(*next(iter(forms.values())), w.rows, w.slots, w.sources)
    first = max(first, read)
  # A step: its logits, and weights that are widened.
  scored = max(w.batch * (w.nodes + 1), 2 * w.rows)
  step = 4 * _LOGITS * scored * target.config.vocab_size + target.widened
  peaks = [first - remembered, step]
  # A draft takes as much of its estimate as the target of its own.
  share = 1.0
  if size == 1:
    share = max(read - target.widened, 0) / target.reads(w.rows)
  for models in drafts:
    wide = sum(x.widened for x in models)
    peaks.append(step + wide)
    here = sum(x.cache for x in models) - remembered
    peaks += [here + int(share * x.reads(w.rows)) + wide for x in models]
  return dataclasses.replace(known, activations=max(0, *peaks))


def available(count: int) -> int | None:
  """Bytes that each of `count` devices has; None where nobody says.

  CPU devices share the memory of their host.
  """
  device = jax.local_devices()[0]
  stats = device.memory_stats() or {}
  if 'bytes_limit' in stats:
    return stats['bytes_limit']
  if device.platform != 'cpu':
    return None
  whole = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
  return whole // min(count, jax.local_device_count())


def _largest(fits: Callable[[int], bool], least: int, most: int) -> int | None:
  """The largest number in a range that fits; whatever is less fits as well."""
  if least > most or not fits(least):
    return None
  more = range(least + 1, most + 1)
  return least + bisect.bisect_left(more, True, key=lambda n: not fits(n))


def _proposals(
  plan: Plan,
  dtype: str,
  heads: int,
  longest: int,
  count: int,
  fits: Callable[..., bool],
) -> Iterator[str]:
  """Yields the least change of each field that fits, alone.

  A mesh divides the query `heads`; `fits` says it of a plan, of the prompts of
  the largest domain, which are `count` now, and of the tokens of the longest.
  """
  mesh, change = plan.mesh, dataclasses.replace

  def with_batch(groups: int) -> tuple[Plan, int]:
    batch = groups * mesh.data
    fewer = min(count, batch) if plan.timed else count
    less = tuple(b for b in plan.batches if b <= batch) or (batch,)
    return change(plan, batch=batch, batches=less), fewer

  if plan.timed or plan.together:
    less = _largest(lambda n: fits(plan, n), plan.batch, count - 1)
    if less is not None:
      yield f'prompts.count={less}'
  groups = _largest(
    lambda n: fits(*with_batch(n)), 1, plan.batch // mesh.data - 1
  )
  if groups is not None:
    changed, fewer = with_batch(groups)
    field = f'batch={changed.batch}'
    if len(plan.batches) > 1:
      field = 'batches=({},)'.format(','.join(map(str, changed.batches)))
    yield field + f' prompts.count={fewer}' * plan.timed
  less = _largest(lambda n: fits(plan, count, n), 1, longest - 1)
  if less is not None:
    yield f'prompts.length={less}'
  tokens = _largest(
    lambda n: fits(change(plan, max_new_tokens=n), count),
    1,
    plan.max_new_tokens - 1,
  )
  if tokens is not None:
    yield f'max_new_tokens={tokens}'
  wide = dtype not in precision.NARROW and jax.default_backend() != 'cpu'
  if wide and fits(change(plan, dtype='bfloat16'), count):
    yield 'dtype=bfloat16'
  split = change(plan, mesh=change(mesh, split_draft=True))
  if not mesh.split_draft and mesh.model > 1 and fits(split, count):
    yield 'mesh.split_draft=True'
  for devices in range(mesh.model + 1, _MOST_DEVICES + 1):
    wider = change(plan, mesh=change(mesh, model=devices))
    if heads % devices == 0 and fits(wider, count):
      yield f'mesh.model={devices}'
      break


def check(
  plan: Plan,
  described: Mapping[str, Description],
  longest: int,
  count: int,
  load: Load,
) -> None:
  """Refuses what does not fit.

  Raises:
    UserError: says what needs how much, and what would fit.
  """
  mesh = plan.mesh
  limit = available(mesh.data * mesh.model)
  if limit is None or load.total <= limit:
    return
  target = described['target'].model.config
  rows = widths_of(plan, target, longest, count).rows

  def fits(changed: Plan, prompts: int, tokens: int = longest) -> bool:
    after = widths_of(changed, target, tokens, prompts).rows
    made = predict(changed, described, tokens, prompts, compiles=False)
    made = dataclasses.replace(made, process=load.process)
    # What computing takes goes with the rows.
    return made.total + (load.activations or 0) * after // rows <= limit

  dtype = plan.dtypes(described)['target']
  proposed = _proposals(plan, dtype, target.num_heads, longest, count, fits)
  choice = ' or '.join(proposed) or 'a smaller model'
  more = f', computing {load.activations:,}' if load.activations else ''
  raise UserError(
    f'mesh.data x mesh.model = {mesh.data} x {mesh.model}: each device '
    f'would hold {load.total:,} bytes (target {load.parameters:,}, its cache '
    f'{load.cache:,}, drafts {load.drafts:,}, other layouts {load.layouts:,}'
    f'{more}, this process {load.process:,}), but has {limit:,}: choose '
    f'{choice}'
  )


def refuse(
  plan: Plan, described: Mapping[str, Description], longest: int, count: int
) -> None:
  """Refuses what does not fit; compiles only where that may decide it.

  Eight times the activations of all models for every slot of the widest batch
  are more than any run takes: where there is so much memory, nothing is
  compiled. See `predict` for the arguments.

  Raises:
    UserError: says what needs how much, and what would fit.
  """
  size = longest, count
  load = predict(plan, described, *size, compiles=False)
  check(plan, described, *size, load)
  limit = available(plan.mesh.data * plan.mesh.model)
  w = widths_of(plan, described['target'].model.config, *size)
  models = [one.model.config for one in described.values()]
  each = sum(_width(c, 'float32', w.slots) + 4 * c.vocab_size for c in models)
  most = load.total + 8 * w.rows * (w.slots + w.sources) * each
  most += 2 * (load.parameters + load.drafts)  # Float32 for 16 bits.
  if limit is not None and most > limit:
    check(plan, described, *size, predict(plan, described, *size))


def splits_draft(
  ways: int, passes: int, target: float, drafts: Iterable[tuple[int, float]]
) -> bool:
  """Returns true if drafts are split over the devices of a group.

  A whole draft is read by every device in each pass. It is split where that is
  more than the device's share of the target, and where the group divides the
  heads of all drafts.

  Args:
    ways: devices of a group.
    passes: of a draft in a step.
    target: bytes that a device reads of the target in a step, caches too.
    drafts: query heads of each, and bytes that one whole pass reads.
  """
  heads, reads = zip(*drafts, strict=True)
  divides = all(count % ways == 0 for count in heads)
  return ways > 1 and divides and passes * max(reads) > target


def choose_split(plan: Plan, described: Mapping[str, Description]) -> Plan:
  """Returns the plan with drafts split or whole, where its mesh leaves it open.

  See `splits_draft`.
  """
  mesh = plan.mesh
  if mesh.split_draft is not None:
    return plan

  drafts = [name for name in described if name != 'target']
  split = mesh.model > 1 and 'target' in described and bool(drafts)
  if split:
    dtypes, rows = plan.dtypes(described), plan.batch // mesh.data
    used = (plan.prompts.length or 0) + plan.max_new_tokens

    def reads(name: str, ways: int = 1) -> float:
      model = described[name].model
      shapes = shapes_of(model, dtypes.get(name, dtypes['target']))
      weights, cache = bytes_per_token(model, shapes, used, rows)
      heads = ways if model.config.num_kv_heads % ways == 0 else 1
      return weights / ways + rows * cache / heads

    split = splits_draft(
      mesh.model,
      max(gamma for one in plan.levels() for gamma in one.gammas),
      reads('target', mesh.model),
      [(described[n].model.config.num_heads, reads(n)) for n in drafts],
    )
  chosen = dataclasses.replace(mesh, split_draft=split)
  return dataclasses.replace(plan, mesh=chosen)


def slots_seen(config: TransformerConfig, layer: int, used: int) -> int:
  """Slots of a cache that one query of a layer sees behind so many tokens."""
  if not config.attends(layer):
    return 0
  window = config.reach(layer)
  if window is None:
    return used
  # The query itself, which is one of the window, is in no cache yet.
  return min(used, window - 1 + config.sinks(layer))


def bytes_per_token(
  model: Model,
  params,
  used: int,
  tokens: float = 1,
  experts: Sequence[float] | None = None,
) -> tuple[int, int]:
  """Bytes of weights and of the cache that one plain step must read.

  The time of a step is held against them.

  Args:
    model: the model; layers with a window see no more of the cache.
    params: its parameters, or their shapes.
    used: slots of the cache in use.
    tokens: fed at once, of all rows; each may choose other experts.
    experts: that are read of each layer with a mixture, where that is known.
  """
  config = model.config
  if not isinstance(config, TransformerConfig):
    # Which of its weights a step reads, nobody says: all of them.
    sizes = []
    for slots in (used, 2 * used):
      opened = functools.partial(
        transformer.open_cache, model, batch=1, slots=slots
      )
      sizes.append(size_of(jax.eval_shape(opened, params)))
    return size_of(params), sizes[1] - sizes[0]
  # Of a target that is left early only the first layers are.
  beyond = {
    name
    for name in params
    if name.startswith('layer') and int(name[5:]) >= config.num_layers
  }
  weights = size_of({n: x for n, x in params.items() if n not in beyond})
  layers = [params.get(f'layer{i}', {}) for i in range(config.num_layers)]
  mixtures = [layer['experts'] for layer in layers if 'experts' in layer]
  for i, mixture in enumerate(mixtures):
    e = config.experts
    every = {n: x for n, x in mixture.items() if n.split('_')[0] != 'router'}
    read = min(e.count, e.chosen * tokens) if experts is None else experts[i]
    weights -= int(size_of(every) * (e.count - read) / e.count)
  # Of a table only one row is read, unless it is the unembedding too.
  if not config.tied_embeddings:
    weights -= size_of(params['embedding'])
  weights -= size_of(params.get('position'))
  weights -= size_of(params.get('inputs', {}).get('table'))
  # An encoder reads once, before the first step.
  weights -= size_of(params.get('encoder'))
  width = transformer.dtype_of(params).itemsize
  layers = range(config.num_layers)
  read = 0
  for i in layers:
    count, key, value = caches.heads(config, config.source(i))
    read += count * (key + value) * slots_seen(config, i, used) * width
  # A state is read as a whole, however long the text is.
  dtype = transformer.dtype_of(params)
  state = jax.eval_shape(lambda: caches.empty(config, 1, 1, dtype))
  return weights, read + size_of(caches.states(state))
