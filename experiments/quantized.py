"""Steps with weights in eight bits against the same in floats, batch 1.

  python -m experiments.quantized --config configs/quantized.py

A step is one of plain decoding: the token is fed, the head read, the next one
judged. With a draft's weights it is what drafting a token costs. The two ways
take turns, so a ratio is of the same minutes. `held_mb` is what the compiled
loop holds beside its state: weights, and floats made of them if there are any.
"""

import os

import jax
import jax.numpy as jnp

from experiments import step_costs
from experiments.stepping import Loop, milliseconds
from experiments.sweeps import Bench, seconds
from specjax import checkpoints, verify
from specjax.bench import load
from specjax.bench.config import Narrow
from specjax.bench.loading import checks
from specjax.cli import command
from specjax.drafters import plain
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.models import layouts, quantize
from specjax.types import Params, Spec


def _held(loop: Loop) -> float:
  """Megabytes of weights and of what the compiled loop makes beside them."""
  made = generate.loop.lower(
    loop.params, loop.state, loop.count, spec=loop.spec
  ).compile()
  weights = sum(x.nbytes for x in jax.tree.leaves(loop.params.target))
  return (weights + made.memory_analysis().temp_size_in_bytes) / 1e6


def steps(bench: Bench) -> list[dict]:
  """Every checkpoint in floats and in eight bits, in the layout of one row."""
  x = bench.x
  loops: dict[tuple[str, str], Loop] = {}
  for path in x.paths:
    name = os.path.basename(path.rstrip('/'))
    bench.bar.set_description(f'compiling {name}')
    made = checkpoints.load(path, jnp.dtype(x.dtype))
    made = layouts.to_native(*made) or made
    for way, (model, params) in {
      x.dtype: made,
      'int8': quantize.quantize(*made),
    }.items():
      loops[name, way] = Loop(
        Spec(model, plain.make(), verify.token),
        Params(params, None),
        used=x.used,
        slots=caches.round_slots(x.used + x.steps + 2),
        steps=x.steps,
      )
  timings = bench.time(loops)
  return [
    {
      'sweep': 'eight bits',
      'model': name,
      'way': way,
      'weights_mb': sum(w.nbytes for w in jax.tree.leaves(loop.params.target))
      / 1e6,
      'held_mb': _held(loop),
      **milliseconds(timings[name, way]),
      'ratio': seconds(timings[name, way]) / seconds(timings[name, x.dtype]),
    }
    for (name, way), loop in loops.items()
  ]


def main(x: Narrow) -> None:
  checks.need(x.paths, 'paths is empty: name checkpoints to quantise')
  for path in x.paths:
    load.describe('paths', path)
  if x.quick:
    x.paths = x.paths[:1]
  step_costs.run(x)


if __name__ == '__main__':
  command.run(main, Narrow, resumes=True)
