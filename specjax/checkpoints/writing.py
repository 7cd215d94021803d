"""Saving a model as a directory that transformers loads."""

import json
import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from specjax.checkpoints.families import conversion
from specjax.checkpoints.files import (
  CONFIG,
  GENERATION,
  QUANTIZED,
  SCALE,
  WEIGHTS,
  CheckpointError,
  shorten,
)
from specjax.errors import blame
from specjax.models import linear, low_bits
from specjax.models.transformer import Model

_SAVED_DTYPES = ('float32', 'float16', 'bfloat16')


def save(
  path: str | os.PathLike,
  model: Model,
  params: Any,
  tokenizer: Any = None,
  dtype: Any = jnp.float16,
  eos: Sequence[int] = (),
  attributes: Mapping[str, Any] | None = None,
) -> None:
  """Saves a model as a directory that transformers loads.

  The directory appears at once or not at all: it is written beside its place
  under another name, and moved there.

  Args:
    path: the directory, which must not exist or must be empty.
    model: the model.
    params: its parameters, whole. Those in eight bits (`models.low_bits`) are
      saved as they are: transformers does not read them, but `load` does where
      `quantized` says so.
    tokenizer: a tokenizer of transformers, saved along.
    dtype: of the weights in the file: float32, float16 or bfloat16.
    eos: token ids that end a text; by default the tokenizer's.
    attributes: of config.json besides. Where the model is no Llama, Mistral,
      Qwen2 or Qwen3, the content of the config.json that it was read from.

  Raises:
    CheckpointError: the place is taken, the attributes are not the model's, the
      parameters are not the model's or do not fit into `dtype`, or the
      tokenizer has tokens that the model has not.
  """
  directory = pathlib.Path(path)
  if directory.exists() and (
    not directory.is_dir() or any(directory.iterdir())
  ):
    raise CheckpointError(f'{directory} exists; remove it or save elsewhere')
  dtype = jnp.dtype(dtype)
  if dtype.name not in _SAVED_DTYPES:
    raise CheckpointError(
      f'{directory}: cannot save as {dtype.name}; choose one of '
      f'{", ".join(_SAVED_DTYPES)}'
    )
  with blame(f'{directory}: ', CheckpointError):
    family, own = conversion.write_attributes(model.config, attributes or {})
  # JAX clamps ids beyond the embedding without a word.
  if tokenizer is not None and len(tokenizer) > model.config.vocab_size:
    raise CheckpointError(
      f'{directory}: the tokenizer has {len(tokenizer)} tokens and the model '
      f'only {model.config.vocab_size}; save the one it was trained with'
    )
  tokens = _list_special_tokens(tokenizer, eos)
  tensors = _cut_params(directory, family, model, params, dtype)
  attributes = {**own, **tokens, 'dtype': dtype.name}
  attributes.pop('torch_dtype', None)
  if any(name.endswith(SCALE) for name in tensors):
    attributes['quantization_config'] = {'quant_method': QUANTIZED, 'bits': 8}

  directory = directory.absolute()
  directory.parent.mkdir(parents=True, exist_ok=True)
  hidden = f'.{directory.name}.'
  with tempfile.TemporaryDirectory(None, hidden, directory.parent) as scratch:
    made = pathlib.Path(scratch, directory.name)
    made.mkdir()
    _write_json(made / CONFIG, attributes)
    _write_json(made / GENERATION, tokens)
    # transformers refuses a file that does not say so.
    safetensors.numpy.save_file(
      tensors, made / WEIGHTS, metadata={'format': 'pt'}
    )
    if tokenizer is not None:
      tokenizer.save_pretrained(made)
    # Fails where the place has been taken in the meantime.
    made.rename(directory)


def _write_json(file: pathlib.Path, content: dict[str, Any]) -> None:
  file.write_text(json.dumps(content, indent=2, sort_keys=True) + '\n', 'utf-8')


def _list_special_tokens(tokenizer, eos) -> dict[str, Any]:
  """Returns what `generate` of transformers must know.

  A missing attribute would take the family's default there, and end texts at
  a token that means something else: what is unknown is written as null.
  """
  tokens = {
    name: getattr(tokenizer, name, None)
    for name in ('bos_token_id', 'eos_token_id', 'pad_token_id')
  }
  if len(eos):
    ids = [int(i) for i in eos]
    tokens['eos_token_id'] = ids[0] if len(ids) == 1 else ids
  return tokens


def _cut_params(directory, family, model, params, dtype):
  shapes = conversion.shape_params(model.config)
  sources = conversion.fill(family.table(model.config), shapes)
  params = flax.traverse_util.flatten_dict(params, sep='/')
  if params.keys() != shapes.keys():
    raise CheckpointError(
      f'{directory}: the parameters are not those of the model; missing: '
      f'{shorten(list(shapes.keys() - params.keys()))}; unknown: '
      f'{shorten(list(params.keys() - shapes.keys()))}'
    )
  tensors = {}
  for key, (split, names) in sources.items():
    value = params[key]
    parts = _parts(directory, key, value, dtype)
    shape = parts[''].shape
    if shape != shapes[key].shape:
      raise CheckpointError(
        f'{directory}: parameter {key} has shape {shape} where the model has '
        f'{shapes[key].shape}'
      )
    for ending, array in parts.items():
      cut = split.cut(np.asarray(array), len(names))
      # safetensors writes the memory as it lies, whatever the strides.
      for name, part in zip(names, cut, strict=True):
        tensors[name + ending] = np.ascontiguousarray(part)
  return tensors


def _parts(directory, key, value, dtype) -> dict[str, Any]:
  """Returns the arrays that a parameter is saved as, by the end of its name."""
  if not linear.is_weight(value):
    return {'': _round(directory, key, value, dtype)}
  table = isinstance(value, linear.Table)
  w = value.head if table else value
  plain = low_bits.is_low_bits(w) and not w.blocked and w.offset is None
  if not plain or w.bits != 8:
    raise CheckpointError(
      f'{directory}: parameter {key} is in blocks or not in eight bits, which '
      'no file holds; save the whole weights that it was made from'
    )
  values = low_bits.values_of
  if w.words.ndim > 2 and key.split('/')[-1] in linear.OF_EXPERTS:
    values = jax.vmap(values)
  parts = {'': values(w).astype(jnp.int8), SCALE: low_bits.factors_of(w)[0]}
  return {end: x.T if table else x for end, x in parts.items()}


def _round(directory, key, value, dtype):
  value = np.asarray(value)
  with np.errstate(over='ignore'):
    rounded = value.astype(dtype)
  if not np.isfinite(rounded).all() and np.isfinite(value).all():
    raise CheckpointError(
      f'{directory}: parameter {key} does not fit into {dtype.name}; save '
      'as bfloat16 or float32'
    )
  return rounded
