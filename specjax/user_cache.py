"""Folders of the user's cache: what is made once and can be made again.

A module of its own, since the kernel, the checkpoints and the programs keep
something there and import none of each other.
"""

import os
import pathlib


def folder(name: str) -> pathlib.Path:
  """Returns a folder of ours in the user's cache, which may not be there."""
  caches = os.environ.get('XDG_CACHE_HOME', '')
  if not os.path.isabs(caches):
    caches = os.path.expanduser('~/.cache')
  return pathlib.Path(caches, 'specjax', name)
