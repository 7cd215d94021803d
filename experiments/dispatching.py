"""What a program costs before and besides its steps.

A step that takes a millisecond on an accelerator may wait longer for the host.
"""

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from experiments.stepping import Loop, milliseconds, take_turns
from experiments.sweeps import Bench
from specjax.loop import generate


class Empty(NamedTuple):
  """A dispatch that takes no step, once."""

  returned: float  # seconds until the host may go on
  ready: float  # seconds until the state is there


def empty(loop: Loop) -> Empty:
  """Dispatches a loop of no steps: the program is that of any number."""
  loop.set_back()
  none = jnp.zeros_like(loop.count)
  begin = time.perf_counter()
  loop.state = generate.generate(loop.params, loop.state, none, spec=loop.spec)
  returned = time.perf_counter()
  jax.block_until_ready(loop.state)
  return Empty(returned - begin, time.perf_counter() - begin)


@contextlib.contextmanager
def nothing_kept():
  """Programs are compiled, whatever a folder holds."""
  before = jax.config.jax_enable_compilation_cache
  jax.config.update('jax_enable_compilation_cache', False)
  compilation_cache.reset_cache()  # It looks at the setting only once.
  try:
    yield
  finally:
    jax.config.update('jax_enable_compilation_cache', before)
    compilation_cache.reset_cache()


def dispatch(bench: Bench) -> list[dict]:
  """Compiling, and a dispatch without steps, plain and with a draft."""
  x = bench.x
  bench.models(x.target.vocab_size)  # Which are no part of a loop.
  jax.clear_caches()
  with nothing_kept():
    loops = {g: bench.loop(g, drafts=bool(g)) for g in (0, x.gamma)}
  ways: dict[Any, Callable] = {}
  for g, loop in loops.items():
    ways['run', g] = loop.run
    ways['empty', g] = functools.partial(empty, loop)
  bench.bar.set_description('dispatching')
  turns = take_turns(ways, x.repeats, bench.bar)
  rows = []
  for g, loop in loops.items():
    returned, ready = np.median(turns['empty', g], 0)
    rows.append(
      {
        'sweep': 'dispatch',
        'gamma': g,
        **milliseconds(turns['run', g]),
        'returned_ms': 1e3 * returned,
        'empty_ms': 1e3 * ready,
        'first_s': loop.first,
      }
    )
  return rows
