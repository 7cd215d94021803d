"""Claims against rows that were made to hold, to fail, or to say nothing."""

import numpy as np
import pytest

from experiments import claims, differences, findings, result_tables
from experiments.evidence import FAILS, HOLDS, UNDECIDED, Evidence, apart
from specjax.metrics import Estimate
from tests import rows as made


@pytest.mark.parametrize(
  ('low', 'high', 'verdict'),
  [(0.1, 0.3, HOLDS), (-0.3, -0.1, FAILS), (-0.1, 0.3, UNDECIDED)],
)
def test_a_verdict_is_where_the_interval_lies(low, high, verdict):
  found = Estimate((low + high) / 2, low, high)
  assert Evidence('x', found).verdict == verdict
  # What has no interval decides nothing, whatever it says.
  assert Evidence('x', Estimate(low, *[np.nan] * 2)).verdict == UNDECIDED
  assert Evidence('x', Estimate(*[np.nan] * 3)).verdict == UNDECIDED


@pytest.mark.parametrize(
  ('low', 'high', 'verdict'),
  [(-0.05, 0.09, HOLDS), (0.11, 0.3, FAILS), (0.05, 0.15, UNDECIDED)],
)
def test_equality_needs_the_whole_interval_within(low, high, verdict):
  found = Estimate((low + high) / 2, low, high)
  assert Evidence('x', found, within=0.1).verdict == verdict


def test_a_claim_holds_where_all_its_cells_do():
  holds, fails = (Evidence('x', Estimate(v, v, v)) for v in (1.0, -1.0))
  unknown = Evidence('x', Estimate(0.0, -1.0, 1.0))
  assert findings.overall([holds, holds]) == HOLDS
  assert findings.overall([holds, unknown]) == UNDECIDED
  assert findings.overall([holds, unknown, fails]) == FAILS


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
  found = {e.where: e.verdict for e in claims.by_size(rows)}
  assert found == {
    'code, T 0, unigram to bigram': HOLDS,
    'code, T 0, bigram to draft-64': HOLDS,
    'code, T 0, draft-64 to draft-128': FAILS,
  }


def test_other_prompts_are_not_compared():
  one, other = made.row(), made.row(prompts_hash='other')
  assert differences.paired(one, other, differences.TAU) is None
  assert differences.paired(one, made.row(), differences.TAU).value == 0


def test_equal_rules_must_agree_on_every_prompt():
  token = made.row(gamma=1, temperature=1.0)
  block = token | {'verifier': 'block'}
  (same,) = claims.block_equal({'embedded/gammas': [token, block]})
  assert same.verdict == HOLDS
  block = block | {'unit_target_calls': [4] * 7 + [5]}
  (found,) = claims.block_equal({'embedded/gammas': [token, block]})
  assert found.verdict == FAILS


def test_gain_of_block_verification_by_length():
  """Gains of 0% and 50% at gamma 2 and 4."""
  rows = [
    made.row(
      verifier=verifier, gamma=gamma, temperature=1.0, unit_target_calls=calls
    )
    for verifier, gamma, calls in (
      ('token', 2, [4] * 8),
      ('block', 2, [4] * 8),
      ('token', 4, [3] * 8),
      ('block', 4, [2] * 8),
    )
  ]
  (found,) = claims.block_gain({'embedded/gammas': rows})
  assert found.found.value == pytest.approx(0.5)
  assert found.verdict == HOLDS


def test_equation_one():
  """alpha 1/2 and gamma 2 give 1.75 tokens; here there are 2."""
  row = made.row(drafter='bigram')
  (found,) = claims.equation_one({'embedded/drafters': [row]})
  assert found.found.value == pytest.approx(2 / 1.75 - 1)
  assert found.verdict == FAILS


def test_intervals_of_other_prompts_join():
  one = made.row(tau=2.0, tau_ci=[1.7, 2.4])
  other = made.row(tau=3.0, tau_ci=[2.7, 3.5])
  found = apart(one, other, 'tau')
  assert found.value == pytest.approx(1.0)
  assert found.low == pytest.approx(1 - np.hypot(0.3, 0.4))
  assert found.high == pytest.approx(1 + np.hypot(0.5, 0.3))


def test_without_rows_a_claim_is_not_run():
  text = findings.text({})
  assert text.count('not run: no rows') == len(findings.CLAIMS)


def test_tables_of_differences():
  rows = _by_drafter(**{'draft-64': 0.3, 'draft-128': 0.5})
  rows.append(rows[0] | {'verifier': 'lenience:0.5', 'lossless': False})
  text = result_tables.summary(rows)
  assert '+0.2' in text
  assert 'lenience:0.5 (lossy)' in text
  assert 'not timed' in text
  assert 'How it is counted' in text
