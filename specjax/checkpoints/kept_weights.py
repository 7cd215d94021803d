"""Weights that a file holds in few bits, kept as the kernel multiplies them.

To put a weight of a GGUF file into blocks takes far longer than to read it. So
the blocks are made in the user's cache, a file for each parameter, which every
start maps. Passes over mapped pages took as long as over memory on two
cores of an AMD EPYC, whose files lay in pages of 2 MiB, and 2 % longer on an
Intel Xeon (results/starts.md).

A file's name has a digest of all that the blocks are made of: the model's file,
the tensors, the form, and the code of this package, of the models and of the
kernel. Files of other digests of the same parameter are deleted, and all that
was kept of a model whose files are no longer there.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import math
import mmap
import os
import pathlib
import resource
import shutil
import tempfile
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from specjax import user_cache

_LEAST = 1 << 16  # bytes of a parameter; a smaller one is soon made
_SPARE = 8 << 30  # bytes that stay free on the disk
_ALIGNMENT = 64  # bytes, below which a CPU device copies what it is given
_POPULATE_READ = 22  # of Linux 5.14; `mmap` has no name for it
_PIECE = 16 << 20  # bytes that are mapped at once
_FILES = 1 << 13  # that may be open: one for each matrix of a model
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


def _offsets(shapes: Sequence[Any]) -> list[int]:
  """Returns where arrays begin in a file, and where it ends."""
  sizes = [math.prod(x.shape) * x.dtype.itemsize for x in shapes]
  padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
  return [0, *itertools.accumulate(padded)]


@functools.cache
def _allow_files() -> None:
  """Lets the process open more files: a map keeps its own open."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
  if soft != resource.RLIM_INFINITY and soft < wanted:
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def allocate(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  """Returns memory that a CPU device takes over without a copy."""
  size = math.prod(shape) * dtype.itemsize
  memory = np.empty(size + _ALIGNMENT, np.uint8)
  start = -memory.ctypes.data % _ALIGNMENT
  return memory[start : start + size].view(dtype).reshape(shape)


def _arrays(pages: mmap.mmap, shapes: Sequence[Any]) -> list[np.ndarray]:
  """Returns arrays that are parts of a map."""
  return [
    np.frombuffer(pages, x.dtype, math.prod(x.shape), at).reshape(x.shape)
    for x, at in zip(shapes, _offsets(shapes)[:-1], strict=True)
  ]


def _map(
  path: pathlib.Path, shapes: Sequence[Any], whole: bool
) -> list[np.ndarray] | None:
  """Returns arrays that are parts of a file of their size; None: there is none.

  What is read as a whole is mapped at once, where the system can: a pass that
  meets a page for the first time waits for it. No other thread runs while a
  piece is read from the disk.
  """
  _allow_files()
  with contextlib.suppress(OSError), open(path, 'rb') as file:
    if os.fstat(file.fileno()).st_size == _offsets(shapes)[-1]:
      pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
      with contextlib.suppress(OSError):
        for at in range(0, len(pages) if whole else 0, _PIECE):
          length = min(_PIECE, len(pages) - at)
          pages.madvise(_POPULATE_READ, at, length)
      return _arrays(pages, shapes)
  return None


def _write(
  path: pathlib.Path,
  shapes: Sequence[Any],
  fill: Callable[[list[np.ndarray]], None],
) -> None:
  """Makes a file of arrays, where there is room for it.

  Arrays are filled where they lie in the file, so they take no other memory.
  """
  with contextlib.suppress(OSError):
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    size = _offsets(shapes)[-1]
    if shutil.disk_usage(path.parent).free < size + _SPARE:
      return
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
      made = pathlib.Path(place, path.name)
      with open(made, 'w+b') as file:
        # A page that finds no room when it is written ends the process.
        if hasattr(os, 'posix_fallocate'):
          os.posix_fallocate(file.fileno(), 0, size)
        else:
          file.truncate(size)
        pages = mmap.mmap(file.fileno(), 0)
      fill(_arrays(pages, shapes))
      made.replace(path)
    user_cache.tidy(path.parent)
    for old in path.parent.iterdir():
      if old.stem == path.stem and old != path:
        old.unlink(missing_ok=True)


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
  shapes: Sequence[Any],
  fill: Callable[[list[np.ndarray]], None],
  *,
  whole: bool = True,
) -> list[np.ndarray]:
  """Returns arrays that were made before, or makes them.

  Args:
    name: of the parameter, one of the files' model.
    sources: identities of the files that the content is made of, as
      `gguf_files.Gguf` has them. Once one has changed it is made again.
    facts: whatever else decides the content; its `repr` counts.
    shapes: of the arrays, and their types.
    fill: writes the arrays, whose memory it is given.
    whole: whether a pass reads all of the arrays. Where it reads a few rows,
      only the pages round these take memory.
  """
  kinds = [(x.shape, x.dtype.str) for x in shapes]
  text = repr((sorted(sources), kinds, facts)).encode()
  content = hashlib.sha256(_code() + text).hexdigest()[:16]
  paths = sorted(path for path, *_ in sources)
  model = hashlib.sha256(repr(paths).encode()).hexdigest()[:16]
  path = user_cache.folder('weights') / model / f'{name}.{content}'
  keeps = _offsets(shapes)[-1] >= _LEAST
  arrays = _map(path, shapes, whole) if keeps else None
  if arrays is None and keeps:
    _write(path, shapes, fill)
    _forget_others(path.parent, paths)
    arrays = _map(path, shapes, whole)
  if arrays is None:
    arrays = [allocate(x.shape, x.dtype) for x in shapes]
    fill(arrays)
  return arrays
