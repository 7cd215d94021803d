"""Claims about methods against rows that were made to hold, or to fail."""

import pytest

from experiments.papers import claims_of_methods as claims
from experiments.papers.claims import FAILS, HOLDS
from tests.support import rows as made


def row(drafter, calls, **changes):
  """A row of eight prompts with eight tokens each: tau is 8 / calls."""
  calls_of = made.around(calls, by=0.01 + len(drafter) / 1000)
  return made.row(drafter=drafter, unit_target_calls=calls_of) | changes


def outcomes(claim, *rows):
  return {found.cell: found.outcome for found in claim({'methods': list(rows)})}


def test_rules_are_compared_on_the_same_trees():
  warm = {'temperature': 1.0}
  trees = [
    row(name, calls, verifier=rule, **warm)
    for name, rule, calls in (
      ('deep', 'recursive', 4),
      ('deep', 'traversal', 3),
      ('flat', 'recursive', 3),
      ('flat', 'traversal', 4),
    )
  ]
  cold = [r | {'temperature': 0.0} for r in trees]
  assert outcomes(claims.from_the_leaves, *trees, *cold) == {
    'code, T 1, deep, recursive to traversal': HOLDS,
    'code, T 1, flat, recursive to traversal': FAILS,
  }
  assert not outcomes(claims.from_the_leaves, trees[0], trees[3])


@pytest.mark.parametrize(
  ('claim', 'one', 'other'),
  [
    (claims.suffixes, 'ngram', 'suffix'),
    (claims.suffixes, 'ngram tree', 'suffix tree'),
    (claims.recycling, 'ngram tree', 'recycling'),
  ],
)
def test_more_tokens_per_call(claim, one, other):
  cell = f'code, T 0, {one} to {other}'
  assert outcomes(claim, row(one, 4), row(other, 3)) == {cell: HOLDS}
  assert outcomes(claim, row(one, 3), row(other, 4)) == {cell: FAILS}
  lossy = row(other, 3, verifier='typical')
  assert not outcomes(claim, row(one, 4), lossy)


@pytest.mark.parametrize(
  ('claim', 'one', 'other'),
  [
    (claims.searched_layers, 'exit 2', 'skip 1'),
    (claims.fewer_skipped, 'skip 1', 'skip mlp 1'),
  ],
)
def test_agreement_with_the_target(claim, one, other):
  low, high = (
    {'unit_overlap': made.around(x, by=x / 100), 'unit_prefixes': [8] * 8}
    for x in (4, 6)
  )
  cell = f'code, T 0, {one} to {other}'
  assert outcomes(claim, row(one, 4, **low), row(other, 4, **high)) == {
    cell: HOLDS
  }
  assert outcomes(claim, row(one, 4, **high), row(other, 4, **low)) == {
    cell: FAILS
  }
