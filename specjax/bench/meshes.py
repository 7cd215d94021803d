"""The mesh of an experiment, and what is refused.

Everything here is known before weights are read. Refused is a mesh that does
not divide the batch or the query heads; key-value heads (with all attention),
vocabularies and widths that it does not divide stay whole on every device.
"""

import os
from collections.abc import Mapping
from typing import Any

import jax

from specjax import checkpoints, native
from specjax.bench.config import Certificate, Mesh
from specjax.checkpoints import Description, precision
from specjax.cli import cpu
from specjax.errors import need
from specjax.models import sharding
from specjax.models.config import TransformerConfig
from specjax.models.sharding import Placement

_SIMULATED = 'xla_force_host_platform_device_count'


def use_cores(x: Any) -> None:
  """Gives the CPU's cores to the kernel. Call this before JAX computes.

  Nothing is done where there is no kernel, where something else was said about
  devices, by a mesh or to JAX, where an experiment takes no time, and for
  training.

  A certificate compiles and runs two tiny programs side by side, a core each.

  Args:
    x: the config of a program.
  """
  if isinstance(x, Certificate):
    native.claim_cores()
    cpu.add_xla_flags(cpu.FAST_XLA)
    return
  mesh = getattr(x, 'mesh', Mesh())
  alone = mesh.data * mesh.model * mesh.processes == 1
  alone = alone and getattr(x, 'timed', False)
  said = jax.config.jax_num_cpu_devices > 0 or _SIMULATED in os.environ.get(
    'XLA_FLAGS', ''
  )
  if not alone or said or x.dtype not in (precision.AUTO, *native.DTYPES):
    return
  native.begin()  # While it is compiled the files of models are looked at.
  for name in ('target', 'draft'):
    checkpoints.prepare(getattr(getattr(x, name, None), 'path', ''))
  if native.available():
    native.claim_cores()


def make_placement(mesh: Mesh) -> Placement | None:
  """The placement of a target; None on a single device.

  Raises:
    UserError: there are not enough devices, or processes without any.
  """
  size, devices = mesh.data * mesh.model, jax.device_count()
  need(
    mesh.processes in (0, jax.process_count()),
    f'mesh.processes is {mesh.processes}, but this program works in '
    f'{jax.process_count()}: leave it at 1, or use specjax run',
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
  return Placement(made, split_draft=bool(mesh.split_draft))


def plan_placement(mesh: Mesh) -> Placement:
  """Returns the placement of a target without devices, to predict with."""
  made = sharding.plan_mesh(mesh.data, mesh.model)
  return Placement(made, split_draft=bool(mesh.split_draft))


def check_heads(mesh: Mesh, described: Mapping[str, Description]) -> None:
  """Refuses a split that leaves attention whole on every device.

  Raises:
    UserError: names the model.
  """
  if mesh.data * mesh.model == 1:
    return
  for name, description in described.items():
    config = description.model.config
    need(
      isinstance(config, TransformerConfig),
      f'mesh has {mesh.data * mesh.model} devices, over which the {name}, a '
      'model of other code, is not split: leave mesh out',
    )
    heads = config.num_heads
    split = name == 'target' or mesh.split_draft
    need(
      not split or heads % mesh.model == 0,
      f'mesh.model is {mesh.model}, which does not divide the {heads} heads of '
      f'the {name}: choose a divisor of {heads}'
      + ('' if name == 'target' else ', or mesh.split_draft=False'),
    )


def round_rows(rows: int, mesh: Mesh) -> int:
  """So many rows, or a few more that the mesh divides."""
  return -(-rows // mesh.data) * mesh.data
