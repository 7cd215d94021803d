"""How fast do many prompts go through the rows of a batch?

  python -m experiments.continuous_batching
  python -m experiments.continuous_batching --config.by_load \\
    --config.gammas="(1, 2, 4, 8)" --config.repeats=5 \\
    --config.loads="((16, 100), (4, 16), (1, 8))"

Texts end at lengths drawn from the seed, so rows finish at different times. The
same prompts, keys and lengths are decoded

  alone       one at a time, in the fastest layout of weights for one row
  static      in batches that wait for their longest text
  continuous  in rows that are refilled (`specjax.requests.continuous`)

The second command adds rows that are refilled with a draft length chosen among
`gammas` and 0 (`specjax.requests.goodput`), at several loads. Plain decoding
and the drafters take turns, pass by pass, in an order drawn anew each time: a
machine is slower or faster for minutes. Nothing is compiled while time is
taken, and what the host does between two dispatches counts as decoding.

ideal       seconds if every step were full: target calls of all texts over the
            rows, times the seconds of a step in which every row is live
efficiency  ideal over the seconds of decoding, without reading prompts

The seconds of a full step are measured before every pass.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax import pair
from specjax.bench import measure, results, study
from specjax.bench.config import Candidate, Checkpoint, Prompts
from specjax.bench.load import load_experiment
from specjax.bench.measure import Decoding
from specjax.bench.methods import Loaded
from specjax.bench.plan import Plan
from specjax.cli import command, progress
from specjax.cli.fields import Count
from specjax.errors import need
from specjax.reports.conditions import values
from specjax.reports.markdown import Table, blocks, estimated
from specjax.requests import continuous
from specjax.requests.goodput import Goodput
from specjax.stats import metrics
from specjax.stats.row import group, pick
from specjax.types import LoadedDrafter

ALONE, STATIC, CONTINUOUS = 'alone', 'static', 'continuous'
BY_LOAD = ', by load'
_STEPS, _TURNS = 24, 5  # of a measurement of a full step


@dataclasses.dataclass
class ManyPrompts(study.Refilled):
  """Many prompts through the rows of a batch, in three ways.

  Attributes:
    loads: pairs of rows and prompts of each domain, each in its turn; empty:
      `batch` and `prompts.count`.
    chunks: steps between two looks at what has finished, each tried.
    repeats: passes over all prompts; one prompt at a time takes a single one.
    by_load: also run each drafter with a draft length that follows the load.
  """

  loads: tuple[tuple[Count, Count], ...] = ()
  by_load: bool = False
  chunks: tuple[Count, ...] = (4,)
  repeats: Count = 3

  def shrink(self) -> None:
    super().shrink()
    self.loads = self.loads[-1:]

  def at(self, rows: int, count: int) -> 'ManyPrompts':
    """Returns the same at one load."""
    chosen = dataclasses.replace(self.prompts, count=count)
    return dataclasses.replace(self, batch=rows, prompts=chosen, loads=())


def get_config() -> ManyPrompts:
  return ManyPrompts(
    name='continuous_batching',
    target=Checkpoint(pair.path('target')),
    candidates={'draft-128': Candidate('lm', 3, pair.path('draft-128'))},
    prompts=Prompts(domains=('code', 'documentation'), count=100),
  )


def check(x: ManyPrompts) -> Plan:
  """Checks the values and returns the plan.

  Raises:
    UserError: names the field and the remedy.
  """
  x.check_lengths()
  need(x.chunks, 'chunks is empty: name at least one, such as 4')
  return study.plan_one(x, 'temperatures', 'verifiers')


class Pass(NamedTuple):
  """All prompts, decoded once. A unit is a prompt, a batch, or so many."""

  texts: list[list[int]]
  tokens: np.ndarray  # [units]
  calls: np.ndarray  # [units] target calls of all rows
  seconds: np.ndarray  # [units] of decoding
  reading: np.ndarray  # [units] of reading prompts
  # Row-steps by draft length, where it is chosen by load.
  by_length: dict[int, int] | None = None
  # Seconds of a full step, averaged over the draft lengths that were taken.
  step: float | None = None


class Clock:
  """Takes the time of reading, and counts row-steps by draft length."""

  def __init__(self, rows: int, policy: Goodput | None):
    self.policy, self.reading = policy, 0.0
    self.by_length: dict[int, int] = {}
    self.calls = np.zeros(rows, int)  # of the target, so far

  def __call__(self, part: str, work: Callable[[], Any]) -> Any:
    """Does one part of the loop, see `pool.Pool`."""
    begin = time.perf_counter()
    state = jax.block_until_ready(work())
    if part == 'read':
      self.reading += time.perf_counter() - begin
      return state
    before, self.calls = self.calls, np.array(state.counts.target_calls)
    if part == 'advance' and self.policy is not None:
      length, taken = self.policy.choices[-1], int((self.calls - before).sum())
      self.by_length[length] = self.by_length.get(length, 0) + taken
    return state

  def mean_step(self, full: Mapping[int, float]) -> float:
    """Seconds of a full step, averaged over the lengths that were taken."""
    if self.policy is None:
      (step,) = full.values()
      return step
    taken = self.by_length
    return sum(full[n] * k for n, k in taken.items()) / sum(taken.values())


def lengths(built: Loaded, drafter: str) -> dict[int, Decoding]:
  """The ways to decode with a drafter, by draft length; plain decoding is 0."""
  own = {m.gamma: m.way for m in built.methods if m.drafter == drafter}
  # Plain steps would lose the features that a drafter of features reads.
  plain = {} if own[max(own)].spec.drafter.taps else {0: built.base}
  return plain | dict(sorted(own.items()))


def _policy(ways: dict[int, Decoding]) -> Goodput:
  longest = ways[max(ways)]
  loaded = LoadedDrafter(
    longest.spec.target,
    lambda length: ways[length].spec.drafter,
    longest.params.drafter,
  )
  own = {n: (way.spec, way.params) for n, way in ways.items()}
  return Goodput(loaded, tuple(ways), ways=own)


class Side:
  """Plain decoding or one drafter, with its prompts and their lengths."""

  def __init__(
    self,
    x: ManyPrompts,
    built: Loaded,
    cell: dict,
    many: Decoding,
    one: Decoding | None,
    by_load: dict[int, Decoding] | None = None,
  ):
    """Opens a side; nothing is compiled yet.

    Args:
      x: the settings.
      built: has the prompts and the plan.
      cell: fields that identify the rows.
      many: decodes rows together; with the longest draft length, where the
        length is chosen by load.
      one: decodes a single row; None where the length is chosen by load.
      by_load: all draft lengths to choose from.
    """
    self.x, self.built, self.cell = x, built, cell
    self.many, self.one, self.by_load = many, one, by_load
    self.policy = _policy(by_load) if by_load else None
    self.texts = study.texts(built)
    random, size = np.random.default_rng(x.seed), len(self.texts)
    self.new = x.draw_lengths(random, size)
    # The longest texts begin first, also in batches that wait: these are then
    # of texts that are nearly as long.
    self.order = np.argsort(-self.new, kind='stable')
    ways = [] if one is None else [(ALONE, None), (STATIC, None)]
    ways += [(CONTINUOUS, chunk) for chunk in x.chunks]
    self.passes: dict[tuple, list[Pass]] = {way: [] for way in ways}

  def job(self, chosen, rows: int = 0) -> measure.Job:
    """Some prompts; rows beyond the last of them are given no tokens."""
    (temperature,) = self.built.plan.temperatures
    texts = [self.texts[i] for i in chosen]
    made = self.built.job(texts, chosen, temperature, rows)
    limits = np.minimum(made.new_tokens, self.new[made.indices])
    return dataclasses.replace(made, new_tokens=limits)

  def warm_up(self) -> None:
    """Compiles everything that will be timed, and decodes prompts alone."""
    rows, many = self.x.batch, {'': self.many} | (self.by_load or {})
    for way in many.values():
      first = self.job(self.order[:rows], rows)
      measure.decode(way, first, 1, timed=False)
    most, clock = min(rows, len(self.texts)), Clock(rows, self.policy)
    for size in (2**i for i in range(self.x.group.bit_length())):
      for _ in self.refill(self.job(range(min(size, most))), 1, clock):
        pass  # It also compiles reading for each group.
    if self.one is not None:
      measure.decode(self.one, self.job(self.order[:1]), 1, timed=False)
      self.passes[ALONE, None].append(self.batches(self.one, 1))

  def refill(
    self, job: measure.Job, chunk: int, clock: Clock
  ) -> Iterator[continuous.Result]:
    """Decodes a job in refilled rows, `chunk` steps a turn at most."""
    way = self.many
    return continuous.decode(
      way.params,
      job.prompts,
      spec=way.spec,
      rows=self.x.batch,
      chunk=chunk,
      group=self.x.group,
      policy=self.policy,
      clock=clock,
      **job.options(),
    )

  def turn(self) -> None:
    """Makes one more pass of each way, but not of prompts alone."""
    for way, chunk in self.passes:
      if way == STATIC:
        made = self.batches(self.many, self.x.batch)
      elif way == CONTINUOUS:
        made = self.continuous(chunk, self.full_steps())
      else:
        continue
      self.passes[way, chunk].append(made)

  def batches(self, way: Decoding, rows: int) -> Pass:
    """Decodes in batches of so many rows; a unit is a batch."""
    texts, units = [[] for _ in self.texts], []
    for first in range(0, len(self.texts), rows):
      own = self.order[first : first + rows]
      run = measure.decode(way, self.job(own, rows))
      for i, text in zip(own, run.texts, strict=True):
        texts[i] = text
      counts = run.counts.tokens.sum(), run.counts.target_calls.sum()
      units.append((*counts, run.seconds, run.prefill_seconds))
    return Pass(texts, *np.array(units).T)

  def continuous(self, chunk: int, full: Mapping[int, float]) -> Pass:
    """Decodes in refilled rows; a unit is `batch` texts as they finish.

    Args:
      chunk: steps of a turn, at most.
      full: seconds of a full step, of each draft length.
    """
    rows, count = self.x.batch, len(self.texts)
    clock, texts = Clock(rows, self.policy), [[] for _ in self.texts]
    job = self.job(range(count))
    marks, sums = [(0, 0, 0.0, 0.0)], np.zeros(2)
    begin = time.perf_counter()
    for i, result in enumerate(self.refill(job, chunk, clock), 1):
      if not result.finite:
        raise measure.NotFinite('the target gave logits that are not finite')
      texts[result.prompt] = result.tokens
      sums += result.counts.tokens, result.counts.target_calls
      if i % rows == 0 or i == count:
        read = clock.reading
        marks.append((*sums, time.perf_counter() - begin - read, read))
    units = np.diff(np.array(marks), axis=0)
    step = clock.mean_step(full)
    return Pass(texts, *units.T, clock.by_length or None, step)

  def full_steps(self) -> dict[int, float]:
    """Seconds of a full step of each draft length: the median of turns."""
    rows = np.arange(self.x.batch) % len(self.texts)
    job = dataclasses.replace(self.job(rows), new_tokens=self.x.max_new_tokens)
    found = {}
    for way in (self.by_load or {0: self.many}).values():
      depth, times = way.spec.drafter.depth, []
      steps = max(1, min(_STEPS, self.x.max_new_tokens // (depth + 1)))
      for _ in range(_TURNS):
        run = measure.decode(way, job, steps)
        times.append(run.seconds / run.counts.target_calls.max())
      found[depth] = float(np.median(times))
    return found

  def rows(self) -> list[dict]:
    """A row for each way."""
    return [self._row(*way) for way in self.passes]

  def _row(self, way: str, chunk: int | None) -> dict:
    passes = self.passes[way, chunk]
    tokens, calls, seconds, reading = (
      np.concatenate([getattr(p, name) for p in passes])
      for name in ('tokens', 'calls', 'seconds', 'reading')
    )
    return self.cell | {
      'way': way,
      'chunk': chunk,
      'passes': len(passes),
      'tokens': int(passes[0].tokens.sum()),
      'target_calls': int(passes[0].calls.sum()),
      'tau': tokens.sum() / calls.sum(),
      'seconds': seconds.sum() / len(passes),
      'reading_seconds': reading.sum() / len(passes),
      'all_seconds_by_pass': _totals(passes),
      'seconds_by_pass': [p.seconds.sum() for p in passes],
      'tokens_by_pass': [p.tokens.sum() for p in passes],
      **metrics.fields(
        tokens_per_second=metrics.ratio(tokens, seconds),
        tokens_per_second_with_reading=metrics.ratio(tokens, seconds + reading),
      ),
      **self._beside(passes),
      **self._ideal(passes),
      **({'lengths': [p.by_length for p in passes]} if self.policy else {}),
    }

  def _beside(self, passes: list[Pass]) -> dict:
    """Fields that compare with the other ways of the same draft length."""
    if self.one is None:
      names = ('times_alone', 'times_static', 'same_text_as_alone')
      return dict.fromkeys(names)
    alone, mean = self.passes[ALONE, None], np.mean(_totals(passes))
    same = [
      a == b
      for p in passes
      for a, b in zip(alone[0].texts, p.texts, strict=True)
    ]
    static = self.passes[STATIC, None]
    return {
      'times_alone': np.mean(_totals(alone)) / mean,
      'times_static': np.mean(_totals(static)) / mean,
      'same_text_as_alone': float(np.mean(same)),
    }

  def _ideal(self, passes: list[Pass]) -> dict:
    """How far refilled rows are from full steps; see the head of this file."""
    steps = [p.step for p in passes if p.step is not None]
    if not steps:
      return dict.fromkeys(('step_seconds', 'efficiency', 'efficiency_ci'))
    ideal = [
      p.calls * step / self.x.batch
      for p, step in zip(passes, steps, strict=True)
    ]
    efficiency = metrics.ratio(
      np.concatenate(ideal), np.concatenate([p.seconds for p in passes])
    )
    return {
      'step_seconds': steps,
      **metrics.fields(efficiency=efficiency),
      'efficiency_by_pass': [
        one.sum() / p.seconds.sum()
        for one, p in zip(ideal, passes, strict=True)
      ],
    }


def _totals(passes: list[Pass]) -> list[float]:
  """Seconds of each pass, reading included."""
  return [(p.seconds + p.reading).sum() for p in passes]


def make_sides(x: ManyPrompts, plan: Plan, done: results.Folder) -> list[Side]:
  """The sides of a load that have no rows yet."""
  built = {
    rows: load_experiment(dataclasses.replace(plan, batch=rows)).race()
    for rows in {x.batch, 1}
  }
  many, one = built[x.batch], built[1]
  common = study.facts('continuous_batching', x, many, study.texts(many)) | {
    'temperature': plan.temperatures[0],
    'group': x.group,
    'new_tokens': [x.shortest, x.max_new_tokens],
    'baseline': one.baseline.fields(),
  }
  sides: list[Side] = []

  def add(drafter, method, *ways):
    own = {'drafter': drafter, 'gamma': method.gamma if method else 0}
    if not done.has(**own, batch=x.batch):
      own['draft'] = method and method.draft
      own['draft_dtype'] = method and method.draft_dtype
      sides.append(Side(x, many, common | own, *ways))

  add('plain', None, many.base, one.base)
  for m, alone in zip(many.methods, one.methods, strict=True):
    add(m.drafter, m, m.way, alone.way)
  ordered = sorted(many.methods, key=lambda m: m.gamma)
  longest = {m.drafter: m for m in ordered} if x.by_load else {}
  for name, m in longest.items():
    ways = lengths(many, name)
    add(name + BY_LOAD, m, ways[m.gamma], None, ways)
  return sides


def run(x: ManyPrompts) -> None:
  """Makes the rows that are missing, one load after another."""
  whole = check(x)
  folder = results.open_folder(whole)
  for load in x.loads or ((x.batch, x.prompts.count),):
    here = x.at(*load)
    sides = make_sides(here, check(here), folder)
    random = np.random.default_rng(x.seed)
    for side in sides:
      side.warm_up()
    passes = f'{here.batch} rows, passes'
    for _ in progress.over(passes, range(x.repeats), alike=1):
      for i in random.permutation(len(sides)):
        sides[i].turn()
    for side in sides:
      for row in side.rows():
        folder.add(results.plain(row))
  study.publish(folder)


# The rows as tables.


fields = study.alike(
  text='drafter way',
  count='gamma prompts batch',
  number='temperature tau tokens_per_second tokens_per_second_with_reading',
  maybe='chunk times_alone times_static same_text_as_alone efficiency',
  ends='tokens_per_second_ci? efficiency_ci?',
  numbers='seconds_by_pass tokens_by_pass new_tokens',
)


def headline(rows: list[dict]) -> str:
  """Where and how prompts were decoded."""
  shortest, longest = rows[0]['new_tokens']
  return study.headline(
    'Many prompts through the rows of a batch',
    rows,
    f'{values(rows, "prompts")} prompts',
    f'{values(rows, "batch")} rows',
    f'temperature {rows[0]["temperature"]:g}',
    f'{shortest} to {longest} new tokens',
  )


def _pace(row: dict) -> np.ndarray:
  """Seconds of a token, by pass: sampled texts are not of one length."""
  return np.divide(row['seconds_by_pass'], row['tokens_by_pass'])


def _by_load(rows: list[dict]) -> list[dict]:
  """Each draft length by load beside the best constant one."""
  timed, lines = pick(rows, way=CONTINUOUS), []
  for one in timed:
    drafter, by_load, _ = one['drafter'].partition(BY_LOAD)
    same = pick(timed, chunk=one['chunk'], batch=one['batch'])
    constant, plain = pick(same, drafter=drafter), pick(same, drafter='plain')
    if not by_load or not constant or not plain:
      continue
    best = min(constant + plain, key=lambda r: _pace(r).sum())
    lines.append(one | {'best': best, 'plain': plain[0]})
  return lines


def _times(name: str) -> Callable[[dict], str]:
  """How many times as fast as another way, of passes that took turns."""

  def shown(row):
    times = metrics.ratio(_pace(row[name]), _pace(row))
    return estimated(times)

  return shown


def _gamma(row: dict) -> str:
  return '-' if BY_LOAD in row['drafter'] else str(row['gamma'] or '-')


_BY_LOAD = study.columns(
  ('rows', 'batch', ''),
  ('drafter', 'drafter', ''),
  ('chunk', 'chunk', ''),
  ('best constant length', lambda r: str(r['best']['gamma'])),
  ('x best constant', _times('best')),
  ('x plain', _times('plain')),
  ('passes', lambda r: str(len(r['seconds_by_pass']))),
)
_COLUMNS = study.columns(
  ('drafter', 'drafter', ''),
  ('gamma', _gamma),
  ('way', 'way', ''),
  ('chunk', 'chunk', ''),
  ('tokens/s', 'tokens_per_second', '.0f'),
  ('with reading', lambda r: f'{r["tokens_per_second_with_reading"]:.0f}'),
  ('x alone', 'times_alone'),
  ('x static', 'times_static'),
  ('efficiency', 'efficiency'),
  ('tau', 'tau'),
  ('same text as alone', 'same_text_as_alone', '.1%'),
)


def summary(rows: list[dict]) -> str:
  """The headline, draft lengths by load, and each load in all ways."""
  tables = []
  if lines := _by_load(rows):
    note = 'Refilled rows, over passes that took turns; reading is left out.'
    tables.append(Table.of('Draft lengths by load', note, _BY_LOAD, lines))
  for (batch,), mine in group(rows, 'batch').items():
    note = f'{values(mine, "prompts")} prompts.'
    tables.append(Table.of(f'Batch of {batch}', note, _COLUMNS, mine))
  return blocks(headline(rows), *(table.markdown() for table in tables))


if __name__ == '__main__':
  command.study(run, get_config)
