"""Heads as others publish them: read by what a directory holds.

`find` recognises a directory by the names of its tensors, and says what of our
own heads it is: the configuration that such a head would have in its own
config.json, and the tensors that each parameter is made of. `formats.read`
makes the parameters. The formats of a head lie in its folder; `formats` lists
them all.

Nothing in a published head tells which weights it was trained for: see
`doubts`.
"""

import contextlib
import os
import pathlib
from typing import Any

from specjax import checkpoints
from specjax.checkpoints.files import (
  CONFIG,
  CheckpointError,
  Tensor,
  open_tensors,
  read_json,
)
from specjax.checkpoints.hub import headers, lacks_weights, resolve
from specjax.drafters.heads.formats import Files, Format, Found, match
from specjax.models.transformer import Model
from specjax.types import Target


def formats() -> tuple[Format, ...]:
  """Returns every format; the first one that holds is meant.

  A format lies in the folder of its head, which imports this package.
  """
  from specjax.drafters import assistant
  from specjax.drafters.dflash import published as dflash
  from specjax.drafters.eagle import published as eagle
  from specjax.drafters.medusa import published as medusa

  return (
    *eagle.FORMATS,
    *dflash.FORMATS,
    *medusa.FORMATS,
    *assistant.FORMATS,
  )


def look(directory: pathlib.Path) -> dict[str, Tensor]:
  """The tensors of a head; of one on the Hub from headers, where it has any.

  Weights that the Hub shows no headers of are fetched, unless config.json has
  several layers: then it is a model, and no head.

  Raises:
    CheckpointError: they cannot be read.
  """
  if not lacks_weights(directory, of_head=True):
    return open_tensors(directory, of_head=True)
  with contextlib.suppress(CheckpointError):  # It has no safetensors.
    return headers(directory) or {}
  if read_json(directory / CONFIG).get('num_hidden_layers', 1) > 1:
    return {}
  return open_tensors(resolve(directory, of_head=True), of_head=True)


def recognise(
  path: str | os.PathLike,
) -> tuple[Format, dict[str, Any], dict[str, Tensor]] | None:
  """The format of a directory; None where it holds no published head.

  Args:
    path: a local directory, or a snapshot of the Hub; weights that it lacks are
      fetched where the Hub does not show their headers.

  Returns:
    The format, and the content of config.json and of the headers.

  Raises:
    CheckpointError: its weights cannot be read.
  """
  directory = pathlib.Path(path)
  if not (directory / CONFIG).is_file():
    return None
  attributes = read_json(directory / CONFIG)
  if 'kind' in attributes:
    return None  # One of our own.
  # Some writers put `model.` before every name.
  tensors = {
    name.removeprefix('model.'): x for name, x in look(directory).items()
  }
  names = frozenset(tensors)
  found = next((x for x in formats() if x.holds(names)), None)
  return found and (found, attributes, tensors)


def find(path: str | os.PathLike, target: Model) -> Found | None:
  """The published head that a directory holds; None where it holds none.

  Args:
    path: see `recognise`.
    target: the model to draft for.

  Raises:
    CheckpointError: it is a head, and damaged, or of a layout that differs from
      what its format says, or of another target; or its weights cannot be read.
    ValueError: the target has no such layers.
  """
  directory, config = pathlib.Path(path), target.config
  if (known := recognise(directory)) is None:
    return None
  form, attributes, tensors = known
  files = Files(directory, attributes, tensors, config)
  found = form.describe(files, form.name)
  found = found._replace(kind=form.kind.name, directory=directory)
  if found.width != config.width:
    raise CheckpointError(
      f'{directory} reads features of width {found.width}, and the target has '
      f'{config.width}: it is the head of another target'
    )
  if found.vocab_size != config.vocab_size:
    raise CheckpointError(
      f'{directory} is for a vocabulary of {found.vocab_size} tokens, and the '
      f'target has {config.vocab_size}: it is the head of another target'
    )
  return match(found, tensors, form.kind.make(target, found.config))


UNVERIFIED = 'unverified'


class PairingWarning(UserWarning):
  """A warning about a published head for a target."""


def doubts(found: Found, target: Target) -> tuple[str, ...]:
  """Returns what is doubtful about a head for a target, one sentence each."""
  notes = []
  named = checkpoints.title_of(found.verifier) if found.verifier else ''
  own = checkpoints.title_of(target.path) if target.path else ''
  if named and own and named.lower() != own.lower():
    notes.append(
      f'{found.directory} names {found.verifier} as its target, and this one '
      f'is called {own}: where they are not the same weights, drafts are '
      'rejected'
    )
  longest = target.max_length
  if found.positions and longest and longest > found.positions:
    notes.append(
      f'{found.directory} was trained on texts of at most {found.positions} '
      f'tokens, and this run has up to {longest}: acceptance may fall there'
    )
  return tuple(notes)
