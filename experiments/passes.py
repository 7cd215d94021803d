"""A pass of a target in every layout of its weights, by rows.

What decides whether speculation can pay on a CPU: how much more a pass over
gamma + 1 tokens takes than the fastest pass over one.
"""

import functools

import numpy as np

from experiments.stepping import random_weights, take_turns
from experiments.sweeps import Bench
from specjax import native
from specjax.models import cache as caches
from specjax.models import layouts
from specjax.models.layouts import (
  BLOCKED,
  COLUMNS,
  CORES,
  NATIVE,
  WHOLE,
  Arranged,
)
from specjax.models.linear import FEW_ROWS
from specjax.training.train_pair import model_of

_ROWS = 1, 2, 4, 5, 8, 9, FEW_ROWS
_SECONDS = 0.1  # of a turn, at least


def _forms(whole: Arranged) -> dict[tuple[str, int], Arranged]:
  """A model in every layout that it has here, by its name and columns."""
  forms = {(WHOLE, 0): whole}
  widths = {NATIVE: (native.COLUMNS,), BLOCKED: COLUMNS, CORES: COLUMNS}
  for layout, tried in widths.items():
    for columns in tried:
      made = layouts.make(layout, *whole, columns)
      if made is not None:
        forms[layout, columns] = made
  return forms


def rows(bench: Bench) -> list[dict]:
  """Passes over 1 to 12 tokens; v is over the fastest one of a single token."""
  x = bench.x
  model = model_of(x.target, x.target.vocab_size, 1 << 20)
  forms = _forms(Arranged(model, random_weights(model, x.seed, x.dtype)))
  slots = caches.round_slots(x.used + FEW_ROWS)
  buffer = layouts.Buffer(1, slots, x.used)
  seconds: dict[tuple, np.ndarray] = {}
  for count in _ROWS:
    bench.bar.set_description(f'compiling passes over {count} tokens')
    clocks = {
      name: layouts.clock(form, buffer, count) for name, form in forms.items()
    }
    passes = max(1, int(_SECONDS / min(run(1) for run in clocks.values())))
    ways = {n: functools.partial(run, passes) for n, run in clocks.items()}
    bench.bar.set_description('measuring')
    taken = take_turns(ways, x.repeats, bench.bar)
    seconds |= {(*n, count): np.array(times) for n, times in taken.items()}
  fastest = min(np.median(t) for n, t in seconds.items() if n[-1] == 1)
  return [
    {
      'sweep': 'layouts',
      'way': layout,
      'columns': columns or '-',
      'devices': _devices(form),
      'size': count,
      'step_ms': 1e3 * float(np.median(seconds[layout, columns, count])),
      'step_ms_quartiles': np.percentile(
        1e3 * seconds[layout, columns, count], (25, 75)
      ).tolist(),
      'v': float(np.median(seconds[layout, columns, count]) / fastest),
    }
    for (layout, columns), form in forms.items()
    for count in _ROWS
  ]


def _devices(form: Arranged) -> int:
  """Devices that a model is split over."""
  placement = form.model.placement
  return 1 if placement is None else placement.mesh.shape['model']
