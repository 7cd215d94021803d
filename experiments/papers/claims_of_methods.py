"""Claims of papers of 2023 to 2025 about rules and drafters without training.

Their rows have no times; `configs/methods.py` makes them.
"""

from collections.abc import Iterator

from experiments.papers.claims import PLACE, Finding, claim, exact_rules, rises
from specjax.bench.results import Rows
from specjax.reports.paired import ALPHA

_FOLDER = 'methods'


@claim(
  'Trees that are judged from the leaves upwards give more tokens than those '
  'that are judged node by node',
  'arXiv:2505.12398',
  'difference of tau',
)
def from_the_leaves(rows: Rows) -> Iterator[Finding]:
  return rises(
    [r for r in rows.get(_FOLDER, []) if r['temperature']],
    'verifier',
    ('recursive', 'traversal'),
    fixed=(*PLACE, 'drafter'),
  )


@claim(
  'Lookup that counts all places and copies as far as the match is long gives '
  'more tokens than the last place of a short match',
  'arXiv:2411.04975',
  'difference of tau; four nodes for each token of the match',
)
def suffixes(rows: Rows) -> Iterator[Finding]:
  orders = (('ngram', 'suffix'), ('ngram tree', 'suffix tree'))
  return rises(exact_rules(rows, _FOLDER), 'drafter', *orders)


@claim(
  'Trees of what the target nearly said give more tokens than lookup',
  'arXiv:2408.08696; arXiv:2401.07851, Leaderboard.md',
  'difference of tau; trees of eight nodes',
)
def recycling(rows: Rows) -> Iterator[Finding]:
  order = ('ngram tree', 'recycling')
  return rises(exact_rules(rows, _FOLDER), 'drafter', order)


@claim(
  'Of two drafts from as many layers of the target, the one whose layers were '
  'searched agrees with it more than its first layers',
  'arXiv:2309.08168; arXiv:2410.06916',
  'difference of alpha',
)
def searched_layers(rows: Rows) -> Iterator[Finding]:
  layers = exact_rules(rows, _FOLDER)
  return rises(layers, 'drafter', ('exit 2', 'skip 1'), statistic=ALPHA)


@claim(
  'The fewer sub-layers are skipped, the more the draft agrees with the target',
  'arXiv:2309.08168; arXiv:2410.06916',
  'difference of alpha',
)
def fewer_skipped(rows: Rows) -> Iterator[Finding]:
  layers = exact_rules(rows, _FOLDER)
  return rises(layers, 'drafter', ('skip 1', 'skip mlp 1'), statistic=ALPHA)
