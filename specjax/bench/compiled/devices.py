"""Devices that XLA compiles for though they are not there.

A device is a chip, with a number of GPUs or a topology of TPUs behind a colon:
h100, h100:4, v5e, v5e:2x2. A name without these is a single chip.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import jax
from jax.experimental import topologies

from specjax.bench.config import Mesh
from specjax.errors import UserError, install, need
from specjax.stats.roofline import CHIPS, Chip

# What XLA has to know of a GPU. Without the versions of driver and toolkit it
# leaves library calls and loops out of command buffers.
_HOPPER = """gpu_device_info { threads_per_block_limit: 1024
threads_per_warp: 32 shared_memory_per_block: 49152
shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132
fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
block_dim_limit_z: 65535 memory_bandwidth: %d
l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: %d
shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
registers_per_core_limit: 65536 registers_per_block_limit: 65536
driver_version: "13.0.0" runtime_version: "13.0.0"
compile_time_toolkit_version: "13.0.0" } platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
device_description_str: "%s" """
_TARGETS = {
  'h100': _HOPPER % (3352320000000, 84978434048, 'NVIDIA H100 80GB HBM3'),
  'h200': _HOPPER % (4800000000000, 150754820096, 'NVIDIA H200'),
}
# Flags of XLA. These give an operation 96 MiB of a chip's vector memory.
_MORE_VMEM = {'xla_tpu_scoped_vmem_limit_kib': '98304'}
_FLAGS: Mapping[str, Mapping[str, str]] = {'v5p': _MORE_VMEM, 'v6e': _MORE_VMEM}
# The module of each compiler, and the extra that installs it.
_COMPILERS = {
  'tpu': ('libtpu', 'aot-tpu'),
  'cuda': ('jax_cuda13_plugin', 'aot-gpu'),
}


def flags_of(device: str) -> dict[str, str]:
  """Returns the flags of XLA that programs of a device are compiled with."""
  return dict(_FLAGS.get(device.partition(':')[0], {}))


def chip_of(device: str) -> Chip:
  """Returns the chip of a device.

  Raises:
    UserError: no compiler knows it.
  """
  name = device.partition(':')[0]
  need(
    name in CHIPS,
    f'device: no compiler here knows {name!r}; choose one of '
    f'{", ".join(CHIPS)}, with chips behind a colon: h100:4, v5e:2x2',
  )
  return CHIPS[name]


def is_gpu(device: str) -> bool:
  return chip_of(device).clock is None


def chips_in(device: str) -> int:
  """Returns the number of chips that a device names.

  Raises:
    UserError: it names none.
  """
  _, colon, given = device.partition(':')
  form = r'\d+' if is_gpu(device) else r'\d+x\d+(x\d+)?'
  sizes = [*map(int, given.split('x'))] if re.fullmatch(form, given) else []
  need(
    not colon or (sizes and all(sizes)),
    f'device: {device} names no number of chips; write h100:4 for GPUs, and '
    'v5e:2x2 or v5p:2x2x1 for TPUs',
  )
  return math.prod(sizes)


def with_chips(device: str, count: int) -> str:
  """Returns the squarest device of this kind with at least so many chips."""
  name = device.partition(':')[0]
  if is_gpu(device):
    return f'{name}:{count}'
  power = max(2, (count - 1).bit_length())
  axes = 3 if name == 'v5p' else 2
  sides = [2 ** ((power + i) // axes) for i in range(axes)]
  if 1 in sides:
    sides.reverse()  # The compiler calls four chips 2x2x1.
  return f'{name}:{"x".join(map(str, sides))}'


def check(device: str, mesh: Mesh) -> None:
  """Checks a device without its compiler.

  Raises:
    UserError: the device is unknown, its compiler is not installed, or it has
      fewer chips than the mesh.
  """
  chips, size = chips_in(device), mesh.data * mesh.model
  need(
    size <= chips,
    f'mesh.data x mesh.model = {mesh.data} x {mesh.model} needs {size} chips, '
    f'but {device} has {chips}: choose less, or '
    f'device={with_chips(device, size)}',
  )
  module, extra = _COMPILERS['cuda' if is_gpu(device) else 'tpu']
  need(
    find_spec(module),
    f'device: the compiler for {device} is not installed: {install(extra)}',
  )


def stay_on_cpu() -> None:
  """Keeps compilers from looking for devices; call it before JAX computes."""
  jax.config.update('jax_platforms', 'cpu')
  # Programs for other devices cannot be read again where these are not.
  jax.config.update('jax_enable_compilation_cache', False)
  # libtpu looks for a host of TPUs, and would be the only one on this host.
  os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  os.environ.setdefault('TPU_ACCELERATOR_TYPE', 'v5litepod-4')
  os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')


def open_topology(device: str) -> Sequence[Any]:
  """Returns devices to compile for; call `stay_on_cpu` before.

  Raises:
    UserError: the compiler refuses the device.
  """
  name, _, chips = device.partition(':')
  try:
    if is_gpu(device):
      return topologies.get_topology_desc(
        name, 'cuda', topology=f'1x1x{chips or 1}', target_config=_TARGETS[name]
      ).devices
    found = topologies.get_topology_desc(f'{name}:{chips or "2x2"}', 'tpu')
    return found.devices
  except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
    raise UserError(
      f'device: the compiler refuses {device} ({error}); choose another one'
    ) from error
