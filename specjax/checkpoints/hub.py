"""Checkpoints by name: models of the Hugging Face Hub, in its own cache.

A name is 'owner/model' or 'owner/model@revision', of a branch, a tag or a
commit; a GGUF file may be named behind it, 'owner/model:file.gguf'. What
describes a model, its configuration and tokenizer, is fetched when the model is
named, and its weights when they are read; a GGUF file holds both. All files lie
in the cache of `huggingface_hub`, whose settings hold (HF_HOME, HF_TOKEN,
HF_HUB_OFFLINE): models--OWNER--MODEL/snapshots/COMMIT. So the path of a
directory there says which commit of which model it is.
"""

import contextlib
import os
import pathlib
import re
from typing import Any, NamedTuple

from specjax.checkpoints import gguf_files, own
from specjax.checkpoints.files import (
  CONFIG,
  INDEX,
  PICKLED,
  PICKLED_INDEX,
  WEIGHTS,
  CheckpointError,
  Tensor,
  list_shards,
)
from specjax.errors import first_line

# What describes a model: no weights, and no code.
_DESCRIPTION = (
  CONFIG,
  INDEX,
  'generation_config.json',
  'training.json',
  'tokenizer*.json',
  'special_tokens_map.json',
  'added_tokens.json',
  'chat_template*',
  'vocab*',
  'merges.txt',
  '*.model',
)
_TABLES = 'tables.safetensors'  # of `drafters.counts`
_OF_HEADS = (PICKLED, '*.pt', '*.safetensors')  # Weights of heads alone.
_NESTED = ('*/*',)  # Folders have the same weights in other formats.
# No path with a dot in front is such a name.
_NAME = re.compile(
  r'([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?'
  r'(?::([\w./-]+\.gguf))?'
)


class _Model(NamedTuple):
  """A model of the Hub, and the cache where it lies; None: the default."""

  name: str
  revision: str | None
  cache: pathlib.Path | None = None
  file: str | None = None  # in GGUF, instead of weights in safetensors

  def __str__(self):
    return f'{self.name}@{self.revision}' if self.revision else self.name


def _parse(path: str | os.PathLike) -> _Model | None:
  """Returns the model that a path names; None: it can only be a directory."""
  found = _NAME.fullmatch(path) if isinstance(path, str) else None
  return _Model(found[1], found[2], file=found[3]) if found else None


def _model_of(directory: pathlib.Path) -> _Model | None:
  """Returns the model of a snapshot; None for any other directory."""
  folder = directory.absolute()
  repository = folder.parent.parent
  kind, dashes, name = repository.name.partition('--')
  if folder.parent.name != 'snapshots' or kind != 'models' or not dashes:
    return None
  return _Model(name.replace('--', '/'), folder.name, repository.parent)


def revision_of(path: str | os.PathLike) -> str | None:
  """Returns the commit of a snapshot of the Hub; None for other directories."""
  model = _model_of(pathlib.Path(path))
  return model and model.revision


def title_of(path: str | os.PathLike) -> str:
  """Returns the name of a checkpoint: of its model, or of its directory."""
  directory = pathlib.Path(path)
  model = _model_of(directory) if directory.is_dir() else _parse(path)
  return os.path.basename(model.name if model else os.fspath(path).rstrip('/'))


@own.or_of(own.path_of)
def locate(path: str | os.PathLike, weights: bool = False) -> pathlib.Path:
  """Returns the directory of a checkpoint.

  Args:
    path: a local directory or GGUF file, or else the name of a model of the
      Hugging Face Hub: 'owner/model' or 'owner/model@revision', or with
      ':file.gguf' behind it. What its cache lacks is fetched; without a
      connection the cache has to do.
    weights: fetch its weights as well, where they are not here.

  Raises:
    CheckpointError: there is neither, or it cannot be fetched; one line says
      why, and what helps.
  """
  if not isinstance(path, str | os.PathLike):
    raise CheckpointError(
      'path must be a directory or the name of a model on the Hugging Face '
      f'Hub, got {path!r}'
    )
  directory = pathlib.Path(path)
  if directory.suffix == '.gguf' and directory.is_file():
    return gguf_files.folder_of(directory)
  if not directory.is_dir():
    model = _parse(path)
    if model is not None and model.file and not directory.exists():
      return gguf_files.folder_of(_fetch(model, file=model.file))
    if model is None or directory.exists():
      raise CheckpointError(
        f'{directory} is no directory and no GGUF file; pass a directory that '
        f'holds {CONFIG} and {WEIGHTS}, a file that ends in .gguf, or the name '
        'of a model on the Hugging Face Hub'
      )
    directory = _fetch(model, _DESCRIPTION)
    if not (directory / CONFIG).is_file():
      _fetch(model, file=CONFIG)
  return _complete(directory) if weights else directory


def prepare(path: str) -> None:
  """Makes the folder of a GGUF file, if it is one that can be read."""
  if path.endswith('.gguf') and os.path.isfile(path):
    with contextlib.suppress(CheckpointError):
      locate(path)


@own.or_of(own.path_of)
def resolve(path: str | os.PathLike, of_head: bool = False) -> pathlib.Path:
  """Returns a local path as it is, or the directory of a model with weights.

  Args:
    path: as for `locate`.
    of_head: whether the weights are those of a head, which may be pickled.

  Raises:
    CheckpointError: the model cannot be fetched.
  """
  local = pathlib.Path(path)
  if local.exists() or _parse(path) is None:
    return _complete(local, of_head)
  return _complete(locate(path), of_head)


def lacks_weights(directory: pathlib.Path, of_head: bool = False) -> bool:
  """Returns true for a snapshot of the Hub that lacks some of its weights."""
  model = _model_of(directory)
  return model is not None and bool(_missing(directory, of_head))


def _missing(directory: pathlib.Path, of_head: bool = False) -> list[str]:
  """Lists the files of weights that a directory lacks."""
  pairs = [(WEIGHTS, INDEX), *([(PICKLED, PICKLED_INDEX)] if of_head else [])]
  for single, index in pairs:
    if (directory / index).is_file() and not (directory / single).is_file():
      shards = list_shards(directory / index)
      return sorted(path.name for path in shards if not path.is_file())
  names = (WEIGHTS, _TABLES, *(_OF_HEADS if of_head else ()))
  return [] if any(any(directory.glob(n)) for n in names) else [WEIGHTS]


def _complete(directory: pathlib.Path, of_head: bool = False) -> pathlib.Path:
  """Returns the directory, and fetches the weights of a snapshot of the Hub."""
  model = _model_of(directory)
  if model is None:
    return directory
  # The files that an index lists are known once it is here.
  pickled = ((PICKLED_INDEX, *_OF_HEADS),) * (2 * of_head)
  for others in ((INDEX,), (INDEX,), *pickled):
    if missing := _missing(directory, of_head):
      _fetch(model, (*others, *missing))
  for file in _missing(directory, of_head):
    _fetch(model, file=file)
  return directory


def headers(directory: pathlib.Path) -> dict[str, Tensor] | None:
  """The tensors of weights that are still on the Hub, from their headers.

  They cannot be read. None where the Hub cannot be reached.

  Raises:
    CheckpointError: the model has no weights in safetensors.
  """
  import huggingface_hub
  from huggingface_hub import errors

  model = _model_of(directory)
  assert model is not None
  try:
    found = huggingface_hub.get_safetensors_metadata(
      model.name, revision=model.revision
    )
  except errors.NotASafetensorsRepoError as error:
    raise CheckpointError(_lacks(model, WEIGHTS)) from error
  except Exception:  # Whatever keeps it from being fetched says so then.
    return None
  return {
    name: Tensor(None, directory / file, name, tuple(x.shape), x.dtype)
    for file, header in found.files_metadata.items()
    for name, x in header.tensors.items()
  }


def _fetch(
  model: _Model, patterns: tuple[str, ...] = (), file: str = ''
) -> pathlib.Path:
  """Fetches files of a model that the cache lacks; returns its snapshot.

  Args:
    model: the model.
    patterns: of the files.
    file: one that must be there instead, which is returned.

  Raises:
    CheckpointError: they cannot be fetched; says why.
  """
  # Takes a second to import, and local directories do not need it.
  import huggingface_hub

  place: dict[str, Any] = {'revision': model.revision, 'cache_dir': model.cache}
  try:
    if file:
      found = huggingface_hub.hf_hub_download(model.name, file, **place)
    else:
      found = huggingface_hub.snapshot_download(
        model.name,
        allow_patterns=[*patterns],
        ignore_patterns=[*_NESTED],
        **place,
      )
  except Exception as error:  # Of the network, the Hub, or the disk.
    raise CheckpointError(_why(model, error, file)) from error
  return pathlib.Path(found)


def _lacks(model: _Model, file: str) -> str:
  return (
    f'{model} has no {file} on the Hugging Face Hub: choose a model with a '
    f'{CONFIG} and weights in safetensors; other formats must be converted '
    'first'
  )


def _why(model: _Model, error: Exception, file: str = '') -> str:
  """Why something could not be fetched, and what helps, in one line."""
  from huggingface_hub import errors

  cause = error.__cause__ or error
  reason = first_line(cause)
  log_in = 'log in with `hf auth login` or set HF_TOKEN'
  absent = f'{model} is no directory, and no such model is in the cache'
  if file:
    absent = f'{file} of {model} is not in the cache'
  match error:
    case errors.RemoteEntryNotFoundError():
      return _lacks(model, file)
    case errors.GatedRepoError():
      why = 'is gated'
      remedy = f'accept its terms on its page of the Hub, then {log_in}'
    case errors.RepositoryNotFoundError():
      why = 'is no directory, and the Hub has no such model or a private one'
      remedy = f'check owner/model, and where it is private, {log_in}'
    case errors.RevisionNotFoundError():
      why = f'has no revision {model.revision!r} on the Hub'
      remedy = 'name a branch, a tag or a commit of it behind @'
    case errors.HfHubHTTPError() if error.response.status_code in (401, 403):
      why = f'may not be read with this token ({reason})'
      remedy = f'{log_in} again'
    case errors.LocalEntryNotFoundError():
      offline = isinstance(cause, errors.OfflineModeIsEnabled)
      why = f'which cannot be reached ({reason}): fetch it with a connection'
      if offline:
        why = 'and HF_HUB_OFFLINE is set: unset it to fetch the model'
      return f'{absent} of the Hub, {why}, or pass a local directory'
    case _:
      why = f'cannot be fetched from the Hub ({reason})'
      remedy = 'try again, or pass a local directory'
  return f'{model} {why}: {remedy}'
