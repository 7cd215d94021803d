"""Do 95% intervals hold the truth in 95% of the cases?

  python -m experiments.coverage results

The prompts that a committed row holds, or the turns of its costs, are taken for
a whole population. As many as asked for are drawn from them anew, every kind of
interval that the project prints is computed from the draw by the project's own
functions, and the folder coverage beside the rows says how often each holds the
truth, next to the middle 95% of resampled values (the percentile bootstrap).
Rows do not hold single steps: intervals of these are tried on made-up texts.
Nothing of a machine is in it: two runs give the same. A run that was cut short
is continued.
"""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator
from itertools import starmap
from typing import NamedTuple
from unittest import mock

import numpy as np

from experiments.papers import claims, findings
from specjax import reports
from specjax.bench import costs, results, study
from specjax.bench.plan import portable
from specjax.cli import command, progress
from specjax.errors import UserError
from specjax.reports import explain
from specjax.reports.markdown import Table, blocks, paragraph, span
from specjax.reports.paired import ALPHA, TAU, TIMES, difference
from specjax.stats import estimates, folders, metrics
from specjax.stats.folders import Rows
from specjax.stats.metrics import Estimate
from specjax.stats.row import group, pick

SIZES = (5, 6, 8, 16, 30, 100)
# Of all populations of a kind together; fewer where one takes long.
_DRAWS = {'new': 6000, 'old': 600}
_LONG = {
  'phase of a step (turns)': 12,
  'pooled effect of a claim': 4,
  'measured over predicted': 2,
  'predicted speed-up': 2,
}
_RESAMPLES = 1000
_DRAWN_FROM = (claims.ACCEPTANCE, 'embedded/drafters', 'explain', 'predict')
_NOTE = """
How often a 95% interval held the truth, in percent, and the same of the
percentile bootstrap (in brackets). Prompts, or turns, are drawn anew from those
of committed rows; the worst is the population of a kind that is held least
often, of those with at least 8 units. Estimates without an interval are not
counted (`without_interval` in the rows); the bootstrap gives one even where all
units say the same, which counts against it.
""".strip()

# Populations.

Draw = Callable[[np.random.Generator, int], list[Estimate]]
_DRAFTERS = ('draft-128', 'ngram', 'bigram', 'eagle3', 'target int8')
_TURNS = 7  # of a run


class Case(NamedTuple):
  """One population."""

  name: str
  draw: Draw  # estimates from so many units
  truth: list[float]  # that they estimate


Kind = Callable[[Rows], Iterable[Case]]


def again(row: dict, places: np.ndarray) -> dict:
  """Returns a row of other prompts: those at some places of its own."""
  units = {
    name: [values[i] for i in places]
    for name, values in row.items()
    if name.startswith('unit_') and values is not None
  }
  return row | units | {'prompts': len(places)}


def _name(row: dict) -> str:
  return f'{row["drafter"]}, {row["domain"]}, T {row["temperature"]:g}'


def _each(
  choose: Callable[[Rows], Iterable[tuple]], measure, paired: bool = True
) -> Kind:
  """A case for each choice of rows, on the same prompts if they are paired."""

  def case(rows):
    def draw(rng, n):
      places = [rng.integers(rows[0]['prompts'], size=n)]
      for row in rows[1:]:
        own = places[0] if paired else rng.integers(row['prompts'], size=n)
        places.append(own)
      return [measure(*map(again, rows, places))]

    return Case(_name(rows[-1]), draw, [measure(*rows).value])

  return lambda rows: map(case, choose(rows))


def _some(rows: Rows) -> list[dict]:
  token = pick(rows[claims.ACCEPTANCE], verifier='token')
  return [r for r in token if r['drafter'] in _DRAFTERS]


def _single(rows: Rows, *without: str, gamma: int = 1) -> Iterator[tuple[dict]]:
  """Rows alone, without some drafters, of drafts of at least a length."""
  for row in _some(rows):
    if row['drafter'] not in without and row['gamma'] >= gamma:
      yield (row,)


def _pairs(rows: Rows) -> Iterator[tuple[dict, dict]]:
  some = _some(rows)
  for place, (base,) in claims.matched(
    some, claims.PLACE, [{'drafter': 'draft-128'}]
  ):
    yield from ((base, r) for r in pick(some, **place) if r is not base)


def _domains(rows: Rows) -> Iterator[list[dict]]:
  """Rows whose prompts are not the same."""
  fixed = ('drafter', 'temperature')
  compared = [{'domain': 'documentation'}, {'domain': 'structured'}]
  return (pair for _, pair in claims.matched(_some(rows), fixed, compared))


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
      return [
        measure(
          _costs(gamma, turns, chosen),
          again(row, rng.integers(row['prompts'], size=n)),
        )
      ]

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
      *(row[k] for k in (*TIMES[:3], 'unit_target_calls'))
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


def _pooled(rows: Rows) -> Iterator[Case]:
  """Pooled effects of claims whose cells differ by chance, around 0.

  Prompts are drawn for all cells that have them in common.
  """
  for spread in (0.0, 1.0):
    for name, folder in (
      ('by_temperature', 'embedded/drafters'),
      ('distilled', claims.ACCEPTANCE),
      ('over_eagle1', claims.ACCEPTANCE),
    ):
      claim, own = claims.CLAIMS[name], rows[folder]
      truth = [one.estimate.value for one in claim({folder: own})]
      width = spread * float(np.std(truth))

      def draw(rng, n, claim=claim, folder=folder, truth=truth, width=width):
        chosen: dict = {}
        for row in rows[folder]:
          if row['prompts_hash'] not in chosen:
            size = row['prompts']
            chosen[row['prompts_hash']] = rng.integers(size, size=n)
        drawn = [again(r, chosen[r['prompts_hash']]) for r in rows[folder]]
        found = claim({folder: drawn})
        away = width * rng.normal(size=len(found)) - truth
        moved = [
          dataclasses.replace(one, estimate=one.estimate.scaled(1, far))
          for one, far in zip(found, away, strict=True)
        ]
        return [findings.pool(moved).estimate]

      yield Case(f'{name}, cells spread {width:.2f}', draw, [0.0])


# What is printed with an interval, and where its kind is tried.
KINDS: dict[str, Kind] = {
  'tau': _each(_single, lambda r: metrics.ratio(*(r[k] for k in TAU))),
  'alpha': _each(
    _single, lambda r: metrics.ratio(*(r[k] for k in ALPHA)).clipped(0.0, 1.0)
  ),
  # Few steps of a prompt come to the third place.
  'acceptance of a place': _each(
    lambda rows: _single(rows, 'bigram', gamma=3),
    lambda r: metrics.ratio(*metrics.at_place(r['unit_histogram'], 2), 1.0),
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
    _domains, lambda a, b: claims.apart(a, b, TAU), paired=False
  ),
  'tau over Equation 1': _each(
    lambda rows: _single(rows, 'target int8', gamma=2), claims.over_equation_one
  ),
  'pooled effect of a claim': _pooled,
  'ratio, lognormal units': lognormal,
}


# The simulation.


def percentile(statistic, *samples, **unused) -> metrics.Estimate:
  """In place of `estimates.combine`: the middle 95% of resampled values."""
  del unused
  rng = np.random.default_rng(0)
  numbers, value = [], statistic(*(x for s in samples for x in s.values))
  count = min(_RESAMPLES, metrics.RESAMPLES)  # as many as medians have
  for sample in samples:
    if isinstance(sample, metrics.Sums):
      table = sample.values[:, None] - sample.variants
      chosen = rng.integers(sample.size, size=(count, sample.size))
      numbers += list(table[:, chosen].sum(2))
    else:
      numbers += [x[:count] for x in sample.variants]
  with np.errstate(all='ignore'):
    resampled = np.asarray(statistic(*numbers))
  resampled = resampled[np.isfinite(resampled)]
  if not np.isfinite(value) or not len(resampled):
    return metrics.Estimate(float(value))
  return metrics.Estimate(float(value), *np.percentile(resampled, [2.5, 97.5]))


@contextlib.contextmanager
def method(name: str) -> Iterator[None]:
  """Makes every interval by the new or the old method."""
  with contextlib.ExitStack() as stack:
    if name == 'old':
      for module in (estimates, metrics):
        stack.enter_context(mock.patch.object(module, 'combine', percentile))
    yield


def tally(cases: list[Case], n: int, draws: int) -> dict:
  """Draws so often from each population of a kind.

  Args:
    cases: the populations.
    n: units that are drawn.
    draws: of each.

  Returns:
    The share of intervals that hold the truth, and the error of this share;
    the share of estimates without an interval; the least share of a population,
    and its name. None where there were no intervals.
  """
  shares, silent = {}, 0
  for place, case in enumerate(cases):
    rng = np.random.default_rng((place, n))
    held = []
    for _ in range(draws):
      for estimate, truth in zip(case.draw(rng, n), case.truth, strict=True):
        if estimate.interval is None:
          silent += 1
        else:
          # Sums in another order differ in their last digits.
          near = 1e-9 * abs(truth)
          held.append(estimate.low - near <= truth <= estimate.high + near)
    if held:
      shares[case.name] = float(np.mean(held))
  share = float(np.mean([*shares.values()])) if shares else None
  where = min(shares, key=shares.__getitem__, default=None)
  return {
    'coverage': share,
    'coverage_error': None
    if share is None
    else float(np.sqrt(share * (1 - share) / (draws * len(cases)))),
    'without_interval': silent / draws / sum(len(c.truth) for c in cases),
    'least_coverage': shares.get(where),
    'least_population': where,
  }


def row(kind: str, cases: list[Case], n: int) -> dict:
  """The row of a kind of interval at a number of units."""
  made = {'kind': kind, 'units': n, 'populations': len(cases)}
  for name, draws in _DRAWS.items():
    draws = max(draws // _LONG.get(kind, 1) // len(cases), 1)
    with method(name):
      held = tally(cases, n, draws)
    if name == 'new':
      made |= held | {'draws': draws}
    else:
      both = ('coverage', 'coverage_error')
      made |= {f'percentile_{field}': held[field] for field in both}
  return made


def simulate(root: pathlib.Path) -> None:
  """Writes the folder coverage of a folder of results.

  Raises:
    UserError: it is none, or lacks rows that are drawn from.
  """
  every, _ = folders.read_folders(root, reports.fault)
  try:
    rows = {name: every[name] for name in _DRAWN_FROM}
  except KeyError as error:
    raise UserError(
      f'{root}: no rows of {error.args[0]!r}: name the folder of committed '
      'results'
    ) from error
  text = json.dumps(rows, sort_keys=True)
  digest = hashlib.sha256(text.encode()).hexdigest()[:12]
  cases = {kind: list(make(rows)) for kind, make in KINDS.items()}
  settings = {'sizes': SIZES, 'draws': _DRAWS, 'kinds': list(KINDS)}
  folder = results.Folder(str(root / 'coverage'), portable(settings))
  if any(r.get('drawn_from') != digest for r in folder.rows):
    folder.clear()  # They say nothing of other rows.
  made = {'program': 'coverage', 'config': 'coverage', 'drawn_from': digest}
  todo = [(kind, n) for kind in cases for n in SIZES]
  for kind, n in progress.over('kinds and sizes', todo):
    if not folder.has(kind=kind, units=n):
      folder.add(made | row(kind, cases[kind], n))
  study.publish(folder)


# The rows as a table.


fields = study.alike(
  text='kind',
  count='units populations',
  maybe='coverage coverage_error percentile_coverage '
  'percentile_coverage_error least_coverage',
  maybe_text='least_population',
)


def headline(rows: list[dict]) -> str:
  """The shares of the kinds, and the error of the simulation."""
  known = [r for r in rows if r['coverage'] is not None]
  if not known:
    return 'No interval was made: every draw has too few units.\n'
  old = [r['percentile_coverage'] for r in rows if r['percentile_coverage']]
  error, old_error = (
    100 * max(r[name] or 0 for r in rows)
    for name in ('coverage_error', 'percentile_coverage_error')
  )
  units, kinds = [r['units'] for r in known], {r['kind'] for r in known}
  shares = span((100 * r['coverage'] for r in known), '.1f')
  old_shares = span((100 * share for share in old), '.0f') if old else '-'
  text = (
    f'95% intervals of {len(kinds)} kinds hold the truth in {shares} percent '
    f'of the draws, by kind and number of units (from {min(units)} to '
    f'{max(units)}); those of the percentile bootstrap in {old_shares}. One '
    f'standard error of the simulation is at most {error:.1f} '
    f'({old_error:.1f}) for a cell.'
  )
  return f'{paragraph(text)}\n'


def _held(row: dict) -> str:
  """Percent of intervals that held the truth, and of the bootstrap's."""
  new, old = row['coverage'], row['percentile_coverage']
  if new is None:
    return '-'
  return f'{100 * new:.1f}' + ('' if old is None else f' ({100 * old:.0f})')


def _worst(rows: list[dict]) -> str:
  """The population that is held least often, of those with enough units."""
  known = [r for r in rows if r['units'] >= 8 and r['coverage']]
  if not known:
    return '-'
  row = min(known, key=lambda r: r['least_coverage'])
  where = f'{row["least_population"]}, {row["units"]} units'
  return f'{100 * row["least_coverage"]:.0f}: {where}'


def summary(rows: list[dict]) -> str:
  """The headline, and a line for each kind of interval."""
  sizes = list(dict.fromkeys(r['units'] for r in rows))
  lines = []
  for (kind,), mine in group(rows, 'kind').items():
    by_units = {r['units']: r for r in mine}
    cells = [_held(by_units[n]) if n in by_units else '-' for n in sizes]
    populations = str(mine[0]['populations'])
    lines.append([kind, populations, *cells, _worst(mine)])
  head = ['interval of', 'populations', *(f'{n} units' for n in sizes), 'worst']
  table = Table('Coverage of 95% intervals', _NOTE, head, lines)
  return blocks(headline(rows), table.markdown())


if __name__ == '__main__':
  parser = command.Parser(__doc__)
  parser.add_argument(
    'root', nargs='?', default='results', help='folder of the rows'
  )
  command.guard(
    lambda: simulate(pathlib.Path(parser.parse_args().root)), resumes=True
  )
