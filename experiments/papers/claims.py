"""Claims of papers, and what committed rows say of each.

claims.json is the table: a sentence of a paper, its source and what is
estimated. Most claims say that a number rises from one drafter, rule or draft
length to the next; the file says which. The others have a function here. It
takes rows by folder and yields a `Finding` for each cell (domain, temperature,
pair of drafters ...) where rows speak to the claim.

Acceptance is read from many prompts without times, costs and speeds from fewer
prompts with times; `configs/drafters.py` makes both.
"""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from specjax import trees
from specjax.drafters.shapes import parallel
from specjax.reports import paired
from specjax.reports.paired import (
  ALPHA,
  SPEED,
  TAU,
  UNDER_RULE,
  Statistic,
  show,
)
from specjax.stats import metrics, theory
from specjax.stats.folders import Rows
from specjax.stats.row import group, pick

HOLDS, FAILS, UNDECIDED = 'holds', 'does not hold', 'undecided'
# Two numbers are equal for a claim where they differ by less than this.
MARGIN = 0.1
PLACE = ('domain', 'temperature')
# The plain exact rules, one of which every drafter has.
PLAIN_RULE = {'verifier': ('token', 'recursive')}
# Folders of all drafters: many prompts without times, fewer with them.
ACCEPTANCE, TIMED = 'drafters/acceptance', 'drafters/timed'
_BLOCK_FOLDERS = ('embedded/gammas', 'rules')
_TRAINED = ('draft-64', 'draft-128', 'draft-256')
_INDEPENDENT = (*_TRAINED, 'distilled')


@dataclasses.dataclass(frozen=True)
class Finding:
  """A result of one cell that speaks to a claim.

  Attributes:
    cell: its name, for the reader.
    estimate: the claim is that it is above 0.
    within: for a claim of equality: that `estimate` is this near to 0.
    prompts: digests of the prompts of each sample that it is made from.
    exact: True where nothing was estimated.
    kind: what is estimated, where a claim has several kinds of cells.
  """

  cell: str
  estimate: metrics.Estimate
  within: float | None = None
  prompts: tuple[str, ...] = ()
  exact: bool = False
  kind: str = ''

  @property
  def outcome(self) -> str:
    return self.judge(self.estimate)

  def judge(self, estimate: metrics.Estimate) -> str:
    """Returns what an estimate says of the cell's claim."""
    if estimate.interval is None:
      return UNDECIDED
    low, high = estimate.low, estimate.high
    if self.within is not None:
      if max(abs(low), abs(high)) <= self.within:
        return HOLDS
      return FAILS if low > self.within or high < -self.within else UNDECIDED
    if low > 0:
      return HOLDS
    return FAILS if high < 0 else UNDECIDED


Look = Callable[[Rows], Iterable[Finding]]


def _plain(rows: Rows, folder: str) -> list[dict]:
  return pick(rows.get(folder, []), **PLAIN_RULE)


def matched(
  rows: list[dict], fixed: tuple[str, ...], *groups: Iterable[dict]
) -> Iterator[tuple[dict, list[dict]]]:
  """Finds rows that agree in some fields and differ in others.

  Args:
    rows: rows of one folder.
    fixed: the fields that agree.
    *groups: the values of the others, one cell after the other.

  Yields:
    The fixed fields, and the row of each cell of a group that has them all.
  """
  for values in group(rows, *fixed):
    place = dict(zip(fixed, values, strict=True))
    for cells in groups:
      matches = [pick(rows, **place | cell) for cell in cells]
      if all(matches):
        yield place, [first for first, *_ in matches]


def cell_of(place: dict, step: str = '') -> str:
  """Names a place and what is compared there."""
  words = {'temperature': 'T ', 'gamma': 'gamma '}
  parts = [f'{words.get(k, "")}{show(value)}' for k, value in place.items()]
  return ', '.join([*parts, *([step] if step else [])])


def finding(
  place: dict, step: str, estimate: metrics.Estimate, *rows: dict, **fields
) -> Finding:
  """Makes the finding at a place.

  Args:
    place: fields that say where.
    step: what is compared there.
    estimate: see `Finding`.
    *rows: one for each sample of prompts that the estimate is made from.
    **fields: further fields of `Finding`.
  """
  prompts = tuple(row['prompts_hash'] for row in rows)
  return Finding(cell_of(place, step), estimate, prompts=prompts, **fields)


def exactly(cell: str, same: bool) -> Finding:
  """Makes a finding that is no estimate: something is so, or it is not."""
  value = 1.0 if same else -1.0
  return Finding(cell, metrics.Estimate(value, value, value), exact=True)


def apart(one: dict, other: dict, statistic: Statistic) -> metrics.Estimate:
  """Returns `other` less `one`, which have different prompts."""
  return metrics.combine(
    lambda n, d, m, e: m / e - n / d,
    *(metrics.Sums(*(row[k] for k in statistic)) for row in (one, other)),
  )


def change(one: dict, other: dict, statistic: Statistic):
  """Returns a statistic of `other` over that of `one`, less 1.

  A speed has no interval where the times of the prompts are not known.
  """
  found = paired.difference(one, other, statistic, relative=True)
  if found is None and statistic is SPEED:
    return metrics.Estimate(other['speedup'] / one['speedup'] - 1)
  return found and found.scaled(0.01)


def rise(
  rows: list[dict],
  *orders: Iterable,
  axis: str = 'drafter',
  statistic: Statistic = TAU,
  fixed: tuple[str, ...] = PLACE,
  compare: Callable[..., Any] = paired.difference,
  label: str = '',
  **fields,
) -> Iterator[Finding]:
  """Looks whether a statistic rises along an axis, from value to value.

  Args:
    rows: rows of one folder.
    *orders: values of the axis, each from low to high.
    axis: the field that changes.
    statistic: what rises; a speed is relative to the lower value.
    fixed: the fields that agree.
    compare: `paired.difference`, `change`, or `apart` for other prompts.
    label: said before the values.
    **fields: further fields of `Finding`.
  """
  if statistic is SPEED:
    rows, compare = [r for r in rows if r['speedup']], change
  for order in orders:
    steps = itertools.pairwise({axis: value} for value in order)
    for place, pair in matched(rows, fixed, *steps):
      estimate = compare(*pair, statistic)
      if estimate is not None:
        step = ' to '.join(show(row[axis]) for row in pair)
        samples = pair if compare is apart else pair[:1]
        yield finding(place, f'{label}{step}', estimate, *samples, **fields)


def _exact_distributions(rows: Rows) -> Iterator[Finding]:
  exact = pick(rows.get('certificate', []), part='distribution', lossless=True)
  for (rule,), same in group(exact, 'rule').items():
    error = max(r['max_error'] for r in same)
    yield exactly(f'{rule}: error {error:.0e}', error < 1e-12)


def _greedy(rows: Rows) -> Iterator[Finding]:
  for folder, every in rows.items():
    compared = [
      r
      for r in every
      if r.get('identical_to_plain') is not None and r['lossless']
    ]
    if compared:
      texts = sum(r.get('texts') or r['prompts'] for r in compared)
      same = sum(r['identical_to_plain'] for r in compared)
      others = [d['verdict'] for r in compared for d in r['differences']]
      cell = f'{folder}: {same} of {texts} texts, {others.count("tie")} ties'
      yield exactly(cell, 'bug' not in others)


def _block(rows: Rows) -> Iterator[Finding]:
  for folder in _BLOCK_FOLDERS:
    yield from rise(
      [r for r in rows.get(folder, []) if r['temperature'] and r['gamma'] > 1],
      ('token', 'block'),
      axis='verifier',
      fixed=(*PLACE, 'gamma'),
      label=f'{folder}, ',
    )


def _block_gain(rows: Rows) -> Iterator[Finding]:
  def rise(a, b, c, d, e, f, g, h):
    return g / h / (e / f) - c / d / (a / b)

  for folder in _BLOCK_FOLDERS:
    warm = [r for r in rows.get(folder, []) if r['temperature']]
    gammas = sorted({r['gamma'] for r in warm if r['gamma'] > 1})
    groups = (
      [{'gamma': g, 'verifier': v} for g in step for v in ('token', 'block')]
      for step in itertools.pairwise(gammas)
    )
    for place, cells in matched(warm, PLACE, *groups):
      low, *_, high = (row['gamma'] for row in cells)
      yield finding(
        place,
        f'{folder}, gamma {low} to {high}',
        metrics.estimate(rise, *(row[name] for row in cells for name in TAU)),
        cells[0],
      )


def _block_equal(rows: Rows) -> Iterator[Finding]:
  trivial = [
    r
    for r in rows.get('embedded/gammas', [])
    if r['gamma'] == 1 or not r['temperature']
  ]
  rules = [{'verifier': 'token'}, {'verifier': 'block'}]
  for place, pair in matched(trivial, (*PLACE, 'gamma'), rules):
    token, block = (row['unit_target_calls'] for row in pair)
    yield exactly(cell_of(place), token == block)


def _copies(rows: Rows) -> Iterator[Finding]:
  """Looks whether lookup gains more on structured text than on prose."""
  for folder in ('embedded/drafters', 'quickstart'):
    ngram = pick(rows.get(folder, []), drafter='ngram')
    options = {'axis': 'domain', 'fixed': ('temperature',), 'compare': apart}
    domains, label = ('documentation', 'structured'), f'{folder}, '
    yield from rise(ngram, domains, label=label, **options)


def _cost(rows: Rows, drafter: str) -> float | None:
  """Returns gamma c of a drafter in plain steps; None if it was not timed."""
  timed = pick(_plain(rows, TIMED), drafter=drafter)
  costs = [r['gamma'] * r['c'] for r in timed if r['c'] is not None]
  return float(np.median(costs)) if costs else None


def _cheaper(rows: Rows, one: str, other: str) -> Iterator[Finding]:
  """Looks whether drafts of `other` cost less than those of `one`.

  What a step costs does not depend on the place, so there is one cell.
  """

  def fall(drafting, plain, other_drafting, other_plain):
    return drafting / plain - other_drafting / other_plain

  drafters = [{'drafter': name} for name in (one, other)]
  for _, pair in matched(_plain(rows, TIMED), (), drafters):
    if not pair[0].get('seconds_per_step'):
      continue
    columns = []  # Seconds of drafting and of a plain step, turn by turn.
    for times in (row['seconds_per_step'] for row in pair):
      columns += [np.subtract(times['whole'], times['scored']).tolist()]
      columns += [times['plain']]
    if len({len(column) for column in columns}) == 1:
      cell = f'cost of a draft, {one} less {other}'
      yield Finding(cell, metrics.estimate(fall, *columns), kind='cost')


def _over_independent(rows: Rows) -> Iterator[Finding]:
  """Compares a head with the best draft that costs as much or more.

  Where every draft costs less, it is compared with the best of all.
  """
  head = _cost(rows, 'eagle3')
  costs = {name: _cost(rows, name) for name in _INDEPENDENT}
  known = {name: cost for name, cost in costs.items() if cost is not None}
  if head is None or not known:
    return
  dearer = [n for n, cost in known.items() if cost >= head] or list(known)
  every = _plain(rows, ACCEPTANCE)
  for place, (own,) in matched(every, PLACE, [{'drafter': 'eagle3'}]):
    drafts = pick(every, **place)
    others = [
      r for r in drafts if r['drafter'] in dearer and r['gamma'] == own['gamma']
    ]
    if others:
      best = max(others, key=lambda r: r['tau'])['drafter']
      for one in rise(drafts, (best, 'eagle3')):
        label = f'{one.cell} (costs {known[best]:.2f} and {head:.2f})'
        yield dataclasses.replace(one, cell=label)


def _chains(rows: Rows) -> list[dict]:
  """Returns rows of chains that say what every prompt accepted."""
  chains = pick(rows.get(ACCEPTANCE, []), verifier='token')
  return [r for r in chains if r.get('unit_histogram') and r['gamma'] > 2]


def _flatter(rows: Rows) -> Iterator[Finding]:
  def difference(a, b, c, d, e, f, g, h):
    return (a / b - c / d) - (e / f - g / h)

  heads = [{'drafter': 'eagle1'}, {'drafter': 'eagle3'}]
  for place, pair in matched(_chains(rows), (*PLACE, 'gamma'), heads):
    last = place['gamma'] - 1
    columns = [
      column
      for row in pair
      for position in (0, last)
      for column in metrics.at_place(row['unit_histogram'], position)
    ]
    if len({len(column) for column in columns}) == 1:
      estimate = metrics.estimate(difference, *columns)
      where = {k: place[k] for k in PLACE}
      yield finding(where, f'place 1 to {last + 1}', estimate, pair[0])


def _drops_once(rows: Rows) -> Iterator[Finding]:
  """Looks whether 0-alpha is above 1-alpha, and 1-alpha near the last one."""

  def fall(a, b, c, d):
    return a / b - c / d

  for row in pick(_chains(rows), drafter='eagle1'):
    place, last = {k: row[k] for k in PLACE}, row['gamma'] - 1
    for one, other, within in ((0, 1, None), (1, last, MARGIN)):
      kind = 'falls' if within is None else f'within {MARGIN:g}'
      pair = (metrics.at_place(row['unit_histogram'], n) for n in (one, other))
      yield finding(
        place,
        f'{one}-alpha to {other}-alpha, {kind}',
        metrics.estimate(fall, *itertools.chain(*pair)),
        row,
        within=within,
        kind=kind,
      )


def expected_of_heads(row: dict) -> metrics.Draws:
  """Returns 1 and the chance of every node, by the accuracies of the heads.

  They are those of the row's domain if known. The draws are of other hits in
  as many places.
  """
  parents = tuple(range(row['gamma']))
  if (row['options'] or {}).get('tree'):
    accuracies = parallel.accuracies(row['guesses'])[: row['gamma']]
    parents = trees.most_accepted(accuracies, row['options']['tree'])
  known = row['guesses']
  known = known.get('domains', {}).get(row['domain'], known)
  hits = np.array(known['hits'])[: row['gamma']]  # [K, R]
  counted = np.array(known['counted'])[: row['gamma'], None]
  shape = (metrics.RESAMPLES, *hits.shape)
  drawn = np.random.default_rng(2).binomial(counted, hits / counted, shape)
  tokens = [theory.tree_tokens(parents, x / counted) for x in (hits, *drawn)]
  return metrics.Draws(tokens[:1], [np.array(tokens[1:])])


def _product_of_heads(rows: Rows) -> Iterator[Finding]:
  """Looks at greedy decoding: the accuracies are those of greedy guesses."""
  for row in pick(_plain(rows, ACCEPTANCE), temperature=0.0):
    if not (row.get('guesses') and row['drafter'].startswith('medusa')):
      continue
    expected = expected_of_heads(row)
    deviation = metrics.combine(
      lambda tokens, calls, known: tokens / calls / known,
      metrics.Sums(*(row[name] for name in TAU)),
      expected,
      positive=True,
    )
    (value,) = expected.values
    yield finding(
      {k: row[k] for k in (*PLACE, 'drafter')},
      f'tau {row["tau"]:.2f}, expected {value:.2f}',
      deviation.scaled(1, -1),
      row,
      within=MARGIN,
    )


def over_equation_one(row: dict) -> metrics.Estimate:
  """Returns tau over its value for independent acceptances, less 1."""

  def deviation(tokens, calls, overlap, prefixes):
    alpha, gamma = overlap / prefixes, row['gamma']
    expected = sum(alpha**i for i in range(gamma + 1))
    return tokens / calls / expected

  columns = [row[name] for name in (*TAU, *ALPHA)]
  return metrics.estimate(deviation, *columns, positive=True).scaled(1, -1)


def equation_one(rows: list[dict]) -> Iterator[Finding]:
  """Looks whether tau is that of Equation 1, in rows that hold their sums."""
  for row in rows:
    if row.get('unit_overlap'):
      place = {k: row[k] for k in (*PLACE, 'drafter')}
      yield finding(place, '', over_equation_one(row), row, within=MARGIN)


def _share_of_a_step(rows: Rows) -> Iterator[Finding]:
  token = pick(rows.get('embedded/gammas', []), verifier='token')
  gammas = sorted({r['gamma'] for r in token})
  groups = ([{'gamma': g} for g in step] for step in itertools.pairwise(gammas))
  for place, pair in matched(token, PLACE, *groups):
    low, high = (row['gamma'] for row in pair)

    def fall(n, d, m, e, low=low, high=high):
      return n / d / (low + 1) - m / e / (high + 1)

    columns = [row[name] for row in pair for name in TAU]
    estimate = metrics.estimate(fall, *columns)
    yield finding(place, f'gamma {low} to {high}', estimate, pair[0])


# Claims that say more than that a number rises or a cost falls.
_OWN: dict[str, Look] = {
  'exact_distributions': _exact_distributions,
  'greedy': _greedy,
  'block': _block,
  'block_gain': _block_gain,
  'block_equal': _block_equal,
  'lookup': _copies,
  'over_independent': _over_independent,
  'flatter': _flatter,
  'drops_once': _drops_once,
  'product_of_heads': _product_of_heads,
  'equation_one': lambda rows: equation_one(
    pick(rows.get('embedded/drafters', []), drafter=(*_TRAINED, 'bigram'))
  ),
  'share_of_a_step': _share_of_a_step,
}
_STATISTICS = {
  'tau': TAU,
  'alpha': ALPHA,
  'alpha under the rule': UNDER_RULE,
  'speed': SPEED,
}
_COMPARISONS = {'paired': paired.difference, 'apart': apart, 'change': change}


@dataclasses.dataclass(frozen=True)
class Claim:
  """A sentence of a paper, and how rows speak to it.

  Attributes:
    name: of the claim in claims.json.
    text: the claim.
    source: where it was read.
    quantity: what is estimated in each cell.
    rises: arguments of `rise`, with the `folder` whose rows are compared and
      `where`, the fields that these rows have (by default a plain exact rule).
    costs: two drafters; the drafts of the second one cost less.
    look: a function that finds more cells.
    prepare: adds what `rises` compares and no folder holds.
  """

  name: str
  text: str
  source: str
  quantity: str = ''
  rises: dict[str, Any] | None = None
  costs: tuple[str, str] | None = None
  look: Look = lambda rows: ()
  prepare: Callable[[Rows], Rows] = lambda rows: rows

  def __call__(self, rows: Rows) -> list[Finding]:
    findings = list(self.look(rows))
    if self.rises:
      options = dict(self.rises)
      where = options.pop('where', PLAIN_RULE)
      where = {
        k: tuple(v) if isinstance(v, list) else v for k, v in where.items()
      }
      every = self.prepare(rows).get(options.pop('folder'), [])
      options |= {
        'statistic': _STATISTICS[options.pop('statistic', 'tau')],
        'fixed': tuple(options.pop('fixed', PLACE)),
        'compare': _COMPARISONS[options.pop('compare', 'paired')],
      }
      orders = options.pop('orders')
      findings += rise(pick(every, **where), *orders, **options)
    if self.costs:
      findings += _cheaper(rows, *self.costs)
    return findings


def read_claims(
  file: str, looks: dict[str, Look], **fields: Any
) -> dict[str, Claim]:
  """Reads the claims of a file; some have functions or `fields` besides."""
  claims = json.loads(pathlib.Path(__file__).with_name(file).read_text())
  return {
    name: Claim(name, look=looks.get(name, Claim.look), **said, **fields)
    for name, said in claims.items()
  }


CLAIMS = read_claims('claims.json', _OWN)
