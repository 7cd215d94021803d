"""Folders of the user's cache: what is made once and can be made again.

A module of its own, since the kernel, the checkpoints and the programs keep
something there and import none of each other.
"""

import contextlib
import os
import pathlib
import shutil
import time

_AN_HOUR = 3600  # seconds


def folder(name: str) -> pathlib.Path:
  """Returns a folder of ours in the user's cache, which may not be there."""
  caches = os.environ.get('XDG_CACHE_HOME', '')
  if not os.path.isabs(caches):
    caches = os.path.expanduser('~/.cache')
  return pathlib.Path(caches, 'specjax', name)


def tidy(place: pathlib.Path) -> None:
  """Deletes folders in which processes that were killed made something."""
  for old in place.iterdir():
    with contextlib.suppress(FileNotFoundError):  # Deleted by another one.
      if old.is_dir() and old.stat().st_mtime < time.time() - _AN_HOUR:
        shutil.rmtree(old, ignore_errors=True)
