"""One training on one device and on four: run by `test_own_data`.

  python -m tests.support.train_on_devices FOLDER

The last line is one JSON object.
"""

import contextlib
import json
import pathlib
import sys
from unittest import mock

import safetensors.numpy

from specjax.training import generated, optimize, train_heads
from tests.experiments import test_own_data


def stops_at(train, step):
  """Training whose batches end before one of them."""

  def stopped(name, folder, o, params, loss, frozen, batch, *args, **kwargs):
    def first(number, weights):
      if number == step:
        raise KeyboardInterrupt
      return batch(number, weights)

    return train(name, folder, o, params, loss, frozen, first, *args, **kwargs)

  return stopped


def main(folder: pathlib.Path) -> None:
  options = {'path': str(folder / 'draft')}
  weights = {}
  for devices in (1, 4):
    x = test_own_data.recipe(
      folder, f'on {devices}', 'lm', options, devices=devices
    )
    train_heads.main(x)
    file = folder / f'on {devices}/weights/model.safetensors'
    weights[devices] = safetensors.numpy.load_file(file)
  # Stopped at half, and gone on with.
  x = test_own_data.recipe(folder, 'stopped', 'lm', options, devices=4)
  whole, x.optimization.checkpoint_every = optimize.train, 1
  with (
    mock.patch.object(train_heads, 'train', stops_at(whole, 2)),
    contextlib.suppress(KeyboardInterrupt),
  ):
    train_heads.main(x)
  train_heads.main(x)
  file = folder / 'stopped/weights/model.safetensors'
  resumed = safetensors.numpy.load_file(file)
  start = safetensors.numpy.load_file(folder / 'draft/model.safetensors')
  m = generated.gather(x)
  placed = train_heads.Placed(4).split(train_heads.batches(m))(0, None)
  print(
    json.dumps(
      {
        'apart': max(
          float(abs(weights[1][n] - weights[4][n]).max()) for n in start
        ),
        'resumed': max(
          float(abs(weights[4][n] - resumed[n]).max()) for n in start
        ),
        'moved': max(float(abs(weights[1][n] - start[n]).max()) for n in start),
        'rows': [s.data.shape[0] for s in placed['tokens'].addressable_shards],
      }
    )
  )


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
