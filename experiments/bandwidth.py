"""How fast the device reads memory: what a step is held against."""

import time

import jax
import jax.numpy as jnp
import numpy as np

from specjax import native


def _by_the_kernel(x, v):
  columns = x.reshape(-1, 512, native.COLUMNS)
  return native.product(v[None, :512].astype(jnp.float32), columns)


class Reader:
  """Programs that read an array once: the fastest one counts.

  Sums of blocks, a matrix-vector product, a product in blocks, and one by the
  kernel, which has all cores where XLA has one.
  """

  def __init__(self, size: int, dtype=jnp.float32):
    """Makes and compiles.

    Args:
      size: bytes of the array; beyond the caches unless these are meant.
      dtype: of its entries.
    """
    width = jnp.dtype(dtype).itemsize
    blocks = max(1, size // (width * 512 * 64))
    self.x = jnp.ones((blocks, 512, 64), dtype)
    self.vector = jnp.ones(512 * 64, dtype)
    programs = [
      lambda x, v: x.sum((1, 2)),
      lambda x, v: x.reshape(blocks, -1) @ v,
      lambda x, v: (v[:512, None] * x).sum(-2),
    ]
    if (
      jax.default_backend() == 'cpu'
      and native.available()
      and self.x.dtype.name in native.DTYPES
    ):
      programs.append(_by_the_kernel)
    self.programs = [jax.jit(program) for program in programs]
    self.read()

  def read(self) -> np.ndarray:
    """Bytes a second of each program, once."""
    rates = []
    for program in self.programs:
      begin = time.perf_counter()
      jax.block_until_ready(program(self.x, self.vector))
      rates.append(self.x.nbytes / (time.perf_counter() - begin))
    return np.array(rates)


def read_bandwidth(size: int, repeats: int = 5) -> float:
  """Bytes a second, the best of so many repetitions; see `Reader`."""
  reader = Reader(size)
  return max(reader.read().max() for _ in range(repeats))
