"""One training on one device and on four: run by `test_own_data`.

  python -m tests.support.train_on_devices FOLDER

The last line is one JSON object.
"""

import json
import pathlib
import sys
from unittest import mock

import safetensors.numpy

from specjax.training import examples, generated, train_heads
from tests.experiments import test_own_data
from tests.support.resumed import killed


def main(folder: pathlib.Path) -> None:
  options = {'path': str(folder / 'draft')}
  weights, steps = {}, []
  for devices in (1, 4):
    x = test_own_data.recipe(
      folder, f'on {devices}', 'lm', options, devices=devices
    )
    if devices == 4:  # Stopped at half, and gone on with.
      with killed(examples, 'draw', 3):
        train_heads.main(x)
    with mock.patch.object(examples, 'draw', wraps=examples.draw) as draws:
      train_heads.main(x)
    steps.append([call.args[-1] for call in draws.call_args_list])
    file = folder / f'on {devices}/weights/model.safetensors'
    weights[devices] = safetensors.numpy.load_file(file)
  start = safetensors.numpy.load_file(folder / 'draft/model.safetensors')

  def apart(one, other):
    return max(float(abs(one[name] - other[name]).max()) for name in start)

  m = generated.gather(x)
  batch, _ = train_heads.spread(4, train_heads.batches(m))
  placed = batch(0, None)
  rows = [s.data.shape[0] for s in placed['tokens'].addressable_shards]
  moved = apart(weights[1], start)
  print(json.dumps({'apart': apart(*weights.values()), 'moved': moved,
                    'rows': rows, 'steps': steps}))  # fmt: skip


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
