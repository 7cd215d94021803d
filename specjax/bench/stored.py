"""What a folder of results holds; what is damaged is named.

A folder may have been written by another version, or cut off by a full disk.
"""

import errno
import json
import os
import pathlib
from collections.abc import Mapping

from specjax.errors import UserError, need, writing


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
    value = json.loads(text)
  except ValueError as error:
    raise UserError(
      f'results: {place} is damaged ({error}): {remedy}, or choose another '
      'folder'
    ) from error
  need(
    isinstance(value, dict),
    f'results: {place} is damaged (it holds no object): {remedy}, or choose '
    'another folder',
  )
  return value


def check_place(path: pathlib.Path, settings: Mapping) -> None:
  """Whether a folder can take the rows of an experiment; writes nothing.

  Raises:
    UserError: it is a file, or holds other results.
  """
  path = path.absolute()
  config = path / 'config.json'
  with writing('results', path):
    if config.exists():
      stored = read_object(read_text(config), str(config), 'remove the folder')
      names = sorted(
        k for k in stored | settings if stored.get(k) != settings.get(k)
      )
      need(
        not names,
        f'results: {path} holds results of another config (different: '
        f'{", ".join(names)}); choose another folder with --results',
      )
    else:
      need(
        not path.exists() or not any(path.iterdir()),
        f'results: {path} is not empty and holds no config.json; choose '
        'another folder with --results',
      )
    nearest = next(one for one in (path, *path.parents) if one.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
      raise PermissionError(errno.EACCES, 'it cannot be written', str(nearest))
