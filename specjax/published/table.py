"""The formats of published heads, and which of them a directory is in."""

import contextlib
import os
import pathlib

from specjax.checkpoints.files import CONFIG, read_json
from specjax.models.config import TransformerConfig
from specjax.published import eagle
from specjax.published.formats import (
  Files,
  Format,
  Found,
  check_names,
  open_head,
)

# The first that holds is meant.
FORMATS: tuple[Format, ...] = (*eagle.FORMATS,)


def find(
  path: str | os.PathLike, target: TransformerConfig | None = None
) -> Found | None:
  """The published head that a directory holds; None where it holds none.

  Args:
    path: a local directory with weights.
    target: configuration of the model to draft for: some heads do not say which
      of its layers they read, but how these are chosen.

  Raises:
    CheckpointError: it is a head, and damaged, or of a layout that differs from
      what its format says; or its weights cannot be read.
  """
  directory = pathlib.Path(path)
  if not (directory / CONFIG).is_file():
    return None
  attributes = read_json(directory / CONFIG)
  if 'kind' in attributes:
    return None  # One of our own.
  with contextlib.ExitStack() as stack:
    tensors = open_head(directory, stack)
    names = frozenset(tensors)
    for each in FORMATS:
      if each.holds(names):
        files = Files(directory, attributes, tensors, target)
        found = each.describe(files, each.name)._replace(directory=directory)
        check_names(found, tensors)
        return found
  return None
