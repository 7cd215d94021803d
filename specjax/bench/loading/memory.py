"""What each device will hold.

Known before weights are read: weights in every layout that is tried, caches,
and what computing takes at its widest, where the compiler says it of the
program that reads the prompts, which the run then has in memory.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from specjax.bench.loading import constrained, dtypes, meshes
from specjax.bench.loading.plan import Plan, PlannedDrafter
from specjax.checkpoints import CheckpointError, Description, precision
from specjax.checkpoints.files import open_tensors
from specjax.checkpoints.vocabularies import reading
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.models import layouts, sharding, transformer
from specjax.models.config import TransformerConfig
from specjax.models.sharding import Placement
from specjax.models.transformer import Model
from specjax.types import Source

_LOGITS = 5  # arrays of the size of a step's logits in float32 that it makes


@dataclasses.dataclass(frozen=True)
class Load:
  """Bytes that each device will hold.

  Attributes:
    parameters: of the target.
    cache: of the target for the widest batch, with what constrains its texts.
    drafts: parameters of all drafts, and the most that one of them remembers.
    layouts: further copies of all these parameters, in blocks; on a CPU those
      of all its cores.
    activations: what computing takes beside these, at its widest; None where
      there are no devices to compile for.
  """

  parameters: int
  cache: int
  drafts: int
  layouts: int = 0
  activations: int | None = None

  @property
  def total(self) -> int:
    return sum(value or 0 for value in dataclasses.asdict(self).values())


@dataclasses.dataclass(frozen=True)
class Widths:
  """How much is decoded at once.

  Attributes:
    batch: prompts decoded together.
    rows: of the widest batch: alpha is measured on all prompts of a domain at
      once where time is taken.
    slots: of a cache.
    sources: of what an encoder reads.
    nodes: tokens of the largest draft, at least.
  """

  batch: int
  rows: int
  slots: int
  sources: int
  nodes: int


def widths_of(
  plan: Plan, target: TransformerConfig, longest: int, count: int
) -> Widths:
  """The widths of an experiment.

  Args:
    plan: of the experiment.
    target: configuration of the target.
    longest: tokens of the longest prompt.
    count: prompts of the largest domain.
  """
  nodes = max(gamma for d in plan.drafters.values() for gamma in d.gammas)
  begun = longest if target.encoder is None else 1
  return Widths(
    meshes.round_rows(plan.batch, plan.mesh),
    meshes.round_rows(max(count * plan.timed, plan.batch), plan.mesh),
    caches.round_slots(begun + plan.max_new_tokens + nodes + 1),
    caches.round_slots(longest),
    nodes,
  )


def _shapes(model: Model, dtype: str):
  """Parameters as they are loaded, whatever precision is in force."""
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), shapes)


def of_parameters(
  config: TransformerConfig, placement: Placement, dtype: str = 'float32'
) -> int:
  """Bytes of a model's parameters on each device."""
  shapes = _shapes(transformer.build(config), dtype)
  places = transformer.shardings(config, placement)
  return sharding.bytes_per_device(shapes, places)


def of_cache(
  config: TransformerConfig,
  placement: Placement,
  rows: int,
  slots: int,
  sources: int,
  dtype: str = 'float32',
) -> int:
  """Bytes of a cache on each device; `sources` are slots of what is read."""

  def make():
    cache = caches.empty(config, rows, slots, dtype)
    if config.encoder is None:
      return cache
    read = caches.empty(config, rows, sources, dtype)
    return caches.with_source(cache, read, jnp.ones(rows, jnp.int32))

  shapes = jax.eval_shape(make)
  return sharding.bytes_per_device(shapes, placement.of_rows(shapes))


def _of_file(one: PlannedDrafter) -> int:
  """Bytes of weights that no description tells of, in four bytes each."""
  if not os.path.isdir(one.path):
    return 0
  with contextlib.ExitStack() as stack, contextlib.suppress(CheckpointError):
    tensors = open_tensors(pathlib.Path(one.path), stack, of_head=True)
    return 4 * sum(math.prod(x.shape) for x in tensors.values())
  return 0


def _arrangements(model: Model, dtype: str, rows: int) -> dict[str, tuple]:
  """The model and shapes of its parameters, in every layout that it has."""
  models: dict[str, Model] = {}

  def arrange(params):
    arranged = layouts.arrange(model, params, rows)
    models.update({name: one.model for name, one in arranged.items()})
    return {name: one.params for name, one in arranged.items()}

  if jax.default_backend() == 'cpu':
    for layout in layouts.tried():
      layouts.width_in(layout)  # Measured where nothing is traced.
  shapes = jax.eval_shape(arrange, _shapes(model, dtype))
  return {name: (models[name], shapes[name]) for name in models}


def _copied(arrangements: Mapping[str, tuple]) -> int:
  """Bytes of other layouts than the whole one; blocks share what is equal."""
  whole = jax.tree.leaves(arrangements[layouts.WHOLE][1])
  return sum(
    x.size * x.dtype.itemsize
    for name, (_, params) in arrangements.items()
    for x, before in zip(jax.tree.leaves(params), whole, strict=True)
    if name == layouts.CORES or x.shape != before.shape
  )


def _copies(arrangements: Mapping[str, tuple]) -> int:
  """How often drafts are read again, for the target in other layouts."""
  cores = arrangements.get(layouts.CORES)
  split = 0 if cores is None else cores[0].placement.mesh.size
  return split + (layouts.tried()[0] in arrangements)


def _reading(model: Model, params, rows: int, slots: int, sources: int) -> int:
  """Temporary bytes of the program that reads prompts."""
  number = jax.ShapeDtypeStruct((rows,), jnp.int32)
  tokens = jax.ShapeDtypeStruct((rows, slots), jnp.int32)
  source = None
  if model.encode is not None:
    read = jax.ShapeDtypeStruct((rows, sources), jnp.int32)
    source = Source(read, number)
  inputs = tokens, number, source
  if model.placement is not None:
    places = transformer.shardings(model.config, model.placement)
    params = _put(params, places)
    inputs = _put(inputs, model.placement.of_rows(inputs))
  program = generate._prefill.lower(params, *inputs, target=model, taps=())
  found = program.compile().memory_analysis()
  return 0 if found is None else found.temp_size_in_bytes


def _put(shapes, places):
  return jax.tree.map(
    lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
    shapes,
    places,
  )


def _width(c: TransformerConfig, dtype: str, slots: int) -> int:
  """Bytes of a token's activations, about: scores of a layer, MLP, keys."""
  entries = 2 * c.mlp_width + 6 * c.width
  entries += 2 * c.num_layers * c.num_kv_heads * c.head_dim
  return 12 * c.num_heads * slots + entries * jnp.dtype(dtype).itemsize


def at_most(
  plan: Plan, described: Mapping[str, Description], longest: int, count: int
) -> int:
  """Bytes of activations that no run takes, known without a compiler.

  Eight times the activations of all models for every slot of the widest batch:
  a plan for which there is so much memory need not be compiled to be let pass.

  Args:
    plan: of the experiment.
    described: its models, by name.
    longest: tokens of the longest prompt.
    count: prompts of the largest domain.
  """
  w = widths_of(plan, described['target'].model.config, longest, count)
  models = [one.model.config for one in described.values()]
  each = sum(_width(c, 'float32', w.slots) + 4 * c.vocab_size for c in models)
  return 8 * w.rows * (w.slots + w.sources) * each


def _widened(model: '_Model') -> int:
  """Bytes of the float32 copies that a CPU computes with in 16 bits."""
  if jax.default_backend() != 'cpu' or model.dtype not in precision.NARROW:
    return 0
  return 4 * model.parameters // jnp.dtype(model.dtype).itemsize


@dataclasses.dataclass(frozen=True)
class _Model:
  """A model on each device: what is asked of it below."""

  config: TransformerConfig
  dtype: str
  parameters: int
  cache: int  # for the widest batch
  slots: int  # of it


def predict(
  plan: Plan,
  described: Mapping[str, Description],
  longest: int,
  count: int,
  compiles: bool = True,
) -> Load:
  """What each device will hold.

  Args:
    plan: of the experiment.
    described: its models, by name; drafts as 'draft <name>'.
    longest: tokens of the longest prompt.
    count: prompts of the largest domain.
    compiles: whether the compiler is asked what the widest step takes, where
      there are devices to compile for.
  """
  placement = meshes.plan_placement(plan.mesh)
  names = dtypes.all_of(plan, described)
  w = widths_of(plan, described['target'].model.config, longest, count)

  def measure(name: str) -> _Model:
    one, dtype = described[name], names[name]
    config, slots = one.model.config, w.slots
    place = placement if name == 'target' else placement.for_draft
    if one.other is not None:
      slots = reading.sizes_of(one.other.tables).slots(slots)
    return _Model(
      config,
      dtype,
      of_parameters(config, place, dtype),
      of_cache(config, place, w.rows, slots, w.sources, dtype),
      slots,
    )

  target, weights, memories = measure('target'), 0, [0]
  drafts: list[list[_Model]] = []
  for drafter in plan.drafters.values():
    # One copy serves every draft length.
    levels = {f'draft {level.name}': level for level in drafter.levels()}
    models = [measure(name) for name in levels if name in described]
    weights += sum(one.parameters for one in models)
    weights += sum(
      _of_file(level) for name, level in levels.items() if name not in described
    )
    beside = w.rows * drafter.remembered(target.config)
    memories.append(beside + sum(one.cache for one in models))
    drafts.append(models)
  arrangements, copied = _forms(plan, described['target'], target.dtype), 0
  if len(arrangements) > 1:
    copied = _copied(arrangements) + weights * _copies(arrangements)
  held = target.cache + constrained.bytes_of(plan, w.rows)
  known = Load(target.parameters, held, weights + max(memories), copied)
  size = plan.mesh.data * plan.mesh.model
  if not compiles or size > jax.device_count():
    return known
  name = layouts.tried()[0] if len(arrangements) > 1 else layouts.WHOLE
  read = first = _reading(*arrangements[name], w.batch, w.slots, w.sources)
  first -= target.cache * (w.rows - w.batch) // w.rows
  if w.rows > w.batch:
    whole = arrangements[layouts.WHOLE]
    read = _reading(*whole, w.rows, w.slots, w.sources)
    first = max(first, read)
  peaks = [first - max(memories), _step(target, w)]
  tokens = caches.block_of(w.slots) * w.rows
  # A draft takes as much of its estimate as the target of its own.
  guess = tokens * _width(target.config, target.dtype, w.slots)
  share = max(read - _widened(target), 0) / guess if size == 1 else 1.0
  for models in drafts:
    wide = sum(_widened(x) for x in models)
    peaks.append(_step(target, w) + wide)
    here = sum(x.cache for x in models) - max(memories)
    peaks += [here + int(share * _reads(x, w)) + wide for x in models]
  return dataclasses.replace(known, activations=max(0, *peaks))


def _forms(plan: Plan, target: Description, dtype: str):
  """The target in every layout that it has for any batch, without weights."""
  model = target.model
  size = plan.mesh.data * plan.mesh.model
  if 1 < size <= jax.device_count():
    placement = meshes.make_placement(plan.mesh)
    model = transformer.place(model, placement)
  elif size > 1:
    return {layouts.WHOLE: (model, _shapes(model, dtype))}
  return _arrangements(model, dtype, min(plan.batch, *plan.batches))


def _reads(draft: _Model, w: Widths) -> int:
  """Bytes of activations where a draft reads the prompts, about."""
  tokens = caches.block_of(draft.slots) * w.rows
  return tokens * _width(draft.config, draft.dtype, draft.slots)


def _step(target: _Model, w: Widths) -> int:
  """Temporary bytes of a step: its logits, and weights that are widened."""
  scored = max(w.batch * (w.nodes + 1), 2 * w.rows)
  logits = 4 * _LOGITS * scored * target.config.vocab_size
  return logits + _widened(target)
