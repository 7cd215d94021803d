"""Every number of a run that was worked out by hand."""

import pytest

from specjax.certify import planted
from tests.support import scripted_run
from tests.support.measuring_checks import CHECKS, wrong_fields
from tests.support.wrong_numbers import WRONG_NUMBERS


def test_a_field_that_nobody_worked_out_is_seen():
  row = scripted_run.make(1).row
  assert wrong_fields(row | {'new': 1}, 1) == {'new'}
  del row['tau']
  assert wrong_fields(row, 1) == {'tau'}


def test_every_check_passes():
  assert [name for name, check in CHECKS.items() if not check()] == []
  # No check is idle.
  assert CHECKS.keys() == {bug.check for bug in WRONG_NUMBERS}


@pytest.mark.slow
@pytest.mark.parametrize('bug', WRONG_NUMBERS, ids=lambda bug: bug.name)
def test_every_planted_bug_is_found(bug):
  assert bug.found()


def test_54_bugs_are_planted():
  """As `docs/exactness.md` says; the certificate plants 43 more."""
  assert len({bug.name for bug in WRONG_NUMBERS}) == len(WRONG_NUMBERS) == 54
  others = planted.WRONG_RULES, planted.WRONG_LOOPS, planted.WRONG_MEMORIES
  assert sum(map(len, others)) == 43
