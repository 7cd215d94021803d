"""Speeds and costs from runs made by hand, and back from the rows.

That each is what it should be is tested in `test_numbers`.
"""

import json
import pathlib

import numpy as np
import pytest

from specjax.bench import costs, results, row_fields
from specjax.programs import run
from specjax.reports import run as run_report
from specjax.stats import metrics
from tests.support import rows as made

ROOT = pathlib.Path(__file__).parents[2]
TIMED = ('quickstart', 'rules', 'explain', 'drafters/timed')


def one(tokens, calls, seconds):
  """A batch; reading its prompts took far longer than decoding."""
  return made.run(tokens, calls, seconds, prefill=1000.0)


# Three prompts in batches of two.
BASE = [one([8, 8], [8, 8], 8.0), one([8], [8], 10.0)]
RUNS = [one([8, 8], [4, 5], 6.0), one([8], [4], 6.0)]
COST = costs.Costs(
  depth=2,
  plain=np.array([1.0, 2.0, 4.0]),
  scored=np.array([1.5, 2.0, 8.0]),
  whole=np.array([1.7, 3.2, 8.8]),
)


@pytest.fixture
def speed():
  """As a row has it."""
  found = row_fields.speed(RUNS, BASE, COST)
  row = results.plain(
    found
    | {'batch': 2, 'gamma': 2}
    | {'unit_tokens': [8, 8, 8], 'unit_target_calls': [4, 5, 4]}
  )
  return json.loads(json.dumps(row))


def test_a_row_has_what_its_speeds_are_made_of(speed):
  """They come out again, by the definitions, from the row alone."""
  times = {k: np.array(t) for k, t in speed['seconds_per_step'].items()}
  cost = costs.Costs(speed['gamma'], **times)
  assert speed['unit_baseline_seconds'] == [8, 10]
  assert speed['unit_baseline_tokens'] == [8, 8, 8]
  units = [[8.0, 10.0], [16, 8], [6.0, 6.0], [16, 8]]
  assert speed['speedup_ci'] == metrics.speedup(*units).interval
  predicted = cost.predict([16, 8], [9, 4])
  assert speed['predicted_speedup'] == predicted.value
  assert speed['predicted_speedup_ci'] == predicted.interval


def test_every_row_has_the_fields_of_times():
  """Whether they were taken or not."""
  assert row_fields.speed(RUNS, BASE, COST).keys() <= row_fields.NO_SPEED.keys()
  layouts = {'baseline', 'verification', 'drafting'}
  assert layouts <= row_fields.NO_SPEED.keys()


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
