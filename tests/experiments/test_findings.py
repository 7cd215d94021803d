"""Claims against rows that were made to hold, to fail, or to say nothing."""

import numpy as np
import pytest

from experiments.papers import (
  claims_of_drafters,
  claims_of_lengths,
  claims_of_rules,
  findings,
  pooling,
)
from experiments.papers.claims import (
  FAILS,
  HOLDS,
  UNDECIDED,
  Finding,
  apart,
  exactly,
)
from specjax.reports import paired
from specjax.reports import run as run_report
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
  found, spread, count = pooling.pool([_cell(v, 0.6) for v in (1, 2, 3)])
  assert count == 3
  assert found.value == pytest.approx(2)
  assert found.error == pytest.approx(np.sqrt(1 / 3))
  assert found.high == pytest.approx(2 + 4.3027 * np.sqrt(1 / 3), rel=1e-4)
  assert spread == pytest.approx(np.sqrt(1 - 0.36))
  # Cells alike by chance are no surer than what each of them knows.
  alike = pooling.pool([_cell(2, 0.6) for _ in range(3)])
  assert alike.estimate.error == pytest.approx(0.6 / np.sqrt(3))
  assert alike.spread == 0


def test_cells_without_spread_count_in_the_mean():
  """Identical texts make no difference, and that is an effect, too."""
  same = Finding('x', Estimate(0.0, error=0.0))
  few = Finding('x', Estimate(9.0))
  found, _, count = pooling.pool([_cell(3, 0.6), _cell(3, 0.6), same, few])
  assert (found.value, count) == (pytest.approx(2.0), 3)
  assert found.interval is not None
  assert pooling.contradictions([same, few]) == 0


def test_cells_on_the_same_prompts_err_together():
  """Three times the same cell is one cell."""
  same = {'prompts': ('abc',), 'influence': [0.3, -0.4, 0.1]}
  error = np.sqrt(0.26)
  together = [_cell(2.0, error, **same) for _ in range(3)]
  assert pooling.pool(together).estimate.error == pytest.approx(error)
  apart = [
    _cell(2.0, error, **same | {'prompts': (name,)}) for name in ('a', 'b', 'c')
  ]
  assert pooling.pool(apart).estimate.error == pytest.approx(error / np.sqrt(3))


def test_contradictions_are_counted_beyond_chance():
  """Of 24 cells one at 2.2 errors is chance, one at 5 is none."""
  cells = [_cell(0.5, 0.5, 1000) for _ in range(23)]
  assert pooling.contradictions([*cells, _cell(-1.1, 0.5, 1000)]) == 0
  assert pooling.contradictions([_cell(-1.1, 0.5, 1000)]) == 1
  assert pooling.contradictions([*cells, _cell(-2.5, 0.5, 1000)]) == 1
  wide = [_cell(v, 0.01, 1000, within=0.1) for v in (0.11, -0.3, 0.0)]
  assert pooling.contradictions(wide) == 1


def _by_drafter(**alphas):
  rng = np.random.default_rng(0)
  # What a prompt does to all drafters is no noise between them.
  ease = rng.normal(0, 0.3, 20)
  return [
    made.row(
      drafter=name,
      prompts=20,
      unit_overlap=(100 * (alpha + ease + rng.normal(0, 0.02, 20))).tolist(),
      unit_prefixes=[100] * 20,
    )
    for name, alpha in alphas.items()
  ]


def test_sizes_are_compared_on_the_same_prompts():
  drafters = {'unigram': 0.1, 'bigram': 0.2, 'draft-64': 0.3, 'draft-128': 0.25}
  rows = {'embedded/drafters': _by_drafter(**drafters)}
  found = {e.cell: e.outcome for e in claims_of_drafters.by_size(rows)}
  assert found == {
    'code, T 0, unigram to bigram': HOLDS,
    'code, T 0, bigram to draft-64': HOLDS,
    'code, T 0, draft-64 to draft-128': FAILS,
  }


def test_other_prompts_are_not_compared():
  one, other = made.row(), made.row(prompts_hash='other')
  assert paired.difference(one, other, paired.TAU) is None
  assert paired.difference(one, made.row(), paired.TAU).value == 0


def test_equal_rules_must_agree_on_every_prompt():
  token = made.row(gamma=1, temperature=1.0)
  block = token | {'verifier': 'block'}
  (same,) = claims_of_rules.block_equal({'embedded/gammas': [token, block]})
  assert same.outcome == HOLDS
  block = block | {'unit_target_calls': [4] * 7 + [5]}
  (found,) = claims_of_rules.block_equal({'embedded/gammas': [token, block]})
  assert found.outcome == FAILS


def test_gain_of_block_verification_by_length():
  """Gains of 0% and 50% at gamma 2 and 4."""
  rows = [
    made.row(
      verifier=verifier,
      gamma=gamma,
      temperature=1.0,
      unit_target_calls=made.around(calls),
    )
    for verifier, gamma, calls in (
      ('token', 2, 4),
      ('block', 2, 4),
      ('token', 4, 3),
      ('block', 4, 2),
    )
  ]
  (found,) = claims_of_rules.block_gain({'embedded/gammas': rows})
  assert found.estimate.value == pytest.approx(0.5)
  assert found.outcome == HOLDS


def test_equation_one():
  """alpha 1/2 and gamma 2 give 1.75 tokens; here there are 2."""
  row = made.row(drafter='bigram', unit_target_calls=made.around(4))
  (found,) = claims_of_lengths.equation_one({'embedded/drafters': [row]})
  assert found.estimate.value == pytest.approx(2 / 1.75 - 1)
  assert found.outcome == FAILS


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
  text = findings.text({})
  assert text.count('not run: ') == len(findings.CLAIMS)
  assert text.count('not run: no rows') == sum(
    not claim.missing for claim in findings.CLAIMS
  )


def test_tables_of_differences():
  rows = _by_drafter(**{'draft-64': 0.3, 'draft-128': 0.5})
  rows.append(rows[0] | {'verifier': 'lenience:0.5', 'lossless': False})
  text = run_report.summary(rows)
  assert '+0.2' in text
  assert 'lenience:0.5 (lossy)' in text
  assert 'not timed' in text
  assert 'How it is counted' in text
