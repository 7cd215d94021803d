"""Claims of papers that rows of the embedded pair can speak to."""

import itertools
from collections.abc import Iterator

from experiments.papers.judgement import (
  Evidence,
  Rows,
  apart,
  exactly,
  faster,
  on,
  pick,
  places,
  steps,
  where_of,
)
from experiments.reports.paired import ALPHA, TAU, UNDER_RULE
from specjax import metrics

_TRAINED = ('draft-64', 'draft-128', 'draft-256')
MARGIN = 0.1


def by_size(rows: Rows) -> Iterator[Evidence]:
  order = ('unigram', 'bigram', *_TRAINED)
  there = rows.get('embedded/drafters', [])
  yield from steps(there, 'drafter', order, ALPHA, ('domain', 'temperature'))


def by_temperature(rows: Rows) -> Iterator[Evidence]:
  there = [
    r for r in rows.get('embedded/drafters', []) if r['drafter'] in _TRAINED
  ]
  yield from steps(
    there, 'temperature', (1.0, 0.0), ALPHA, ('domain', 'drafter'), 'T '
  )


def against_equation_one(row: dict) -> metrics.Estimate:
  """tau over what alpha gives if acceptances were independent, less 1."""

  def deviation(tokens, calls, overlap, prefixes):
    alpha, gamma = overlap / prefixes, row['gamma']
    expected = sum(alpha**i for i in range(gamma + 1))
    return tokens / calls / expected

  names = (*TAU, *ALPHA)
  columns = [row[name] for name in names]
  return metrics.estimate(deviation, *columns, positive=True).scaled(1, -1)


def equation_one(rows: Rows) -> Iterator[Evidence]:
  there = [
    r
    for r in rows.get('embedded/drafters', [])
    if r['drafter'] in (*_TRAINED, 'bigram') and r['unit_overlap']
  ]
  for row in there:
    place = {k: row[k] for k in ('domain', 'temperature', 'drafter')}
    found = against_equation_one(row)
    yield Evidence(where_of(place), found, within=MARGIN, **on(row))


def middle_size(rows: Rows) -> Iterator[Evidence]:
  there = rows.get('quickstart', [])
  for place in places(there, 'domain', 'temperature'):
    cells = [pick(there, **place, drafter=name) for name in _TRAINED]
    if all(cells) and all(c[0]['speedup'] for c in cells):
      small, middle, large = (c[0] for c in cells)
      for other in (small, large):
        yield Evidence(
          where_of(place, f'draft-128 over {other["drafter"]}'),
          faster(other, middle),
          **on(other),
        )


def long_drafts(rows: Rows) -> Iterator[Evidence]:
  there = pick(rows.get('rules', []), verifier='token')
  for place in places(there, 'domain', 'temperature'):
    cells = [pick(there, **place, gamma=g) for g in (8, 4)]
    if all(cells) and all(c[0]['speedup'] for c in cells):
      yield Evidence(
        where_of(place, 'gamma 4 over 8'),
        faster(cells[0][0], cells[1][0]),
        **on(cells[0][0]),
      )


def share_of_a_step(rows: Rows) -> Iterator[Evidence]:
  there = pick(rows.get('embedded/gammas', []), verifier='token')
  gammas = sorted({r['gamma'] for r in there})
  for place in places(there, 'domain', 'temperature'):
    cells = [pick(there, **place, gamma=g) for g in gammas]
    for one, other in itertools.pairwise(cells):
      if one and other:
        a, b = one[0], other[0]

        def fall(n, d, m, e, a=a, b=b):
          return n / d / (a['gamma'] + 1) - m / e / (b['gamma'] + 1)

        columns = [r[name] for r in (a, b) for name in TAU]
        step = f'gamma {a["gamma"]} to {b["gamma"]}'
        yield Evidence(
          where_of(place, step),
          metrics.estimate(fall, *columns),
          **on(a),
        )


def distilled(rows: Rows) -> Iterator[Evidence]:
  yield from steps(
    rows.get('embedded/distillation', []),
    'drafter',
    ('before', 'after'),
    TAU,
    ('domain', 'temperature'),
  )


def block(rows: Rows) -> Iterator[Evidence]:
  for folder in ('embedded/gammas', 'rules'):
    there = [
      r for r in rows.get(folder, []) if r['temperature'] and r['gamma'] > 1
    ]
    yield from steps(
      there,
      'verifier',
      ('token', 'block'),
      TAU,
      ('domain', 'temperature', 'gamma'),
      f'{folder}, ',
    )


def block_gain(rows: Rows) -> Iterator[Evidence]:
  for folder in ('embedded/gammas', 'rules'):
    there = [r for r in rows.get(folder, []) if r['temperature']]
    gammas = sorted({r['gamma'] for r in there if r['gamma'] > 1})
    for place in places(there, 'domain', 'temperature'):
      for low, high in itertools.pairwise(gammas):
        cells = [
          pick(there, **place, gamma=g, verifier=v)
          for g in (low, high)
          for v in ('token', 'block')
        ]
        if not all(cells):
          continue

        def rise(a, b, c, d, e, f, g, h):
          return g / h / (e / f) - c / d / (a / b)

        columns = [c[0][name] for c in cells for name in TAU]
        yield Evidence(
          where_of(place, f'{folder}, gamma {low} to {high}'),
          metrics.estimate(rise, *columns),
          **on(cells[0][0]),
        )


def block_equal(rows: Rows) -> Iterator[Evidence]:
  there = rows.get('embedded/gammas', [])
  for place in places(there, 'domain', 'temperature', 'gamma'):
    cells = [pick(there, **place, verifier=v) for v in ('token', 'block')]
    trivial = place['gamma'] == 1 or not place['temperature']
    if trivial and all(cells):
      a, b = (c[0]['unit_target_calls'] for c in cells)
      yield exactly(where_of(place), a == b)


def more_candidates(rows: Rows) -> Iterator[Evidence]:
  there = rows.get('embedded/candidates', [])
  for kind in ('with', 'without'):
    order = ('one', f'two {kind}', f'four {kind}')
    yield from steps(
      there, 'drafter', order, UNDER_RULE, ('domain', 'temperature')
    )


def replacement(rows: Rows) -> Iterator[Evidence]:
  there = rows.get('embedded/candidates', [])
  for k in ('two', 'four'):
    order = (f'{k} with', f'{k} without')
    yield from steps(
      there, 'drafter', order, UNDER_RULE, ('domain', 'temperature')
    )


def lookup(rows: Rows) -> Iterator[Evidence]:
  for folder in ('embedded/drafters', 'quickstart'):
    there = pick(rows.get(folder, []), drafter='ngram')
    for place in places(there, 'temperature'):
      cells = [
        pick(there, **place, domain=d) for d in ('documentation', 'structured')
      ]
      if all(cells):
        yield Evidence(
          where_of(place, f'{folder}, documentation to structured'),
          apart(cells[0][0], cells[1][0], TAU),
          **on(cells[0][0], cells[1][0]),
        )


def lenience(rows: Rows) -> Iterator[Evidence]:
  order = ('token', 'lenience:0.5', 'lenience:0.3', 'lenience:0.1')
  yield from steps(
    rows.get('embedded/lenience', []),
    'verifier',
    order,
    UNDER_RULE,
    ('domain', 'temperature', 'drafter'),
  )


def exact_laws(rows: Rows) -> Iterator[Evidence]:
  there = [
    r
    for r in rows.get('certificate', [])
    if r['part'] == 'law' and r['lossless']
  ]
  for place in places(there, 'rule'):
    error = max(r['max_error'] for r in pick(there, **place))
    yield exactly(f'{place["rule"]}: error {error:.0e}', error < 1e-12)


def greedy(rows: Rows) -> Iterator[Evidence]:
  for folder, there in rows.items():
    cells = [
      r
      for r in there
      if r.get('identical_to_plain') is not None and r['lossless']
    ]
    if cells:
      texts = sum(r['prompts'] for r in cells)
      same = sum(r['identical_to_plain'] for r in cells)
      found = [d['verdict'] for r in cells for d in r['differences']]
      where = f'{folder}: {same} of {texts} texts, {found.count("tie")} ties'
      yield exactly(where, 'bug' not in found)
