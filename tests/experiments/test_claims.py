"""How claims are judged, by cells that hold, that fail, or that say nothing.

What each claim says of committed rows is on the pages of findings, which
`test_documents` makes again: each cell of it with its number.
"""

import numpy as np
import pytest

from experiments.papers import findings
from experiments.papers.claims import (
  CLAIMS,
  FAILS,
  HOLDS,
  UNDECIDED,
  Finding,
  apart,
  exactly,
)
from specjax.reports import paired
from specjax.stats import metrics
from specjax.stats.metrics import Estimate
from tests.support import rows as made


@pytest.mark.parametrize(
  ('low', 'high', 'outcome'),
  [(0.1, 0.3, HOLDS), (-0.3, -0.1, FAILS), (-0.1, 0.3, UNDECIDED)],
)
def test_an_outcome_is_where_the_interval_lies(low, high, outcome):
  found = Estimate((low + high) / 2, low, high)
  assert Finding('x', found).outcome == outcome
  # What has no interval decides nothing, whatever it says.
  assert Finding('x', Estimate(low, *[np.nan] * 2)).outcome == UNDECIDED
  assert Finding('x', Estimate(*[np.nan] * 3)).outcome == UNDECIDED


@pytest.mark.parametrize(
  ('low', 'high', 'outcome'),
  [(-0.05, 0.09, HOLDS), (0.11, 0.3, FAILS), (0.05, 0.15, UNDECIDED)],
)
def test_equality_needs_the_whole_interval_within(low, high, outcome):
  found = Estimate((low + high) / 2, low, high)
  assert Finding('x', found, within=0.1).outcome == outcome


def test_where_nothing_is_estimated_every_cell_counts():
  holds, fails = (exactly('x', same) for same in (True, False))
  assert findings.overall([holds, holds]) == HOLDS
  assert findings.overall([holds, fails]) == FAILS


def _cell(value, error, freedom=39, influence=None, **more):
  reach = error * metrics.student(freedom)
  influences = (np.asarray([error] if influence is None else influence),)
  found = Estimate(
    value, value - reach, value + reach, error, freedom, influences
  )
  return Finding('x', found, **more)


def test_a_claim_is_judged_by_its_pooled_effect():
  """One undecided cell of many decides nothing."""
  cells = [_cell(v, 0.1) for v in (0.9, 1.0, 1.1, 1.0, 0.05)]
  assert cells[-1].outcome == UNDECIDED
  assert findings.overall(cells) == HOLDS
  against = [_cell(-v, 0.1) for v in (0.9, 1.0, 1.1, 1.0, 0.05)]
  assert findings.overall(against) == FAILS
  # Cells that differ as much as this say nothing of others.
  assert findings.overall([_cell(v, 0.1) for v in (2, -1, 1)]) == UNDECIDED
  # Each kind of cell must hold.
  other = [_cell(-1.0, 0.1, kind='cost') for _ in range(4)]
  assert findings.overall([*cells, *other]) == FAILS
  said = findings.pooled([*cells, *other])
  assert said[0].startswith('Pooled: +0.810 [')
  assert said[1].startswith('Pooled, cost: -1.000 [')


def test_the_pooled_interval_is_students_of_the_mean_of_cells():
  """Values 1, 2, 3: a mean of 2 and an error of sqrt(1 / 3)."""
  found, spread, count = findings.pool([_cell(v, 0.6) for v in (1, 2, 3)])
  assert count == 3
  assert found.value == pytest.approx(2)
  assert found.error == pytest.approx(np.sqrt(1 / 3))
  assert found.high == pytest.approx(2 + 4.3027 * np.sqrt(1 / 3), rel=1e-4)
  assert spread == pytest.approx(np.sqrt(1 - 0.36))
  # Cells alike by chance are no surer than what each of them knows.
  alike = findings.pool([_cell(2, 0.6) for _ in range(3)])
  assert alike.estimate.error == pytest.approx(0.6 / np.sqrt(3))
  assert alike.spread == 0


def test_cells_without_spread_count_in_the_mean():
  """Identical texts make no difference, and that is an effect, too."""
  same = Finding('x', Estimate(0.0, error=0.0))
  few = Finding('x', Estimate(9.0))
  found, _, count = findings.pool([_cell(3, 0.6), _cell(3, 0.6), same, few])
  assert (found.value, count) == (pytest.approx(2.0), 3)
  assert found.interval is not None
  assert findings.contradictions([same, few]) == 0


def test_cells_on_the_same_prompts_err_together():
  """Three times the same cell is one cell."""
  same = {'prompts': ('abc',), 'influence': [0.3, -0.4, 0.1]}
  error = np.sqrt(0.26)
  together = [_cell(2.0, error, **same) for _ in range(3)]
  assert findings.pool(together).estimate.error == pytest.approx(error)
  apart = [
    _cell(2.0, error, **same | {'prompts': (name,)}) for name in ('a', 'b', 'c')
  ]
  assert findings.pool(apart).estimate.error == pytest.approx(
    error / np.sqrt(3)
  )


def test_contradictions_are_counted_beyond_chance():
  """Of 24 cells one at 2.2 errors is chance, one at 5 is none."""
  cells = [_cell(0.5, 0.5, 1000) for _ in range(23)]
  assert findings.contradictions([*cells, _cell(-1.1, 0.5, 1000)]) == 0
  assert findings.contradictions([_cell(-1.1, 0.5, 1000)]) == 1
  assert findings.contradictions([*cells, _cell(-2.5, 0.5, 1000)]) == 1
  wide = [_cell(v, 0.01, 1000, within=0.1) for v in (0.11, -0.3, 0.0)]
  assert findings.contradictions(wide) == 1


def test_other_prompts_are_not_compared():
  one, other = made.row(), made.row(prompts_hash='other')
  assert paired.difference(one, other, paired.TAU) is None
  assert paired.difference(one, made.row(), paired.TAU).value == 0


def test_intervals_of_other_prompts_join():
  """Squares of their errors add up."""
  one = made.row(unit_target_calls=[3, 4, 5, 4, 3, 5, 6, 2])
  other = made.row(prompts=6, unit_target_calls=[2, 3, 2, 4, 3, 2])
  found = apart(one, other, paired.TAU)
  a, b = (
    metrics.estimate(lambda n, d: n / d, *(row[k] for k in paired.TAU))
    for row in (one, other)
  )
  assert found.value == pytest.approx(b.value - a.value)
  assert found.error == pytest.approx(np.hypot(a.error, b.error))
  # Welch: more degrees of freedom than of either, at most those of both.
  assert max(a.freedom, b.freedom) < found.freedom <= a.freedom + b.freedom
  assert found.low < found.value - metrics.student() * found.error


def test_without_rows_a_claim_is_not_run():
  text = findings.text({}, findings.PAGES[0])
  assert text.count('| not run |') == len(CLAIMS)
