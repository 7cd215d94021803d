"""A target from arrays at hand, such as those that Orbax restored.

They have the names and shapes that a Hugging Face directory gives them. They
are checked as files are, and no file is written.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import numpy as np

from specjax.checkpoints import loading, parameters, quantization
from specjax.checkpoints.families import FAMILIES, conversion
from specjax.checkpoints.files import CheckpointError, Tensor
from specjax.checkpoints.precision import AUTO, STORED, check_dtype, resolve
from specjax.models import devices, own, transformer, variants
from specjax.types import Target

_TREE = pathlib.Path('tree')  # Errors name it as the file.
_CODES = {name: code for code, name in STORED.items()} | {
  'float8_e4m3fn': 'F8_E4M3',
  'float8_e5m2': 'F8_E5M2',
  'int8': 'I8',
  'int32': 'I32',
  'uint8': 'U8',
}


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
  tensors: dict[str, Any] = {
    name: Tensor(
      memory, _TREE, name, x.shape, _CODES.get(x.dtype.name, x.dtype.name)
    )
    for name, x in memory.items()
  }
  config, join = quantization.split(_TREE, config)
  tensors = join(tensors)
  try:
    family, made = conversion.read_attributes(FAMILIES, config, max_length)
    shapes = conversion.shape_params(made)
  except ValueError as error:
    raise CheckpointError(f'config: {error}') from error
  sources = conversion.list_sources(family, made, shapes)
  tensors = loading._rename(tensors, family, made, sources)
  loading._check_names(_TREE, family, made, sources, tensors)
  stored = max(tensors.values(), key=lambda x: math.prod(x.shape)).dtype
  dtype = resolve(dtype, STORED.get(stored, 'float32'))
  params = parameters.read_parameters(sources, shapes, tensors, dtype)
  nested = flax.traverse_util.unflatten_dict(params, sep='/')
  form = devices.here()
  model = variants.for_device(transformer.build(made), form)
  weights = devices.lay_weights(form, nested)
  target = own.as_target(model, weights, tokenizer, eos)
  return dataclasses.replace(target, max_length=max_length)
