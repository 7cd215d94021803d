"""Parameters from the tensors of a checkpoint, each to its place.

Beside the parameters themselves no more than one tensor is in memory at a
time: the files are mapped, and a tensor is copied into the parameter that it
is a part of, which the device then takes over where it can.
"""

import math
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints.families.table import Tensors
from specjax.checkpoints.files import CONFIG, CheckpointError, Tensor
from specjax.checkpoints.precision import STORED
from specjax.models import linear, low_bits
from specjax.models.low_bits import LowBits

BITS_OF = {'int8': 8, 'int4': 4}
STORED_BITS = 'stored'
FORMS = ('floats', STORED_BITS, *BITS_OF)
_ALIGNMENT = 64  # bytes, below which a CPU device copies what it is given


class WeightForm(NamedTuple):
  """How matrices are held, see `models.low_bits`.

  Attributes:
    weights: 'floats'; 'stored', in the bits that a GGUF file holds, floats
      where it holds these; 'int8' or 'int4', rounded when they are read.
    rounds: round activations to eight bits in products of few bits.
    blocks: put weights of few bits in blocks for the kernel, one by one, so
      that no second copy is in memory.
  """

  weights: str = 'floats'
  rounds: bool = False
  blocks: bool = False


FLOATS = WeightForm()


class Reader(NamedTuple):
  """One parameter, filled piece by piece."""

  source: Tensors
  shape: tuple[int, ...]
  tensors: Mapping[str, Any]  # what has a `read`, as `Tensor` has
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


class _Array(NamedTuple):
  """An array that is read as a tensor is."""

  array: np.ndarray

  def read(self, index: tuple[slice, ...]) -> np.ndarray:
    return self.array[index]


def read_low_bits(
  source: Tensors,
  shape: tuple[int, ...],
  tensors: Mapping[str, Any],
  rounds: bool,
  table: bool,
) -> LowBits | None:
  """Reads a parameter in the bits that a file holds.

  Args:
    source: its tensors.
    shape: [in, *outputs], or [V, E] of an embedding.
    tensors: by name.
    rounds: see `LowBits`.
    table: whether it is an embedding, whose rows are outputs.

  Returns:
    The weight; None where not all of its tensors are matrices of few bits.
  """
  files = (tensors[name].file for name in source.names)
  if not all(hasattr(file, 'take_apart') for file in files):
    return None
  taken = {
    name: tensors[name].file.take_apart(tensors[name].name)
    for name in source.names
  }
  parts = {name: one for name, one in taken.items() if one is not None}
  if len(parts) < len(taken):
    return None
  groups = max(one.scale.shape[1] for one in parts.values())
  bits = max(one.bits for one in parts.values())
  has_offset = any(one.offset is not None for one in parts.values())
  axis = 1 if table else 0

  def join(arrays, dtype) -> np.ndarray:
    inner = next(iter(arrays.values())).shape[1]
    size = tuple(inner if i == axis else n for i, n in enumerate(shape))
    read = {name: _Array(x) for name, x in arrays.items()}
    whole = (slice(None),) * len(size)
    x = Reader(source, size, read, np.dtype(dtype)).read(whole)
    return x.T if table else x

  def of_groups(x):
    return np.repeat(x, groups // x.shape[1], 1)

  values = join({name: one.values for name, one in parts.items()}, np.int8)
  scale = join(
    {name: of_groups(one.scale) for name, one in parts.items()}, np.float32
  )
  offset = None
  if has_offset:
    offsets = {
      name: of_groups(
        np.zeros_like(one.scale) if one.offset is None else one.offset
      )
      for name, one in parts.items()
    }
    offset = jnp.asarray(join(offsets, np.float32))
  return LowBits(
    _pack(jnp.asarray(values), bits), jnp.asarray(scale), offset, bits, rounds
  )


_pack = jax.jit(low_bits.pack, static_argnums=1)


def read_parameters(
  sources: Mapping[str, Tensors],
  shapes: Mapping[str, Any],
  tensors: Mapping[str, Tensor],
  dtype: Any,
  places: Mapping[str, jax.sharding.Sharding] = types.MappingProxyType({}),
  form: WeightForm = FLOATS,
) -> dict[str, Any]:
  """Reads parameters from tensors, one after another.

  Args:
    sources: the tensors of each parameter.
    shapes: the shape of each parameter.
    tensors: by name.
    dtype: of the parameters.
    places: of parameters on a mesh.
    form: of matrices.

  Raises:
    CheckpointError: a tensor has another shape, or is quantised.
  """
  check_tensors(sources, shapes, tensors)
  tied = 'embedding' in sources and 'unembedding' not in sources

  def one(key, source):
    shape, table = shapes[key].shape, key == 'embedding'
    if form.weights == STORED_BITS and (
      table or key.split('/')[-1] in linear.NAMES
    ):
      w = read_low_bits(source, shape, tensors, form.rounds, table)
      if w is not None:
        w = linear.in_blocks(w) if form.blocks else w
        return linear.Table(w) if table else w
    x = Reader(source, shape, tensors, dtype).onto(places.get(key))
    if form.weights not in BITS_OF:
      return x
    made = linear.quantize(
      flax.traverse_util.unflatten_dict({key: x}, sep='/'),
      tied,
      BITS_OF[form.weights],
      form.rounds,
    )
    if form.blocks:
      made = linear.to_native(made, tied)
    return flax.traverse_util.flatten_dict(made, sep='/')[key]

  return {key: one(key, source) for key, source in sources.items()}
