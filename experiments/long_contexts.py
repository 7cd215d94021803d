"""What a step costs at long contexts, plain and with drafts.

  python -m experiments.long_contexts --config configs/long_contexts.py

Random weights, caches of zeros (`experiments.step_timing`). At every context
and batch plain decoding, drafts and steps whose draft costs nothing take turns
with reading memory, so that a step stands beside what its bytes predict:
weights and cache in use, once for scoring, and for every drafted token those of
the draft.
A draft from a window of the target's cache costs its weights and the window; a
small one has few weights and a cache of its own, which grows with the text.

All contexts run in caches of one size, which a step does not pay for: a program
for each batch and way. Rows of a context and batch are kept when they are
measured. The last line is one JSON document: the folder, the rows, and the
acceptance at which each draft gains.
"""

import json
import os
import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from experiments import long_contexts_report as report
from experiments.step_timing import (
  Bench,
  Loop,
  Reader,
  idle,
  milliseconds,
  seconds,
  take_turns,
)
from specjax import reports, verify
from specjax.bench import results
from specjax.bench.config import LongContexts
from specjax.bench.loading import checks
from specjax.bench.memory import available, bytes_per_token
from specjax.cli import command
from specjax.drafters import lm, plain, windowed
from specjax.drafters.shapes import chain
from specjax.models import cache as caches
from specjax.models import variants
from specjax.models.transformer import Model
from specjax.stats import theory
from specjax.training.recipes import check_size
from specjax.types import Drafter, Params, Spec

PLAIN, WINDOWED, LM = 'plain', 'windowed', 'lm'


def shrink(x: LongContexts) -> None:
  """The quick version: toy sizes."""
  for size in (x.target, x.draft):
    size.width, size.mlp_width, size.head_dim = 32, 64, 8
    size.num_layers, size.num_heads, size.num_kv_heads = 1, 2, 1
  x.target.vocab_size = 256
  x.window, x.gamma, x.contexts, x.batches = 128, 2, (256, 1024), (1, 2)
  x.steps, x.repeats, x.megabytes = 2, 2, 1


def check(x: LongContexts) -> None:
  """Checks the values.

  Raises:
    UserError: names the field, the value and the remedy.
  """
  least = 'window', 'gamma', 'steps', 'repeats', 'megabytes'
  checks.need_least(x, 1, *least)
  checks.need_least(x, 0, 'sinks')
  checks.need_seed(x.seed)
  check_size('target', x.target)
  check_size('draft', x.draft)
  for name in ('contexts', 'batches'):
    values = getattr(x, name)
    checks.need(
      values and len({*values}) == len(values) and min(values) >= 1,
      f'{name} must have different sizes of at least 1, got {values}',
    )
  checks.need(
    x.rates and all(0 <= rate <= 1 for rate in x.rates),
    f'rates must be in [0, 1], got {x.rates}',
  )
  floats = ('float32', 'bfloat16', 'float16')
  checks.need(
    x.dtype in floats, f'dtype must be one of {floats}, got {x.dtype!r}'
  )
  needed, memory = _state_bytes(x), available(1)
  checks.need(
    memory is None or needed < memory,
    f'contexts and batches need {needed / 1e9:.1f} GB for caches alone, more '
    f'than the memory of {(memory or 0) / 1e9:.1f} GB: choose fewer',
  )


def _slots(x: LongContexts) -> int:
  room = (x.steps + 1) * (x.gamma + 1) + x.gamma + 1
  return caches.round_slots(max(x.contexts) + room)


def _state_bytes(x: LongContexts) -> int:
  """Of the caches that are held at once: four ways, and the small draft's."""
  width = jnp.dtype(x.dtype).itemsize
  each = [
    2 * size.num_layers * size.num_kv_heads * size.head_dim * width
    for size in (x.target, x.draft)
  ]
  return (4 * each[0] + each[1]) * _slots(x) * max(x.batches)


class Ways:
  """The ways to decode of a batch, and what a step of each must read."""

  def __init__(self, bench: Bench, batch: int):
    self.bench, self.batch = bench, batch
    x = bench.x
    models = bench.models(x.target.vocab_size)
    self.target, self.params, self.draft = models.fastest

  def loops(self, context: int) -> dict[str, Loop]:
    """Plain steps, those of each draft, and those of a draft for nothing."""
    x, target = self.bench.x, self.target
    own, params = self.params.drafter, self.params.target
    window = windowed.walk(target, x.window, x.sinks)
    ways: dict[str, tuple[Drafter, object]] = {
      PLAIN: (plain.make(), None),
      'idle': (idle(x.gamma, x.target.vocab_size), None),
      WINDOWED: (chain.make(window, x.gamma), None),
      LM: (lm.make(self.draft, x.gamma), own),
    }
    made = {}
    for name, (drafter, weights) in ways.items():
      self.bench.bar.set_description(f'batch {self.batch}, {context}: {name}')
      made[name] = Loop(
        Spec(target, drafter, verify.token),
        Params(params, weights),
        used=context,
        slots=_slots(x),
        steps=x.steps,
        batch=self.batch,
        seed=x.seed,
      )
    return made

  def _read(self, model: Model, params, context: int) -> np.ndarray:
    """Bytes of weights and of caches that a pass must read."""
    weights, cache = bytes_per_token(model, params, context)
    return np.array([weights, self.batch * cache])

  def reads(self, context: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The same by scoring and by the whole draft, of each way."""
    x, params = self.bench.x, self.params
    scored = self._read(self.target, params.target, context)
    narrow = variants.narrow(self.target, x.window, x.sinks)
    window = self._read(narrow, params.target, context)
    small = self._read(self.draft, params.drafter, context)
    return {
      PLAIN: (scored, 0 * scored),
      WINDOWED: (scored, x.gamma * window),
      LM: (scored, x.gamma * small),
    }


def measure(ways: Ways, context: int, reader: Reader) -> Iterator[dict]:
  """Rows of a context: one for each way."""
  x = ways.bench.x
  loops = ways.loops(context)
  turns = {name: loop.run for name, loop in loops.items()}
  timed = take_turns(turns | {'read': reader.read}, x.repeats, ways.bench.bar)
  bandwidth = float(np.median(timed['read'], 0).max())
  one, scored = seconds(timed[PLAIN]), seconds(timed['idle'])
  for name, (scoring, drafting) in ways.reads(context).items():
    weights, cache = scoring + drafting
    step = seconds(timed[name])
    row = {
      'context': context,
      'batch': ways.batch,
      'drafter': name,
      'gamma': 0 if name == PLAIN else x.gamma,
      'weight_bytes': int(weights),
      'cache_bytes': int(cache),
      'draft_bytes': int(drafting.sum()),
      'bandwidth_gb_per_second': bandwidth / 1e9,
      'predicted_ms': 1e3 * float(weights + cache) / bandwidth,
      **milliseconds(timed[name]),
    }
    if name != PLAIN:
      c, v = (step - scored) / one / x.gamma, scored / one
      row |= {'plain_ms': 1e3 * one, 'c': c, 'v': v}
      gains = theory.break_even_alpha(x.gamma, c, v)
      row['break_even_alpha'] = None if np.isnan(gains) else float(gains)
      row['speedups'] = [
        [rate, float(theory.speedup(rate, x.gamma, c, v))] for rate in x.rates
      ]
    yield row


def conditions(x: LongContexts) -> dict:
  """What a row's numbers depend on, beside its own fields."""
  return {
    'program': 'long_contexts',
    'config': x.name,
    'target': vars(x.target).copy(),
    'draft': vars(x.draft).copy(),
    'window': x.window,
    'sinks': x.sinks,
    'dtype': x.dtype,
    'steps': x.steps,
    'repeats': x.repeats,
    'load_before': os.getloadavg()[0],
    **results.conditions(),
  }


def main(x: LongContexts) -> None:
  if x.quick:
    shrink(x)
  check(x)
  folder = results.Folder(
    x.results or results.default_folder(x), results.settings_of(x)
  )
  facts = conditions(x)
  with tqdm(file=sys.stderr) as bar:
    bench = Bench(x, bar)
    for batch in x.batches:
      ways, reader = Ways(bench, batch), None
      for context in x.contexts:
        done = {'context': context, 'batch': batch, 'drafter': LM}.items()
        if any(done <= row.items() for row in folder.rows):
          continue
        reader = reader or Reader(x.megabytes << 20, jnp.dtype(x.dtype))
        for row in list(measure(ways, context, reader)):
          folder.add(row | facts)
      jax.clear_caches()
  text = report.summary(folder.rows)
  folder.write('summary.md', text)
  for draw in reports.figures(folder.rows):
    reports.save(draw, folder.rows, folder.path)
  print(text)
  last = {'results': str(folder.path), 'rows': len(folder.rows)}
  print(json.dumps(last | report.outcome(folder.rows)))


if __name__ == '__main__':
  command.run(main, LongContexts, resumes=True)
