"""Weights that a file holds in few bits, kept as the kernel multiplies them.

To put a weight of a GGUF file into blocks takes far longer than to read it. So
the blocks are kept in the user's cache, a file for each parameter, which the
next start reads. They are not mapped: passes of one token over mapped pages
took 2 % longer than over memory (71.2 and 69.6 ms, Qwen2.5-Coder-1.5B in
Q4_K_M, in turns on two cores of an Intel Xeon with AVX-512).

A file's name has a digest of all that the blocks are made of: the model's file,
the tensors, the form, and the code of this package, of the models and of the
kernel. Files of other digests of the same parameter are deleted, and all that
was kept of a model whose files are no longer there.
"""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from specjax import user_cache

_LEAST = 1 << 16  # bytes of a parameter; a smaller one is soon made
_SPARE = 8 << 30  # bytes that stay free on the disk
_AN_HOUR = 3600  # seconds
_CODE = 'checkpoints', 'models', 'native'


@functools.cache
def _code() -> bytes:
  """Returns a digest of the modules that blocks are made by."""
  root, made = pathlib.Path(__file__).parents[1], hashlib.sha256()
  for folder in _CODE:
    for file in sorted((root / folder).rglob('*.*')):
      if file.suffix in ('.py', '.c', '.h'):
        made.update(file.read_bytes())
  return made.digest()


def _read(path: pathlib.Path, arrays: Sequence[np.ndarray]) -> bool:
  """Fills arrays from a file of their size; returns False if there is none."""
  with contextlib.suppress(OSError), open(path, 'rb') as file:
    if os.fstat(file.fileno()).st_size == sum(x.nbytes for x in arrays):
      return all(file.readinto(x.data) == x.nbytes for x in arrays)
  return False


def _write(path: pathlib.Path, arrays: Sequence[np.ndarray]) -> None:
  """Keeps arrays in a file, where there is room for it."""
  with contextlib.suppress(OSError):
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    size = sum(x.nbytes for x in arrays)
    if shutil.disk_usage(path.parent).free < size + _SPARE:
      return
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
      made = pathlib.Path(place, path.name)
      with open(made, 'wb') as file:
        for x in arrays:
          x.tofile(file)
      made.replace(path)
    for old in path.parent.iterdir():
      with contextlib.suppress(FileNotFoundError):  # Deleted by another one.
        if old.stem == path.stem and old != path:
          old.unlink()
        elif not old.suffix and old.stat().st_mtime < time.time() - _AN_HOUR:
          shutil.rmtree(old)  # Of a process that was killed.


def _forget_others(folder: pathlib.Path, paths: Sequence[str]) -> None:
  """Deletes what was kept of models whose files are gone.

  Args:
    folder: of a model. A list of the model's files is put beside it.
    paths: of these files.
  """
  own = folder.with_suffix('.json')
  if own.exists():
    return
  with contextlib.suppress(OSError):
    own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=own.parent) as place:
      made = pathlib.Path(place, own.name)
      made.write_text(json.dumps(paths))
      made.replace(own)
    for listed in own.parent.glob('*.json'):
      try:
        stays = all(map(os.path.exists, json.loads(listed.read_text())))
      except (OSError, TypeError, ValueError):
        stays = False  # It is damaged, or was deleted by another process.
      if not stays:
        shutil.rmtree(listed.with_suffix(''), ignore_errors=True)
        listed.unlink(missing_ok=True)


def recall(
  name: str,
  sources: Collection[tuple[Any, ...]],
  facts: Any,
  arrays: Sequence[np.ndarray],
  fill: Callable[[], None],
) -> None:
  """Fills arrays with what they were filled with before, or calls `fill`.

  Args:
    name: of the parameter, one of the files' model.
    sources: identities of the files that the content is made of, as
      `gguf_files.Gguf` has them. Once one has changed it is made again.
    facts: whatever else decides the content; its `repr` counts.
    arrays: contiguous arrays.
    fill: writes every entry of the arrays.
  """
  if sum(x.nbytes for x in arrays) < _LEAST:
    return fill()
  shapes = [(x.shape, x.dtype.str) for x in arrays]
  text = repr((sorted(sources), shapes, facts)).encode()
  content = hashlib.sha256(_code() + text).hexdigest()[:16]
  paths = sorted(path for path, *_ in sources)
  model = hashlib.sha256(repr(paths).encode()).hexdigest()[:16]
  path = user_cache.folder('weights') / model / f'{name}.{content}'
  if not _read(path, arrays):
    fill()
    _write(path, arrays)
    _forget_others(path.parent, paths)
