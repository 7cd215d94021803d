"""Claims of papers about verification rules."""

import itertools
from collections.abc import Iterator

from experiments.papers.claims import (
  PLACE,
  Claim,
  Finding,
  cell_of,
  claim,
  exactly,
  finding,
  matched,
  places,
  rises,
)
from specjax.bench.results import Rows
from specjax.bench.selecting import pick
from specjax.reports.paired import TAU, UNDER_RULE
from specjax.stats import metrics

_BLOCK_FOLDERS = ('embedded/gammas', 'rules')


@claim(
  'The output has the distribution of the target',
  'arXiv:2211.17192; arXiv:2302.01318; arXiv:2403.10444; arXiv:2310.15141; '
  'arXiv:2402.12374',
  'whole texts by enumeration, error below 1e-12',
)
def exact_distributions(rows: Rows) -> Iterator[Finding]:
  exact = pick(rows.get('certificate', []), part='distribution', lossless=True)
  for place in places(exact, 'rule'):
    error = max(r['max_error'] for r in pick(exact, **place))
    yield exactly(f'{place["rule"]}: error {error:.0e}', error < 1e-12)


@claim(
  'Greedy texts are those of plain decoding, up to ties',
  'arXiv:2211.17192; arXiv:2302.01318',
  'texts that differ and are no ties',
)
def greedy(rows: Rows) -> Iterator[Finding]:
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


@claim(
  'Block verification gives more tokens than token verification',
  'arXiv:2403.10444, Table 1',
  'difference of tau',
)
def block(rows: Rows) -> Iterator[Finding]:
  for folder in _BLOCK_FOLDERS:
    yield from rises(
      [r for r in rows.get(folder, []) if r['temperature'] and r['gamma'] > 1],
      'verifier',
      ('token', 'block'),
      fixed=(*PLACE, 'gamma'),
      label=f'{folder}, ',
    )


@claim(
  'The gain of block verification grows with gamma',
  'arXiv:2403.10444, Figure 3',
  'difference of the relative gains',
)
def block_gain(rows: Rows) -> Iterator[Finding]:
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


@claim(
  'Block and token verification are equal at gamma 1 and at temperature 0',
  'arXiv:2403.10444',
  'target calls of every prompt',
)
def block_equal(rows: Rows) -> Iterator[Finding]:
  trivial = [
    r
    for r in rows.get('embedded/gammas', [])
    if r['gamma'] == 1 or not r['temperature']
  ]
  rules = [{'verifier': 'token'}, {'verifier': 'block'}]
  for place, pair in matched(trivial, (*PLACE, 'gamma'), rules):
    token, block = (row['unit_target_calls'] for row in pair)
    yield exactly(cell_of(place), token == block)


@claim(
  'More candidates of a place raise alpha',
  'arXiv:2401.06706, Table 8',
  'difference of alpha under the rule',
)
def more_candidates(rows: Rows) -> Iterator[Finding]:
  return rises(
    rows.get('embedded/candidates', []),
    'drafter',
    *(('one', f'two {way}', f'four {way}') for way in ('with', 'without')),
    statistic=UNDER_RULE,
  )


@claim(
  'Candidates without replacement beat those with',
  'arXiv:2401.06706, Table 4; arXiv:2402.12374',
  'difference of alpha under the rule',
)
def replacement(rows: Rows) -> Iterator[Finding]:
  return rises(
    rows.get('embedded/candidates', []),
    'drafter',
    *((f'{count} with', f'{count} without') for count in ('two', 'four')),
    statistic=UNDER_RULE,
  )


@claim(
  'alpha rises as lenience falls',
  'arXiv:2211.17192, Table 5',
  'difference of alpha under the rule',
)
def lenience(rows: Rows) -> Iterator[Finding]:
  return rises(
    rows.get('embedded/lenience', []),
    'verifier',
    ('token', 'lenience:0.5', 'lenience:0.3', 'lenience:0.1'),
    statistic=UNDER_RULE,
    fixed=(*PLACE, 'drafter'),
  )


@claim(
  'Typical acceptance takes more than exact verification',
  'arXiv:2401.10774, section 2.3.1',
  'difference of tau',
)
def typical(rows: Rows) -> Iterator[Finding]:
  trees = pick(rows.get('drafters/acceptance', []), drafter='medusa tree')
  warm = [r for r in trees if r['temperature']]
  return rises(warm, 'verifier', ('recursive', 'typical'))


naive = Claim(
  'The naive rule accepts less than multi-step verification',
  'arXiv:2305.09781, Table 3',
  missing='the rule is not in the project',
)
