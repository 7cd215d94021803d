"""Loading a model: its files are checked, then its `parameters` are read."""

import collections
import dataclasses
import hashlib
import math
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import own, parameters, quantization
from specjax.checkpoints.families import conversion, wrappers
from specjax.checkpoints.families.table import Family, Tensors
from specjax.checkpoints.files import (
  CODES,
  CONFIG,
  EIGHT,
  CheckpointError,
  Tensor,
  open_tensors,
  read_json,
  shorten,
)
from specjax.checkpoints.hub import headers, lacks_weights, locate
from specjax.checkpoints.parameters import FLOATS, WeightForm
from specjax.checkpoints.precision import AUTO, STORED, check_dtype, resolve
from specjax.checkpoints.quantization import Quantized
from specjax.errors import blame
from specjax.models import devices, linear, transformer, variants
from specjax.models.own import as_target
from specjax.models.sharding import Placement
from specjax.models.transformer import Model
from specjax.types import Target

if TYPE_CHECKING:
  from specjax.checkpoints.vocabularies import Other

_ROWS = 4096  # of a tensor that are compared at once
_SAMPLED = 64  # values of each tensor in a fingerprint
_TREE = pathlib.Path('tree')  # Errors name it as the file of arrays at hand.
_CODES = CODES | {np.dtype(x).name: code for code, x in EIGHT.items()}


class Description(NamedTuple):
  """The content of a checkpoint without its weights.

  family: `model_type` of `config.json`.
  model: the model.
  stored_bytes: of the weight files; None where they are on the Hub, which
    cannot be reached.
  dtype: that most of the weights have there, 'bfloat16' for example; of
    quantised weights, the nearest type of floats.
  other: the vocabulary of a draft, where it was compared with its target's and
    is another one.
  quantized: how most of the quantised weights are stored, in words; None where
    all are floats.
  shapes: (dtype, form) -> shapes of the parameters that `load` returns.
  """

  family: str
  model: Model
  stored_bytes: int | None
  dtype: str = 'float32'
  other: 'Other | None' = None
  quantized: str | None = None
  shapes: Callable[[Any, WeightForm], Any] | None = None


class _Plan(NamedTuple):
  """A checked checkpoint whose weights have not been read yet."""

  family: Family
  model: Model
  shapes: dict[str, jax.ShapeDtypeStruct]
  sources: dict[str, Tensors]
  tensors: dict[str, Tensor]  # by the family's names

  @property
  def dtype(self) -> str:
    """The type that most of the weights have in the files."""
    return STORED[self._most(lambda tensor: tensor.dtype) or 'F32']

  @property
  def quantized(self) -> str | None:
    """How most of the quantised weights are stored, in words."""
    return self._most(lambda tensor: getattr(tensor, 'title', None))

  def _most(self, kind: Callable[[Any], str | None]) -> str | None:
    """The kind that most values have; None where no tensor has any."""
    counts: collections.Counter[str] = collections.Counter()
    for tensor in self.tensors.values():  # Of the Hub there may be none.
      if name := kind(tensor):
        counts[name] += math.prod(tensor.shape)
    return max(counts, key=counts.__getitem__, default=None)

  def shapes_of(self, dtype: Any, form: WeightForm) -> Any:
    """Shapes of the parameters that `load` returns."""
    flat = parameters.shape_parameters(
      self.sources, self.shapes, self.tensors, dtype, form
    )
    made = flax.traverse_util.unflatten_dict(flat, sep='/')
    if not form.blocks:
      return made
    tied = self.model.config.tied_embeddings
    return jax.eval_shape(lambda x: linear.to_native(x, tied), made)

  def read(self, dtype: Any, *options: Any) -> dict[str, Any]:
    """Reads the parameters; see `parameters.read_parameters`."""
    flat = parameters.read_parameters(
      self.sources, self.shapes, self.tensors, dtype, *options
    )
    made = flax.traverse_util.unflatten_dict(flat, sep='/')
    return devices.lay_weights(self.model.config.device, made)


def open_named(directory: pathlib.Path) -> dict[str, Any] | None:
  """Returns weights by the names that a language model alone has for them.

  Args:
    directory: of the checkpoint.

  Returns:
    The tensors. Those of a model of the Hub whose weights are not here cannot
    be read; None where the Hub cannot be reached.

  Raises:
    CheckpointError: a file is missing or damaged.
  """
  if lacks_weights(directory):
    tensors = headers(directory)
  else:
    tensors = open_tensors(directory)
  if tensors is None:
    return None
  config = read_json(directory / CONFIG)
  attributes, join = quantization.split(directory, config)
  return wrappers.text_tensors(attributes, join(tensors))


def _plan(directory, max_length=None, quantized=False) -> _Plan:
  attributes = read_json(directory / CONFIG)
  attributes, _ = quantization.split(directory, attributes, quantized)
  return _fit(
    directory,
    str(directory / CONFIG),
    attributes,
    max_length,
    lambda: open_named(directory),
  )


def _fit(directory, told_by, attributes, max_length, open_all) -> _Plan:
  """Checks attributes, which errors name, and then the tensors."""
  with blame(f'{told_by}: ', CheckpointError):
    family, config = conversion.read_attributes(attributes, max_length)
    shapes = conversion.shape_params(config)
  tensors = open_all()
  family = family.of(tensors or ())
  untold = wrappers.is_wrapper(attributes) and wrappers.TIED not in attributes
  if tensors is not None and untold:  # Its default was another before.
    (head,) = family.sources['unembedding'].names
    config = dataclasses.replace(config, tied_embeddings=head not in tensors)
    shapes = conversion.shape_params(config)
  sources = conversion.fill(family.table(config), shapes)
  form = devices.here()
  model = variants.for_device(transformer.build(config), form)
  if tensors is None:  # They are checked once they are here.
    return _Plan(family, model, shapes, sources, {})
  tensors = _rename(tensors, family, config, sources)
  _check_names(directory, family, config, sources, tensors)
  parameters.check_tensors(sources, shapes, tensors)
  return _Plan(family, model, shapes, sources, tensors)


def _describe_own(target: Target, *args: Any, **options: Any) -> Description:
  del args, options  # Nothing of them is known of other code.
  shapes = jax.eval_shape(lambda: target.params)
  return Description(
    'other code',
    target.model,
    sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes)),
    target.dtype,
    shapes=lambda dtype, form: shapes,
  )


@own.or_of(_describe_own)
def describe(
  path: str | os.PathLike,
  max_length: int | None = None,
  quantized: bool = False,
) -> Description:
  """Checks a checkpoint as `load` does, and reads no weights.

  Only `config.json` and the headers of the weights are read, but where tied
  weights are stored twice, which are then compared, and biases of quantised
  weights that the model has no place for, which must be 0. Of a model on the
  Hub neither is fetched for it: the headers are looked at there, and where it
  cannot be reached `config.json` has to do.

  Args:
    path: as for `load`, and so are the others.
    max_length: longest sequence of the run.
    quantized: take weights of our own in eight bits, too.

  Raises:
    CheckpointError: `load` would refuse it.
  """
  plan = _plan(locate(path), max_length, quantized)
  stored = _bytes_of(plan.tensors.values())
  return Description(
    plan.family.model_type,
    plan.model,
    stored,
    plan.dtype,
    shapes=plan.shapes_of,
    quantized=plan.quantized,
  )


def _bytes_of(tensors) -> int | None:
  files = {tensor.path for tensor in tensors}
  if all(file.is_file() for file in files):
    return sum(file.stat().st_size for file in files) if files else None
  stored = [part for x in tensors for part in getattr(x, 'parts', (x,))]
  sizes = ((re.search(r'\d+', x.dtype), math.prod(x.shape)) for x in stored)
  return sum(int(bits[0] if bits else 8) * size for bits, size in sizes) // 8


@own.or_of(own.weights_of)
def load(
  path: str | os.PathLike,
  dtype: Any = 'float32',
  max_length: int | None = None,
  placement: Placement | None = None,
  quantized: bool = False,
  form: WeightForm = FLOATS,
) -> tuple[Model, dict[str, Any]]:
  """Loads a model and its parameters.

  Args:
    path: a local directory, or 'owner/model' or 'owner/model@revision' of the
      Hugging Face Hub, see `locate`.
    dtype: of the parameters, whatever the file has; 'auto' as in
      `precision.resolve`.
    max_length: longest sequence of the run, by default the checkpoint's
      maximum. Rotary scalings that depend on the length of the text
      ('dynamic', 'longrope') are fixed for it: see `rotary.LongRope`.
    placement: a mesh of devices to load onto. Each process reads what its own
      devices hold, one parameter after another, and keeps nothing of it.
    quantized: read weights of our own in eight bits too, as the floats that
      they stand for: `linear.quantize` makes the same integers of these again.
    form: of matrices; on a mesh they are floats.

  Returns:
    The model, on the mesh where one is given, and its params, nested as its
    `init` returns them.

  Raises:
    CheckpointError: the directory is incomplete or damaged, or describes a
      model that is not exactly ours.
  """
  if placement is not None and form != FLOATS:
    raise CheckpointError(
      f'{path}: weights are floats on a mesh; leave out weights = '
      f'{form.weights!r}'
    )
  directory = locate(path, weights=True)
  plan = _plan(directory, max_length, quantized)
  model, places = plan.model, {}
  dtype = resolve(dtype, plan.dtype)
  if placement is not None:
    places = flax.traverse_util.flatten_dict(
      transformer.shardings(model.config, placement), sep='/'
    )
    model = variants.place(model, placement)
  made = plan.read(dtype, places, form)
  return variants.to_native(model, made) if form.blocks else (model, made)


class _Memory(dict):
  """Arrays by name, which are read as those of a file."""

  def get_slice(self, name: str) -> np.ndarray:
    return np.asarray(self[name])


def from_pytree(
  config: Mapping[str, Any],
  tree: Mapping[str, Any],
  *,
  dtype: Any = AUTO,
  max_length: int | None = None,
  tokenizer: Any = None,
  eos: tuple[int, ...] = (),
) -> Target:
  """Returns the target of a tree of arrays, in the layout 'whole'.

  They may be those that Orbax restored, and are checked as files are; no file
  is written.

  Args:
    config: what `config.json` would hold, such as `PretrainedConfig.to_dict()`.
    tree: arrays by Hugging Face's names, 'model.norm.weight' for example, or
      nested by the parts of these names.
    dtype: of weights and cache, as for `specjax.load`.
    max_length: longest text to come, as for `specjax.load`.
    tokenizer: of texts; None: token ids alone.
    eos: token ids that end a text.

  Raises:
    ValueError: the model is not exactly ours, or a tensor is missing, left
      over or of another shape or type; names it.
  """
  dtype = check_dtype(dtype)
  memory = _Memory()
  for path, x in jax.tree_util.tree_leaves_with_path(tree):
    name = jax.tree_util.keystr(path, simple=True, separator='.')
    if not isinstance(x, jax.Array | np.ndarray):
      raise CheckpointError(
        f'{_TREE}: {name} must be an array, got {type(x).__name__}'
      )
    memory[name] = x
  tensors = {
    name: Tensor(
      memory, _TREE, name, x.shape, _CODES.get(x.dtype.name, x.dtype.name)
    )
    for name, x in memory.items()
  }
  config, join = quantization.split(_TREE, config)
  plan = _fit(
    _TREE,
    'config',
    config,
    max_length,
    lambda: wrappers.text_tensors(config, join(tensors)),
  )
  weights = plan.read(resolve(dtype, plan.dtype))
  target = as_target(plan.model, weights, tokenizer, eos)
  return dataclasses.replace(target, max_length=max_length)


def _rename(tensors, family, config, sources):
  """Tensors by the family's names, where a file has others for them."""
  used = {name for source in sources.values() for name in source.names}
  # Files of a model without its head lack the prefix.
  if not any(name.startswith(family.prefix) for name in tensors):
    longer = {name: family.prefix + name for name in tensors}
    tensors = {
      longer[name] if longer[name] in used else name: tensor
      for name, tensor in tensors.items()
    }
  # Some have tied weights under another of their names alone.
  original, copies = _tied_names(family, config)
  for copy in copies:
    if original not in tensors and copy in tensors:
      tensors = tensors | {original: tensors[copy]}
      del tensors[copy]
  (head,) = family.sources['unembedding'].names
  if family.spare_head and head in used and original in tensors:
    tensors = {head: tensors[original]} | tensors
  return tensors


def _tied_names(family, config):
  """Name of the embedding, and names of what is the same."""
  (original,), head = (
    family.sources[key].names for key in ('embedding', 'unembedding')
  )
  return original, (head if config.tied_embeddings else ()) + family.copies


def _check_names(directory, family, config, sources, tensors):
  used = {name for source in sources.values() for name in source.names}
  unset = [
    f'{key} ({name})'
    for key, source in sources.items()
    for name in source.names
    if name not in tensors
  ]
  unread = tuple(name.format(config.num_layers) for name in family.unread)
  unused = [
    name
    for name in tensors
    if name not in used
    and not name.endswith(family.ignored)
    and not name.startswith(unread)
  ]
  unused = [name for name in unused if not _is_spare_bias(name, tensors)]
  original, copies = _tied_names(family, config)
  for copy in () if unset else copies:
    # Some files store tied weights twice.
    if copy in unused and _are_equal(tensors[copy], tensors[original]):
      unused.remove(copy)
  if unused or unset:
    raise CheckpointError(
      f'{directory}: the weights do not match {CONFIG}; unset parameters: '
      f'{shorten(unset)}; unused tensors: {shorten(unused)}'
    )


def _are_equal(a, b) -> bool:
  """Compares two tensors without reading the whole of them at once."""
  if a.shape != b.shape:
    return False
  if a.file is None or b.file is None:
    return True  # They are compared once they are here.
  rows, *others = a.shape
  rest = (slice(None),) * len(others)
  pieces = (slice(i, min(i + _ROWS, rows)) for i in range(0, rows, _ROWS))
  return all((a.read((x, *rest)) == b.read((x, *rest))).all() for x in pieces)


def _is_spare_bias(name: str, tensors) -> bool:
  """Returns true for the zeros that files of GPTQ have beside every weight."""
  weight = tensors.get(f'{name.removesuffix(".bias")}.weight')
  if not name.endswith('.bias') or not isinstance(weight, Quantized):
    return False
  bias = tensors[name]  # One that is not here is looked at when it is.
  return bias.file is None or not bias.read((slice(None),)).any()


@own.or_of(lambda target: target.fingerprint())
def fingerprint(path: str | os.PathLike) -> str:
  """A hash of the names, shapes and some values of a checkpoint's tensors.

  Values are rounded to bfloat16, so it is the same however the tensors are
  split over files, and for the same weights stored in 16 or 32 bits. Storing
  float32 weights as float16 rounds them, and may change it; as bfloat16 does
  not. Quantised weights have the fingerprint of a file of the same floats.

  Args:
    path: as for `checkpoints.load`.

  Raises:
    CheckpointError: it cannot be read.
  """
  digest = hashlib.sha256()
  directory = locate(path, weights=True)
  _, join = quantization.split(directory, read_json(directory / CONFIG))
  tensors = join(open_tensors(directory))
  for name in sorted(tensors):
    tensor = tensors[name]
    size = int(np.prod(tensor.shape, dtype=np.int64))
    spread = np.linspace(0, size - 1, min(size, _SAMPLED)).astype(np.int64)
    places = np.unravel_index(spread, tensor.shape)
    values = [
      # One element, since a part is all that is read of the file.
      np.asarray(tensor.read(tuple(slice(i, i + 1) for i in place)))
      for place in zip(*places, strict=True)
    ]
    digest.update(f'{name} {tuple(tensor.shape)}\n'.encode())
    rounded = np.asarray(values, np.float32).astype(jnp.bfloat16)
    digest.update(rounded.ravel().view(np.uint16).tobytes())
  return digest.hexdigest()
