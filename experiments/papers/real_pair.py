"""Judges promises about speculation on a pair that people run.

The rows are of `specjax predict` with configs/real_pair.py: texts of the target
that drafters looked on at (many prompts), what a step costs, and the loop
beside its prediction (fewer prompts, with times). A promise of how much is
accepted is kept where the interval lies inside the range that was promised.
real_pair.json has the sentences, as claims.json has those of papers.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator

from experiments.papers.claims import (
  MARGIN,
  PLACE,
  Finding,
  cell_of,
  equation_one,
  finding,
  matched,
  read_claims,
  rise,
)
from specjax.reports import paired
from specjax.reports.paired import TAU
from specjax.stats import metrics, theory
from specjax.stats.folders import Rows
from specjax.stats.row import group, pick, times_of

# Folders of many prompts without times, and of fewer with them.
ACCEPTANCE, TIMED = 'real_pair/acceptance/', 'real_pair/timed/'
CONSTRAINED, BATCHES = 'real_pair/constrained', 'real_pair/batches'
CODE, FACTS = ('humaneval', 'mbpp'), ('qa',)
CREATIVE = 'writing', 'roleplay'
MODELS = 'sibling', 'smollm2'
WAY = 'folder', 'drafter', 'gamma'  # that was timed
GAMMA = 4  # where one length is enough
OTHER_TARGETS = 'real_pair/lookup/'  # of which lookup alone drafted
LENGTHS, LOOKUP = 'lengths', 'lookup'  # folders of rows in real_pair.json


def parts(rows: Rows, folder: str, part: str) -> list[dict]:
  """Returns the rows of one part of the predictions of some folders."""
  return [
    row | {'folder': name.removeprefix(folder)}
    for name, some in rows.items()
    if name.startswith(folder)
    for row in pick(some, part=part)
  ]


def lengths(rows: Rows, folder: str = ACCEPTANCE) -> list[dict]:
  """Returns a row for each draft length that was replayed."""
  return [
    row
    | {
      'gamma': gamma,
      'unit_target_calls': calls,
      'unit_prefixes': row['unit_tokens'],
    }
    for row in parts(rows, folder, 'replay')
    for gamma, calls in zip(
      row['gammas'], row['unit_target_calls'], strict=True
    )
  ]


def _prepare(rows: Rows) -> Rows:
  """Adds the rows of `lengths`, of the pair and of all targets of lookup."""
  own = lengths(rows)
  return rows | {LENGTHS: own, LOOKUP: own + lengths(rows, OTHER_TARGETS)}


def place_of(row: dict, *names: str) -> dict:
  return {name: row[name] for name in (*PLACE, *names)}


def _alpha(row: dict) -> metrics.Estimate:
  """Returns alpha, of rows without its sums by the interval that they have."""
  if 'unit_overlap' in row:
    return metrics.ratio(row['unit_overlap'], row['unit_prefixes'])
  freedom = row['prompts'] - 1
  low, high = row['alpha_ci']
  error = (high - low) / 2 / metrics.student(freedom)
  return metrics.Estimate(row['alpha'], low, high, error, freedom)


def _inside(
  domains: tuple[str, ...], low: float, high: float
) -> Callable[[Rows], Iterator[Finding]]:
  """Looks whether the sibling's alpha lies in a range promised for domains."""
  middle, within = (low + high) / 2, (high - low) / 2

  def look(rows: Rows) -> Iterator[Finding]:
    some = pick(lengths(rows), drafter='sibling', gamma=GAMMA)
    for row in pick(some, domain=domains):
      alpha = _alpha(row)
      step = f'alpha {alpha.value:.2f}'
      yield finding(
        place_of(row), step, alpha.scaled(1, -middle), row, within=within
      )

  return look


def _code_is_fast(rows: Rows) -> Iterator[Finding]:
  for row in pick(parts(rows, TIMED, 'check'), domain=CODE):
    speedup = _measured(row)
    yield finding(
      place_of(row, *WAY),
      f'{speedup.value:.2f} times plain decoding',
      speedup.scaled(1, -2.75),
      row,
      within=0.25,
    )


def _other_text_is_fast(rows: Rows) -> Iterator[Finding]:
  """Takes the way to draft that is predicted to be fastest at each place."""
  costs = parts(rows, TIMED, 'cost')
  for some in group(lengths(rows), *PLACE).values():
    ways = []
    for row in some:
      names = ('drafter', 'gamma')
      for cost in pick(costs, **{name: row[name] for name in names}):
        columns = metrics.Sums(*(row[name] for name in TAU))
        speedup = metrics.combine(
          lambda n, d, step: n / d / step,
          columns,
          _of_a_step(cost),
          positive=True,
        )
        ways.append((speedup, row | {'folder': cost['folder']}))
    if ways and some[0]['domain'] not in CODE:
      speedup, row = max(ways, key=lambda way: way[0].value)
      yield finding(
        place_of(row, *WAY),
        f'{speedup.value:.2f} times plain decoding',
        speedup.scaled(1, -1.85),
        row,
        within=0.35,
      )


def _measured(row: dict) -> metrics.Estimate:
  return metrics.speedup(*(row[name] for name in paired.TIMES))


def _pays(rows: Rows) -> Iterator[Finding]:
  for row in parts(rows, TIMED, 'check'):
    place = place_of(row, *WAY)
    yield finding(place, '', _measured(row).scaled(1, -1), row)


def _gain_falls(rows: Rows) -> Iterator[Finding]:
  def gain(plain_seconds, plain_tokens, seconds, tokens):
    return plain_seconds / plain_tokens * tokens / seconds

  def fall(*sums):
    return gain(*sums[:4]) - gain(*sums[4:])

  some = rows.get(BATCHES, [])
  sizes = sorted({row['batch'] for row in some})
  steps = itertools.pairwise({'batch': size} for size in sizes)
  for place, pair in matched(some, (*PLACE, 'drafter', 'gamma'), *steps):
    estimate = metrics.combine(
      fall, *(metrics.Sums(*times_of(row)) for row in pair)
    )
    step = ' to '.join(str(row['batch']) for row in pair)
    yield finding(place, f'batch {step}', estimate, pair[0])


def _schema(rows: Rows) -> Iterator[Finding]:
  """Compares texts under JSON schemas with free ones of the same prompts."""
  some = [
    r for r in rows.get(CONSTRAINED, []) if r['masked'] and r.get('draft')
  ]
  schemas = sorted({r['language'] for r in some} - {'none'})
  return rise(
    some,
    *(('none', schema) for schema in schemas),
    axis='language',
    statistic=paired.ALPHA,
    fixed=(*PLACE, 'drafter'),
  )


def _share_falls(rows: Rows) -> Iterator[Finding]:
  some = [r for r in lengths(rows) if r['drafter'] in MODELS]
  pair = [{'gamma': gamma} for gamma in (2, 8)]
  for place, both in matched(some, (*PLACE, 'drafter'), pair):
    columns = [row[name] for row in both for name in TAU]
    fall = metrics.estimate(lambda n, d, m, e: n / d / 3 - m / e / 9, *columns)
    yield finding(place, 'gamma 2 to 8', fall, both[0])


def _of_a_step(cost: dict) -> metrics.Draws:
  """A speculative step in plain steps, turn by turn."""
  times = cost['seconds_per_step']
  turns = zip(times['whole'], times['plain'], strict=True)
  return metrics.medians([whole / plain for whole, plain in turns])


def _costs(rows: Rows, *ways: dict) -> list[dict]:
  """Returns costs of ways to draft, of the first folder that has them all."""
  for some in group(parts(rows, TIMED, 'cost'), 'folder').values():
    found = [pick(some, **way) for way in ways]
    if all(found):
      return [first for first, *_ in found]
  return []


def _predicted(one: dict, cost: dict, other: dict, other_cost: dict):
  """Returns the predicted speed of `other` over that of `one`, less 1."""
  sums = metrics.Sums(*(row[name] for row in (one, other) for name in TAU))
  return metrics.combine(
    lambda n, d, m, e, step, other_step: m / e / (n / d) * step / other_step,
    sums,
    _of_a_step(cost),
    _of_a_step(other_cost),
    positive=True,
  ).scaled(1, -1)


def _faster(*pair: tuple[str, int]):
  """Looks whether the second drafter and gamma are predicted to be faster."""
  one, other = ({'drafter': name, 'gamma': gamma} for name, gamma in pair)

  def look(rows: Rows) -> Iterator[Finding]:
    costs = _costs(rows, one, other)
    if not costs:
      return
    for place, both in matched(lengths(rows), PLACE, [one, other]):
      estimate = _predicted(both[0], costs[0], both[1], costs[1])
      step = ' to '.join(f'{name} {gamma}' for name, gamma in pair)
      yield finding(place, step, estimate, both[0])

  return look


def _half_is_enough(rows: Rows) -> Iterator[Finding]:
  for cost in parts(rows, TIMED, 'cost'):
    tokens = float(theory.tokens_per_call(0.5, cost['gamma']))
    speed = metrics.combine(
      lambda step, tokens=tokens: tokens / step, _of_a_step(cost), positive=True
    )
    place = {name: cost[name] for name in WAY}
    cell = cell_of(place, f'{speed.value:.2f} times')
    yield Finding(cell, speed.scaled(1, -1.8))


def _as_predicted(rows: Rows) -> Iterator[Finding]:
  def over(n, d, *more):
    *times, step = more
    return n / d / step / paired.of_sums(*times)

  for row in parts(rows, TIMED, 'check'):
    here = {name: row[name] for name in WAY}
    (cost,) = pick(parts(rows, TIMED, 'cost'), **here)
    (seen,) = pick(lengths(rows, TIMED), **place_of(row), **here)
    columns = [seen[name] for name in TAU]
    columns += [row[name] for name in paired.SPEEDUP]
    estimate = metrics.combine(
      over, metrics.Sums(*columns), _of_a_step(cost), positive=True
    )
    yield finding(
      place_of(row) | here, '', estimate.scaled(1, -1), row, within=MARGIN
    )


_LOOKS: dict[str, Callable[[Rows], Iterable[Finding]]] = {
  'code_accepts': _inside(CODE, 0.7, 0.8),
  'facts_accept': _inside(FACTS, 0.6, 0.75),
  'creative_accepts': _inside(CREATIVE, 0.5, 0.65),
  'code_is_fast': _code_is_fast,
  'other_text_is_fast': _other_text_is_fast,
  'pays': _pays,
  'half_is_enough': _half_is_enough,
  'small_is_faster': _faster(('sibling', 4), ('smollm2', 4)),
  'few_bits_are_faster': _faster(('sibling', 4), ('sibling-int4', 4)),
  'equation_one': lambda rows: equation_one(
    pick(lengths(rows), drafter=MODELS, gamma=GAMMA)
  ),
  'share_falls': _share_falls,
  'too_long': _faster(('sibling', 8), ('sibling', 4)),
  'gain_falls': _gain_falls,
  'schema': _schema,
  'as_predicted': _as_predicted,
}
CLAIMS = tuple(read_claims('real_pair.json', _LOOKS, prepare=_prepare).values())
