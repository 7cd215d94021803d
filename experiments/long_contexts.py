"""Do drafts gain at long contexts?

  python -m experiments.long_contexts

At 512 to 32,768 tokens of context, and in batches of 1 and 4, plain steps,
drafts and steps whose draft costs nothing take turns with reading memory. So a
step stands beside the time that its bytes predict: weights and cache in use,
once for scoring, and for every drafted token those of the draft. A windowed
draft costs the target's weights and the window of its cache. A small draft has
few weights and a cache of its own, which grows with the text.

The target is a Llama of 4 layers x 512 with random weights and caches of zeros:
58 MB a step and 8 KB of cache a token. Float32; 5 GB of memory, and less than
two minutes on two idle cores with the kernel, eight without it. Expect the
cache to outweigh the weights from 7,000 tokens on at batch 1. All contexts run
in caches of one size, which a step does not pay for: one program for each batch
and way. Rows of a context and batch are kept when they are measured.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.step_timing import (
  Bench,
  Loop,
  RandomModels,
  Reader,
  milliseconds,
  seconds,
  take_turns,
)
from specjax.bench import results, study
from specjax.bench.config import Size, TargetSize
from specjax.bench.memory import available, bytes_per_token
from specjax.cli import command
from specjax.cli.fields import Between, Count
from specjax.drafters import windowed
from specjax.drafters.shapes import chain
from specjax.errors import need
from specjax.models import cache as caches
from specjax.models import variants
from specjax.reports.conditions import values
from specjax.reports.markdown import Table, blocks, counted, number, span
from specjax.stats import theory
from specjax.stats.row import group, pick

PLAIN, WINDOWED, LM = 'plain', 'windowed', 'lm'


@dataclasses.dataclass
class LongContexts(RandomModels):
  """Steps at long contexts, plain and with drafts.

  Attributes:
    window: tokens of its own cache that the target drafts from.
    sinks: first tokens that it sees besides.
  """

  window: Count = 512
  sinks: Annotated[int, Between(0)] = 4
  gamma: Count = 3
  contexts: tuple[Count, ...] = (512, 2048, 8192, 16_384, 32_768)
  batches: tuple[Count, ...] = (1, 4)
  rates: tuple[Annotated[float, Between(0, 0.999)], ...] = (0.8, 0.95)
  steps: Count = 4
  repeats: Count = 5

  def shrink(self) -> None:
    """Leaves the quick version: toy sizes."""
    super().shrink()
    self.window, self.contexts = 128, (256, 1024)


def get_config() -> LongContexts:
  return LongContexts(
    name='long_contexts',
    target=TargetSize(512, 4, 8, 4, 64, 1536, vocab_size=4096),
    draft=Size(128, 1, 2, 1, 64, 384),
  )


def check(x: LongContexts) -> None:
  """Checks the values.

  Raises:
    UserError: names the field, the value and the remedy.
  """
  x.check_values()
  needed, memory = _state_bytes(x), available(1)
  need(
    memory is None or needed < memory,
    f'contexts and batches need {needed / 1e9:.1f} GB for caches alone, more '
    f'than the memory of {(memory or 0) / 1e9:.1f} GB: choose fewer',
  )


def _slots(x: LongContexts) -> int:
  room = (x.steps + 1) * (x.gamma + 1) + x.gamma + 1
  return caches.round_slots(max(x.contexts) + room)


def _state_bytes(x: LongContexts) -> int:
  """Bytes of caches held at once: those of four ways, and the small draft's."""
  width = jnp.dtype(x.dtype).itemsize
  each = [
    2 * size.num_layers * size.num_kv_heads * size.head_dim * width
    for size in (x.target, x.draft)
  ]
  return (4 * each[0] + each[1]) * _slots(x) * max(x.batches)


def loops(bench: Bench, context: int, batch: int) -> dict[str, Loop]:
  """Plain steps, steps of each draft, and steps of a draft for nothing."""
  x = bench.x
  target, _, _ = bench.models(x.target.vocab_size)
  window = chain.make(windowed.walk(target, x.window, x.sinks), x.gamma)
  place = {'batch': batch, 'used': context, 'slots': _slots(x)}
  return {
    PLAIN: bench.loop(**place),
    'idle': bench.loop(x.gamma, **place),
    WINDOWED: bench.loop(x.gamma, drafter=window, **place),
    LM: bench.loop(x.gamma, drafts=True, **place),
  }


def read_bytes(
  bench: Bench, context: int, batch: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Bytes that each way must read for scoring, and for the whole draft.

  Both are bytes of weights and bytes of caches.
  """
  x = bench.x
  target, params, draft = bench.models(x.target.vocab_size)

  def read(model, own):
    weights, cache = bytes_per_token(model, own, context)
    return np.array([weights, batch * cache])

  scored = read(target, params.target)
  narrow = variants.narrow(target, x.window, x.sinks)
  return {
    PLAIN: (scored, 0 * scored),
    WINDOWED: (scored, x.gamma * read(narrow, params.target)),
    LM: (scored, x.gamma * read(draft, params.drafter)),
  }


def measure(
  bench: Bench, context: int, batch: int, reader: Reader
) -> Iterator[dict]:
  """Rows of a context and batch: one for each way."""
  x, made = bench.x, loops(bench, context, batch)
  turns = {name: loop.run for name, loop in made.items()}
  timed = take_turns(turns | {'read': reader.read}, x.repeats)
  bandwidth = float(np.median(timed['read'], 0).max())
  one, scored = seconds(timed[PLAIN]), seconds(timed['idle'])
  for name, both in read_bytes(bench, context, batch).items():
    weights, cache = sum(both)
    row = {
      'context': context,
      'batch': batch,
      'drafter': name,
      'gamma': 0 if name == PLAIN else x.gamma,
      'weight_bytes': int(weights),
      'cache_bytes': int(cache),
      'draft_bytes': int(both[1].sum()),
      'bandwidth_gb_per_second': bandwidth / 1e9,
      'predicted_ms': 1e3 * float(weights + cache) / bandwidth,
      **milliseconds(timed[name]),
    }
    if name != PLAIN:
      c, v = (seconds(timed[name]) - scored) / one / x.gamma, scored / one
      gains = theory.break_even_alpha(x.gamma, c, v)
      row |= {'plain_ms': 1e3 * one, 'c': c, 'v': v}
      row['break_even_alpha'] = None if np.isnan(gains) else float(gains)
      row['speedups'] = [
        [rate, float(theory.speedup(rate, x.gamma, c, v))] for rate in x.rates
      ]
    yield row


def run(x: LongContexts) -> None:
  """Makes the rows that are missing, batch by batch."""
  check(x)
  folder = results.folder_of(x)
  common = x.facts('long_contexts', 'window', 'sinks')
  bench = Bench(x)
  for batch in x.batches:
    reader = None
    for context in x.contexts:
      if not folder.has(context=context, batch=batch, drafter=LM):
        reader = reader or Reader(x.megabytes << 20, jnp.dtype(x.dtype))
        for row in [*measure(bench, context, batch, reader)]:
          folder.add(row | common)
    jax.clear_caches()
  study.publish(folder)


# The rows as tables.


def fields(row: dict) -> dict[str, Any]:
  types = study.fields(
    text='drafter',
    count='context batch gamma weight_bytes cache_bytes draft_bytes',
    number='predicted_ms step_ms',
  )
  if row.get('drafter') != PLAIN:
    types |= study.fields(number='plain_ms c v', maybe='break_even_alpha')
    types['speedups'] = tuple[tuple[float, ...], ...]
  return types


def _name(row: dict) -> str:
  wide = row['drafter'] == WINDOWED and row.get('window')
  return f'windowed {wide}' if wide else row['drafter']


def _speedup(rate: float) -> Callable[[dict], str]:
  return lambda r: number(dict(r.get('speedups', ())).get(rate))


def headline(rows: list[dict]) -> str:
  """Where and how steps were measured."""
  target, shape = rows[0].get('target') or {}, ''
  if {'num_layers', 'width'} <= target.keys():
    layers = counted(target['num_layers'], 'layer')
    shape = f'random weights, {layers} x {target["width"]}'
  return study.headline(
    'Steps at long contexts', rows, values(rows, 'dtype'), shape, 'medians'
  )


def _outweighs(mine: list[dict]) -> str:
  """The context from which on a plain step reads more cache than weights."""
  row = max(mine, key=lambda r: r['context'])
  return f'{row["weight_bytes"] / (row["cache_bytes"] / row["context"]):,.0f}'


def crossing(points: list[tuple[float, float]], level: float) -> float | None:
  """Where a curve falls to a level for good, between two of its points.

  Args:
    points: (context, value), at least one; between them a line over the
      logarithm of the context.
    level: of the value.

  Returns:
    The first context if all points are at most at the level; None if the last
    one is above it.
  """
  points = sorted(points)
  above = [i for i, (_, value) in enumerate(points) if value > level]
  if not above:
    return points[0][0]
  if above[-1] == len(points) - 1:
    return None
  (a, high), (b, low) = points[above[-1] : above[-1] + 2]
  part = (high - level) / (high - low)
  return float(np.exp(np.log(a) + part * np.log(b / a)))


def _gains(rows: list[dict]) -> Table:
  """The acceptance that each draft needs, and how it moves with the context."""
  rates = sorted({rate for r in rows for rate, _ in r['speedups']})
  lines = []
  for (drafter, batch), mine in group(rows, 'drafter', 'batch').items():
    del drafter  # Its name may have a window.
    mine = sorted(mine, key=lambda r: r['context'])
    line = [_name(mine[0]), str(batch), str(mine[0]['gamma'])]
    for row in (mine[0], mine[-1]):
      needed = number(row['break_even_alpha'])
      line.append(f'{needed} at {row["context"]:,}')
    for rate in rates:
      points = [(r['context'], -dict(r['speedups'])[rate]) for r in mine]
      found = crossing(points, -1.0)
      line.append('-' if found is None else f'{found:,.0f}')
    lines.append(line)
  return Table(
    'Where drafts gain',
    'The alpha above which a draft gains at the shortest and at the longest '
    'context, and the context from which on it gains at a rate of acceptance. '
    '`-`: it gains at none.',
    ['drafter', 'batch', 'gamma', 'alpha needed', 'alpha needed',
     *(f'alpha {rate:g}: from' for rate in rates)],
    lines,
  )  # fmt: skip


def summary(rows: list[dict]) -> str:
  """The headline, where drafts gain, and each context, batch and way."""
  tables, plain_rows = [], pick(rows, drafter=PLAIN)
  if drafts := [r for r in rows if r['drafter'] != PLAIN]:
    tables.append(_gains(drafts))
  if plain_rows:
    tables.append(
      Table(
        'Plain steps',
        'The context from which on a step reads more cache than weights, and '
        'its time over the time of reading its bytes in the same minutes.',
        ['batch', 'cache outweighs weights from', 'measured over predicted'],
        [
          [str(batch), _outweighs(mine),
           span(r['step_ms'] / r['predicted_ms'] for r in mine)]
          for (batch,), mine in group(plain_rows, 'batch').items()
        ],
      )
    )  # fmt: skip

  def by_bytes(row):
    place = {name: row[name] for name in ('context', 'batch')}
    own = pick(plain_rows, **place)
    return number(row['predicted_ms'] / own[0]['predicted_ms'] if own else None)

  def both(row):
    return row['weight_bytes'] + row['cache_bytes']

  def over_plain(row):
    own = row.get('plain_ms')
    return number(own and row['step_ms'] / own)

  rates = sorted({rate for r in drafts for rate, _ in r['speedups']})
  columns = study.columns(
    ('batch', 'batch', ''),
    ('context', 'context', ',.0f'),
    ('drafter', _name),
    ('MB', lambda r: f'{both(r) / 1e6:.3g}'),
    ('of the draft', lambda r: f'{r["draft_bytes"] / 1e6:.3g}'),
    ('cache', lambda r: f'{r["cache_bytes"] / both(r):.0%}'),
    ('step ms', 'step_ms', '.1f'),
    ('predicted', 'predicted_ms', '.1f'),
    ('x plain', over_plain),
    ('by bytes', by_bytes),
    ('v', 'v'),
    ('c', 'c'),
    ('alpha needed', 'break_even_alpha'),
    *((f'at {rate:g}', _speedup(rate)) for rate in rates),
  )
  note = (
    'Bytes that a step must read, its draft included, and the share of caches '
    'in them; a step in milliseconds and as its bytes predict, and both over '
    'plain decoding. alpha needed: the acceptance above which the draft gains; '
    'behind it speed-ups at rates of acceptance.'
  )
  order = sorted(rows, key=lambda r: (r['batch'], r['context']))
  tables.append(Table.of('Steps by context', note, columns, order))
  return blocks(headline(rows), *(table.markdown() for table in tables))


if __name__ == '__main__':
  command.study(run, get_config)
