"""The formats of published heads, and which of them a directory is in."""

import contextlib
import os
import pathlib

from specjax.checkpoints.files import (
  CONFIG,
  CheckpointError,
  Tensor,
  read_json,
)
from specjax.checkpoints.hub import headers, lacks_weights, resolve
from specjax.drafters.heads.published.formats import (
  Files,
  Format,
  Found,
  calculate,
  check_names,
  measure,
  open_head,
  without_prefix,
)
from specjax.models.config import TransformerConfig


def formats() -> tuple[Format, ...]:
  """Returns every format; the first one that holds is meant.

  A format lies in the folder of its head, which imports this package.
  """
  from specjax.drafters.dflash import published as dflash
  from specjax.drafters.eagle import published as eagle
  from specjax.drafters.medusa import published as medusa

  return (*eagle.FORMATS, *dflash.FORMATS, *medusa.FORMATS)


def look(
  directory: pathlib.Path, stack: contextlib.ExitStack
) -> dict[str, Tensor]:
  """The tensors of a head; of one on the Hub from headers, where it has any.

  Weights that the Hub shows no headers of are fetched, unless config.json has
  several layers: then it is a model, and no head.

  Raises:
    CheckpointError: they cannot be read.
  """
  if not lacks_weights(directory, of_head=True):
    return open_head(directory, stack)
  with contextlib.suppress(CheckpointError):  # It has no safetensors.
    return without_prefix(headers(directory) or {})
  if read_json(directory / CONFIG).get('num_hidden_layers', 1) > 1:
    return {}
  return open_head(resolve(directory, of_head=True), stack)


def find(
  path: str | os.PathLike, target: TransformerConfig | None = None
) -> Found | None:
  """The published head that a directory holds; None where it holds none.

  Args:
    path: a local directory, or a snapshot of the Hub; weights that it lacks are
      fetched where the Hub does not show their headers.
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
    tensors = look(directory, stack)
    names = frozenset(tensors)
    for each in formats():
      if each.holds(names):
        files = Files(directory, attributes, tensors, target)
        found = each.describe(files, each.name)._replace(directory=directory)
        check_names(found, tensors)
        calculate(found, tensors)  # They are few, and may be damaged.
        return measure(found, tensors)
  return None
