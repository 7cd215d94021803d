"""A pool on meshes of two devices: run by `test_pool`.

  python -m tests.support.pool_on_devices FOLDER

The last line is one JSON object: what requests were told on each mesh, and
which programs were compiled after the warm-up.
"""

import functools
import json
import logging
import pathlib
import re
import sys

import jax
import numpy as np

from specjax import checkpoints, verify
from specjax.bench import meshes
from specjax.bench.config import Mesh
from specjax.drafters import lm
from specjax.loop import generate
from specjax.loop.token_records import Recording
from specjax.requests import pool, request_sampling
from specjax.requests.goodput import Goodput
from specjax.types import LoadedDrafter, Params, Spec
from tests.support import many_devices, models

PROGRAMS = (
  'loop', 'read_prompts', '_begin', 'empty', 'place', 'stop', 'run',
  'read_again',
)  # fmt: skip


class Compiled(logging.Handler):
  """Those of the pool's programs that are compiled."""

  def __init__(self):
    super().__init__()
    self.names: list[str] = []

  def emit(self, record):
    found = re.match(r'Compiling jit\((\w+)\)', record.getMessage())
    if found and found[1] in PROGRAMS:
      self.names.append(found[1])


def run(folder: pathlib.Path, mesh: Mesh, by_load: bool) -> dict:
  """Tokens and log-probabilities of requests that come and go.

  By load, drafts change their length, in one order on every mesh.
  """
  placement = meshes.make_placement(mesh)
  target, weights = checkpoints.load(
    folder / 'target', 'float64', placement=placement
  )
  draft, own = checkpoints.load(
    folder / 'draft', 'float64', placement=placement and placement.for_draft
  )
  spec = Spec(target, lm.make(draft, 2), verify.token, many_devices.ENDS)
  kinds, told = request_sampling.of(spec, 'top_p'), {}
  policy = None
  if by_load:
    loaded = LoadedDrafter(target, functools.partial(lm.make, draft), own)
    order = [0, 2, 1, 1, 0, 0, 2] * 9
    policy = Goodput(loaded, (0, 1, 2), replay=order)
  held = pool.Pool(
    Params(weights, own), spec=spec, values=kinds.values(), rows=2, slots=128,
    reads=(32, 128), group=2, recording=Recording(logprobs=2), policy=policy,
  )  # fmt: skip
  held.warm_up()
  compiled = Compiled()
  logger = logging.getLogger('jax')
  logger.addHandler(compiled)
  random = np.random.default_rng(0)
  for number in range(6):
    prompt = random.integers(0, 30, [3, 40, 1][number % 3]).tolist()
    key = generate.row_keys(0, [number])
    values = kinds.values(temperature=number % 2 * 0.9, top_p=0.95)
    held.submit(pool.Request(prompt, 8 + number, key, values))
    if number == 4:
      held.cancel(1)
    for one in held.turn(steps=2):
      told.setdefault(one.id, []).append(one)
  models.finish(held, 1, told)
  logger.removeHandler(compiled)
  return {
    'tokens': [[t for x in told[n] for t in x.tokens] for n in sorted(told)],
    'logprobs': [
      [one.value for x in told[n] for one in x.logprobs] for n in sorted(told)
    ],
    'top': [[x for x, _ in told[n][0].logprobs[0].top] for n in sorted(told)],
    'compiled': compiled.names,
  }


def main(folder: pathlib.Path) -> None:
  many_devices.write(folder)
  jax.config.update('jax_enable_x64', True)
  jax.config.update('jax_log_compiles', True)
  made = {
    f'{kind} {x.data}x{x.model}': run(folder, x, by_load)
    for kind, by_load in (('constant', False), ('by load', True))
    for x in (Mesh(1, 1), Mesh(2, 1), Mesh(1, 2))
  }
  print(json.dumps(made))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
