"""Parameters from the tensors of a checkpoint, each to its place.

Beside the parameters themselves no more than one tensor is in memory at a
time: the files are mapped, and a tensor is copied into the parameter that it
is a part of, which the device then takes over where it can.
"""

import math
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax.checkpoints.families.table import Tensors
from specjax.checkpoints.files import CONFIG, CheckpointError, Tensor
from specjax.checkpoints.precision import STORED

_ALIGNMENT = 64  # bytes, below which a CPU device copies what it is given


class Reader(NamedTuple):
  """One parameter, filled piece by piece."""

  source: Tensors
  shape: tuple[int, ...]
  tensors: Mapping[str, Tensor]
  dtype: Any

  def onto(self, place: jax.sharding.Sharding | None) -> jax.Array:
    """The parameter on a device, or where its shards belong."""
    if place is None:
      # Nobody else knows what is read, so the device may keep it as it is.
      whole = (slice(None),) * len(self.shape)
      return jax.device_put(self.read(whole), may_alias=True)
    parts: dict = {}  # Rows of the mesh hold the same ones.

    def read(cut):
      key = tuple((s.start, s.stop) for s in cut)
      if key not in parts:
        parts[key] = self.read(cut)
      return parts[key]

    return jax.make_array_from_callback(self.shape, place, read)

  def read(self, cut: tuple[slice, ...]) -> np.ndarray:
    """The part x[cut] of the parameter."""
    split, names = self.source
    sizes = zip(cut, self.shape, strict=True)
    shape = tuple(len(range(*s.indices(size))) for s, size in sizes)
    x = _allocate(shape, jax.dtypes.canonicalize_dtype(self.dtype))
    pieces = split.pieces(self.shape, len(names), cut)
    for i, (name, indices) in enumerate(zip(names, pieces, strict=True)):
      parts = [self.tensors[name].read(index) for index in indices]
      split.fill(x, len(names), i, parts)
    return x


def _allocate(shape, dtype) -> np.ndarray:
  """Memory that a CPU device takes over without a copy."""
  size = math.prod(shape) * dtype.itemsize
  memory = np.empty(size + _ALIGNMENT, np.uint8)
  start = -memory.ctypes.data % _ALIGNMENT
  return memory[start : start + size].view(dtype).reshape(shape)


def check_tensors(
  sources: Mapping[str, Tensors],
  shapes: Mapping[str, Any],
  tensors: Mapping[str, Tensor],
) -> None:
  """Raises unless tensors have the shapes and types of their parameters.

  Raises:
    CheckpointError: one has not; names both.
  """
  for key, (split, names) in sources.items():
    expected = split.shapes(shapes[key].shape, len(names))
    for name, shape in zip(names, expected, strict=True):
      tensor = tensors[name]
      if tensor.shape != shape:
        raise CheckpointError(
          f'{tensor.path}: tensor {name} has shape {tensor.shape} where '
          f'{CONFIG} makes it {shape}; one of them is of another model'
        )
      if tensor.dtype not in STORED:
        raise CheckpointError(
          f'{tensor.path}: tensor {name} is {tensor.dtype}; quantised weights '
          f'must be converted to one of {", ".join(STORED)}'
        )


def read_parameters(
  sources: Mapping[str, Tensors],
  shapes: Mapping[str, Any],
  tensors: Mapping[str, Tensor],
  dtype: Any,
  places: Mapping[str, jax.sharding.Sharding] = types.MappingProxyType({}),
) -> dict[str, jax.Array]:
  """Reads parameters from tensors, one after another.

  Args:
    sources: the tensors of each parameter.
    shapes: the shape of each parameter.
    tensors: by name.
    dtype: of the parameters.
    places: of parameters on a mesh.

  Raises:
    CheckpointError: a tensor has another shape, or is quantised.
  """
  check_tensors(sources, shapes, tensors)
  return {
    key: Reader(source, shapes[key].shape, tensors, dtype).onto(places.get(key))
    for key, source in sources.items()
  }
