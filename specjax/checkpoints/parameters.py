"""Parameters from the tensors of a checkpoint, each to its place.

Beside the parameters themselves no more than one tensor is in memory at a
time: the files are mapped, and a tensor is copied into the parameter that it
is a part of, which the device then takes over where it can. Of weights in few
bits, `_AT_ONCE` parameters are made at a time at most.
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

from specjax.checkpoints import kept_weights
from specjax.checkpoints.families.table import Tensors
from specjax.checkpoints.files import CONFIG, GGUF, CheckpointError, Tensor
from specjax.checkpoints.gguf_blocks import Blocks
from specjax.checkpoints.precision import STORED
from specjax.models import linear, low_bits
from specjax.models.low_bits import LowBits

BITS_OF = {'int8': 8, 'int4': 4}
FLOAT, STORED_BITS = 'floats', 'stored'
FORMS = ('auto', FLOAT, STORED_BITS, *BITS_OF)
_VALUES = 1 << 20  # of few bits that are taken apart at once, in the caches
_AT_ONCE = 4  # parameters of few bits, each in floats at first


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
    x = kept_weights.allocate(shape, jax.dtypes.canonicalize_dtype(self.dtype))
    self.fill(x, cut)
    return x

  def fill(self, x: np.ndarray, cut: tuple[slice, ...]) -> None:
    """Writes the part x[cut] of the parameter."""
    split, names = self.source
    pieces = split.pieces(self.shape, len(names), cut)
    for i, (name, indices) in enumerate(zip(names, pieces, strict=True)):
      parts = [self.tensors[name].read(index) for index in indices]
      split.fill(x, len(names), i, parts)


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


class _FewBits(NamedTuple):
  """The form of a parameter of few bits, which its tensors decide.

  Attributes:
    bits: of a value.
    zero: the value that stands for 0.
    factors: for each array of scales, offsets and units of `LowBits`, how many
      inputs have one, and its type.
  """

  bits: int
  zero: int
  factors: dict[str, tuple[int, np.dtype]]

  def shapes(self, shape: tuple[int, ...], form: WeightForm) -> LowBits:
    """Returns the shapes of a weight [in, *outputs], in blocks or whole."""
    inputs, *outputs = shape
    blocked = form.blocks and linear.fills_blocks(outputs)

    def held(count: int, dtype: Any) -> jax.ShapeDtypeStruct:
      sizes = (
        linear.block_shape(count, outputs) if blocked else (count, *outputs)
      )
      return jax.ShapeDtypeStruct(sizes, dtype)

    return LowBits(
      held(inputs * self.bits // 32, jnp.int32),
      bits=self.bits,
      zero=self.zero,
      rounds=form.rounds,
      blocked=blocked,
      **{'offset': None}
      | {
        name: held(inputs // each, dtype)
        for name, (each, dtype) in self.factors.items()
      },
    )

  def arrays(self, blocks: Blocks) -> dict[str, np.ndarray]:
    """Returns the words and factors [..., out] of a part of a tensor."""
    values = blocks.values
    if self.zero != blocks.zero:  # Modulo 256, where values get signs.
      more = np.uint8((self.zero - blocks.zero) % 256)
      values = (values.view(np.uint8) + more).view(values.dtype)
    made = {'words': low_bits.pack_fours(values, self.bits)}
    for name, (each, dtype) in self.factors.items():
      x = getattr(blocks, name)
      if x is None:  # No offsets, beside tensors that have some.
        x = np.zeros((1, values.shape[1]), dtype)
      elif f'{name}_unit' not in self.factors:
        x, unit = x.astype(dtype), getattr(blocks, f'{name}_unit', None)
        if unit is not None:
          x = x * np.repeat(unit, len(x) // len(unit), 0)
      made[name] = np.repeat(x, blocks.inputs // each // len(x), 0)
    return made


def _few_bits(
  source: Tensors,
  tensors: Mapping[str, Any],
  key: str,
  form: WeightForm,
  tied: bool = False,
) -> _FewBits | None:
  """Returns the form in which a file has a parameter; None: floats are read.

  A table that is no output layer stays as the file has it, whatever matrices
  are rounded to. Tensors side by side in a parameter are given the bits that
  hold all of them, and, where their scales differ in type, scales in float32.
  """
  table = key == 'embedding'
  matrix = table or key.split('/')[-1] in linear.NAMES
  as_stored = form.weights == STORED_BITS
  as_stored |= form.weights in BITS_OF and table and not tied
  if not (as_stored and matrix):
    return None
  samples: list[Blocks] = []
  for name in source.names:
    tensor = tensors.get(name)  # None where the Hub cannot be reached.
    if tensor is None or not hasattr(tensor.file, 'sample'):
      return None
    sample = tensor.file.sample(tensor.name)
    if sample is None:
      return None
    samples.append(sample)
  zero = max(x.zero for x in samples)
  # Of the largest value, and 8 for values with signs.
  bits = max((2**x.bits - 1 + zero - x.zero).bit_length() for x in samples)
  bits = next(n for n in (4, 6, 8) if n >= min(bits, 8))
  factors: dict[str, tuple[int, np.dtype]] = {}
  for name in ('scale', 'offset'):
    some = [x for x in samples if getattr(x, name) is not None]
    unit = f'{name}_unit'
    kinds = {
      (getattr(x, name).dtype, getattr(x, unit) is not None) for x in some
    }
    if not some:
      continue
    group = min(x.inputs // len(getattr(x, name)) for x in some)
    if len(kinds) > 1:
      factors[name] = group, np.dtype(np.float32)
      continue
    ((dtype, has_unit),) = kinds
    factors[name] = group, dtype
    if has_unit:
      ends = (x.inputs // len(getattr(x, unit)) for x in some)
      factors[unit] = min(ends), getattr(some[0], unit).dtype
  if 'offset' in factors:  # As many as scales.
    least = min(factors['scale'][0], factors['offset'][0])
    for name in ('scale', 'offset'):
      factors[name] = least, factors[name][1]
  return _FewBits(bits, 0 if bits == 8 else zero, factors)


def _outputs_of(
  source: Tensors, shape: tuple[int, ...], tensors: Mapping[str, Any]
) -> dict[str, np.ndarray]:
  """Returns which output [out] of a parameter each row of its tensors is."""
  counts = [tensors[name].shape[0] for name in source.names]
  ends = np.cumsum(counts)
  rows = np.split(np.arange(ends[-1]), ends[:-1])
  numbered = {
    name: types.SimpleNamespace(read=part[:, None].__getitem__)
    for name, part in zip(source.names, rows, strict=True)
  }
  whole = (slice(None),) * len(shape)
  order = Reader(source, shape, numbered, np.int64).read(whole)
  outputs = np.argsort(order, axis=None)
  return {
    name: outputs[part] for name, part in zip(source.names, rows, strict=True)
  }


def read_low_bits(
  source: Tensors,
  shape: tuple[int, ...],
  tensors: Mapping[str, Any],
  few: _FewBits,
  form: WeightForm,
  table: bool,
  tied: bool = True,
) -> LowBits:
  """Reads a parameter in the bits that a file holds, a few rows at a time.

  Args:
    source: its tensors.
    shape: [in, *outputs], or [V, E] of an embedding.
    tensors: by name.
    few: how it is held.
    form: of matrices.
    table: whether it is an embedding, whose rows are outputs.
    tied: whether an embedding is the output layer as well.
  """
  shapes = few.shapes(shape[::-1] if table else shape, form)
  leaves, tree = jax.tree.flatten(shapes)
  one_input = (shape[0], 1) if table else (1, *shape[1:])

  def fill(arrays):
    made = jax.tree.unflatten(tree, arrays)
    for name, outputs in _outputs_of(source, one_input, tensors).items():
      tensor = tensors[name]
      step = max(1, _VALUES // tensor.shape[1])
      for i in range(0, len(outputs), step):
        rows = slice(i, min(i + step, len(outputs)))
        blocks = tensor.file.take_apart(tensor.name, rows)
        for part, x in few.arrays(blocks).items():
          array = getattr(made, part)
          linear.put_outputs(array, made.blocked, outputs[rows], x)
      tensor.file.let_go(tensor.name)

  arrays = kept_weights.recall(
    source.names[0],
    {tensors[name].file.identity for name in source.names},
    (source.names, shape, few, shapes.blocked),
    leaves,
    fill,
    whole=tied or not table,
  )
  made = [jax.device_put(x, may_alias=True) for x in arrays]
  return jax.tree.unflatten(tree, made)


def _is_tied(sources: Mapping[str, Tensors]) -> bool:
  """Returns whether the embedding is the output layer as well."""
  return 'embedding' in sources and 'unembedding' not in sources


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
    tensors: by name; `check_tensors` has looked at them.
    dtype: of the parameters.
    places: of parameters on a mesh.
    form: of matrices.
  """
  tied = _is_tied(sources)

  def one(key, source):
    shape, few = shapes[key].shape, _few_bits(source, tensors, key, form, tied)
    if few is None:
      x = Reader(source, shape, tensors, dtype).onto(places.get(key))
    else:
      table = key == 'embedding'
      x = read_low_bits(source, shape, tensors, few, form, table, tied)
    return _hold(key, x, tied, form)

  if form.weights == FLOAT:
    return {key: one(key, source) for key, source in sources.items()}
  # Blocks are taken apart, and floats are rounded, on several cores.
  wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64

  def apart(key, source):
    with jax.enable_x64(wide):  # Which is of a thread alone.
      return one(key, source)

  # The largest first: no core waits for another that began one at the end.
  order = sorted(sources, key=lambda key: -math.prod(shapes[key].shape))
  with futures.ThreadPoolExecutor(min(_AT_ONCE, os.cpu_count() or 1)) as pool:
    read = pool.map(apart, order, map(sources.__getitem__, order))
    made = dict(zip(order, read, strict=True))
  return {key: made[key] for key in sources}


def _hold(key: str, x: Any, tied: bool, form: WeightForm) -> Any:
  """Puts a parameter that was just read into its form."""
  if isinstance(x, LowBits):
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
  tied = _is_tied(sources)

  def one(key, source):
    shape, few = shapes[key].shape, _few_bits(source, tensors, key, form, tied)
    if few is not None:
      shape = shape[::-1] if key == 'embedding' else shape
      return _hold(key, few.shapes(shape, form), tied, form)
    x = jax.ShapeDtypeStruct(shape, dtype)
    return jax.eval_shape(lambda x: _hold(key, x, tied, form), x)

  return {key: one(key, source) for key, source in sources.items()}
