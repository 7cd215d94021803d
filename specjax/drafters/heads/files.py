"""Heads that were trained for a target, and their files.

A head is a directory: `config.json` with its sizes, kind and the target's
fingerprint, and `model.safetensors`; or one of others, see `published`.
"""

import json
import math
import pathlib
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors.numpy
from flax import traverse_util

from specjax import checkpoints
from specjax.arguments import check_path, misfit
from specjax.checkpoints.files import (
  CONFIG,
  WEIGHTS,
  CheckpointError,
  read_json,
)
from specjax.checkpoints.precision import in_dtype
from specjax.drafters.heads import published
from specjax.types import Target


def check_taps(layers: int, taps: tuple[int, ...]) -> None:
  """Raises a ValueError where a target has no such layers."""
  if not taps or not all(0 <= tap < layers for tap in taps):
    raise ValueError(
      f'taps {tuple(taps)} name layers that do not exist: the target has '
      f'{layers}, 0 to {layers - 1}'
    )
  if sorted({*taps}) != list(taps):
    raise ValueError(
      f'taps {tuple(taps)} must be in the order of the layers, each once'
    )


def save(
  path: str | pathlib.Path,
  config: Mapping[str, Any],
  params: Any,
  dtype: str = 'float16',
) -> None:
  """Writes a head into a new directory.

  The directory appears at once or not at all.

  Args:
    path: the directory; it must not exist.
    config: as JSON; a head of our own form has its `kind` and `target` (the
      fingerprint of its checkpoint, see `checkpoints.fingerprint`).
    params: nested dictionaries of arrays.
    dtype: of floats in the file.

  Raises:
    ValueError: the place is taken.
  """
  folder = pathlib.Path(path).absolute()
  if folder.exists():
    raise ValueError(f'{folder} exists; remove it or save elsewhere')
  flat = traverse_util.flatten_dict(jax.device_get(params), sep='.')
  arrays = in_dtype({name: np.asarray(x) for name, x in flat.items()}, dtype)
  folder.parent.mkdir(parents=True, exist_ok=True)
  hidden = f'.{folder.name}.'
  with tempfile.TemporaryDirectory(None, hidden, folder.parent) as scratch:
    made = pathlib.Path(scratch, folder.name)
    made.mkdir()
    (made / CONFIG).write_text(json.dumps(dict(config), indent=1) + '\n')
    safetensors.numpy.save_file(arrays, made / WEIGHTS, {'format': 'pt'})
    made.rename(folder)


class Description(NamedTuple):
  """A head without its weights.

  kind: the module of `drafters` that loads it.
  format: who wrote it so: specjax, or the name of a published format.
  parameters: numbers in its tensors.
  dtype: that they are stored in.
  taps: layers of the target that it reads; () where the kind decides it.
  verifier: the target that a published one names; empty where it names none.
  pairing: as of `types.LoadedDrafter`.
  notes: what is doubtful about it for the target.
  """

  kind: str
  format: str
  parameters: int
  dtype: str
  taps: tuple[int, ...]
  verifier: str = ''
  pairing: str = ''
  notes: tuple[str, ...] = ()


def kind_of(path: str | pathlib.Path) -> str:
  """The module of `drafters` that loads a directory; `lm` where it is no head.

  Raises:
    CheckpointError: its weights cannot be read.
  """
  if kind := _own_kind(path):
    return kind
  found = published.recognise(path)
  return found[0].kind.name if found else 'lm'


def _own_kind(path: str | pathlib.Path) -> str | None:
  """That of a head that was trained here."""
  try:
    return read_json(pathlib.Path(path) / CONFIG).get('kind')
  except CheckpointError:
    return None  # Whoever reads it says so.


def describe(path: str | pathlib.Path, target: Target) -> Description | None:
  """The head of a directory, for a target; None where it holds none.

  Raises:
    ValueError: it is damaged, or cannot be for this target.
  """
  if kind := _own_kind(path):
    config = read_config(path, kind)
    tensors = published.look(pathlib.Path(path)).values()
    count = sum(math.prod(x.shape) for x in tensors)
    taps = tuple(config.get('taps', ()))
    return Description(kind, 'specjax', count, 'float16', taps)
  found = published.find(path, target.model)
  if found is None:
    return None
  return Description(
    found.kind,
    found.format,
    *found.measure(),
    tuple(found.config.get('taps', ())),
    found.verifier,
    published.UNVERIFIED,
    published.doubts(found, target),
  )


def refuse(path: str | pathlib.Path) -> None:
  """Refuses the directory of a head where that of a model is wanted."""
  if (kind := kind_of(path)) != 'lm':
    raise ValueError(
      f'{path} is a trained head, no language model: load it with '
      f'specjax.drafters.{kind}.load'
    )


def read_config(path: str | pathlib.Path, kind: str) -> dict[str, Any]:
  """The configuration of a head.

  Raises:
    ValueError: there is none, or it is of another kind.
  """
  file = pathlib.Path(path) / CONFIG
  if not file.is_file():
    raise ValueError(
      f'{file} is missing: give the directory of a trained {kind} head'
    )
  config = read_json(file)
  stored_kind = config.get('kind') or kind_of(path)
  if stored_kind != kind:
    raise ValueError(
      f'{path} holds no {kind} head: load it with '
      f'specjax.drafters.{stored_kind}.load, or give the directory of one'
    )
  return config


def read(
  path: str | pathlib.Path,
  kind: str,
  fingerprint: Callable[[], str] | None = None,
  dtype: str = 'float32',
) -> tuple[dict[str, Any], Any]:
  """Configuration and weights of a head.

  Args:
    path: its directory, or the name of its model on the Hugging Face Hub.
    kind: of head that is wanted.
    fingerprint: () -> that of the target it is to draft for; None: any.
    dtype: of the weights.

  Raises:
    ValueError: there is none, it is of another kind, or it was trained for
      another target.
  """
  check_path(path, f'a trained {kind} head')
  path = checkpoints.resolve(path)
  config = read_config(path, kind)
  own = None if fingerprint is None else fingerprint()
  if own is not None and config.get('target') != own:
    raise ValueError(
      f'{path} was trained for another target (fingerprint '
      f'{str(config.get("target"))[:12]}, this one has {own[:12]}): '
      'train it for this one with specjax train, or choose its own'
    )
  file = pathlib.Path(path) / WEIGHTS
  if not file.is_file():
    raise ValueError(f'{file} is missing: the head has no weights')
  flat = safetensors.numpy.load_file(file)
  weights = jax.device_put(in_dtype(flat, dtype))
  return config, traverse_util.unflatten_dict(weights, sep='.')


def fit(params: Any, shapes: Any, path: str | pathlib.Path) -> Any:
  """Returns the weights after a check of their shapes.

  Args:
    params: as read.
    shapes: that the head's module has for its configuration.
    path: of the head, for the message.

  Raises:
    ValueError: they are not those of the configuration.
  """
  if wrong := misfit(params, shapes):
    raise ValueError(f'{path}: weights do not fit its config.json: {wrong}')
  return params
