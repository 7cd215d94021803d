"""What intervals are tried on: prompts of committed rows, drawn anew.

The prompts that a row holds, or the turns of its costs, are taken for all that
there are; as many as asked for are drawn from them, and what the project
prints is computed from the draw by the project's own functions. Rows do not
hold single steps: what is made from those is tried on made-up texts.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import starmap
from typing import NamedTuple

import numpy as np

from experiments.papers import findings
from experiments.papers.claims import (
  ACCEPTANCE,
  CLAIMS,
  PLACE,
  Claim,
  apart,
  matched,
  over_equation_one,
)
from specjax.bench import costs
from specjax.reports import explain
from specjax.reports.paired import ALPHA, TAU, TIMES, difference
from specjax.stats import metrics
from specjax.stats.folders import Rows
from specjax.stats.metrics import Estimate
from specjax.stats.row import pick

Draw = Callable[[np.random.Generator, int], list[Estimate]]
_DRAFTERS = ('draft-128', 'ngram', 'bigram', 'eagle3', 'target int8')
_TURNS = 7  # of a run


class Case(NamedTuple):
  """One population.

  Attributes:
    name: for the reader.
    draw: estimates from so many units.
    truth: what they estimate.
  """

  name: str
  draw: Draw
  truth: list[float]


Kind = Callable[[Rows], Iterable[Case]]


def again(row: dict, places: np.ndarray) -> dict:
  """A row of other prompts: those at some places of its own."""
  units = {
    name: [values[i] for i in places]
    for name, values in row.items()
    if name.startswith('unit_') and values is not None
  }
  return row | units | {'prompts': len(places)}


def _drawn(row: dict, rng: np.random.Generator, n: int) -> dict:
  return again(row, rng.integers(row['prompts'], size=n))


def _name(row: dict) -> str:
  return f'{row["drafter"]}, {row["domain"]}, T {row["temperature"]:g}'


def _each(
  choose: Callable[[Rows], Iterable[tuple]], measure, paired: bool = True
) -> Kind:
  """A case for each choice of rows, on the same prompts if they are paired."""

  def case(rows):
    def draw(rng, n):
      if not paired:
        return [measure(*(_drawn(row, rng, n) for row in rows))]
      chosen = rng.integers(rows[0]['prompts'], size=n)
      return [measure(*(again(row, chosen) for row in rows))]

    return Case(_name(rows[-1]), draw, [measure(*rows).value])

  return lambda rows: map(case, choose(rows))


def _some(rows: Rows) -> list[dict]:
  token = pick(rows[ACCEPTANCE], verifier='token')
  return [r for r in token if r['drafter'] in _DRAFTERS]


def _single(rows: Rows, *without: str, gamma: int = 1) -> Iterator[tuple[dict]]:
  """Rows alone, without some drafters, of drafts of at least a length."""
  for row in _some(rows):
    if row['drafter'] not in without and row['gamma'] >= gamma:
      yield (row,)


def _pairs(rows: Rows) -> Iterator[tuple[dict, dict]]:
  some = _some(rows)
  for place, (base,) in matched(some, PLACE, [{'drafter': 'draft-128'}]):
    yield from ((base, r) for r in pick(some, **place) if r is not base)


def _share(overlap, prefixes) -> Estimate:
  return metrics.ratio(overlap, prefixes).clipped(0.0, 1.0)


def _third_place(row: dict) -> Estimate:
  """Acceptance of the third place: few steps of a prompt come to it."""
  return metrics.ratio(*metrics.at_place(row['unit_histogram'], 2), 1.0)


def _domains(rows: Rows) -> Iterator[list[dict]]:
  """Rows whose prompts are not the same."""
  fixed = ('drafter', 'temperature')
  compared = [{'domain': 'documentation'}, {'domain': 'structured'}]
  return (pair for _, pair in matched(_some(rows), fixed, compared))


def _turns(times: dict[str, list[float]], count: int = 2001) -> dict:
  """Many turns like those of a row: theirs, moved by about as they differ.

  Medians of a few numbers drawn from a few would be those numbers themselves.
  """
  rng = np.random.default_rng(3)
  chosen = rng.integers(len(times['plain']), size=count)
  turns = {}
  for name, values in times.items():
    low, high = np.percentile(np.log(values), [25, 75])
    moved = rng.normal(0, 0.5 * (high - low), count)
    turns[name] = np.array(values)[chosen] * np.exp(moved)
  return turns


def _costs(gamma: int, turns: dict, chosen=slice(None)) -> costs.Costs:
  return costs.Costs(gamma, **{k: v[chosen] for k, v in turns.items()})


def _priced(pairs: Iterable[tuple[dict, dict]], measure) -> Iterator[Case]:
  """A case for some prompts of each row, and seven turns of another's costs."""
  for row, cost in pairs:
    turns = _turns(cost['seconds_per_step'])

    def draw(rng, n, row=row, gamma=cost['gamma'], turns=turns):
      chosen = rng.integers(len(turns['plain']), size=_TURNS)
      return [measure(_costs(gamma, turns, chosen), _drawn(row, rng, n))]

    truth = measure(_costs(cost['gamma'], turns), row).value
    yield Case(_name(row), draw, [truth])


def predictions(rows: Rows) -> Iterator[Case]:
  """tau of some prompts, c and v of seven turns."""
  cells = explain.cells_of(rows['explain'])
  return _priced(
    zip(cells, cells, strict=True),
    lambda cost, row: cost.predict(*(row[k] for k in TAU)),
  )


def agreements(rows: Rows) -> Iterator[Case]:
  """Measured over predicted: times of one folder, costs of another."""
  cost = explain.cells_of(rows['explain'])[2]
  return _priced(
    ((row, cost) for row in pick(rows['predict'], part='check')),
    lambda cost, row: cost.agreement(
      *(row[k] for k in (*TIMES, 'unit_target_calls'))
    ),
  )


def phases(rows: Rows) -> Iterator[Case]:
  """Medians of turns and their differences."""
  measured = explain.phases(rows['explain'])
  if measured is None:
    return
  for name, loops in measured['loops'].items():
    turns = _turns(loops)

    def draw(rng, n, turns=turns):
      chosen = rng.integers(len(turns['plain']), size=n)
      times = {k: v[chosen] for k, v in turns.items()}
      return list(explain.split(times, 1.0).values())

    truth = [p.value for p in explain.split(turns, 1.0).values()]
    yield Case(name, draw, truth)


def _texts(
  rng: np.random.Generator, a: float, b: float, count: int = 4000, steps=24
):
  """Accepted, drafted and committed tokens, [count, steps], of made-up texts.

  Texts differ in how easy they are (beta distributed), and a step resembles
  the one before it.
  """
  ease = rng.beta(a, b, size=(count, 1))
  luck = rng.random((count, steps, 4)) < ease[..., None]
  fresh = np.cumprod(luck, -1).sum(-1)
  accepted = fresh.copy()
  for i in range(1, steps):
    keep = rng.random(count) < 0.25
    accepted[:, i] = np.where(keep, accepted[:, i - 1], fresh[:, i])
  length = 10 + np.cumsum(accepted + 1, 1) - accepted - 1
  return np.where(length < 60, accepted, -1), np.full_like(accepted, 4), length


def _along(measure: Callable[..., list[Estimate]]) -> Kind:
  """A case for each kind of made-up texts."""

  def case(a, b):
    texts = _texts(np.random.default_rng(11), a, b)

    def draw(rng, n):
      chosen = rng.integers(len(texts[0]), size=n)
      return measure(*(column[chosen] for column in texts))

    truth = [estimate.value for estimate in measure(*texts)]
    return Case(f'texts, beta {a:g} {b:g}', draw, truth)

  return lambda rows: starmap(case, ((2, 1.5), (0.8, 0.8), (1, 4)))


def _by_context(*log) -> list[Estimate]:
  return [
    Estimate(b['acceptance'], *(b['acceptance_ci'] or (np.nan, np.nan)))
    for b in metrics.by_context(*log, [10, 22, 35, 47, 60])
  ]


def lognormal(rows: Rows) -> Iterator[Case]:
  """Units whose logarithm is normal, with deviations of 1/2 and 1."""
  del rows  # Unused.
  for width in (0.5, 1.0):
    for above in (True, False):

      def draw(rng, n, width=width, above=above):
        skewed = np.exp(width * rng.normal(size=n))
        columns = (skewed, np.ones(n)) if above else (np.ones(n), skewed)
        return [metrics.ratio(*columns)]

      mean = np.exp(width**2 / 2)
      name = f'deviation {width:g}, {"above" if above else "below"}'
      yield Case(name, draw, [mean if above else 1 / mean])


def _claim(
  name: str, claim: Claim, rows: Rows, folder: str, spread: float
) -> Case:
  """The pooled effect of a claim whose cells differ by chance, around 0.

  Prompts are drawn for all cells that have them in common.
  """
  truth = [one.estimate.value for one in claim({folder: rows[folder]})]
  width = spread * float(np.std(truth))

  def draw(rng, n):
    chosen: dict = {}
    drawn = []
    for row in rows[folder]:
      key = row['prompts_hash']
      if key not in chosen:
        chosen[key] = rng.integers(row['prompts'], size=n)
      drawn.append(again(row, chosen[key]))
    found = claim({folder: drawn})
    away = width * rng.normal(size=len(found)) - truth
    moved = [
      dataclasses.replace(one, estimate=one.estimate.scaled(1, far))
      for one, far in zip(found, away, strict=True)
    ]
    return [findings.pool(moved).estimate]

  return Case(f'{name}, cells spread {width:.2f}', draw, [0.0])


def pooled(rows: Rows) -> Iterator[Case]:
  claims = (
    ('by_temperature', 'embedded/drafters'),
    ('distilled', ACCEPTANCE),
    ('over_eagle1', ACCEPTANCE),
  )
  for spread in (0.0, 1.0):
    for name, folder in claims:
      yield _claim(name, CLAIMS[name], rows, folder, spread)


# What is printed with an interval, and where its kind is tried.
KINDS: dict[str, Kind] = {
  'tau': _each(_single, lambda r: metrics.ratio(*(r[k] for k in TAU))),
  'alpha': _each(_single, lambda r: _share(*(r[k] for k in ALPHA))),
  'acceptance of a place': _each(
    lambda rows: _single(rows, 'bigram', gamma=3), _third_place
  ),
  'acceptance by context': _along(_by_context),
  'correlation of steps': _along(
    lambda accepted, *_: metrics.autocorrelation(accepted, 2)
  ),
  'speed-up': _each(
    lambda rows: ((r,) for r in pick(rows['predict'], part='check')),
    lambda r: metrics.speedup(*(r[k] for k in TIMES)),
  ),
  'predicted speed-up': predictions,
  'measured over predicted': agreements,
  'phase of a step (turns)': phases,
  'difference of tau, paired': _each(
    _pairs, lambda a, b: difference(a, b, TAU)
  ),
  'change of tau in percent, paired': _each(
    _pairs, lambda a, b: difference(a, b, TAU, relative=True)
  ),
  'difference of alpha, paired': _each(
    _pairs, lambda a, b: difference(a, b, ALPHA)
  ),
  'difference of tau, other prompts': _each(
    _domains, lambda a, b: apart(a, b, TAU), paired=False
  ),
  'tau over Equation 1': _each(
    lambda rows: _single(rows, 'target int8', gamma=2),
    over_equation_one,
  ),
  'pooled effect of a claim': pooled,
  'ratio, lognormal units': lognormal,
}
