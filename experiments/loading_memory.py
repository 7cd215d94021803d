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
import numpy as np
import safetensors.numpy

from specjax import checkpoints
from specjax.checkpoints.families import FAMILIES, conversion
from specjax.cli import command
from specjax.errors import need
from specjax.models.config import TransformerConfig

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


def write(sizes: dict[pathlib.Path, int]) -> None:
  """Writes random weights in float16 of models of so many megabytes."""
  random = np.random.default_rng(0)
  for folder, megabytes in sizes.items():
    config = config_of(megabytes)
    family, attributes = conversion.write_attributes(FAMILIES.values(), config)
    shapes = conversion.shape_params(config)
    tensors = {}
    for key, source in conversion.list_sources(family, config, shapes).items():
      split, names = source
      for name, shape in zip(
        names, split.shapes(shapes[key].shape, len(names)), strict=True
      ):
        x = random.random(shape, np.float32)
        tensors[name] = x.astype(np.float16)
    folder.mkdir()
    (folder / 'config.json').write_text(json.dumps(attributes))
    safetensors.numpy.save_file(tensors, folder / 'model.safetensors')


def largest_tensor(folder: pathlib.Path) -> int:
  """Bytes of the largest tensor of a checkpoint."""
  with safetensors.safe_open(folder / 'model.safetensors', 'numpy') as file:
    shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
  return 2 * max(math.prod(shape) for shape in shapes)


def config_of(megabytes: int) -> TransformerConfig:
  """A model of about so many bytes in float32."""
  width = 64 * max(1, round((megabytes * _MB / 4 / 36) ** 0.5 / 64))
  return TransformerConfig(
    vocab_size=4 * width,
    width=width,
    num_layers=2,
    num_heads=8,
    num_kv_heads=4,
    head_dim=width // 8,
    mlp_width=4 * width,
    max_positions=128,
  )


def main(megabytes: int, dtype: str) -> dict[str, float]:
  """Measures one load; sizes in MB (2^20 bytes)."""
  with tempfile.TemporaryDirectory() as root:
    folder = pathlib.Path(root)
    # In another process, or memory that it freed would be used again.
    sizes = {folder / 'small': 0, folder / 'large': megabytes}
    other = multiprocessing.get_context('spawn').Process(
      target=write, args=(sizes,)
    )
    other.start()
    other.join()
    # What loading anything takes the first time is none of the weights'.
    checkpoints.load(folder / 'small', dtype)
    with Peak() as peak:
      _, params = checkpoints.load(folder / 'large', dtype)
      jax.block_until_ready(params)
    largest = largest_tensor(folder / 'large')
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
