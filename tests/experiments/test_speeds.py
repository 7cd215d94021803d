"""What rows say of speeds, and what readers are told of it.

That each number is what it should be is tested in `test_numbers`.
"""

import json
import pathlib

import pytest

from specjax.bench import results
from specjax.programs import run
from specjax.reports import run as run_report
from tests.support import rows as made

ROOT = pathlib.Path(__file__).parents[2]
TIMED = ('quickstart', 'rules', 'explain', 'drafters/timed')


@pytest.mark.parametrize('folder', TIMED)
def test_predictions_are_the_printed_formula(folder):
  """Of each committed row, from its own fields."""
  file = ROOT / 'results' / folder / 'rows.jsonl'
  rows = [json.loads(line) for line in file.read_text().splitlines()]
  rows = [row for row in rows if row.get('predicted_speedup') is not None]
  assert rows
  for row in rows:
    step = row['v'] + row['gamma'] * row['c']
    assert row['predicted_speedup'] == pytest.approx(row['tau'] / step)
    assert len(row['histogram']) == row['gamma'] + 1


def test_a_reader_is_told_what_is_doubtful():
  row = made.row(timed=True, speedup=1.2)
  assert run_report.doubts([made.row()]) == []  # Nothing was timed.
  (old,) = run_report.doubts([row, made.row()])
  assert 'over plain decoding with weights in blocks' in old
  new = row | {'baseline': {'layout': 'whole', 'seconds_per_step': None}}
  assert run_report.doubts([new]) == []
  (said,) = run_report.doubts([new, new | {'impossible': ['no']}])
  assert 'in 1 of 2 rows' in said


@pytest.mark.parametrize('folder', ['quickstart', 'drafters/timed'])
def test_the_last_line_of_a_run_is_short(folder):
  path = ROOT / 'results' / folder
  rows, _ = results.read_rows(path / 'rows.jsonl')
  follower = results.Follower(rows)
  follower.path = path
  line = run.last_line(follower)
  assert len(json.dumps(line)) < 1000
  best = run_report.best(rows)
  assert line['best'].keys() > {*results.KEY, 'tau', 'alpha', 'speedup_ci'}
  assert line['best'].items() <= best.items()
