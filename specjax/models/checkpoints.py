"""Checkpoints as Hugging Face directories, read and written without torch.

A directory holds `config.json`, `model.safetensors` (or shards and their
index) and the tokenizer's files. Tensors are read one by one, and every check
that needs no weights comes before the first of them is read.
"""

import contextlib
import json
import os
import pathlib
import shutil
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from specjax.models import transformer, zoo
from specjax.models.transformer import Model

_CONFIG = 'config.json'
_GENERATION = 'generation_config.json'
_WEIGHTS = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
# Any one of these is enough for a tokenizer.
_TOKENIZER = (
  'tokenizer.json',
  'tokenizer.model',
  'vocab.json',
  'vocab.txt',
)
# Names in the header of a safetensors file; others are quantised weights.
_FLOATS = ('F64', 'F32', 'F16', 'BF16')
_SAVED_DTYPES = ('float32', 'float16', 'bfloat16')


class CheckpointError(ValueError):
  """A checkpoint cannot be used; the message names the file and a remedy."""


class _Tensor(NamedTuple):
  """A tensor that has not been read yet."""

  file: Any  # an open `safetensors.safe_open`
  path: pathlib.Path
  shape: tuple[int, ...]
  dtype: str


class _Plan(NamedTuple):
  """A checked checkpoint whose weights have not been read yet."""

  config: transformer.TransformerConfig
  shapes: dict[str, jax.ShapeDtypeStruct]
  sources: dict[str, zoo.Source]
  tensors: dict[str, _Tensor]


class Description(NamedTuple):
  """What a checkpoint holds, without its weights.

  family: `model_type` of `config.json`.
  model: the model.
  stored_bytes: of the weight files.
  """

  family: str
  model: Model
  stored_bytes: int


def _plan(directory: pathlib.Path, stack: contextlib.ExitStack) -> _Plan:
  attributes = _read_json(directory / _CONFIG)
  try:
    family, config = zoo.read_attributes(attributes)
  except ValueError as error:
    raise CheckpointError(f'{directory / _CONFIG}: {error}') from error
  shapes = zoo.shape_params(config)
  sources = zoo.list_sources(family, shapes)
  tensors = _open_tensors(directory, stack)
  _check_names(directory, family, config, sources, tensors)
  _check_tensors(sources, shapes, tensors)
  return _Plan(config, shapes, sources, tensors)


def describe(path: str | os.PathLike) -> Description:
  """Checks a checkpoint as `load` does, and reads no weights.

  Only `config.json` and the headers of the weights are read, but where tied
  weights are stored twice: then the two copies are compared.

  Args:
    path: a local directory.

  Raises:
    CheckpointError: `load` would refuse it.
  """
  directory = _check_directory(path)
  with contextlib.ExitStack() as stack:
    plan = _plan(directory, stack)
  return Description(
    _read_json(directory / _CONFIG)['model_type'],
    transformer.build(plan.config),
    sum(file.stat().st_size for file in _list_files(directory)),
  )


def load(
  path: str | os.PathLike, dtype: Any = jnp.float32
) -> tuple[Model, dict[str, Any]]:
  """Loads a model and its parameters.

  Args:
    path: a local directory; nothing is downloaded.
    dtype: of the parameters, whatever the file has.

  Returns:
    The model and its params, nested as its `init` returns them.

  Raises:
    CheckpointError: the directory is incomplete or damaged, or describes a
      model that is not exactly ours.
  """
  directory = _check_directory(path)
  params = {}
  with contextlib.ExitStack() as stack:
    plan = _plan(directory, stack)
    for key, (layout, names) in plan.sources.items():
      parts = [plan.tensors[name].file.get_tensor(name) for name in names]
      # A copy: an alias could be memory of the file, which may change.
      whole = layout.join(parts, plan.shapes[key].shape)
      params[key] = jnp.array(whole, dtype)
  nested = flax.traverse_util.unflatten_dict(params, sep='/')
  return transformer.build(plan.config), nested


def save(
  path: str | os.PathLike,
  model: Model,
  params: Any,
  tokenizer: Any = None,
  dtype: Any = jnp.float16,
  eos: Sequence[int] = (),
) -> None:
  """Saves a model as a directory that transformers loads.

  The directory appears at once or not at all: it is written beside its place
  under another name, and moved there.

  Args:
    path: the directory, which must not exist or must be empty.
    model: the model.
    params: its parameters.
    tokenizer: a tokenizer of transformers, saved along.
    dtype: of the weights in the file: float32, float16 or bfloat16.
    eos: token ids that end a text; by default the tokenizer's.

  Raises:
    CheckpointError: the place is taken, no family covers the model, the
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
  try:
    family, attributes = zoo.write_attributes(model.config)
  except ValueError as error:
    raise CheckpointError(f'{directory}: {error}') from error
  _check_vocabulary(directory, model, tokenizer)
  tokens = _list_special_tokens(tokenizer, eos)
  tensors = _cut_params(directory, family, model, params, dtype)
  attributes = {**attributes, **tokens, 'dtype': dtype.name}

  directory = directory.absolute()
  directory.parent.mkdir(parents=True, exist_ok=True)
  partial = directory.with_name(f'.{directory.name}.{uuid.uuid4().hex}')
  partial.mkdir()
  try:
    _write_json(partial / _CONFIG, attributes)
    _write_json(partial / _GENERATION, tokens)
    # transformers refuses a file that does not say so.
    safetensors.numpy.save_file(
      tensors, partial / _WEIGHTS, metadata={'format': 'pt'}
    )
    if tokenizer is not None:
      tokenizer.save_pretrained(partial)
    # Fails where the place has been taken in the meantime.
    partial.rename(directory)
  except BaseException:
    shutil.rmtree(partial, ignore_errors=True)
    raise


def has_tokenizer(path: str | os.PathLike) -> bool:
  """Whether a directory holds the files of a tokenizer."""
  return any((pathlib.Path(path) / name).is_file() for name in _TOKENIZER)


def load_tokenizer(path: str | os.PathLike) -> Any:
  """Loads the tokenizer of a checkpoint.

  Raises:
    CheckpointError: there is none, or it cannot be read.
  """
  directory = _check_directory(path)
  # Without its files transformers makes up an empty tokenizer.
  if not has_tokenizer(directory):
    raise CheckpointError(
      f'{directory} has no tokenizer; add one of {", ".join(_TOKENIZER)}'
    )
  # Takes seconds to import, and nothing else here needs it.
  import transformers

  try:
    return transformers.AutoTokenizer.from_pretrained(
      directory, local_files_only=True
    )
  except Exception as error:  # It raises nearly anything on a damaged file.
    reason = (str(error).strip() or repr(error)).splitlines()[0]
    raise CheckpointError(
      f'{directory}: the tokenizer cannot be read ({reason}); copy its files '
      'again'
    ) from error


def eos_ids(path: str | os.PathLike) -> tuple[int, ...]:
  """Returns the token ids that end a text; empty where none are given.

  `generation_config.json` comes before `config.json`, as for `generate`.

  Raises:
    CheckpointError: the directory or `config.json` is missing or damaged.
  """
  directory = _check_directory(path)
  files = [directory / _CONFIG]
  if (directory / _GENERATION).is_file():
    files.insert(0, directory / _GENERATION)
  for file in files:
    value = _read_json(file).get('eos_token_id')
    if value is None:
      continue
    ids = value if isinstance(value, list) else [value]
    if not all(type(i) is int and i >= 0 for i in ids):
      raise CheckpointError(
        f'{file}: eos_token_id = {value!r} must be a token id or a list of them'
      )
    return tuple(ids)
  return ()


def _check_directory(path) -> pathlib.Path:
  directory = pathlib.Path(path)
  if not directory.is_dir():
    raise CheckpointError(
      f'{directory} is no directory; pass a local one that holds {_CONFIG} '
      f'and {_WEIGHTS} (nothing is downloaded)'
    )
  return directory


def _read_json(file: pathlib.Path) -> dict[str, Any]:
  try:
    content = json.loads(file.read_text('utf-8'))
  except OSError:
    raise CheckpointError(
      f'{file} is missing or unreadable; the directory must be a complete '
      'checkpoint'
    ) from None
  except ValueError as error:
    raise CheckpointError(
      f'{file} is no valid JSON ({error}); copy it again'
    ) from None
  if not isinstance(content, dict):
    raise CheckpointError(f'{file} must hold a JSON object; copy it again')
  return content


def _write_json(file: pathlib.Path, content: dict[str, Any]) -> None:
  file.write_text(json.dumps(content, indent=2, sort_keys=True) + '\n', 'utf-8')


def _list_files(directory: pathlib.Path) -> list[pathlib.Path]:
  single, index = directory / _WEIGHTS, directory / _INDEX
  if single.is_file():
    return [single]
  if not index.is_file():
    raise CheckpointError(
      f'{single} is missing, and so is {_INDEX}; other formats must be '
      'converted to safetensors first'
    )
  shards = _read_json(index).get('weight_map')
  if not isinstance(shards, dict) or not all(
    isinstance(name, str) for name in shards.values()
  ):
    raise CheckpointError(f'{index} has no weight_map; copy it again')
  return [directory / name for name in sorted(set(shards.values()))]


def _open_tensors(
  directory: pathlib.Path, stack: contextlib.ExitStack
) -> dict[str, _Tensor]:
  """Reads the headers of all files, which stay open until `stack` closes."""
  tensors: dict[str, _Tensor] = {}
  for path in _list_files(directory):
    try:
      file = stack.enter_context(safetensors.safe_open(path, 'numpy'))
    except OSError as error:
      raise CheckpointError(
        f'{path} is missing or unreadable ({error}); copy it again'
      ) from None
    except safetensors.SafetensorError as error:
      raise CheckpointError(
        f'{path} is truncated or damaged ({error}); copy it again'
      ) from None
    for name in file.keys():  # noqa: SIM118 (it is no mapping)
      part = file.get_slice(name)
      tensors[name] = _Tensor(
        file, path, tuple(part.get_shape()), part.get_dtype()
      )
  return tensors


def _check_names(directory, family, config, sources, tensors):
  used = {name for source in sources.values() for name in source.names}
  unset = [
    f'{key} ({name})'
    for key, source in sources.items()
    for name in source.names
    if name not in tensors
  ]
  unused = [
    name
    for name in tensors
    if name not in used and not name.endswith(family.ignored)
  ]
  if config.tied_embeddings and not unset:
    (copy,) = family.sources['unembedding'].names
    (original,) = family.sources['embedding'].names
    # Some files store tied weights twice.
    if copy in unused and _compare(tensors, copy, original):
      unused.remove(copy)
  if unused or unset:
    raise CheckpointError(
      f'{directory}: the weights do not match {_CONFIG}; unset parameters: '
      f'{_shorten(unset)}; unused tensors: {_shorten(unused)}'
    )


def _compare(tensors, *names):
  a, b = (tensors[name].file.get_tensor(name) for name in names)
  return a.shape == b.shape and bool((a == b).all())


def _shorten(names: list[str], most: int = 8) -> str:
  more = [f'and {len(names) - most} more'] if len(names) > most else []
  return ', '.join(sorted(names)[:most] + more) or 'none'


def _check_tensors(sources, shapes, tensors):
  for key, (layout, names) in sources.items():
    expected = jax.eval_shape(layout.cut, shapes[key])
    for name, like in zip(names, expected, strict=True):
      tensor = tensors[name]
      if tensor.shape != like.shape:
        raise CheckpointError(
          f'{tensor.path}: tensor {name} has shape {tensor.shape} where '
          f'{_CONFIG} makes it {like.shape}; one of them is of another model'
        )
      if tensor.dtype not in _FLOATS:
        raise CheckpointError(
          f'{tensor.path}: tensor {name} is {tensor.dtype}; quantised weights '
          f'must be converted to one of {", ".join(_FLOATS)}'
        )


def _check_vocabulary(directory, model, tokenizer):
  # JAX clamps ids beyond the embedding without a word.
  if tokenizer is not None and len(tokenizer) > model.config.vocab_size:
    raise CheckpointError(
      f'{directory}: the tokenizer has {len(tokenizer)} tokens and the model '
      f'only {model.config.vocab_size}; save the one it was trained with'
    )


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
  shapes = zoo.shape_params(model.config)
  sources = zoo.list_sources(family, shapes)
  params = flax.traverse_util.flatten_dict(params, sep='/')
  if params.keys() != shapes.keys():
    raise CheckpointError(
      f'{directory}: the parameters are not those of the model; missing: '
      f'{_shorten(list(shapes.keys() - params.keys()))}; unknown: '
      f'{_shorten(list(params.keys() - shapes.keys()))}'
    )
  tensors = {}
  for key, (layout, names) in sources.items():
    value = np.asarray(params[key])
    if value.shape != shapes[key].shape:
      raise CheckpointError(
        f'{directory}: parameter {key} has shape {value.shape} where the '
        f'model has {shapes[key].shape}'
      )
    with np.errstate(over='ignore'):
      rounded = value.astype(dtype)
    if not np.isfinite(rounded).all() and np.isfinite(value).all():
      raise CheckpointError(
        f'{directory}: parameter {key} does not fit into {dtype.name}; save '
        'as bfloat16 or float32'
      )
    # safetensors writes the memory as it lies, whatever the strides.
    parts = [np.ascontiguousarray(part) for part in layout.cut(rounded)]
    tensors.update(zip(names, parts, strict=True))
  return tensors
