"""Requests that come at random times, at several rates, to a pool.

  python -m experiments.arrivals --config configs/arrivals.py

Requests come as a Poisson process whose times are drawn once from the seed, the
same for plain decoding and for every drafter. First all come at once, which
gives the throughput that a pool saturates at; rates are fractions of that of
plain decoding. Then each side is played each rate; the first requests of it
warm up and are not counted.

first token     from the time a request was scheduled to its first tokens
between tokens  from its first tokens to its last, over its tokens less one: a
                step of speculation tells several at once
latency         from the time it was scheduled to its last tokens
of continuous   tokens a second of the pool over those of `continuous.decode`
                on the same prompts in the same minutes: it has all of them at
                once, begins with those that may grow longest, and takes four
                steps a turn
"""

import json
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from experiments import arrivals_report, open_loop
from specjax import prompts, reports
from specjax.bench import measure, results
from specjax.bench.config import Arrivals
from specjax.bench.loading.build import build
from specjax.bench.loading.checks import need_least, need_one_turn, values
from specjax.bench.loading.methods import Built, Method
from specjax.bench.loading.plan import Plan, plan
from specjax.bench.selecting import pick
from specjax.cli import command
from specjax.errors import need
from specjax.loop import generate
from specjax.requests import continuous, pool

_CHUNK = 4  # of `continuous.decode`, by default


class Load(NamedTuple):
  """The requests of every side: what they ask, and when they come."""

  prompts: list[list[int]]
  new: np.ndarray  # [n] tokens of each at most
  gaps: np.ndarray  # [n] to the one before, of mean 1

  def times(self, rate: float) -> np.ndarray:
    """Seconds from the beginning, at so many requests a second."""
    return np.cumsum(self.gaps) / rate


def draw(x: Arrivals, texts: list[list[int]]) -> Load:
  """Requests that go round the prompts, with lengths and gaps of the seed."""
  random = np.random.default_rng(x.seed)
  new = random.integers(x.shortest, x.max_new_tokens + 1, x.requests)
  gaps = random.exponential(size=x.requests)
  return Load([texts[i % len(texts)] for i in range(x.requests)], new, gaps)


def prepare(x: Arrivals) -> Plan:
  """The plan; fields that only this program has are checked, too.

  Raises:
    UserError: names the field and the remedy.
  """
  need_least(x, 1, 'shortest', 'group', 'repeats', 'chunk', 'requests')
  need_least(x, 0, 'skipped')
  need(
    1 < x.max_new_tokens >= x.shortest,
    f'shortest is {x.shortest}, but max_new_tokens {x.max_new_tokens}: lower '
    'one or raise the other, which must be at least 2',
  )
  need(
    x.fractions and all(0 < f < float('inf') for f in x.fractions),
    f'fractions must be numbers above 0, such as 0.5, got {x.fractions}',
  )
  need(
    x.requests - x.skipped >= 2 * open_loop.BLOCKS,
    f'requests is {x.requests}, of which {x.skipped} are skipped: leave at '
    f'least {2 * open_loop.BLOCKS}, or intervals have no units',
  )
  need_one_turn(x.prompts)
  planned = plan(x)
  for name, several in (
    ('temperatures', planned.temperatures),
    ('verifiers', planned.rules),
  ):
    need(len(several) == 1, f'{name} must be a single one here, got {several}')
  return planned


class Side:
  """Plain decoding or one drafter, with the requests that it is sent."""

  def __init__(self, x: Arrivals, built: Built, method: Method | None, load):
    self.x, self.load = x, load
    self.way = built.base if method is None else method.way
    self.slots = built.slots(x.max_new_tokens)
    self.eos = built.plain.eos
    count = len(load.prompts)
    self.key = generate.row_keys(x.seed, range(count))
    own = values(x.sampling, self.way.spec, count, x.temperatures[0])
    self.values = jax.device_get(own)
    bits, impl = jax.random.key_data(self.key), jax.random.key_impl(self.key)
    self.requests = [
      pool.Request(
        prompt,
        int(new),
        jax.random.wrap_key_data(jnp.asarray(bits[i : i + 1]), impl=impl),
        self._row(i),
      )
      for i, (prompt, new) in enumerate(
        zip(load.prompts, load.new, strict=True)
      )
    ]

  def _row(self, i: int) -> Any:
    return jax.tree.map(lambda x: x[i : i + 1], self.values)

  def open(self) -> pool.Pool:
    """A warm and empty pool."""
    slots, source_slots = self.slots
    held = pool.Pool(
      self.way.params,
      spec=self.way.spec,
      values=self._row(0),
      rows=self.x.batch,
      slots=slots,
      source_slots=source_slots,
      reads=[n for n in pool.read_sizes(slots) if n <= slots],
      group=self.x.group,
    )
    held.warm_up()
    return held

  def play(self, times, count: int | None = None) -> list[open_loop.Text]:
    """The texts of the first requests, which come at some times.

    Raises:
      RuntimeError: something happened that cannot.
    """
    asked = self.requests[:count]
    watch = open_loop.Watch()
    texts = open_loop.play(self.open(), asked, times, self.x.chunk, watch)
    if not all(text.finite for text in texts):
      raise measure.NotFinite('the target gave logits that are not finite')
    open_loop.check(texts, asked, self.eos)
    return texts

  def continuous(self, count: int) -> tuple[int, float]:
    """Tokens and seconds of `continuous.decode` of the first requests."""
    slots, source_slots = self.slots
    given = jax.tree.map(lambda x: x[:count], self.values)
    begin = open_loop.Watch().now()
    found = continuous.decode(
      self.way.params,
      self.load.prompts[:count],
      spec=self.way.spec,
      new_tokens=self.load.new[:count],
      key=self.key[:count],
      values=given,
      rows=self.x.batch,
      chunk=_CHUNK,
      group=self.x.group,
      slots=slots,
      source_slots=source_slots,
    )
    tokens = sum(len(one.tokens) for one in found)
    return tokens, open_loop.Watch().now() - begin

  def saturate(self) -> dict:
    """What a pool saturates at, beside `continuous.decode`, in turn."""
    count = len(self.requests)
    for size in (2**i for i in range(self.x.group.bit_length())):
      self.continuous(min(size, self.x.batch, count))  # Compiles.
    together, passes, others = np.zeros(count), [], []
    texts: list[open_loop.Text] = []
    for _ in range(self.x.repeats):
      texts = self.play(together)
      seconds = max(text.last for text in texts)
      passes.append((sum(len(text.tokens) for text in texts), seconds))
      others.append(self.continuous(count))
    (tokens, seconds), (more, longer) = np.sum(passes, 0), np.sum(others, 0)
    return {
      'tokens': int(passes[0][0]),
      'requests_per_second': count * self.x.repeats / seconds,
      'tokens_per_second': tokens / seconds,
      'tokens_per_second_by_pass': [n / s for n, s in passes],
      'continuous_tokens_per_second': more / longer,
      'of_continuous': tokens / seconds / (more / longer),
      'of_continuous_by_pass': [
        n / s / (m / t) for (n, s), (m, t) in zip(passes, others, strict=True)
      ],
    }

  def at(self, rate: float) -> dict:
    """What requests meet that come at so many a second."""
    times = self.load.times(rate)
    texts = self.play(times)
    made = open_loop.numbers(texts, self.x.skipped)
    open_loop.check_numbers(made)
    return {'requests_per_second': rate, **made}


def sides(x: Arrivals, planned: Plan) -> tuple[dict, list[tuple[dict, Side]]]:
  """Fields of all rows, and each side with its own."""
  built = build(planned).race()
  texts = [t for chosen in built.prompts.values() for t in chosen.texts]
  load = draw(x, texts)
  common = {
    'program': 'arrivals',
    'config': x.name,
    'domain': ' and '.join(built.prompts),
    'target': built.target,
    'dtype': built.dtype,
    'temperature': planned.temperatures[0],
    'verifier': planned.rules[0],
    'batch': x.batch,
    'group': x.group,
    'chunk': x.chunk,
    'requests': x.requests,
    'prompts': len(texts),
    'prompts_hash': prompts.digest(texts),
    'new_tokens': [x.shortest, x.max_new_tokens],
    'seed': x.seed,
    'baseline': built.baseline.fields(),
    **results.conditions(),
  }
  plain = {'drafter': 'plain', 'gamma': 0, 'draft': None}
  found = [(plain, Side(x, built, None, load))]
  for method in built.methods:
    own = {'drafter': method.drafter, 'gamma': method.gamma}
    cell = {**own, 'draft': method.draft, **method.layouts()}
    found.append((cell, Side(x, built, method, load)))
  return common, found


def run(x: Arrivals, planned: Plan, folder: results.Folder) -> None:
  """Makes the rows that are missing: saturated ones, then rate by rate."""
  common, found = sides(x, planned)
  loads = (None, *x.fractions)
  with tqdm(total=len(loads) * len(found), file=sys.stderr) as bar:
    for fraction in loads:
      for cell, side in found:
        name, gamma = cell['drafter'], cell['gamma']
        bar.set_description(f'{name}, {fraction or "all at once"}')
        if not folder.has(drafter=name, gamma=gamma, fraction=fraction):
          if fraction is None:
            made = side.saturate()
          else:
            (base,) = pick(folder.rows, drafter='plain', fraction=None)
            made = side.at(fraction * base['requests_per_second'])
          row = {**common, **cell, 'fraction': fraction, **made}
          folder.add(results.plain(row))
        bar.update()


def main(x: Arrivals) -> None:
  if x.quick:
    x.shrink()
  planned = prepare(x)
  folder = results.Folder(planned.results, planned.settings)
  run(x, planned, folder)
  text = arrivals_report.summary(folder.rows)
  folder.write('summary.md', text)
  for draw_figure in reports.figures(folder.rows):
    reports.save(draw_figure, folder.rows, folder.path)
  print(text)
  outcome: dict[str, Any] = {'results': str(folder.path)}
  print(json.dumps(outcome | arrivals_report.outcome(folder.rows)))


if __name__ == '__main__':
  command.run(main, Arrivals, resumes=True)
