"""A pass of a target in every layout of its weights, by rows.

What decides whether speculation can pay on a CPU: how much more a pass over
gamma + 1 tokens takes than the fastest pass over one.
"""

import functools

import numpy as np

from experiments.stepping import random_weights, take_turns
from experiments.sweeps import Bench
from specjax.models import cache as caches
from specjax.models import layouts
from specjax.training.train_pair import model_of

_ROWS = 1, 2, 4, 5, 8, 9, 12
_SECONDS = 0.1  # of a turn, at least


def rows(bench: Bench) -> list[dict]:
  """Passes over 1 to 12 tokens; v is over the fastest one of a single token."""
  x = bench.x
  model = model_of(x.target, x.target.vocab_size, 1 << 20)
  forms = layouts.arrange(model, random_weights(model, x.seed, x.dtype))
  slots = caches.round_slots(x.used + max(_ROWS))
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
    seconds |= {(n, count): np.array(times) for n, times in taken.items()}
  fastest = min(np.median(t) for n, t in seconds.items() if n[-1] == 1)
  return [
    {
      'sweep': 'layouts',
      'way': layout,
      'size': count,
      'step_ms': 1e3 * float(np.median(seconds[layout, count])),
      'step_ms_quartiles': np.percentile(
        1e3 * seconds[layout, count], (25, 75)
      ).tolist(),
      'v': float(np.median(seconds[layout, count]) / fastest),
    }
    for layout in forms
    for count in _ROWS
  ]
