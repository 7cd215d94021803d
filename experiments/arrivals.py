"""How long do requests wait that come at random times?

  python -m experiments.arrivals

Requests come to a pool as a Poisson process. Its times are drawn once from the
seed, and all sides get the same ones. First all requests come at once: that
gives the throughput at which the pool saturates. Then they come at fractions of
the rate at which plain decoding saturates. The first requests of each rate warm
up and are not counted. Four minutes on two idle cores; `--config.quick` takes
less than one. Expect drafts to lengthen the wait for the first tokens.

No request waits for another one to be answered (an open loop), and every time
begins when a request was scheduled to come, not when the loop had time to look.
A busy loop would otherwise hide the delay that it causes (coordinated omission;
Tene 2013, "How not to measure latency").

  scheduled   submitted    first tokens given     last tokens given
  |-----------|------------|----------------------|
  |-- time to first token -|--- tokens between ---|
  |------------------ latency --------------------|

between tokens  from the first tokens to the last, over the tokens after the
                first ones: a step of speculation gives several at once
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from specjax import pair
from specjax.bench import measure, results, sampling_stages, study
from specjax.bench.config import Candidate, Checkpoint, Prompts
from specjax.bench.load import load_experiment
from specjax.bench.methods import Loaded
from specjax.bench.plan import Plan
from specjax.cli import command, progress
from specjax.cli.fields import Between, Count
from specjax.errors import UserError, need
from specjax.loop import generate
from specjax.reports import figure_style
from specjax.reports.conditions import values
from specjax.reports.markdown import Table, blocks, number
from specjax.requests import pool
from specjax.stats import metrics
from specjax.stats.row import group, pick

PERCENTILES = (50, 95, 99)
BLOCKS = 8  # units of intervals: neighbours in a queue wait for each other
_TIMES = {
  'first_token': 'first token',
  'between_tokens': 'between tokens',
  'latency': 'latency',
}


@dataclasses.dataclass
class Arrivals(study.Refilled):
  """Requests that come at random times to the rows of a pool.

  Attributes:
    fractions: rates, over the rate at which plain decoding is saturated.
    requests: at every rate.
    skipped: the first of them, which are not counted.
    chunk: steps of a turn.
  """

  fractions: tuple[float, ...] = (0.3, 0.6, 0.9, 1.2)
  requests: Count = 200
  skipped: Annotated[int, Between(0)] = 40
  chunk: Count = 2

  def shrink(self) -> None:
    super().shrink()
    self.group, self.fractions = 1, self.fractions[:2]
    self.requests, self.skipped = min(self.requests, 24), 4


def get_config() -> Arrivals:
  return Arrivals(
    name='arrivals',
    target=Checkpoint(pair.path('target')),
    candidates={'draft-128': Candidate('lm', 3, pair.path('draft-128'))},
    prompts=Prompts(domains=('code', 'documentation'), count=60),
  )


def check(x: Arrivals) -> Plan:
  """Checks the values and returns the plan.

  Raises:
    UserError: names the field and the remedy.
  """
  x.check_lengths()
  need(x.max_new_tokens > 1, 'max_new_tokens is 1, but must be at least 2')
  need(
    x.fractions and all(0 < f < float('inf') for f in x.fractions),
    f'fractions must be numbers above 0, such as 0.5, got {x.fractions}',
  )
  need(
    x.requests - x.skipped >= 2 * BLOCKS,
    f'requests is {x.requests}, of which {x.skipped} are skipped: leave at '
    f'least {2 * BLOCKS}, or intervals have no units',
  )
  return study.plan_one(x, 'temperatures', 'verifiers')


class Load(NamedTuple):
  """The requests that every side gets."""

  prompts: list[list[int]]
  new: np.ndarray  # [n] tokens of each at most
  gaps: np.ndarray  # [n] to the request before, of mean 1

  def times(self, rate: float) -> np.ndarray:
    """Seconds from the beginning, at so many requests a second."""
    return np.cumsum(self.gaps) / rate


def draw(x: Arrivals, texts: list[list[int]]) -> Load:
  """Goes round the prompts; draws lengths and gaps from the seed."""
  random = np.random.default_rng(x.seed)
  new = x.draw_lengths(random, x.requests)
  gaps = random.exponential(size=x.requests)
  return Load([texts[i % len(texts)] for i in range(x.requests)], new, gaps)


class Text(NamedTuple):
  """The course of one request; times are seconds since the beginning."""

  scheduled: float
  submitted: float
  given: list[tuple[float, int]]  # when tokens were given, and how many
  tokens: list[int]
  finite: bool

  @property
  def first(self) -> float:
    return self.given[0][0]

  @property
  def last(self) -> float:
    return self.given[-1][0]


def play(
  held: Any,
  requests: Sequence[pool.Request],
  times: Sequence[float],
  steps: int,
  now: Callable[[], float] = time.perf_counter,
  wait: Callable[[float], Any] = time.sleep,
) -> list[Text]:
  """Submits requests at their times, and takes turns until all are done.

  Args:
    held: a `pool.Pool` that is warm and empty.
    requests: in the order of their times.
    times: when each comes, in seconds from now; they do not decrease.
    steps: of a turn.
    now: a clock in seconds.
    wait: lets so many seconds pass.

  Returns:
    A text for each request.
  """
  begin, coming = now(), 0
  texts: dict[int, Text] = {}
  while coming < len(requests) or held.live or held.waiting:
    at = now() - begin
    while coming < len(requests) and times[coming] <= at:
      name = held.submit(requests[coming])
      texts[name] = Text(float(times[coming]), at, [], [], True)
      coming += 1
    if not (held.live or held.waiting):
      wait(times[coming] - at)
      continue
    progress = held.turn(steps)
    at = now() - begin
    for one in progress:
      if one.tokens:
        texts[one.id].given.append((at, len(one.tokens)))
        texts[one.id].tokens.extend(one.tokens)
      if not one.finite:
        texts[one.id] = texts[one.id]._replace(finite=False)
  return [*texts.values()]


def check_texts(
  texts: Sequence[Text], requests: Sequence[pool.Request], eos: Sequence[int]
) -> None:
  """Refuses what cannot have happened.

  Raises:
    NotFinite: logits were NaN or infinite.
    RuntimeError: names the request.
  """
  if not all(text.finite for text in texts):
    raise measure.NotFinite('the target gave logits that are not finite')
  if len(texts) != len(requests):
    raise RuntimeError(f'{len(texts)} texts of {len(requests)} requests')
  for i, (text, request) in enumerate(zip(texts, requests, strict=True)):
    whens = [when for when, _ in text.given]
    counts = [count for _, count in text.given]
    ended = bool(text.tokens) and text.tokens[-1] in eos
    length, most = len(text.tokens), request.new_tokens
    for right, what in (
      (text.given, 'was given nothing'),
      (text.submitted >= text.scheduled, 'was submitted before it came'),
      (whens == sorted(set(whens)), 'was given tokens in no order'),
      (min(whens, default=0) > text.submitted, 'was answered before it came'),
      (min(counts, default=1) > 0, 'was given no tokens'),
      (sum(counts) == length, 'was given tokens that it has not'),
      (
        length == most or (ended and length < most),
        'has another length than it was asked for',
      ),
    ):
      if not right:
        raise RuntimeError(f'request {i} {what}: {text._replace(tokens=[])}')


def _milliseconds(name: str, seconds: np.ndarray) -> dict[str, Any]:
  """The mean, its interval over blocks, and percentiles.

  A percentile is None where no value is expected beyond it.
  """
  parts = np.array_split(seconds, BLOCKS)
  mean = metrics.ratio([b.sum() for b in parts], [len(b) for b in parts])
  ends = mean.interval and [1e3 * x for x in mean.interval]
  found = {f'{name}_ms': 1e3 * float(seconds.mean()), f'{name}_ms_ci': ends}
  for percent in PERCENTILES:
    enough = len(seconds) * (100 - percent) >= 100
    value = 1e3 * float(np.percentile(seconds, percent)) if enough else None
    found[f'{name}_p{percent}_ms'] = value
  return found


def numbers(texts: Sequence[Text], skipped: int) -> dict[str, Any]:
  """Fields of a row of requests that came at a rate.

  Tokens a second are those of all texts, the skipped ones included, that came
  between the first and the last of the counted arrivals: neither filling the
  rows nor emptying them is in it.

  Args:
    texts: in the order in which they came.
    skipped: texts that warm up, and are counted nowhere else.

  Raises:
    UserError: each text was given at once.
  """
  kept = texts[skipped:]
  edges = np.linspace(kept[0].scheduled, kept[-1].scheduled, BLOCKS + 1)
  whens, counts = np.array([one for text in texts for one in text.given]).T
  sums, _ = np.histogram(whens, edges, weights=counts)
  rate = metrics.ratio(sums, np.diff(edges))
  # Tokens of one turn are given together: only what comes later took time.
  several = [x for x in kept if len(x.given) > 1]
  if not several:
    raise UserError(
      'max_new_tokens: every text is given at once, and no time lies between '
      'its tokens; raise it, or lower chunk'
    )
  between = [
    (x.last - x.first) / (len(x.tokens) - x.given[0][1]) for x in several
  ]
  return {
    'counted': len(kept),
    'told_at_once': len(kept) - len(several),
    'tokens': sum(len(x.tokens) for x in kept),
    **metrics.fields(tokens_per_second=rate),
    'noticed_ms': 1e3 * max(x.submitted - x.scheduled for x in kept),
    **_milliseconds(
      'first_token', np.array([x.first - x.scheduled for x in kept])
    ),
    **_milliseconds('between_tokens', np.array(between)),
    **_milliseconds('latency', np.array([x.last - x.scheduled for x in kept])),
  }


class Side:
  """Plain decoding or one drafter, with the requests that it gets."""

  def __init__(self, x: Arrivals, built: Loaded, way, load: Load):
    self.x, self.way, self.load = x, way, load
    self.eos = built.plain.eos
    (temperature,) = built.plan.temperatures
    self.slots, self.source_slots = built.slots
    own = sampling_stages.values(built.plan.sampling, way.spec, 1, temperature)
    self.values = jax.device_get(own)
    self.requests = [
      pool.Request(text, int(n), generate.row_keys(x.seed, [i]), self.values)
      for i, (text, n) in enumerate(zip(load.prompts, load.new, strict=True))
    ]

  def play(self, times: np.ndarray) -> list[Text]:
    """Plays all requests at some times to a warm and empty pool."""
    held = pool.Pool(
      self.way.params,
      spec=self.way.spec,
      values=self.values,
      rows=self.x.batch,
      slots=self.slots,
      source_slots=self.source_slots,
      reads=[n for n in pool.read_sizes(self.slots) if n <= self.slots],
      group=self.x.group,
    )
    held.warm_up()
    texts = play(held, self.requests, times, self.x.chunk)
    check_texts(texts, self.requests, self.eos)
    return texts

  def saturate(self) -> dict:
    """Plays all requests at once."""
    count, passes = len(self.requests), []
    for _ in range(self.x.repeats):
      texts = self.play(np.zeros(count))
      seconds = max(text.last for text in texts)
      passes.append((sum(len(text.tokens) for text in texts), seconds))
    tokens, seconds = np.sum(passes, 0)
    return {
      'tokens': int(passes[0][0]),
      'requests_per_second': count * self.x.repeats / seconds,
      'tokens_per_second': tokens / seconds,
      'tokens_per_second_by_pass': [n / s for n, s in passes],
    }

  def at(self, rate: float) -> dict:
    """Plays the requests at so many a second."""
    made = numbers(self.play(self.load.times(rate)), self.x.skipped)
    return {'requests_per_second': rate, **made}


def run(x: Arrivals) -> None:
  """Makes the rows that are missing: saturated ones, then rate by rate."""
  planned = check(x)
  folder = results.open_folder(planned)
  built = load_experiment(planned).race()
  texts = study.texts(built)
  common = study.facts('arrivals', x, built, texts) | {
    'temperature': planned.temperatures[0],
    'verifier': planned.rules[0],
    'group': x.group,
    'chunk': x.chunk,
    'requests': x.requests,
    'new_tokens': [x.shortest, x.max_new_tokens],
  }
  load = draw(x, texts)
  sides = [({'drafter': 'plain', 'gamma': 0, 'draft': None}, built.base)]
  for m in built.methods:
    own = {'drafter': m.drafter, 'gamma': m.gamma, 'draft': m.draft}
    sides.append((own | m.layouts(), m.way))
  found = [(cell, Side(x, built, way, load)) for cell, way in sides]
  todo = [(f, *side) for f in (None, *x.fractions) for side in found]
  for fraction, cell, side in progress.over('rates and drafters', todo):
    own = {name: cell[name] for name in ('drafter', 'gamma')}
    if folder.has(**own, fraction=fraction):
      continue
    if fraction is None:
      made = side.saturate()
    else:
      (base,) = pick(folder.rows, drafter='plain', fraction=None)
      made = side.at(fraction * base['requests_per_second'])
    row = {**common, **cell, 'fraction': fraction, **made}
    folder.add(results.plain(row))
  study.publish(folder)


# The rows as tables and a figure.


def fields(row: dict) -> dict[str, Any]:
  types = study.fields(
    text='drafter verifier domain',
    count='gamma batch chunk requests',
    number='temperature tokens_per_second requests_per_second',
    maybe='fraction',
    numbers='new_tokens',
  )
  if row.get('fraction') is None:
    return types
  types |= study.fields(count='counted', ends='tokens_per_second_ci')
  for name in _TIMES:
    percentiles = ' '.join(f'{name}_p{p}_ms' for p in PERCENTILES)
    types |= study.fields(
      number=f'{name}_ms', ends=f'{name}_ms_ci', maybe=percentiles
    )
  return types


def _at_rates(rows: list[dict]) -> list[dict]:
  """Rows of requests that came at a rate, the slowest first."""
  found = [r for r in rows if r['fraction'] is not None]
  return sorted(found, key=lambda r: r['fraction'])


def _name(row: dict) -> str:
  return f'{row["drafter"]}, {row["gamma"]}' if row['gamma'] else row['drafter']


def headline(rows: list[dict]) -> str:
  """Where and how requests were decoded."""
  first, counted = rows[0], values(_at_rates(rows), 'counted')
  shortest, longest = first['new_tokens']
  return study.headline(
    'Requests that come at random times',
    rows,
    f'{values(rows, "batch")} rows',
    f'{first["chunk"]} steps a turn',
    f'{counted} texts of each rate' if counted else '',
    f'temperature {first["temperature"]:g}',
    f'{shortest} to {longest} new tokens',
  )


def _time(name: str, form: str = '.0f') -> tuple:
  """The mean with its interval, and percentiles."""

  def percentiles(row):
    found = (row[f'{name}_p{p}_ms'] for p in PERCENTILES)
    return ' / '.join(number(x, form) for x in found)

  mean = _TIMES[name], f'{name}_ms', form
  return mean, ('p50 / p95 / p99', percentiles)


_SATURATED = study.columns(
  ('drafter', _name),
  ('tokens/s', 'tokens_per_second', '.0f'),
  ('requests/s', 'requests_per_second', '.1f'),
)
_COLUMNS = study.columns(
  ('drafter', _name),
  ('of plain', 'fraction', 'g'),
  ('requests/s', 'requests_per_second', '.1f'),
  ('tokens/s', 'tokens_per_second', '.0f'),
  *_time('first_token'),
  *_time('between_tokens', '.1f'),
  *_time('latency'),
)


def summary(rows: list[dict]) -> str:
  """The headline, a line for each side, and one for each rate and side."""
  tables = []
  if saturated := pick(rows, fraction=None):
    note = 'All requests come at once; tokens a second of the pool.'
    tables.append(Table.of('Saturated', note, _SATURATED, saturated))
  if played := _at_rates(rows):
    note = (
      'Rates are fractions of the rate at which plain decoding saturates. '
      'Milliseconds, from the time at which a request was scheduled to come. '
      'Intervals are over blocks of texts that came one after the other.'
    )
    tables.append(Table.of('Requests by rate', note, _COLUMNS, played))
  return blocks(headline(rows), *(table.markdown() for table in tables))


@figure_style.in_style
def latency_by_rate(rows: list[dict]) -> Figure:
  """Median and 95th percentile by the rate at which requests come."""
  played, figure = _at_rates(rows), figure_style.blank(2.4)
  panels = figure.subplots(1, len(_TIMES))
  for axes, (name, word) in zip(panels, _TIMES.items(), strict=True):
    for mine in group(played, 'drafter', 'gamma').values():
      for percent, line in ((50, '-'), (95, '--')):
        axes.plot(
          [r['requests_per_second'] for r in mine],
          [r[f'{name}_p{percent}_ms'] for r in mine],
          line,
          label=figure_style.plain(f'{_name(mine[0])}, p{percent}'),
          **figure_style.look(mine[0], rows),
        )
    axes.set_title(f'{word}, ms')
    axes.set_xlabel('requests a second')
    axes.set_yscale('log')
  return figure_style.finish(
    figure,
    rows,
    'Times begin when a request was scheduled to come. All sides get the same '
    'requests at the same times; rates are fractions of the rate at which '
    'plain decoding saturates.',
  )


def figures(rows: list[dict]) -> tuple[Callable[[list[dict]], Figure], ...]:
  return (latency_by_rate,) if _at_rates(rows) else ()


if __name__ == '__main__':
  command.study(run, get_config)
