"""Claims of papers, and what committed rows say of each.

`CLAIMS` is the table: a sentence of a paper, its source, what is estimated, and
a function that looks at rows. The function takes rows by folder and yields a
`Finding` for each cell (domain, temperature, pair of drafters ...) where rows
speak to the claim. Most claims say that a number rises from one drafter, rule
or draft length to the next: `rises` makes their functions.

Acceptance is read from many prompts without times, costs and speeds from fewer
prompts with times; `configs/drafters.py` makes both.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator

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
# Folders of all drafters: many prompts without times, fewer with them.
ACCEPTANCE, TIMED = 'drafters/acceptance', 'drafters/timed'
DIVERGENCES = 'embedded/divergences'
_BLOCK_FOLDERS = ('embedded/gammas', 'rules')
_TRAINED = ('draft-64', 'draft-128', 'draft-256')
_INDEPENDENT = (*_TRAINED, 'distilled')


@dataclasses.dataclass(frozen=True)
class Finding:
  """What one cell says of a claim.

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


@dataclasses.dataclass(frozen=True)
class Claim:
  """A sentence of a paper, and how rows speak to it.

  Attributes:
    text: the claim.
    source: where it was read.
    quantity: what is estimated in each cell.
    look: rows by folder -> the findings.
    missing: why nothing here can speak to it, if so.
  """

  text: str
  source: str
  quantity: str = ''
  look: Look = lambda rows: ()
  missing: str = ''

  def __call__(self, rows: Rows) -> list[Finding]:
    return list(self.look(rows))


def plain_rule(row: dict) -> bool:
  """True for the plain exact rules, one of which every drafter has."""
  return row['verifier'] in ('token', 'recursive')


def _token(row: dict) -> bool:
  return row['verifier'] == 'token'


def _warm(row: dict) -> bool:
  return row['temperature'] > 0


def _chosen(rows: Rows, folder: str, only=plain_rule) -> list[dict]:
  return list(filter(only, rows.get(folder, [])))


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


def _faster(one: dict, other: dict) -> metrics.Estimate:
  """Returns the speed of `other` over that of `one`, less 1.

  It has no interval where the times of the prompts are not known.
  """
  difference = paired.difference(one, other, SPEED, relative=True)
  if difference is None:
    return metrics.Estimate(other['speedup'] / one['speedup'] - 1)
  return difference.scaled(0.01)


def _rise(
  rows: list[dict],
  *orders: Iterable,
  axis: str = 'drafter',
  statistic: Statistic = TAU,
  fixed: tuple[str, ...] = PLACE,
  label: str = '',
  kind: str = '',
) -> Iterator[Finding]:
  """Looks in rows of one folder; see `rises`."""
  timed = statistic is SPEED
  rows = [r for r in rows if r['speedup']] if timed else rows
  for order in orders:
    steps = itertools.pairwise({axis: value} for value in order)
    for place, pair in matched(rows, fixed, *steps):
      estimate = (
        _faster(*pair) if timed else paired.difference(*pair, statistic)
      )
      if estimate is not None:
        step = ' to '.join(show(row[axis]) for row in pair)
        yield finding(place, f'{label}{step}', estimate, pair[0], kind=kind)


def rises(
  folder: str, *orders: Iterable, only: Callable = plain_rule, **options
) -> Look:
  """Looks whether a statistic rises along an axis, from value to value.

  Args:
    folder: the folder whose rows are compared.
    *orders: values of the axis, each from low to high.
    only: which rows of the folder count.
    **options: `axis`, the field that changes, by default the drafter;
      `statistic`, what rises (`SPEED`: relative to the lower value); `fixed`,
      the fields that agree; `label`, said before the values; `kind`, see
      `Finding`.
  """
  return lambda rows: _rise(_chosen(rows, folder, only), *orders, **options)


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
    yield from _rise(
      _chosen(rows, folder, lambda r: r['temperature'] and r['gamma'] > 1),
      ('token', 'block'),
      axis='verifier',
      fixed=(*PLACE, 'gamma'),
      label=f'{folder}, ',
    )


def _block_gain(rows: Rows) -> Iterator[Finding]:
  def rise(a, b, c, d, e, f, g, h):
    return g / h / (e / f) - c / d / (a / b)

  for folder in _BLOCK_FOLDERS:
    warm = _chosen(rows, folder, _warm)
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
  domains = [{'domain': 'documentation'}, {'domain': 'structured'}]
  for folder in ('embedded/drafters', 'quickstart'):
    ngram = pick(rows.get(folder, []), drafter='ngram')
    for place, pair in matched(ngram, ('temperature',), domains):
      step = f'{folder}, documentation to structured'
      yield finding(place, step, apart(*pair, TAU), *pair)


def _cost(rows: Rows, drafter: str) -> float | None:
  """Returns gamma c of a drafter in plain steps; None if it was not timed."""
  timed = pick(_chosen(rows, TIMED), drafter=drafter)
  costs = [r['gamma'] * r['c'] for r in timed if r['c'] is not None]
  return float(np.median(costs)) if costs else None


def _cheaper(one: str, other: str) -> Look:
  """Looks whether drafts of `other` cost less than those of `one`.

  What a step costs does not depend on the place, so there is one cell.
  """

  def fall(drafting, plain, other_drafting, other_plain):
    return drafting / plain - other_drafting / other_plain

  def look(rows: Rows) -> Iterator[Finding]:
    drafters = [{'drafter': name} for name in (one, other)]
    for _, pair in matched(_chosen(rows, TIMED), (), drafters):
      if not pair[0].get('seconds_per_step'):
        continue
      columns = []  # Seconds of drafting and of a plain step, turn by turn.
      for times in (row['seconds_per_step'] for row in pair):
        columns += [np.subtract(times['whole'], times['scored']).tolist()]
        columns += [times['plain']]
      if len({len(column) for column in columns}) == 1:
        cell = f'cost of a draft, {one} less {other}'
        yield Finding(cell, metrics.estimate(fall, *columns), kind='cost')

  return look


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
  every = _chosen(rows, ACCEPTANCE)
  for place, (own,) in matched(every, PLACE, [{'drafter': 'eagle3'}]):
    drafts = pick(every, **place)
    others = [
      r for r in drafts if r['drafter'] in dearer and r['gamma'] == own['gamma']
    ]
    if others:
      best = max(others, key=lambda r: r['tau'])['drafter']
      for one in _rise(drafts, (best, 'eagle3')):
        label = f'{one.cell} (costs {known[best]:.2f} and {head:.2f})'
        yield dataclasses.replace(one, cell=label)


def _chains(rows: Rows) -> list[dict]:
  """Returns rows of chains that say what every prompt accepted."""
  chains = _chosen(rows, ACCEPTANCE, _token)
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
  for row in pick(_chosen(rows, ACCEPTANCE), temperature=0.0):
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


def _equation_one(rows: Rows) -> Iterator[Finding]:
  for row in rows.get('embedded/drafters', []):
    if row['drafter'] in (*_TRAINED, 'bigram') and row['unit_overlap']:
      place = {k: row[k] for k in (*PLACE, 'drafter')}
      yield finding(place, '', over_equation_one(row), row, within=MARGIN)


def _share_of_a_step(rows: Rows) -> Iterator[Finding]:
  token = _chosen(rows, 'embedded/gammas', _token)
  gammas = sorted({r['gamma'] for r in token})
  groups = ([{'gamma': g} for g in step] for step in itertools.pairwise(gammas))
  for place, pair in matched(token, PLACE, *groups):
    low, high = (row['gamma'] for row in pair)

    def fall(n, d, m, e, low=low, high=high):
      return n / d / (low + 1) - m / e / (high + 1)

    columns = [row[name] for row in pair for name in TAU]
    estimate = metrics.estimate(fall, *columns)
    yield finding(place, f'gamma {low} to {high}', estimate, pair[0])


def _model_text(rows: Rows) -> Iterator[Finding]:
  trained = _chosen(rows, DIVERGENCES)
  losses = dict.fromkeys(r['drafter'].partition(' on ')[0] for r in trained)
  orders = (
    (f'{loss} on corpus', f'{loss} on {data}')
    for data in ('target text', 'own text')
    for loss in losses
  )
  return _rise(trained, *orders)


def _total_variation_is_not_best(rows: Rows) -> Iterator[Finding]:
  """Compares total variation with the best other divergence on its data."""
  for drafts in group(_chosen(rows, DIVERGENCES), *PLACE).values():
    names = [r['drafter'].partition(' on ')[2] for r in drafts]
    for data in dict.fromkeys(names):
      own = f'total variation on {data}'
      same_data = [r for r in drafts if r['drafter'].endswith(f' on {data}')]
      others = [r for r in same_data if r['drafter'] != own]
      if others:
        best = max(others, key=lambda r: r['tau'])['drafter']
        yield from _rise(same_data, (own, best))


def _earlier_exits(rows: Rows) -> Iterator[Finding]:
  exact = _chosen(rows, ACCEPTANCE)
  order = ('exit 1', 'exit 2')
  yield from _rise(exact, order, statistic=ALPHA, kind='alpha')
  yield from _cheaper('exit 2', 'exit 1')(rows)


_TAU = 'difference of tau'
_ALPHA = 'difference of alpha'
_OF_RULE = 'difference of alpha under the rule'
_SPEED = 'relative change of the speed'
_COST = 'difference of the cost of a draft, in plain steps'

CLAIMS = {
  # Verification rules.
  'exact_distributions': Claim(
    'The output has the distribution of the target',
    'arXiv:2211.17192; arXiv:2302.01318; arXiv:2403.10444; arXiv:2310.15141; '
    'arXiv:2402.12374',
    'whole texts by enumeration, error below 1e-12',
    _exact_distributions,
  ),
  'greedy': Claim(
    'Greedy texts are those of plain decoding, up to ties',
    'arXiv:2211.17192; arXiv:2302.01318',
    'texts that differ and are no ties',
    _greedy,
  ),
  'block': Claim(
    'Block verification gives more tokens than token verification',
    'arXiv:2403.10444, Table 1',
    _TAU,
    _block,
  ),
  'block_gain': Claim(
    'The gain of block verification grows with gamma',
    'arXiv:2403.10444, Figure 3',
    'difference of the relative gains',
    _block_gain,
  ),
  'block_equal': Claim(
    'Block and token verification are equal at gamma 1 and at temperature 0',
    'arXiv:2403.10444',
    'target calls of every prompt',
    _block_equal,
  ),
  'more_candidates': Claim(
    'More candidates of a place raise alpha',
    'arXiv:2401.06706, Table 8',
    _OF_RULE,
    rises(
      'embedded/candidates',
      *(('one', f'two {way}', f'four {way}') for way in ('with', 'without')),
      statistic=UNDER_RULE,
    ),
  ),
  'replacement': Claim(
    'Candidates without replacement beat those with',
    'arXiv:2401.06706, Table 4; arXiv:2402.12374',
    _OF_RULE,
    rises(
      'embedded/candidates',
      *((f'{count} with', f'{count} without') for count in ('two', 'four')),
      statistic=UNDER_RULE,
    ),
  ),
  'lenience': Claim(
    'alpha rises as lenience falls',
    'arXiv:2211.17192, Table 5',
    _OF_RULE,
    rises(
      'embedded/lenience',
      ('token', 'lenience:0.5', 'lenience:0.3', 'lenience:0.1'),
      only=lambda row: True,
      axis='verifier',
      statistic=UNDER_RULE,
      fixed=(*PLACE, 'drafter'),
    ),
  ),
  'typical': Claim(
    'Typical acceptance takes more than exact verification',
    'arXiv:2401.10774, section 2.3.1',
    _TAU,
    rises(
      ACCEPTANCE,
      ('recursive', 'typical'),
      only=lambda row: _warm(row) and row['drafter'] == 'medusa tree',
      axis='verifier',
    ),
  ),
  'naive': Claim(
    'The naive rule accepts less than multi-step verification',
    'arXiv:2305.09781, Table 3',
    missing='the rule is not in the project',
  ),
  # Drafters.
  'by_size': Claim(
    'alpha rises from unigrams to bigrams to models, and with their size',
    'arXiv:2211.17192, Table 3',
    'difference of alpha, next less this',
    rises(
      'embedded/drafters', ('unigram', 'bigram', *_TRAINED), statistic=ALPHA
    ),
  ),
  'by_temperature': Claim(
    'alpha at temperature 0 is above alpha at temperature 1',
    'arXiv:2211.17192, Table 3 (with an exception); arXiv:2401.06706, Table 8',
    _ALPHA,
    rises(
      'embedded/drafters',
      (1.0, 0.0),
      only=lambda row: row['drafter'] in _TRAINED,
      axis='temperature',
      statistic=ALPHA,
      fixed=('domain', 'drafter'),
      label='T ',
    ),
  ),
  'middle_size': Claim(
    'The fastest draft is neither the smallest nor the largest',
    'arXiv:2211.17192, Table 2 (there the smallest)',
    _SPEED,
    rises('quickstart', _TRAINED[:2], _TRAINED[:0:-1], statistic=SPEED),
  ),
  'lookup': Claim(
    'Lookup gains more on text that copies than on free text',
    'arXiv:2401.07851; arXiv:2311.08252',
    'difference of tau, not paired',
    _copies,
  ),
  'over_independent': Claim(
    "A head on the target's features gives more tokens than the best "
    'independent draft of one layer',
    'arXiv:2503.01840; arXiv:2401.15077',
    'difference of tau; in brackets what a draft of each costs, in plain '
    'steps: the best of those drafts that cost as much as the head, or of all '
    'where none does',
    _over_independent,
  ),
  'over_eagle1': Claim(
    'EAGLE-3 gives more tokens than EAGLE-1',
    'arXiv:2503.01840, Table 1',
    _TAU,
    rises(ACCEPTANCE, ('eagle1', 'eagle3')),
  ),
  'over_eagle3': Claim(
    'A block that is drafted in one pass gives more tokens than EAGLE-3',
    'arXiv:2602.06036, Table 1 (five layers, blocks and trees of 16 tokens)',
    _TAU,
    rises(ACCEPTANCE, ('eagle3', 'dflash')),
  ),
  'cheaper_blocks': Claim(
    'A block costs less to draft in one pass than a chain of EAGLE-3 as long',
    'arXiv:2602.06036, Table 9 (more speed at the same tau)',
    _COST,
    _cheaper('eagle3', 'dflash'),
  ),
  'trees_over_chains': Claim(
    'Trees give more tokens than chains',
    'arXiv:2401.15077, Table 5',
    _TAU,
    rises(
      ACCEPTANCE,
      *((n, f'{n} tree') for n in ('eagle3', 'medusa', 'dflash', 'draft-128')),
    ),
  ),
  'dynamic_trees': Claim(
    'Trees made anew at every step give more than fixed ones',
    'arXiv:2406.16858, Table 1',
    _TAU,
    rises(ACCEPTANCE, ('eagle3 tree', 'eagle3 dynamic tree')),
  ),
  'flatter': Claim(
    'Acceptance falls less along a draft of EAGLE-3 than of EAGLE-1',
    'arXiv:2503.01840',
    'fall of the conditional acceptance from the first to the last place, '
    'EAGLE-1 less EAGLE-3',
    _flatter,
  ),
  'drops_once': Claim(
    'n-alpha drops once and is then flat',
    'arXiv:2401.15077, Table 2',
    'fall of n-alpha of EAGLE-1',
    _drops_once,
  ),
  'product_of_heads': Claim(
    "Medusa's tau is 1 and the sum of the products of the heads' accuracies, "
    f'within {MARGIN:.0%}',
    'arXiv:2401.10774, section 3.3',
    'tau over that sum, less 1; both are drawn anew for the interval',
    _product_of_heads,
  ),
  'earlier_exits': Claim(
    'Earlier exits accept less and cost less',
    'arXiv:2404.16710, Tables 5 and 10',
    'differences of alpha, and of the cost of a draft in plain steps',
    _earlier_exits,
  ),
  'retrieval': Claim(
    'Lookup in a corpus too gives more than in the text alone',
    'arXiv:2311.08252, Table 2',
    _TAU,
    rises(ACCEPTANCE, ('ngram', 'ngram corpus')),
  ),
  'several_places': Claim(
    'Several places of the text give more than one',
    'arXiv:2311.08252',
    _TAU,
    rises(ACCEPTANCE, ('ngram', 'ngram candidates')),
  ),
  'staged': Claim(
    'Drafts cost less when they are speculated themselves',
    'arXiv:2308.04623, Table 1',
    _COST,
    _cheaper('draft-64', 'cascade'),
  ),
  'quantized': Claim(
    'The target in 8 bits agrees with it more than a trained draft',
    'arXiv:2410.11305',
    _ALPHA,
    rises(
      ACCEPTANCE,
      *((n, 'target int8') for n in (*_INDEPENDENT, 'eagle1', 'eagle3')),
      statistic=ALPHA,
    ),
  ),
  # Draft lengths, and what alpha says of tau.
  'equation_one': Claim(
    f'tau is what Equation 1 gives at alpha, within {MARGIN:.0%}',
    'arXiv:2211.17192, Equation 1',
    'tau over Equation 1, less 1',
    _equation_one,
  ),
  'long_drafts': Claim(
    'Drafts can be too long: gamma 4 is faster than gamma 8',
    'arXiv:2302.01318, Figure 1',
    _SPEED,
    rises(
      'rules',
      (8, 4),
      only=_token,
      axis='gamma',
      statistic=SPEED,
      label='gamma ',
    ),
  ),
  'share_of_a_step': Claim(
    'tau / (gamma + 1) falls with gamma',
    'arXiv:2302.01318, Figure 1',
    'fall of tau / (gamma + 1)',
    _share_of_a_step,
  ),
  'adaptive': Claim(
    'Drafts that adapt their length are faster than constant ones',
    'arXiv:2405.19715; arXiv:2405.04304',
    _SPEED,
    rises(
      TIMED,
      *itertools.product(
        ('draft-128', 'draft-128 long'),
        [f'draft-128 {p}' for p in ('confidence', 'heuristic', 'expected')],
      ),
      statistic=SPEED,
    ),
  ),
  # How drafts are trained.
  'on_target_text': Claim(
    "Training on the target's own text raises tau",
    'arXiv:2310.08461, Table D.1',
    'difference of tau, after less before',
    rises('embedded/distillation', ('before', 'after')),
  ),
  'distilled': Claim(
    'Distilled drafts give more tokens than undistilled ones',
    'arXiv:2310.08461, Table D.1',
    'difference of tau; the control was trained as long as the distilled one, '
    'by next tokens',
    rises(ACCEPTANCE, ('undistilled', 'distilled'), ('control', 'distilled')),
  ),
  'model_text': Claim(
    'Text of the models is better to distil on than a fixed set',
    'arXiv:2310.08461, Figure 4',
    'difference of tau, for each divergence',
    _model_text,
  ),
  'total_variation_is_not_best': Claim(
    'Total variation is not the best divergence to distil by',
    'arXiv:2310.08461, Figure 4',
    'difference of tau, the best of the others less it',
    _total_variation_is_not_best,
  ),
  'adapters': Claim(
    'An adapter behind the exit raises acceptance',
    'arXiv:2404.18911',
    _ALPHA,
    rises(
      ACCEPTANCE,
      *((f'exit {n}', f'exit {n} adapter') for n in (1, 2)),
      statistic=ALPHA,
    ),
  ),
  'online': Claim(
    'Distilling online raises alpha',
    'arXiv:2310.07177',
    'difference of alpha, after 30 rounds less before',
    rises('embedded/online', ('before', 'after'), statistic=ALPHA),
  ),
  # Rules and drafters without training: `configs/methods.py`.
  'from_the_leaves': Claim(
    'Trees that are judged from the leaves upwards give more tokens than those '
    'that are judged node by node',
    'arXiv:2505.12398',
    _TAU,
    rises(
      'methods',
      ('recursive', 'traversal'),
      only=_warm,
      axis='verifier',
      fixed=(*PLACE, 'drafter'),
    ),
  ),
  'suffixes': Claim(
    'Lookup that counts all places and copies as far as the match is long '
    'gives more tokens than the last place of a short match',
    'arXiv:2411.04975',
    'difference of tau; four nodes for each token of the match',
    rises('methods', ('ngram', 'suffix'), ('ngram tree', 'suffix tree')),
  ),
  'recycling': Claim(
    'Trees of what the target nearly said give more tokens than lookup',
    'arXiv:2408.08696; arXiv:2401.07851, Leaderboard.md',
    'difference of tau; trees of eight nodes',
    rises('methods', ('ngram tree', 'recycling')),
  ),
  'searched_layers': Claim(
    'Of two drafts from as many layers of the target, the one whose layers '
    'were searched agrees with it more than its first layers',
    'arXiv:2309.08168; arXiv:2410.06916',
    _ALPHA,
    rises('methods', ('exit 2', 'skip 1'), statistic=ALPHA),
  ),
  'fewer_skipped': Claim(
    'The fewer sub-layers are skipped, the more the draft agrees with the '
    'target',
    'arXiv:2309.08168; arXiv:2410.06916',
    _ALPHA,
    rises('methods', ('skip 1', 'skip mlp 1'), statistic=ALPHA),
  ),
}
