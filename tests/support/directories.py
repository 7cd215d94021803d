"""Directories of checkpoints, written and changed by hand."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

from specjax.checkpoints import CheckpointError

CONFIG, WEIGHTS = 'config.json', 'model.safetensors'


def write(
  folder: pathlib.Path, config: Any, tensors: dict, weights: str = WEIGHTS
) -> pathlib.Path:
  """Writes a configuration and tensors; returns the folder."""
  folder.mkdir(parents=True, exist_ok=True)
  (folder / CONFIG).write_text(json.dumps(config))
  safetensors.numpy.save_file(tensors, folder / weights)
  return folder


def read_config(folder: pathlib.Path) -> dict[str, Any]:
  return json.loads((folder / CONFIG).read_text())


def edit_config(folder: pathlib.Path, **changes: Any) -> None:
  """Changes attributes; those that are `...` are left out."""
  config = read_config(folder) | changes
  kept = {name: value for name, value in config.items() if value is not ...}
  (folder / CONFIG).write_text(json.dumps(kept))


def edit_tensors(
  folder: pathlib.Path, change: Callable[[dict], dict | None]
) -> None:
  """Writes what change(tensors) returns, or has made of them."""
  tensors = safetensors.numpy.load_file(folder / WEIGHTS)
  made = change(tensors)
  safetensors.numpy.save_file(made or tensors, folder / WEIGHTS)


def assert_same(a: Any, b: Any) -> None:
  """Asserts that two trees have the same numbers."""
  jax.tree.map(np.testing.assert_array_equal, a, b)


def refused(message: str, call: Callable, *given: Any, **options: Any) -> str:
  """Asserts that a call refuses a checkpoint, in one line; returns the line."""
  with pytest.raises(CheckpointError, match=message) as caught:
    call(*given, **options)
  assert '\n' not in str(caught.value)
  return str(caught.value)
