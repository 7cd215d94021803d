"""Intervals that rows store, and whether tables print them."""

import pytest

from specjax.reports import intervals
from tests.support import rows as made


@pytest.mark.parametrize(
  ('changes', 'tau', 'speedup'),
  [
    ({'prompts': 8, 'batch': 1}, '2.00 [1.90, 2.10]', '1.50 [1.40, 1.60]'),
    # Speeds have batches for units: 16 prompts are four of them.
    ({'prompts': 16, 'batch': 4}, '2.00 [1.90, 2.10]', '1.50'),
    ({'prompts': 4, 'batch': 1}, '2.00', '1.50'),
    (
      {'prompts': 8, 'tau_ci': None, 'speedup_ci': [None, None]},
      '2.00',
      '1.50',
    ),
    ({'prompts': 8, 'tau': None, 'speedup': None}, '-', '-'),
  ],
)
def test_a_number_stands_alone_where_its_units_are_too_few(
  changes, tau, speedup
):
  row = made.row(speedup=1.5, speedup_ci=[1.4, 1.6]) | changes
  assert intervals.shown(row, 'tau') == tau
  assert intervals.shown(row, 'speedup') == speedup


def test_a_row_without_an_interval_meets_nothing():
  row = made.row(speedup=1.5, speedup_ci=[1.4, 1.6])
  assert intervals.meets(row, 'speedup', 1.55, 2)
  assert not intervals.meets(row, 'speedup', 1.65, 2)
  alone = row | {'prompts': 2}
  assert not intervals.meets(alone, 'speedup', 1.55, 2)
