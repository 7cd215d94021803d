"""Claims of papers about how drafts are trained."""

from collections.abc import Iterator

from experiments.papers.claims import (
  PLACE,
  Finding,
  claim,
  drafters_rise,
  exact_rules,
  places,
  rises,
)
from specjax.bench.results import Rows
from specjax.bench.selecting import pick
from specjax.reports.paired import ALPHA

DIVERGENCES = 'embedded/divergences'


@claim(
  "Training on the target's own text raises tau",
  'arXiv:2310.08461, Table D.1',
  'difference of tau, after less before',
)
def on_target_text(rows: Rows) -> Iterator[Finding]:
  trained = rows.get('embedded/distillation', [])
  return rises(trained, 'drafter', ('before', 'after'))


@claim(
  'Distilled drafts give more tokens than undistilled ones',
  'arXiv:2310.08461, Table D.1',
  'difference of tau; the control was trained as long as the distilled one, by '
  'next tokens',
)
def distilled(rows: Rows) -> Iterator[Finding]:
  orders = (('undistilled', 'distilled'), ('control', 'distilled'))
  return rises(exact_rules(rows), 'drafter', *orders)


@claim(
  'Text of the models is better to distil on than a fixed set',
  'arXiv:2310.08461, Figure 4',
  'difference of tau, for each divergence',
)
def model_text(rows: Rows) -> Iterator[Finding]:
  trained = exact_rules(rows, DIVERGENCES)
  losses = dict.fromkeys(r['drafter'].partition(' on ')[0] for r in trained)
  orders = (
    (f'{loss} on corpus', f'{loss} on {data}')
    for data in ('target text', 'own text')
    for loss in losses
  )
  return rises(trained, 'drafter', *orders)


@claim(
  'Total variation is not the best divergence to distil by',
  'arXiv:2310.08461, Figure 4',
  'difference of tau, the best of the others less it',
)
def total_variation_is_not_best(rows: Rows) -> Iterator[Finding]:
  """The best of the others gives more on the same data."""
  trained = exact_rules(rows, DIVERGENCES)
  for place in places(trained, *PLACE):
    drafts = pick(trained, **place)
    names = [r['drafter'].partition(' on ')[2] for r in drafts]
    for data in dict.fromkeys(names):
      own = f'total variation on {data}'
      same_data = [r for r in drafts if r['drafter'].endswith(f' on {data}')]
      others = [r for r in same_data if r['drafter'] != own]
      if others:
        best = max(others, key=lambda r: r['tau'])['drafter']
        yield from rises(same_data, 'drafter', (own, best))


adapters = drafters_rise(
  'An adapter behind the exit raises acceptance',
  'arXiv:2404.18911',
  *((f'exit {n}', f'exit {n} adapter') for n in (1, 2)),
  statistic=ALPHA,
)


@claim(
  'Distilling online raises alpha',
  'arXiv:2310.07177',
  'difference of alpha, after 30 rounds less before',
)
def online(rows: Rows) -> Iterator[Finding]:
  trained = rows.get('embedded/online', [])
  return rises(trained, 'drafter', ('before', 'after'), statistic=ALPHA)
