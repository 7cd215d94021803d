"""Host memory that loading a checkpoint takes beside its parameters.

  python -m experiments.loading_memory [--megabytes 400] [--dtype float32]

Writes a random Llama checkpoint into a temporary folder and loads it, while a
thread reads the anonymous memory of the process every millisecond. Pages of
the mapped file are not counted: the system takes them back at will. The bound
is 1.2 times the parameters' bytes plus the largest tensor. Linux only.

The last line is one JSON document: megabytes of the parameters, of the largest
tensor, of the growth at its peak and of the bound.
"""

import json
import math
import multiprocessing
import pathlib
import tempfile
import threading

import jax
import jax.numpy as jnp
import safetensors

from experiments.step_timing import random_weights
from specjax import checkpoints
from specjax.bench.config import Size
from specjax.cli import command
from specjax.errors import need
from specjax.training.train_pair import model_of

_MB = 2**20
_DTYPES = 'float32', 'bfloat16', 'float16'


def anonymous() -> int:
  """Bytes of anonymous memory of this process."""
  for line in pathlib.Path('/proc/self/status').read_text().splitlines():
    if line.startswith('RssAnon:'):
      return int(line.split()[1]) * 1024
  raise OSError('/proc/self/status has no RssAnon: Linux only')


class Peak:
  """Largest anonymous memory while it is open, above that at its start."""

  def __enter__(self):
    self.start = anonymous()
    self.growth = 0
    self._over = threading.Event()
    self._thread = threading.Thread(target=self._watch)
    self._thread.start()
    return self

  def _watch(self):
    while not self._over.wait(0.001):
      self.growth = max(self.growth, anonymous() - self.start)

  def __exit__(self, *_):
    self._over.set()
    self._thread.join()
    self.growth = max(self.growth, anonymous() - self.start)


def write(sizes: dict[str, int]) -> None:
  """Writes random models in float16, of about so many megabytes in float32."""
  for folder, megabytes in sizes.items():
    width = 64 * max(1, round((megabytes * _MB / 4 / 36) ** 0.5 / 64))
    size = Size(width, 2, 8, 4, width // 8, 4 * width)
    model = model_of(size, vocab_size=4 * width, max_positions=128)
    weights = random_weights(model, 0, jnp.float16)
    checkpoints.save(folder, model, weights, dtype=jnp.float16)


def largest_tensor(folder: str) -> int:
  """Bytes of the largest tensor of a checkpoint."""
  file = next(pathlib.Path(folder).glob('*.safetensors'))
  with safetensors.safe_open(file, 'numpy') as tensors:
    names = list(tensors.keys())
    shapes = [tensors.get_slice(name).get_shape() for name in names]
  return 2 * max(map(math.prod, shapes))


def main(megabytes: int, dtype: str) -> dict[str, float]:
  """Measures one load; sizes in MB (2^20 bytes)."""
  with tempfile.TemporaryDirectory() as root:
    small, large = f'{root}/small', f'{root}/large'
    # In another process, or memory that it freed would be used again.
    other = multiprocessing.get_context('spawn').Process(
      target=write, args=({small: 0, large: megabytes},)
    )
    other.start()
    other.join()
    # Loading anything for the first time takes memory that is not the weights'.
    checkpoints.load(small, dtype)
    with Peak() as peak:
      _, params = checkpoints.load(large, dtype)
      jax.block_until_ready(params)
    largest = largest_tensor(large)
  total = sum(x.nbytes for x in jax.tree.leaves(params))
  byte_counts = {
    'parameters': total,
    'largest_tensor': largest,
    'growth': peak.growth,
    'bound': 1.2 * total + largest,
  }
  return {name: round(value / _MB, 1) for name, value in byte_counts.items()}


def _from_command_line() -> None:
  parser = command.Parser(__doc__)
  parser.add_argument(
    '--megabytes', type=int, default=400, help='of parameters, an integer'
  )
  parser.add_argument(
    '--dtype', default='float32', choices=_DTYPES, help='of the parameters'
  )
  options = parser.parse_args()
  need(
    options.megabytes >= 1,
    f'--megabytes must be at least 1, got {options.megabytes}',
  )
  print(json.dumps(main(options.megabytes, jnp.dtype(options.dtype))))


if __name__ == '__main__':
  command.guard(_from_command_line)
