"""What a step costs, on models with random weights of any shape.

  python -m experiments.step_costs --config configs/step_costs.py
  python -m experiments.step_costs --config configs/limit.py

A config names its sweeps (`experiments.sweeps`, `experiments.judging`,
`experiments.limits`). Within a sweep everything is measured in turns; its rows
are kept when it is done, so that a run that was cut off goes on with the next
one. Nothing is compiled or transferred while time is taken.

The last line is one JSON document: the folder, the rows, the exponents of the
sweeps that have one, and the ratios to the limit.
"""

import json
import os
import sys
from collections.abc import Callable

import jax
from tqdm import tqdm

from experiments import step_costs_report
from experiments.sweeps import Bench
from specjax.bench import load, results
from specjax.bench.config import Speed
from specjax.bench.loading import checks
from specjax.bench.memory import available
from specjax.cli import command
from specjax.cli.names import Names, resolve_function
from specjax.training import recipe_checks

_SWEEPS = Names('experiments.sweeps.{}', 'batch')


def shrink(x: Speed) -> None:
  """The quick version: toy sizes."""
  for size in (x.target, x.draft):
    size.width, size.mlp_width, size.head_dim = 32, 64, 8
    size.num_layers, size.num_heads, size.num_kv_heads = 1, 2, 1
  x.target.vocab_size = 256
  x.path = ''
  x.used, x.steps, x.repeats, x.megabytes = 20, 2, 2, 1
  x.gamma, x.gammas, x.batches = 2, (1, 2), (1, 2)
  x.contexts, x.vocabularies, x.rates = (20, 40), (256, 512), (0.5, 0.9)
  x.maxima = (128, 256)


def check(x: Speed) -> list[Callable[[Bench], list[dict]]]:
  """Checks the values and returns the sweeps.

  Raises:
    ValueError: names the field, the value and the remedy.
  """
  checks.need_least(x, 1, 'used', 'gamma', 'steps', 'repeats', 'megabytes')
  checks.need_seed(x.seed)
  recipe_checks.size('target', x.target)
  recipe_checks.size('draft', x.draft)
  memory = available(1)
  checks.need(
    memory is None or x.megabytes * 2**20 < memory,
    f'megabytes is {x.megabytes}, more than the memory of {memory} bytes: '
    'choose less',
  )
  if x.path:
    load.describe('path', x.path)
  for name in ('gammas', 'batches', 'contexts', 'vocabularies', 'maxima'):
    values = getattr(x, name)
    checks.need(
      len(set(values)) > 1 and min(values) >= 1,
      f'{name} must have two different sizes of at least 1, got {values}',
    )
  checks.need(
    x.rates and all(0 <= rate < 1 for rate in x.rates),
    f'rates must be in [0, 1), got {x.rates}',
  )
  checks.need(
    min(x.maxima) > x.used,
    f'maxima must be above the {x.used} tokens in use, got {x.maxima}',
  )
  floats = ('float32', 'bfloat16', 'float16')
  checks.need(
    x.dtype in floats, f'dtype must be one of {floats}, got {x.dtype!r}'
  )
  checks.need(x.sweeps, 'sweeps is empty: name one of experiments.sweeps')
  x.sweeps = tuple(map(_SWEEPS.full, x.sweeps))  # As the folder has them.
  return [resolve_function('sweeps', name, _SWEEPS) for name in x.sweeps]


def conditions(x: Speed) -> dict:
  """What a row's numbers depend on, beside its own fields."""
  return {
    'program': 'step_costs',
    'config': x.name,
    'target': vars(x.target).copy(),
    'draft': vars(x.draft).copy(),
    'dtype': x.dtype,
    'used': x.used,
    'repeats': x.repeats,
    'steps': x.steps,
    'load_before': os.getloadavg()[0],
    **results.conditions(),
  }


def run(x: Speed) -> None:
  """Measures what is missing, and prints the tables and a line of JSON."""
  if x.quick:
    shrink(x)
  sweeps = dict(zip(x.sweeps, check(x), strict=True))
  folder = results.Folder(
    x.results or results.default_folder(x), results.settings_of(x)
  )
  facts = conditions(x)
  with tqdm(file=sys.stderr) as bar:
    bench = Bench(x, bar)
    for name, sweep in sweeps.items():
      if any(row['by'] == name for row in folder.rows):
        continue
      for row in sweep(bench):
        folder.add(row | {'by': name} | facts)
      jax.clear_caches()
      folder.write('summary.md', step_costs_report.summary(folder.rows))
  print((folder.path / 'summary.md').read_text())
  fitted = {r['sweep']: r['exponent'] for r in folder.rows if 'exponent' in r}
  limits = {
    f'{r["model"]}, {r["size"]} slots': r['limit_ratio']
    for r in folder.rows
    if r['sweep'] == 'limit'
  }
  print(
    json.dumps(
      {
        'results': str(folder.path),
        'rows': len(folder.rows),
        'exponents': fitted,
        'limit_ratios': limits,
      }
    )
  )


if __name__ == '__main__':
  command.run(run, Speed, resumes=True)
