"""What a folder of results holds; what is damaged is named.

A folder may have been written by another version, or cut off by a full disk.
"""

import errno
import json
import os
import pathlib
from collections.abc import Mapping

from experiments.errors import UserError, need, writing

# What rows of `experiments.run` have had since the first of them.
_CELL = (
  'drafter', 'verifier', 'gamma', 'domain', 'temperature', 'config', 'lossless',
  'timed', 'batch', 'prompts', 'alpha', 'alpha_ci', 'tau', 'tau_ci',
  'tau_without_bonus', 'tokens_per_second', 'baseline_tokens_per_second',
  'speedup', 'speedup_ci', 'predicted_speedup', 'c', 'v', 'repetition',
  'identical_to_plain', 'differences', 'acceptance_by_context',
)  # fmt: skip


def check_cells(file: pathlib.Path, rows: list[dict]) -> None:
  """Refuses rows of `experiments.run` that lack what all of them have.

  Raises:
    UserError: names the file, the row and what it lacks.
  """
  for number, row in enumerate(rows, 1):
    missing = [name for name in _CELL if name not in row]
    need(
      'acceptance_by_position' not in row or not missing,
      f'results: {file}: row {number} has no {", ".join(missing)}: remove it, '
      'and the command that made it measures it again',
    )


def read_text(file: pathlib.Path) -> str:
  """The content of a file of results.

  Raises:
    UserError: it cannot be read, or it is no text.
  """
  with writing('results', file):
    content = file.read_bytes()
  try:
    return content.decode()
  except UnicodeDecodeError as error:
    raise UserError(
      f'results: {file} is no text ({error}): remove it, or choose another '
      'folder'
    ) from error


def read_object(text: str, place: str, remedy: str) -> dict:
  """An object of a file of results.

  Args:
    text: of it.
    place: where it stands, for messages.
    remedy: what to do where it is damaged.

  Raises:
    UserError: it is none.
  """
  try:
    found = json.loads(text)
  except ValueError as error:
    raise UserError(
      f'results: {place} is damaged ({error}): {remedy}, or choose another '
      'folder'
    ) from error
  need(
    isinstance(found, dict),
    f'results: {place} is damaged (it holds no object): {remedy}, or choose '
    'another folder',
  )
  return found


def check_place(path: pathlib.Path, settings: Mapping) -> None:
  """Whether a folder can take the rows of an experiment; writes nothing.

  Raises:
    UserError: it is a file, or holds other results.
  """
  path = path.absolute()
  config = path / 'config.json'
  with writing('results', path):
    if config.exists():
      found = read_object(read_text(config), str(config), 'remove the folder')
      names = sorted(
        k for k in found | settings if found.get(k) != settings.get(k)
      )
      need(
        not names,
        f'results: {path} holds results of another config (different: '
        f'{", ".join(names)}); choose another folder with --config.results',
      )
    else:
      need(
        not path.exists() or not any(path.iterdir()),
        f'results: {path} is not empty and holds no config.json; choose '
        'another folder with --config.results',
      )
    there = next(one for one in (path, *path.parents) if one.exists())
    if not os.access(there, os.W_OK | os.X_OK):
      raise PermissionError(errno.EACCES, 'it cannot be written', str(there))
