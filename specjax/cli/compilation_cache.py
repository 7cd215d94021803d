"""Keeps compiled programs in a folder, for the next start.

jax writes and reads them, and removes the least recently used ones if there are
too many. Programs for a processor may use any instruction
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

from specjax import user_cache
from specjax.bench.config import Mesh
from specjax.cli import cpu
from specjax.errors import need

AUTO, OFF = 'auto', 'off'
_CONFIG: Any = jax.config  # Its flags are added while jax is imported.
_BYTES = 512 * 2**20  # of all programs together, at most
_SECONDS = 0.1  # What compiles faster is not kept: jax looks at every file.


def processor() -> str:
  """Returns a name for this kind of processor and its instructions."""
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


def keep(folder: pathlib.Path) -> None:
  """Keeps compiled programs in a folder from now on, and takes them from there.

  Where nothing can be written there, a line on stderr says so, and programs are
  not kept.
  """
  if not _CONFIG.jax_enable_compilation_cache:
    return  # An environment variable of jax says so.
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
      f'--compilation_cache names another folder, or {OFF}',
      file=sys.stderr,
    )
    return
  jax.config.update('jax_compilation_cache_dir', str(folder))
  jax.config.update('jax_compilation_cache_max_size', _BYTES)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', _SECONDS)
  compilation_cache.reset_cache()  # It may be open elsewhere.


def switch_on(config: Any) -> None:
  """Keeps programs in the folder that a config names; without the field, none.

  The environment variables of jax take precedence. Processes that work together
  keep programs only in a folder that is named: if they did not share it, some
  would wait for others that compile.

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
  told = _CONFIG.jax_compilation_cache_dir is not None
  if chosen == AUTO and mesh.processes == 1 and not told:
    keep(user_cache.folder('programs'))
