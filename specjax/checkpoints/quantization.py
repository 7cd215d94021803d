"""Weights that others quantised, read as the floats that they stand for.

A weight NAME [out, in] is several tensors of a file. Which they are, the
`quant_method` in `config.json` says:

  fp8, fbgemm_fp8     NAME, NAME_scale_inv or NAME_scale
  compressed-tensors  NAME or NAME_packed, NAME_scale, NAME_zero_point
  awq, gptq           qweight, qzeros, scales, g_idx: [in, out]
  mxfp4               NAME_blocks, NAME_scales: [X, out, in] of [X, in, out]
  specjax-int8        NAME, NAME_scale

In all of them a weight is `(value - zero) * scale`. A scale and a zero are
those of a block of values, whose number along each axis follows from shapes,
or from `g_idx`, which names the block of each input. The product is float32,
rounded once, to the type of the run. Activations and caches, which engines
round as well, stay as they are.

Sources: DeepSeek-AI (2024, arXiv:2412.19437) for blocks of fp8, Lin et al.
(2023, arXiv:2306.00978) for AWQ, Frantar et al. (2022, arXiv:2210.17323) for
GPTQ, the OCP Microscaling Formats Specification (2023) for MXFP4.
"""

import math
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.checkpoints.files import (
  CONFIG,
  QUANTIZED,
  SCALE,
  CheckpointError,
  Tensor,
)

_FIELDS = 'quantization_config', 'compression_config'
_LISTS = 'ignore', 'ignored_layers', 'modules_to_not_convert'
# Of activations and caches, which are not rounded here.
_OF_ACTIVATIONS = re.compile(
  r'.*\.(input|output|activation|kv|[qkv])_(scale|scale_ub|zero_point)'
)
_SPARE = '_shape'  # end of the name of a tensor that is not needed
_VALUES = 1 << 20  # that are floats at once, beside the weight
_HALF = 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0
_FP4 = *_HALF, *(-x for x in _HALF)
_FP8 = 'F8_E4M3', 'F8_E5M2'
_FLOATS = 'F32', 'F16', 'BF16'
_EXPONENTS = 'U8', 'F8_E8M0'  # powers of two, 127 more than they are


class Layout(NamedTuple):
  """The tensors of a weight, and how they are put together.

  Attributes:
    title: of the format.
    values: end of the name of the values.
    types: that values have.
    scales: ends of the name that scales may have.
    zero: end of the name of the zeros.
    needs_zero: whether a weight without zeros is refused.
    order: end of the name of the block of each input.
    weight: end of the name of the weight.
    bits: of a value inside a word, the lowest first; 0: it is an entry itself.
    axis: along which values are packed, and which `order` is about.
    zero_axis: along which zeros are packed.
    places: of the values that follow each other, in a word.
    plus_one: whether zeros are stored with 1 taken from the word of each.
    table: of the floats that values are numbers of; empty: they are integers.
    inner: entries of a further axis, which continues the last.
    block: rows and columns of a block; 0: as many as follow from shapes.
    transposed: whether the last two axes of a weight are the other way round.
  """

  title: str
  values: str = ''
  types: tuple[str, ...] = _FP8
  scales: tuple[str, ...] = (SCALE,)
  zero: str = '_zero_point'
  needs_zero: bool = False
  order: str = '_g_idx'
  weight: str = ''
  bits: int = 0
  axis: int = -1
  zero_axis: int = -2
  places: tuple[int, ...] = ()
  plus_one: bool = False
  table: tuple[float, ...] = ()
  inner: int = 1
  block: tuple[int, int] = (0, 0)
  transposed: bool = False


class Quantized(NamedTuple):
  """A weight that has not been read yet.

  Attributes:
    layout: of its tensors.
    tensors: by what they are: 'values', 'scale', 'zero', 'order'.
    stored: sizes of the axes as they lie in the file.
    grid: how many blocks there are along each of them.
    path: of the values.
    name: of the weight.
    shape: of the weight.
    dtype: the nearest type that weights are computed in.
  """

  layout: Layout
  tensors: Mapping[str, Tensor]
  stored: tuple[int, ...]
  grid: tuple[int, ...]
  path: pathlib.Path
  name: str
  shape: tuple[int, ...]
  dtype: str

  @property
  def file(self) -> Any:
    """The file of the values; None where it is not here."""
    return self.tensors['values'].file

  @property
  def parts(self) -> tuple[Tensor, ...]:
    """The tensors of the file."""
    return tuple(self.tensors.values())

  @property
  def title(self) -> str:
    """How it is stored, in words."""
    sizes = zip(
      self.stored[-2:], self.grid[-2:], self._blocks[-2:], strict=True
    )
    block = [b or -(-size // count) for size, count, b in sizes]
    if self.layout.transposed and self.layout.inner == 1:
      block.reverse()
    return f'{self.layout.title}, a scale for {block[0]} x {block[1]} values'

  @property
  def _blocks(self) -> tuple[int, ...]:
    return (0,) * (len(self.stored) - 2) + self.layout.block

  def read(self, index: tuple[slice, ...]) -> np.ndarray:
    """A part of it, in float32."""
    spans = [
      s.indices(size)[:2] for s, size in zip(index, self.shape, strict=True)
    ]
    made = np.empty([stop - start for start, stop in spans], np.float32)
    x = made
    if self.layout.transposed:
      spans[-2:] = spans[:-3:-1]
      x = made.swapaxes(-1, -2)
    first, last = spans[-2]
    step = max(1, _VALUES * (last - first) // max(1, made.size))
    for start in range(first, last, step):
      stop = min(start + step, last)
      part = *spans[:-2], (start, stop), spans[-1]
      x[..., start - first : stop - first, :] = self._floats(part)
    return made

  def _floats(self, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns the values of a span of each axis of the file."""
    layout, values = self.layout, self._entries('values', spans)
    if layout.table:
      x = np.asarray(layout.table, np.float32)[values]
    else:
      x = values.astype(np.float32)
    middle = 0 if layout.table else 1 << layout.bits >> 1
    if 'zero' in self.tensors:
      # Zeros that are entries themselves are integers with a sign.
      packed = _in_word(layout, 'zero', self.tensors['zero']) > 1
      x -= self._entries('zero', spans).astype(np.float32)
      middle = 0 if packed else middle
    x -= middle
    scale = self._entries('scale', spans)
    if scale.dtype == np.uint8:
      scale = np.ldexp(np.float32(1), scale.astype(np.int32) - 127)
    x *= scale.astype(np.float32)
    return x

  def _entries(self, role: str, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns the entries of a tensor for spans of values.

    An axis has one entry where that is the only one.
    """
    layout, tensor = self.layout, self.tensors[role]
    each = _in_word(layout, role, tensor)
    whole = (slice(None),) * len(tensor.shape)
    if each == 1 and math.prod(tensor.shape) == 1:
      return np.asarray(tensor.read(whole)).reshape((1,) * len(self.stored))
    axis = layout.axis if role == 'values' else layout.zero_axis
    inner = layout.inner if role == 'values' else 1
    cut, rest = list(whole), []
    for i, span in enumerate(spans):
      numbers = self._numbers(role, i, span)
      width = each * inner if i == axis % len(spans) else 1
      start, stop = numbers.min() // width, numbers.max() // width + 1
      cut[i] = slice(int(start), int(stop))
      rest.append(numbers - start * width)
    x = np.asarray(tensor.read(tuple(cut)))
    if inner > 1:
      x = x.reshape(*x.shape[:-2], -1)
    if each > 1:
      one = layout.plus_one and role == 'zero'
      x = _unpack(x, layout.bits, axis, layout.places, one)
    for i, numbers in enumerate(rest):
      if (np.diff(numbers) == 1).all():
        side = slice(numbers[0], numbers[-1] + 1)
        x = x[(slice(None),) * i + (side,)]
      else:
        x = np.take(x, numbers, i)
    return x

  def _numbers(self, role: str, axis: int, span: tuple[int, int]) -> np.ndarray:
    """Returns the numbers of the entries that a span of an axis has."""
    size, count = self.stored[axis], self.grid[axis]
    if role == 'values':
      return np.arange(*span)
    if count == 1:
      return np.zeros(1, np.int64)
    order = self.tensors.get('order')
    if order is not None and axis == self.layout.axis % len(self.stored):
      numbers = order.read((slice(*span),)).astype(np.int64)
      if numbers.min() < 0 or numbers.max() >= count:
        raise CheckpointError(
          f'{order.path}: {order.name} names groups that are none of '
          f'{count}; copy the checkpoint again'
        )
      return numbers
    return np.arange(*span) // (self._blocks[axis] or size // count)


def _in_word(layout: Layout, role: str, tensor: Tensor) -> int:
  """Returns how many values an entry of a tensor has."""
  zeros = role == 'zero' and tensor.dtype == 'I32'
  if not layout.bits or not (zeros or role == 'values'):
    return 1
  return {'I32': 32, 'U8': 8}[tensor.dtype] // layout.bits


def _unpack(
  words: np.ndarray, bits: int, axis: int, places: Sequence[int], plus_one: bool
) -> np.ndarray:
  """Takes words apart along an axis, into integers without a sign."""
  words = np.moveaxis(words, axis, -1)
  words = words.view(np.dtype(f'u{words.itemsize}'))
  shifts = np.arange(0, 8 * words.itemsize, bits).astype(words.dtype)
  if plus_one:
    # 1 was taken from the words, so that a zero of 0 borrows from the next. Of
    # such zeros readers differ; this undoes what GPTQModel writes.
    words = words + (words.dtype.type(1) << shifts).sum(dtype=words.dtype)
  values = (words[..., None] >> shifts & ((1 << bits) - 1)).astype(np.uint8)
  if places:
    values = values[..., list(places)]
  return np.moveaxis(values.reshape(*words.shape[:-1], -1), -1, axis)


def _choose(field: str, value: Any, *choices: Any) -> Any:
  """Returns the value of a field, or the first choice where it has none.

  Raises:
    ValueError: it is none of the choices; names it.
  """
  given = choices[0] if value is None else value
  given = given.lower() if isinstance(given, str) else given
  if given not in choices:
    listed = ', '.join(map(repr, choices))
    raise ValueError(f'{field} = {value!r}, of which {listed} can be read')
  return choices[choices.index(given)]


def _object(config: Mapping[str, Any], field: str) -> Mapping[str, Any]:
  """Returns an object inside; an empty one where there is none.

  Raises:
    ValueError: it is no object; names it.
  """
  value = config.get(field) or {}
  if not isinstance(value, Mapping):
    raise ValueError(f'{field} = {value!r}, which must be an object')
  return value


def _block(field: str, value: Any) -> tuple[int, int]:
  """Returns the rows and columns of a block.

  Raises:
    ValueError: they are not two sizes; names the field.
  """
  if value is None:
    return 0, 0
  pair = list(value) if isinstance(value, list | tuple) else []
  if len(pair) != 2 or not all(type(n) is int and n > 0 for n in pair):
    raise ValueError(f'{field} = {value!r}, which must be two sizes')
  return pair[0], pair[1]


def _group(value: Any) -> int:
  """Returns the inputs of a group; 0: all of them.

  Raises:
    ValueError: it is no size.
  """
  if value in (None, -1):
    return 0
  if type(value) is not int or value < 1:
    raise ValueError(f'group_size = {value!r}, which must be positive or -1')
  return value


def _fp8(config: Mapping[str, Any]) -> Layout:
  _choose('expert_dtype', config.get('expert_dtype'), 'fp8')
  return Layout(
    'fp8',
    scales=('_scale_inv', SCALE),
    block=_block('weight_block_size', config.get('weight_block_size')),
  )


def _compressed(config: Mapping[str, Any]) -> Layout:
  names = [f'{kind}-quantized' for kind in ('float', 'int', 'naive', 'pack')]
  form = _choose('format', config.get('format') or 'none', *names)
  sparsity = _object(config, 'sparsity_config').get('format')
  _choose('sparsity_config.format', sparsity, 'dense')
  if transforms := _object(config, 'transform_config').get('config_groups'):
    raise ValueError(f'transform_config = {transforms!r}, which is not read')
  groups = _object(config, 'config_groups')
  schemes = [_object(_object(groups, x), 'weights') for x in groups]
  weights = [scheme for scheme in schemes if scheme]
  if not weights:
    raise ValueError('config_groups, in which no group has weights')

  def same(field: str, default: Any) -> Any:
    found = [x.get(field, default) for x in weights]
    if any(x != found[0] for x in found):
      raise ValueError(
        f'config_groups with {field} of {found}, not one of them'
      )
    return found[0]

  needs_zero = not any(x.get('symmetric', True) for x in weights)
  if form == 'pack-quantized':
    bits = _choose('num_bits', same('num_bits', 8), 4, 8, 2)
    return Layout(
      f'int{bits}',
      '_packed',
      ('I32',),
      needs_zero=needs_zero,
      bits=bits,
      block=(0, _group(same('group_size', None))),
    )
  integers = same('type', 'int') == 'int'
  return Layout(
    'int8' if integers else 'fp8',
    '.weight',
    ('I8',) if integers else _FP8,
    ('.weight_scale',),
    '.weight_zero_point',
    needs_zero,
    '.weight_g_idx',
    weight='.weight',
    block=_block('block_structure', same('block_structure', None)),
  )


def _in_columns(
  title: str, config: Mapping[str, Any], **options: Any
) -> Layout:
  """Returns the layout of AWQ and GPTQ, whose tensors are [in, out]."""
  return Layout(
    title,
    '.qweight',
    ('I32',),
    ('.scales',),
    '.qzeros',
    True,
    '.g_idx',
    weight='.weight',
    zero_axis=-1,
    block=(_group(config.get('group_size')), 0),
    transposed=True,
    **options,
  )


def _awq(config: Mapping[str, Any]) -> Layout:
  for field in ('version', 'format', 'checkpoint_format'):
    _choose(field, config.get(field), 'gemm')
  if config.get('backend') == 'llm-awq':
    raise ValueError("backend = 'llm-awq', whose packing is not read")
  _choose('zero_point', config.get('zero_point'), True)
  bits = _choose('bits', config.get('bits'), 4)
  return _in_columns(
    'awq int4', config, bits=bits, places=(0, 4, 1, 5, 2, 6, 3, 7)
  )


def _gptq(config: Mapping[str, Any]) -> Layout:
  _choose('is_marlin_format', config.get('is_marlin_format'), False)
  form = config.get('checkpoint_format') or config.get('format')
  plus_one = _choose('checkpoint_format', form, 'gptq', 'gptq_v2') == 'gptq'
  bits = _choose('bits', config.get('bits'), 4, 8, 2)
  return _in_columns(
    f'gptq int{bits}', config, bits=bits, axis=-2, plus_one=plus_one
  )


_MXFP4 = Layout(
  'mxfp4',
  '_blocks',
  ('U8',),
  ('_scales',),
  bits=4,
  table=_FP4,
  inner=16,
  block=(0, 32),
  transposed=True,
)
METHODS: dict[str, Callable[[Mapping[str, Any]], Layout]] = {
  'fp8': _fp8,
  'fbgemm_fp8': lambda config: Layout('fp8'),
  'compressed-tensors': _compressed,
  'awq': _awq,
  'gptq': _gptq,
  'mxfp4': lambda config: _MXFP4,
  QUANTIZED: lambda config: Layout('int8', types=('I8',)),
}


def _take_config(attributes: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
  """Returns the attributes without what is said of quantisation, and that."""
  rest = dict(attributes)
  found = [rest.pop(field, None) for field in _FIELDS]
  text = rest.get('text_config')
  if isinstance(text, Mapping):
    rest['text_config'], inside = _take_config(text)
    found.append(inside)
  return rest, next((x for x in found if x is not None), None)


def split(
  directory: pathlib.Path, attributes: Mapping[str, Any], eight: bool = True
) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], dict[str, Any]]]:
  """Splits `config.json` into a model and the way that weights are stored.

  Args:
    directory: of the checkpoint, which errors name.
    attributes: content of `config.json`.
    eight: whether weights of `specjax-int8` may be read.

  Returns:
    The attributes of the model alone, and a function that joins the tensors of
    a file into weights, by their names in a file of floats.

  Raises:
    CheckpointError: the method, or what it is told, is not known.
  """
  rest, config = _take_config(attributes)
  if config is None:
    return rest, dict
  file = directory / CONFIG
  remedy = (
    'use the checkpoint of floats that it was made from, or one of '
    f'quant_method {", ".join(name for name in METHODS if name != QUANTIZED)}'
  )
  config = config if isinstance(config, Mapping) else {}
  method = config.get('quant_method')
  if not isinstance(method, str) or method not in METHODS:
    raise CheckpointError(
      f'{file}: unsupported quantization_config with quant_method {method!r}; '
      f'{remedy}'
    )
  if method == QUANTIZED and not eight:
    raise CheckpointError(
      f'{directory} holds weights in eight bits (quant_method {QUANTIZED!r}): '
      'draft with them by specjax.drafters.quantized.load, or use the '
      'checkpoint of floats that they were made from'
    )
  try:
    layout = METHODS[method](config)
    listed = _listed(config)
  except ValueError as error:
    raise CheckpointError(
      f'{file}: quantization_config has {error}; {remedy}'
    ) from error
  return rest, lambda tensors: join(layout, tensors, listed)


def _listed(config: Mapping[str, Any]) -> list[re.Pattern[str]]:
  """Returns patterns of the modules that are not quantised.

  A name stands for its module and all inside.

  Raises:
    ValueError: they are no list of names.
  """
  found: list[re.Pattern[str]] = []
  for field in _LISTS:
    value = config.get(field) or []
    if not isinstance(value, list) or not all(
      isinstance(x, str) for x in value
    ):
      raise ValueError(f'{field} = {value!r}, which must be a list of names')
    for entry in value:
      form = rf'(.*\.)?{re.escape(entry)}(\.|$)'
      try:
        found += [re.compile(entry[3:] if entry[:3] == 're:' else form)]
      except re.error as error:
        raise ValueError(f'{field} with {entry!r} ({error})') from error
  return found


def join(
  layout: Layout,
  tensors: Mapping[str, Any],
  listed: Sequence[re.Pattern[str]] = (),
) -> dict[str, Any]:
  """Joins the tensors of quantised weights; the others stay.

  Args:
    layout: of the weights.
    tensors: by name.
    listed: of modules that are not quantised: their tensors stay.

  Raises:
    CheckpointError: a tensor of a weight is missing, or of another type or
      shape than its values; it names them.
  """
  left = {x: t for x, t in tensors.items() if not _OF_ACTIVATIONS.fullmatch(x)}
  for name, values in tensors.items():
    if not name.endswith(layout.values) or values.dtype not in layout.types:
      continue
    base = name.removesuffix(layout.values)
    weight = base + layout.weight
    module = weight.removesuffix('.weight')
    if name not in left or any(x.match(module) for x in listed):
      continue
    scale = next((x for x in layout.scales if base + x in left), None)
    found = {'values': name, 'scale': base + (scale or layout.scales[0])}
    found |= {
      role: base + end
      for role, end in (('zero', layout.zero), ('order', layout.order))
      if base + end in left or (role == 'zero' and layout.needs_zero)
    }
    for role, other in found.items():
      if other not in left:
        raise CheckpointError(
          f'{values.path}: {name} is quantised ({layout.title}), and {other}, '
          f'its {role}, is missing; copy the checkpoint again'
        )
    parts = {role: left.pop(other) for role, other in found.items()}
    left.pop(base + _SPARE, None)
    left[weight] = _fit(layout, weight, parts)
  return left


def _fit(layout: Layout, weight: str, parts: dict[str, Tensor]) -> Quantized:
  """Returns a weight, of which no values are read.

  Raises:
    CheckpointError: a tensor of it does not fit the values.
  """
  values, scale = parts['values'], parts['scale']
  zero, order = parts.get('zero'), parts.get('order')
  axes = list(values.shape)

  def refuse(tensor: Tensor, expected: str) -> CheckpointError:
    return CheckpointError(
      f'{tensor.path}: {tensor.name} is {tensor.dtype} {tensor.shape} and '
      f'{values.name} {values.dtype} {values.shape}, where {layout.title} has '
      f'{expected}; copy the checkpoint again'
    )

  if layout.inner > 1 and (len(axes) != 4 or axes.pop() != layout.inner):
    raise refuse(values, f'[X, out, in / 32, {layout.inner}]')
  if len(axes) < 2:
    raise refuse(values, 'matrices')
  axes[layout.axis] *= _in_word(layout, 'values', values) * layout.inner
  blocks = (0,) * (len(axes) - 2) + layout.block
  grid = scale.shape
  if math.prod(grid) == 1:
    grid = (1,) * len(axes)
  if (
    scale.dtype not in (_EXPONENTS if layout.table else _FLOATS + _EXPONENTS)
    or len(grid) != len(axes)
    or any(
      count != -(-size // block)
      if block and count > 1
      else count < 1 or size % count
      for size, count, block in zip(axes, grid, blocks, strict=True)
    )
  ):
    raise refuse(scale, 'a scale for each block')
  if zero is not None:
    expected = list(grid)
    each = _in_word(layout, 'zero', zero)
    expected[layout.zero_axis] = -(-expected[layout.zero_axis] // each)
    fits = list(zero.shape) == expected
    fits |= zero.shape == scale.shape and each == 1
    if not fits or zero.dtype not in ('I32', 'I8', 'U8', *_FP8):
      raise refuse(zero, 'a zero for each block')
  if order is not None and order.shape != (axes[layout.axis],):
    raise refuse(order, 'the block of each input')
  shape = list(axes)
  if layout.transposed:
    shape[-2:] = shape[:-3:-1]
  whole = scale.dtype in _FLOATS and values.dtype not in _FP8
  return Quantized(
    layout,
    parts,
    tuple(axes),
    tuple(grid),
    values.path,
    weight,
    tuple(shape),
    scale.dtype if whole else 'BF16',
  )
