"""Weights that are split over the cores of a CPU, in a process of its own."""

import json

import pytest

from tests.support import processes

# One of two devices does not see what XLA_FLAGS of other tests simulate.
QUICK = {
  'JAX_DISABLE_MOST_OPTIMIZATIONS': '1',
  'JAX_PLATFORMS': 'cpu',
  'SPECJAX_NATIVE': 'off',  # Else they are not tried.
}


def measure(folder, *programs) -> dict:
  done = processes.run('tests.support.over_cores', folder, *programs, **QUICK)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_texts_are_those_of_whole_weights(tmp_path):
  """Through the door, plain and with a draft, greedy and sampled."""
  found = measure(tmp_path)
  assert found['devices'] > 1
  whole, cores = found['texts'][:2], found['texts'][2:]
  assert cores == whole


@pytest.mark.slow
def test_a_draft_lies_where_its_target_does(tmp_path):
  """Though it would be faster alone, a program runs on one mesh."""
  found = measure(tmp_path, 'run')
  rows = [row for row in found['run'] if not row['temperature']]
  assert len(rows) == 3
  for row in rows:
    assert row['identical_to_plain'] == row['prompts'] == 2
  for row in found['run']:
    assert row['baseline']['layout'] == 'cores'
    assert row['verification']['layout'] == 'cores'
    assert row['collectives']['all-reduce']['count'] > 0
    drafting = row['drafting'] and row['drafting']['layout']
    assert drafting == ('cores' if row['drafter'] == 'draft' else None)


@pytest.mark.slow
def test_other_programs_measure_them(tmp_path):
  found = measure(tmp_path, 'explain', 'predict')
  measured = [row for row in found['explain'] if row['temperature'] is not None]
  assert len(measured) == 4  # Two draft lengths and temperatures.
  assert {row['verification']['layout'] for row in measured} == {'cores'}
  (loops,) = [row['loops'] for row in found['explain'] if 'loops' in row]
  assert loops
  # `explain` left one drafter.
  assert {row['drafter'] for row in found['predict']} == {'draft'}
