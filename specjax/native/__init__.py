"""Products of few rows with a weight, by a kernel of our own on a CPU.

XLA has no product that serves a few rows at the price of reading a weight once
with all cores: a library's repacks the weight, and a sum over blocks runs on
one core. `few_rows.c` does it. The first process that needs it compiles it with
the C compiler of the machine, for the instructions of its processor, and keeps
it in the user's cache folder. Where that cannot be done (`reason` says why)
nothing is lost but time: the same blocks are multiplied in JAX.

`SPECJAX_NATIVE=off` in the environment does without.
"""

import ctypes
import functools
import hashlib
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

COLUMNS = 16  # of a block
MOST_ROWS = 64  # up to which a product was seen to be the fastest
DTYPES = 'float32', 'bfloat16'  # of weights, besides int8
_SOURCE = pathlib.Path(__file__).with_name('few_rows.c')
_FLAGS = '-O3', '-std=gnu11', '-shared', '-fPIC', '-pthread'
_TARGETS = ('-march=native',), ('-mcpu=native',), ()  # the first that works
_SWITCH = 'SPECJAX_NATIVE'
_MOST_CORES = 8  # that read one weight together
_SECONDS = 60.0  # that compiling may take
_NAME = 'specjax_few_rows'
_OF_BATCHES = 'specjax_few_rows_of_batches'


class _Missing(Exception):
  """There is no kernel here, and why."""


def folder() -> pathlib.Path:
  """Where the compiled kernel is kept."""
  caches = os.environ.get('XDG_CACHE_HOME', '')
  if not os.path.isabs(caches):
    caches = os.path.expanduser('~/.cache')
  return pathlib.Path(caches, 'specjax', 'native')


def _cores() -> int:
  """Cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _compiler() -> list[str]:
  """The machine's C compiler, as the environment names it or by its names."""
  if named := shlex.split(os.environ.get('CC', '')):
    return named
  for name in ('cc', 'gcc', 'clang'):
    if found := shutil.which(name):
      return [found]
  raise _Missing('there is no C compiler (cc, gcc or clang)')


def _key(compiler: list[str]) -> str:
  """What another compiled kernel would be needed for."""
  told = np.show_config(mode='dicts').get('SIMD Extensions', {})
  facts = [
    _SOURCE.read_text(),
    *compiler,
    platform.machine(),
    platform.processor(),
    jaxlib.__version__,
    str(told.get('found')),
  ]
  try:
    with open('/proc/cpuinfo') as file:
      facts += sorted(
        {x for x in file if x.startswith(('model name', 'flags'))}
      )
  except OSError:
    pass
  return hashlib.sha256('\n'.join(facts).encode()).hexdigest()[:16]


def _compile(compiler: list[str], path: pathlib.Path) -> None:
  """Compiles the kernel into a file, which is there whole or not at all."""
  error = ''
  with tempfile.TemporaryDirectory(dir=path.parent) as folder:
    made = pathlib.Path(folder, path.name)
    for target in _TARGETS:
      include = f'-I{jax.ffi.include_dir()}'
      command = [*compiler, *_FLAGS, *target, include, str(_SOURCE)]
      run = subprocess.run(
        [*command, '-o', str(made)],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
      )
      if run.returncode == 0:
        made.replace(path)
        return
      error = next(iter(run.stderr.strip().splitlines()), 'it failed')
  raise _Missing(f'{compiler[0]} does not compile the kernel: {error}')


def _register(path: pathlib.Path) -> None:
  """Tells JAX of a compiled kernel."""
  library = ctypes.CDLL(str(path))
  library.use_helpers(min(_cores(), _MOST_CORES) - 1)
  for name in (_NAME, _OF_BATCHES):
    capsule = jax.ffi.pycapsule(library[name.removeprefix('specjax_')])
    jax.ffi.register_ffi_target(name, capsule, platform='cpu')


@functools.cache
def reason() -> str:
  """Why there is no kernel here, in a few words; '' where there is one."""
  if os.environ.get(_SWITCH, '').lower() in ('off', '0', 'false', 'no'):
    return f'{_SWITCH} is off'
  if sys.byteorder != 'little':
    return 'the processor is big-endian'
  try:
    compiler = _compiler()
    folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder() / f'{_key(compiler)}.so'
    if not path.exists():
      _compile(compiler, path)
    _register(path)
  except _Missing as error:
    return str(error)
  except (OSError, subprocess.SubprocessError, ValueError) as error:
    return f'{type(error).__name__}: {error}'
  return ''


def available() -> bool:
  """Whether there is a kernel, which is compiled now if it was not yet."""
  return not reason()


@jax.custom_batching.custom_vmap
def product(x: jax.Array, w: jax.Array) -> jax.Array:
  """x [R, in] float32 times w [C, in, COLUMNS]; [R, C * COLUMNS] float32.

  Each row has the same bits alone and beside others.

  Args:
    x: rows.
    w: blocks, of `DTYPES` or int8.
  """
  shape = len(x), len(w) * COLUMNS
  call = jax.ffi.ffi_call(_NAME, jax.ShapeDtypeStruct(shape, jnp.float32))
  return call(x, w)


@product.def_vmap
def _product_of_batches(size, batched, x, w):
  """More rows of the same weight are rows; other weights take turns."""
  if batched[1]:
    x = x if batched[0] else jnp.broadcast_to(x, (size, *x.shape))
    return jax.lax.map(lambda pair: product(*pair), (x, w)), True
  y = product(x.reshape(-1, x.shape[-1]), w)
  return y.reshape(size, -1, y.shape[-1]), True


@jax.custom_batching.custom_vmap
def products(x: jax.Array, w: jax.Array) -> jax.Array:
  """x [B, R, in] float32 times w [B, in, out]; [B, R, out] float32.

  Each row has the same bits alone and beside others.

  Args:
    x: rows of each batch.
    w: a matrix for each, of `DTYPES` or int8; out is a multiple of COLUMNS.
  """
  shape = *x.shape[:2], w.shape[-1]
  call = jax.ffi.ffi_call(_OF_BATCHES, jax.ShapeDtypeStruct(shape, jnp.float32))
  return call(x, w)


@products.def_vmap
def _products_of_batches(size, batched, x, w):
  x, w = (
    each if own else jnp.broadcast_to(each, (size, *each.shape))
    for each, own in zip((x, w), batched, strict=True)
  )
  y = products(x.reshape(-1, *x.shape[2:]), w.reshape(-1, *w.shape[2:]))
  return y.reshape(*x.shape[:3], -1), True
