"""The mesh of an experiment: what is refused, what each device will hold.

Everything here is known before weights are read. Refused is a mesh that does
not divide the batch or the query heads; key-value heads (with all attention),
vocabularies and widths that it does not divide stay whole on every device.
"""

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.errors import UserError, need
from experiments.settings import Experiment, Mesh, Speed
from experiments.setup.plan import Plan
from specjax import cache as caches
from specjax import sharding
from specjax.checkpoints import Description
from specjax.models import transformer
from specjax.models.config import TransformerConfig
from specjax.sharding import Placement

_SIMULATED = 'xla_force_host_platform_device_count'
_MOST_CORES = 8  # that exchange sums at every layer


def use_cores(x: Any) -> None:
  """Makes the CPU's cores devices, for `layouts.CORES`; before any is used.

  Nothing is done where something else was said about devices, by a mesh or to
  JAX, and where no time is taken.

  Args:
    x: the config of a program.
  """
  alone = isinstance(x, Speed)
  if isinstance(x, Experiment):
    alone = x.timed and x.mesh.data * x.mesh.model * x.mesh.processes == 1
  said = jax.config.jax_num_cpu_devices > 0 or _SIMULATED in os.environ.get(
    'XLA_FLAGS', ''
  )
  if alone and not said:
    count = min(len(os.sched_getaffinity(0)), _MOST_CORES)
    with contextlib.suppress(RuntimeError):  # JAX has begun: it stays as it is.
      jax.config.update('jax_num_cpu_devices', count)


def make_placement(mesh: Mesh) -> Placement | None:
  """The placement of a target; None on a single device.

  Raises:
    UserError: there are not enough devices, or processes without any.
  """
  size, devices = mesh.data * mesh.model, jax.device_count()
  need(
    mesh.processes in (0, jax.process_count()),
    f'mesh.processes is {mesh.processes}, but this program works in '
    f'{jax.process_count()}: leave it at 1, or use experiments.run',
  )
  need(
    size <= devices,
    f'mesh.data x mesh.model = {mesh.data} x {mesh.model} needs {size} '
    f'devices, but there are {devices}: choose less, or simulate CPU devices '
    f'with XLA_FLAGS=--{_SIMULATED}={size}',
  )
  need(
    jax.process_count() == 1 or size == devices,
    f'mesh.data x mesh.model = {mesh.data} x {mesh.model} leaves some of the '
    f'{devices} devices of {jax.process_count()} processes out: use all of '
    'them',
  )
  if size == 1:
    return None
  made = sharding.make_mesh(mesh.data, mesh.model)
  return Placement(made, split_draft=mesh.split_draft)


def plan_placement(mesh: Mesh) -> Placement:
  """The same without devices, to predict with."""
  made = sharding.plan_mesh(mesh.data, mesh.model)
  return Placement(made, split_draft=mesh.split_draft)


def check_heads(mesh: Mesh, described: Mapping[str, Description]) -> None:
  """Refuses a split that leaves attention whole on every device.

  Raises:
    UserError: names the model.
  """
  for name, description in described.items():
    heads = description.model.config.num_heads
    split = name == 'target' or mesh.split_draft
    need(
      not split or heads % mesh.model == 0,
      f'mesh.model is {mesh.model}, which does not divide the {heads} heads of '
      f'the {name}: choose a divisor of {heads}'
      + ('' if name == 'target' else ', or mesh.split_draft=False'),
    )


@dataclasses.dataclass(frozen=True)
class Load:
  """Bytes that each device will hold, at least.

  Attributes:
    parameters: of the target.
    cache: of the target, for the widest batch.
    drafts: parameters of all drafts, and the largest of their caches.
  """

  parameters: int
  cache: int
  drafts: int

  @property
  def total(self) -> int:
    return self.parameters + self.cache + self.drafts


def of_parameters(config: TransformerConfig, placement: Placement) -> int:
  """Bytes of a model's parameters on each device."""
  shapes = jax.eval_shape(transformer.build(config).init, jax.random.key(0))
  # As they are loaded, whatever precision is in force.
  shapes = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), shapes
  )
  places = transformer.shardings(config, placement)
  return sharding.bytes_per_device(shapes, places)


def of_cache(
  config: TransformerConfig,
  placement: Placement,
  rows: int,
  slots: int,
  sources: int,
) -> int:
  """Bytes of a cache on each device; `sources` are slots of what is read."""

  def make():
    cache = caches.empty(config, rows, slots, jnp.float32)
    if config.encoder is None:
      return cache
    read = caches.empty(config, rows, sources, jnp.float32)
    return caches.with_source(cache, read, jnp.ones(rows, jnp.int32))

  shapes = jax.eval_shape(make)
  return sharding.bytes_per_device(shapes, placement.of_rows(shapes))


def round_rows(rows: int, mesh: Mesh) -> int:
  """So many rows, or a few more that the mesh divides."""
  return -(-rows // mesh.data) * mesh.data


def predict(
  plan: Plan,
  described: Mapping[str, Description],
  longest: int,
  rows: int,
) -> Load:
  """What each device will hold.

  Args:
    plan: of the experiment.
    described: its models, by name; drafts as 'draft <name>'.
    longest: tokens of the longest prompt.
    rows: of the widest batch; alpha is measured on all prompts of a domain at
      once.
  """
  placement = plan_placement(plan.mesh)
  deepest = max(gamma for d in plan.drafters.values() for gamma in d.gammas)
  rows = round_rows(max(rows, plan.batch), plan.mesh)
  target = described['target'].model.config
  begun = longest if target.encoder is None else 1
  slots = caches.round_slots(begun + plan.max_new_tokens + deepest + 1)
  shape = rows, slots, caches.round_slots(longest)
  drafts, memories = 0, [0]
  for drafter in plan.drafters.values():
    read = [f'draft {level.name}' for level in drafter.levels()]
    configs = [described[x].model.config for x in read if x in described]
    # One copy serves every draft length.
    drafts += sum(
      of_parameters(config, placement.for_draft) for config in configs
    )
    memories.append(
      sum(of_cache(config, placement.for_draft, *shape) for config in configs)
    )
  return Load(
    of_parameters(target, placement),
    of_cache(target, placement, *shape),
    drafts + max(memories),
  )


def memory(count: int) -> int | None:
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


def check_memory(mesh: Mesh, load: Load) -> None:
  """Refuses what does not fit.

  Raises:
    UserError: says what needs how much, and the remedy.
  """
  size = mesh.data * mesh.model
  limit = memory(size)
  if limit is None or load.total <= limit:
    return
  remedies = ['a larger mesh.model', 'a smaller batch, prompts.count or model']
  if load.drafts > load.parameters and not mesh.split_draft:
    remedies.insert(0, 'mesh.split_draft=True')
  raise UserError(
    f'mesh.data x mesh.model = {mesh.data} x {mesh.model}: each device '
    f'would hold {load.total:,} bytes (target {load.parameters:,}, its cache '
    f'{load.cache:,}, drafts {load.drafts:,}), but has {limit:,}: choose '
    f'{", ".join(remedies)}'
  )
