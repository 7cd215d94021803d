"""Products of rows, and attention, by a kernel of our own on a CPU.

XLA has no product that serves a few rows at the price of reading a weight once
with all cores: a library's repacks the weight, and a sum over blocks runs on
one core. `few_rows.c` does it, and is no slower with many; `groups.c` does it
with weights of few bits. `attention.c` attends to a cache and a block in one
operation, `heads.c` turns and lays out what is attended, where XLA takes forty
small ones, `norms.c` norms, and `gates.c` has the activations of MLPs, which
XLA computes on one core. In all of them a row has the same bits alone
and beside others. Rows of zeros, which stand where there is no token, take no
time in products.

The first process that needs them compiles them with the C compiler of the
machine, for the instructions of its processor, and keeps them in the user's
cache folder. Where that cannot be done (`reason` says why) nothing is lost but
time, and the bits of rows: JAX computes the same up to rounding.

`SPECJAX_NATIVE=off` in the environment does without.
"""

import ctypes
import functools
import hashlib
import importlib.metadata
import importlib.util
import math
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent import futures

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from specjax import user_cache

COLUMNS = 16  # of a block
DTYPES = 'float32', 'bfloat16'  # of weights in floats, and of caches
_WIDEST = 256  # a head
_FOLDER = pathlib.Path(__file__).parent
_SOURCES = sorted(_FOLDER.glob('*.[ch]'))
_FLAGS = (
  *('-O3', '-std=gnu11', '-fPIC', '-pthread'),
  '-fvisibility=hidden',
)
# Compiler options for the instructions of a processor; the first that works is
# taken. Set before the first use, (('-march=x86-64-v3',),) leaves out AVX-512.
TARGETS: tuple[tuple[str, ...], ...] = (
  ('-march=native',),
  ('-mcpu=native',),
  (),
)
# Slope and cubic of the activations of `gated`, as JAX has them.
ACTIVATIONS = {
  jax.nn.silu: (1.0, 0.0),
  jax.nn.gelu: ((8 / math.pi) ** 0.5, 0.044715 * (8 / math.pi) ** 0.5),
}
_SWITCH = 'SPECJAX_NATIVE'
_THREADS = 'NPROC'  # of XLA, for a CPU
_DEVICES = 'jax_num_cpu_devices'
_MOST_CORES = 8  # that read one weight together
_SECONDS = 60.0  # that compiling may take
_NAMES = 'few_rows', 'groups', 'gates', 'heads', 'norms', 'attend'
_LOOKING = threading.Lock()


class _Missing(Exception):
  """There is no kernel here, and why."""


def cores() -> int:
  """Returns the number of cores that this process may use."""
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
  """Returns a hash of all that a compiled kernel depends on."""
  told = np.show_config(mode='dicts').get('SIMD Extensions', {})
  facts = [
    *(source.read_text() for source in _SOURCES),
    *compiler,
    *_FLAGS,
    *map(str, TARGETS),
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

  def run(arguments: Sequence[str]) -> str:
    """Runs the compiler; returns the first line of its error, or ''."""
    done = subprocess.run(
      [*compiler, *_FLAGS, *arguments],
      capture_output=True,
      text=True,
      timeout=_SECONDS,
      check=False,
    )
    lines = done.stderr.strip().splitlines() or ['it failed']
    return lines[0] if done.returncode else ''

  include, error = f'-I{jax.ffi.include_dir()}', ''
  sources = [source for source in _SOURCES if source.suffix == '.c']
  sources.sort(key=lambda source: -source.stat().st_size)
  with tempfile.TemporaryDirectory(dir=path.parent) as folder:
    made = pathlib.Path(folder, path.name)
    parts = [str(made.with_name(f'{source.stem}.o')) for source in sources]
    for target in TARGETS:
      asked = [
        (*target, include, '-c', str(source), '-o', part)
        for source, part in zip(sources, parts, strict=True)
      ]
      try:
        with futures.ThreadPoolExecutor(cores()) as pool:
          error = next(filter(None, pool.map(run, asked)), '')
      except RuntimeError:  # No thread begins any more.
        raise _Missing('the process ends') from None
      error = error or run([*target, '-shared', *parts, '-lm', '-o', str(made)])
      if not error:
        made.replace(path)
        return
  raise _Missing(f'{compiler[0]} does not compile the kernel: {error}')


def _register(path: pathlib.Path) -> None:
  """Tells JAX of a compiled kernel."""
  library = ctypes.CDLL(str(path))
  library.use_helpers(min(cores(), _MOST_CORES) - 1)
  for name in _NAMES:
    capsule = jax.ffi.pycapsule(library[name])
    jax.ffi.register_ffi_target(f'specjax_{name}', capsule, platform='cpu')


@functools.cache
def _look() -> str:
  """Looks for the kernel, compiles it first where needed; see `reason`."""
  if os.environ.get(_SWITCH, '').lower() in ('off', '0', 'false', 'no'):
    return f'{_SWITCH} is off'
  if sys.byteorder != 'little':
    return 'the processor is big-endian'
  try:
    compiler = _compiler()
    folder = user_cache.folder('native')
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f'{_key(compiler)}.so'
    if not path.exists():
      user_cache.tidy(folder)
      _compile(compiler, path)
    _register(path)
  except _Missing as error:
    return str(error)
  except (OSError, subprocess.SubprocessError, ValueError) as error:
    return f'{type(error).__name__}: {error}'
  return ''


def reason() -> str:
  """Why there is no kernel here, in a few words; '' where there is one."""
  with _LOOKING:
    return _look()


def begin() -> None:
  """Begins to look for the kernel, which may take seconds to compile."""
  threading.Thread(target=reason).start()


def available() -> bool:
  """Returns true if there is a kernel; compiles it first where needed."""
  return not reason()


def _on_cpu() -> bool:
  """Returns true if JAX will compute on the CPU, as far as is known now."""
  if platforms := getattr(jax.config, 'jax_platforms', None):
    return platforms.split(',')[0] == 'cpu'
  others = importlib.metadata.entry_points(group='jax_plugins')
  return not others and importlib.util.find_spec('libtpu') is None


def _begun() -> bool:
  """Returns true if JAX has computed, and takes no number of devices now."""
  count = getattr(jax.config, _DEVICES)
  try:
    jax.config.update(_DEVICES, max(count, 0) + 1)
  except RuntimeError:
    return True
  jax.config.update(_DEVICES, count)
  return False


def claim_cores() -> bool:
  """Leaves the cores to the kernel, if JAX has computed nothing yet.

  XLA shares small operations among threads of its own. To wake one takes a
  virtual machine as long as thirty of them, and the one that is awake takes its
  turns with the kernel's. So XLA gets none, by `NPROC` in the
  environment, which is left alone where it is set. What the kernel does not do,
  such as training, then takes one core.

  Returns:
    Whether it is so: JAX computes on the CPU, and there is a kernel that uses
    all of its cores.
  """
  if not _on_cpu() or cores() > _MOST_CORES or not available():
    return False
  if not _begun():
    os.environ.setdefault(_THREADS, '1')
  return os.environ.get(_THREADS) == '1'


def _call(name: str, shape: tuple[int, ...], *given: jax.Array) -> jax.Array:
  """Calls a function of the kernel; returns its result, float32."""
  made = jax.ShapeDtypeStruct(shape, jnp.float32)
  call = jax.ffi.ffi_call(f'specjax_{name}', made, vmap_method='sequential')
  return call(*given)


def _of_rows(call):
  """`vmap` of a call on rows makes more rows of them; other weights take turns.

  Args:
    call: (rows [R, in], *weights) -> [R, out].
  """
  call = jax.custom_batching.custom_vmap(call)

  @call.def_vmap
  def batches(size, batched, x, *weights):
    if any(batched[1:]):
      args = [
        a if b else jnp.broadcast_to(a, (size, *a.shape))
        for a, b in zip((x, *weights), batched, strict=True)
      ]
      return jax.lax.map(lambda one: call(*one), args), True
    y = call(x.reshape(-1, x.shape[-1]), *weights)
    return y.reshape(size, -1, y.shape[-1]), True

  return call


@_of_rows
def product(x: jax.Array, w: jax.Array) -> jax.Array:
  """x [R, in] float32 times w [C, in, COLUMNS]; [R, C * COLUMNS] float32.

  Each row has the same bits alone and beside others.

  Args:
    x: rows.
    w: blocks, of `DTYPES`.
  """
  return _call('few_rows', (len(x), len(w) * COLUMNS), x, w)


@_of_rows
def grouped_product(
  x: jax.Array,
  words: jax.Array,
  scale: jax.Array,
  scale_unit: jax.Array,
  offset: jax.Array,
  offset_unit: jax.Array,
  settings: jax.Array,
) -> jax.Array:
  """x [R, in] float32 times a weight of few bits; [R, C * COLUMNS] float32.

  A row's result does not depend on the rows beside it.

  Args:
    x: rows.
    words: [C, in * bits / 32, COLUMNS] int32, see `models.low_bits`.
    scale: [C, in / G, COLUMNS] float32, float16 or int8, of each group of
      inputs.
    scale_unit: [C, in / S, COLUMNS] of the same types, which scales are
      multiplied by; or no values at all.
    offset: as scale, or no values at all.
    offset_unit: as scale_unit.
    settings: [2] int32; 1 rounds x to eight bits in each group; the value of
      fewer than eight bits that stands for 0.
  """
  shape = len(x), len(words) * COLUMNS
  factors = scale, scale_unit, offset, offset_unit
  return _call('groups', shape, x, words, *factors, settings)


@_of_rows
def _norm(x, scale, numbers):
  return _call('norms', x.shape, x, scale, numbers)


def norm(
  x: jax.Array,
  scale: jax.Array | None,
  epsilon: float,
  *,
  more: float = 0,
  centre: bool = False,
) -> jax.Array:
  """RMSNorm of rows x [..., n] float32, or LayerNorm.

  Each row has the same bits alone and beside others.

  Args:
    x: rows.
    scale: [n] that the result is multiplied by; None: by nothing.
    epsilon: added to the variance.
    more: added to scale.
    centre: take off the mean first, as in LayerNorm.
  """
  scale = jnp.zeros(0, x.dtype) if scale is None else scale
  numbers = jnp.array([epsilon, more, centre], jnp.float32)
  return _norm(x.reshape(-1, x.shape[-1]), scale, numbers).reshape(x.shape)


@_of_rows
def _gated(x, numbers):
  return _call('gates', (len(x), x.shape[1] // 2), x, numbers)


def gated(x: jax.Array, activation: Callable) -> jax.Array:
  """Returns activation(gates) * values of x [..., 2, n] float32; [..., n].

  Each row has the same bits alone and beside others.

  Args:
    x: gates, and then values.
    activation: one of `ACTIVATIONS`.
  """
  n, numbers = x.shape[-1], jnp.array(ACTIVATIONS[activation], jnp.float32)
  return _gated(x.reshape(-1, 2 * n), numbers).reshape(*x.shape[:-2], n)


def heads(
  qkv: jax.Array, turns: tuple[jax.Array, jax.Array] | None, scale: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Queries, keys and values of a product, as `attend` takes them, float32.

  Args:
    qkv: [B, T, G, H/G + 2, D], the queries of a group, its key and its value.
    turns: sine and cosine [B, T, F] by which the first 2 F entries of queries
      and keys are turned, see `models.rotary`; None: positions turn nothing.
    scale: of queries.

  Returns:
    Queries [B, T, G, H/G, D], keys [B, G, D, T] and values [B, G, T, D].
  """
  float32 = functools.partial(jnp.asarray, dtype=jnp.float32)
  b, t, g, parts, d = qkv.shape
  if turns is None:
    turns = jnp.zeros((b, t, 0)), jnp.zeros((b, t, 0))
  shapes = (b, t, g, parts - 2, d), (b, g, d, t), (b, g, t, d)
  made = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  call = jax.ffi.ffi_call('specjax_heads', made, vmap_method='sequential')
  queries, keys, values = call(*map(float32, (qkv, *turns, scale)))
  return queries, keys, values


def attends(width: int, slots: int) -> bool:
  """Returns true if heads of a width can attend to a cache of slots."""
  return width % COLUMNS == slots % COLUMNS == 0 and width <= _WIDEST


def attend(
  q: jax.Array,
  cache: tuple[jax.Array, jax.Array],
  length: jax.Array,
  block: tuple[jax.Array, jax.Array],
  mask: jax.Array,
  *,
  first: jax.Array | None = None,
  sinks: int = 0,
  cap: float | None = None,
  bias: tuple[jax.Array, jax.Array] | None = None,
) -> jax.Array:
  """Attention of queries to a cache and a block; [B, T, G, H/G, D] float32.

  Each query has the same bits alone and beside others, and whether its text is
  in the cache or in the block; one that sees nothing has 0. See `attends` for
  the sizes.

  Args:
    q: [B, T, G, H/G, D], already scaled.
    cache: keys [B, G, D, S] and values [B, G, S, D], of `DTYPES`.
    length: [B] slots of it in use.
    block: keys and values of N slots.
    mask: [B, T, N] which of these are of a query's text, in their order. They
      lie behind the slots in use.
    first: [B, T] slot of the cache from which on a query sees; None: all.
    sinks: first slots that it sees besides.
    cap: soft cap of the scores.
    bias: of the scores, [B, H, T, S] and [B, H, T, N].
  """
  none = jnp.zeros(0, jnp.float32)
  float32 = functools.partial(jnp.asarray, dtype=jnp.float32)
  return _call(
    'attend',
    q.shape,
    float32(q),
    *cache,
    length.astype(jnp.int32),
    *block,
    mask.astype(bool),
    jnp.zeros(0, jnp.int32) if first is None else first.astype(jnp.int32),
    *((none, none) if bias is None else map(float32, bias)),
    jnp.array([cap or 0, sinks], jnp.float32),
  )
