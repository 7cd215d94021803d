"""Compiled programs are kept in a folder, for the next start to take.

jax writes and reads them, and removes those that were not used for the longest
time where there are too many. Programs for a processor may use any instruction
that it has, so each kind of processor has a folder of its own inside the one
that is named: a home that machines share would give one the programs of
another.
"""

import hashlib
import os
import pathlib
import platform
import sys
import tempfile
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from specjax.bench.config import Mesh
from specjax.cli import cpu
from specjax.errors import need

AUTO, OFF = 'auto', 'off'
_BYTES = 512 * 2**20  # of all programs together, at most
_SECONDS = 0.1  # What compiles faster is not kept: jax looks at every file.


def processor() -> str:
  """A name for this kind of processor and its instructions."""
  known = ('model name', 'cpu part', 'flags', 'features')
  facts = {
    f'{name}: {value}'
    for name, value in cpu.facts().items()
    if name.lower().startswith(known)
  }
  facts |= {platform.system(), platform.processor(), cpu.vectors()}
  # Loops are compiled for so many threads.
  facts |= {f'threads: {os.environ.get("NPROC", "")}'}
  code = hashlib.sha256('\n'.join(sorted(facts)).encode()).hexdigest()[:8]
  return f'{platform.machine()}-{code}'


def users_folder() -> pathlib.Path:
  """Where a user's programs are kept unless a folder is named."""
  caches = os.environ.get('XDG_CACHE_HOME', '')
  if not os.path.isabs(caches):
    caches = os.path.expanduser('~/.cache')
  return pathlib.Path(caches, 'specjax', 'programs')


def keep(folder: pathlib.Path) -> None:
  """Keeps compiled programs in a folder from now on, and takes them from there.

  Where nothing can be written there, a line on stderr says so, and programs are
  not kept.
  """
  if not jax.config.jax_enable_compilation_cache:
    return  # So jax was told by its own environment variable.
  folder = folder / processor()
  try:
    need(folder.is_absolute(), 'it is below no home')
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
  except (OSError, ValueError) as error:
    reason = getattr(error, 'strerror', None) or error
    print(
      f'compiled programs are not kept: {folder} cannot be written ({reason}); '
      f'--config.compilation_cache names another folder, or {OFF}',
      file=sys.stderr,
    )
    return
  jax.config.update('jax_compilation_cache_dir', str(folder))
  jax.config.update('jax_compilation_cache_max_size', _BYTES)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', _SECONDS)
  compilation_cache.reset_cache()  # It may be open elsewhere.


def switch_on(config: Any) -> None:
  """Keeps programs where a config says; where it has no such field, nowhere.

  What jax is told by its own environment variables stays as it is. Processes
  that work together keep none of their own accord: where they do not share a
  folder, some would wait for others that compile.

  Raises:
    UserError: the field names a file.
  """
  chosen = getattr(config, 'compilation_cache', OFF)
  if chosen not in ('', OFF, AUTO):
    need(
      not os.path.isfile(chosen),
      f'compilation_cache: {chosen} is a file; name a folder',
    )
    return keep(pathlib.Path(chosen).expanduser().absolute())
  mesh = getattr(config, 'mesh', Mesh())
  told = jax.config.jax_compilation_cache_dir is not None
  if chosen == AUTO and mesh.processes == 1 and not told:
    keep(users_folder())
