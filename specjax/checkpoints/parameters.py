"""Parameters from the tensors of a checkpoint, each to its place.

Beside the parameters themselves no more than one tensor is in memory at a
time: the files are mapped, and a tensor is copied into the parameter that it
is a part of, which the device then takes over where it can.
"""

import math
import os
import pathlib
import types
from collections.abc import Mapping
from concurrent import futures
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints.families.table import Tensors
from specjax.checkpoints.files import CONFIG, GGUF, CheckpointError, Tensor
from specjax.checkpoints.precision import STORED
from specjax.models import linear, low_bits
from specjax.models.low_bits import LowBits

BITS_OF = {'int8': 8, 'int4': 4}
FLOAT, STORED_BITS = 'floats', 'stored'
FORMS = ('auto', FLOAT, STORED_BITS, *BITS_OF)
_VALUES = 1 << 24  # of few bits that are taken apart at once
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

  weights: str = FLOAT
  rounds: bool = False
  blocks: bool = False

  @property
  def text(self) -> str | None:
    """The form in words; None for floats."""
    if self.weights == FLOAT:
      return None
    few = 'bits of the file' if self.weights == STORED_BITS else self.weights
    return f'{few}, activations rounded' if self.rounds else few


FLOATS = WeightForm()


def choose_form(
  weights: str, rounds: bool, directory: pathlib.Path, kernel: bool
) -> WeightForm:
  """Returns the form in which a model is read.

  Args:
    weights: one of `FORMS`; 'auto': 'stored' for a GGUF file where the kernel
      multiplies its bits as they lie, or else floats.
    rounds: round activations, too.
    directory: of the checkpoint.
    kernel: whether the kernel may multiply.

  Raises:
    ValueError: there is no such form, or nothing whose activations are rounded.
  """
  if weights not in FORMS:
    raise ValueError(
      f'weights is {weights!r}: choose one of {", ".join(FORMS)}'
    )
  if weights == 'auto':
    stored = (directory / GGUF).is_symlink()
    weights = STORED_BITS if stored and kernel else FLOAT
  if weights != FLOAT:
    return WeightForm(weights, rounds, kernel)
  if rounds:
    raise ValueError(
      'rounds is true, but weights are floats: choose weights=int8, or leave '
      'rounds out'
    )
  return FLOATS


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
    sizes = zip(cut, self.shape, strict=True)
    shape = tuple(len(range(*s.indices(size))) for s, size in sizes)
    x = _allocate(shape, jax.dtypes.canonicalize_dtype(self.dtype))
    self.fill(x, cut)
    return x

  def fill(self, x: np.ndarray, cut: tuple[slice, ...]) -> None:
    """Writes the part x[cut] of the parameter."""
    split, names = self.source
    pieces = split.pieces(self.shape, len(names), cut)
    for i, (name, indices) in enumerate(zip(names, pieces, strict=True)):
      parts = [self.tensors[name].read(index) for index in indices]
      split.fill(x, len(names), i, parts)


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


class _FewBits(NamedTuple):
  """The form of a parameter of few bits, which its tensors decide."""

  bits: int
  group: int
  has_offset: bool

  def shapes(self, shape: tuple[int, ...], rounds: bool) -> LowBits:
    """Returns the shapes of a weight [in, *outputs]."""
    inputs, *outputs = shape
    words = inputs * self.bits // 32, *outputs
    scale = jax.ShapeDtypeStruct((inputs // self.group, *outputs), jnp.float32)
    return LowBits(
      jax.ShapeDtypeStruct(words, jnp.int32),
      scale,
      scale if self.has_offset else None,
      self.bits,
      rounds,
    )


def _few_bits(
  source: Tensors, tensors: Mapping[str, Any], key: str, form: WeightForm
) -> _FewBits | None:
  """Returns the form of a parameter; None where it is floats."""
  matrix = key == 'embedding' or key.split('/')[-1] in linear.NAMES
  if form.weights != STORED_BITS or not matrix:
    return None
  samples = []
  for name in source.names:
    file = tensors[name].file
    sample = hasattr(file, 'sample') and file.sample(tensors[name].name)
    if not sample:
      return None
    samples.append(sample)
  return _FewBits(
    max(x.bits for x in samples),
    min(x.values.shape[1] // x.scale.shape[1] for x in samples),
    any(x.offset is not None for x in samples),
  )


def _packed(tensor: Tensor, bits: int) -> Any:
  """A tensor taken apart, with words for values; few values at a time."""
  rows, inputs = tensor.shape
  step, pieces = max(1, _VALUES // inputs), []
  for i in range(0, rows, step):
    part = tensor.file.take_apart(tensor.name, slice(i, min(i + step, rows)))
    words = low_bits.pack_rows(part.values, bits)
    pieces.append(part._replace(values=words))

  def join(arrays):
    if len(arrays) == 1:
      return arrays[0]
    return None if arrays[0] is None else np.concatenate(arrays)

  values, scale, offset, _ = zip(*pieces, strict=True)
  return pieces[0]._replace(
    values=join(values), scale=join(scale), offset=join(offset)
  )


def read_low_bits(
  source: Tensors,
  shape: tuple[int, ...],
  tensors: Mapping[str, Any],
  few: _FewBits,
  rounds: bool,
  table: bool,
) -> LowBits:
  """Reads a parameter in the bits that a file holds.

  Args:
    source: its tensors.
    shape: [in, *outputs], or [V, E] of an embedding.
    tensors: by name.
    few: how it is held.
    rounds: see `LowBits`.
    table: whether it is an embedding, whose rows are outputs.

  Returns:
    The weight, in arrays of numpy.
  """
  parts = {name: _packed(tensors[name], few.bits) for name in source.names}
  axis = 1 if table else 0
  groups = shape[axis] // few.group

  def join(arrays, dtype) -> np.ndarray:
    inner = next(iter(arrays.values())).shape[1]
    size = tuple(inner if i == axis else n for i, n in enumerate(shape))
    read = {name: _Array(x) for name, x in arrays.items()}
    # In the order of the file: inputs of an output side by side.
    last = np.moveaxis(np.empty(size, np.uint8), axis, -1).shape
    x = np.moveaxis(np.empty(last, dtype), -1, axis)
    whole = (slice(None),) * len(size)
    Reader(source, size, read, np.dtype(dtype)).fill(x, whole)
    return x.T if table else x

  def of_groups(x):
    return np.repeat(x, groups // x.shape[1], 1)

  words = join({name: one.values for name, one in parts.items()}, np.int32)
  scale = join(
    {name: of_groups(one.scale) for name, one in parts.items()}, np.float32
  )
  offset = None
  if few.has_offset:
    offsets = {
      name: of_groups(
        np.zeros_like(one.scale) if one.offset is None else one.offset
      )
      for name, one in parts.items()
    }
    offset = join(offsets, np.float32)
  return LowBits(words, scale, offset, few.bits, rounds)


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
    shape, few = shapes[key].shape, _few_bits(source, tensors, key, form)
    if few is None:
      x = Reader(source, shape, tensors, dtype).onto(places.get(key))
    else:
      table = key == 'embedding'
      x = read_low_bits(source, shape, tensors, few, form.rounds, table)
    return _hold(key, x, tied, form)

  if form.weights != STORED_BITS:
    return {key: one(key, source) for key, source in sources.items()}
  # Blocks are taken apart on every core.
  wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64

  def apart(key, source):
    with jax.enable_x64(wide):  # Which is of a thread alone.
      return one(key, source)

  with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    read = pool.map(apart, sources, sources.values())
    return dict(zip(sources, read, strict=True))


def _own(x: Any) -> Any:
  """Gives a device an array that nobody else knows."""
  if not isinstance(x, np.ndarray):
    return x
  own = _allocate(x.shape, x.dtype)
  own[...] = x
  return jax.device_put(own, may_alias=True)


def _hold(key: str, x: Any, tied: bool, form: WeightForm) -> Any:
  """Puts a parameter that was just read into its form."""
  if isinstance(x, LowBits):
    x = jax.tree.map(_own, linear.in_blocks(x) if form.blocks else x)
    return linear.Table(x) if key == 'embedding' else x
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


def shape_parameters(
  sources: Mapping[str, Tensors],
  shapes: Mapping[str, Any],
  tensors: Mapping[str, Tensor],
  dtype: Any,
  form: WeightForm,
) -> dict[str, Any]:
  """Returns the shapes of the parameters that `read_parameters` reads."""
  tied = 'embedding' in sources and 'unembedding' not in sources

  def one(key, source):
    shape, few = shapes[key].shape, _few_bits(source, tensors, key, form)
    if few is None:
      x = jax.ShapeDtypeStruct(shape, dtype)
    else:
      x = few.shapes(shape[::-1] if key == 'embedding' else shape, form.rounds)
    return jax.eval_shape(lambda x: _hold(key, x, tied, form), x)

  return {key: one(key, source) for key, source in sources.items()}
