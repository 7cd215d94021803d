"""Two runs beside each other: cells, pairs, verdicts, and refusals."""

import json

import numpy as np
import pytest

from specjax.bench import results
from specjax.errors import UserError
from specjax.programs import compare, report
from specjax.reports import comparing
from specjax.stats import fit_tests
from tests.support import rows as made

ALPHA, TAU, SPEED = comparing.STATISTICS.values()
CALLS = [4, 5, 6, 4, 5, 6, 4, 6]


def _cell(one: dict, other: dict) -> comparing.Cell:
  return comparing.Cell(('code',), made.row(**one), made.row(**other))


def _store(path, rows, **settings) -> str:
  folder = results.Folder(str(path), settings)
  for row in rows:
    folder.add(row)
  return str(path)


def test_a_speed_up_is_over_the_plain_decoding_of_its_own_run():
  times = {'unit_baseline_seconds': [2.0] * 8, 'unit_baseline_tokens': [8] * 8}
  one = times | {'unit_seconds': [1.0] * 8}
  other = {name: [4 * x for x in times[name]] for name in times}
  other |= {'unit_seconds': [0.25] * 7 + [0.5]}
  found = comparing.compare_cell(_cell(one, other), SPEED)
  # 2 and 2 / (2.25 / 8): the slower and longer baseline takes no part.
  assert found.ratio.value == pytest.approx(8 / 2.25)


def test_pairing_removes_what_prompts_do_to_both_runs():
  calls = [4, 8, 16, 32, 4, 8, 16, 32]
  tokens = [8 * c for c in calls]
  fewer = [7.2 * c * (1 + 0.01 * (i % 3)) for i, c in enumerate(calls)]
  one = {'unit_tokens': tokens, 'unit_target_calls': [10] * 8}
  other = {'unit_tokens': fewer, 'unit_target_calls': [10] * 8}
  pair = comparing.compare_cell(_cell(one, other), TAU)
  apart = comparing.compare_cell(
    _cell(one, other | {'prompts_hash': 'other'}), TAU
  )
  assert (pair.shared, apart.shared) == (8, 0)
  assert pair.ratio.value == apart.ratio.value
  assert pair.chance < 1e-6
  assert apart.chance > 0.5


def test_prompts_that_both_runs_saw_are_paired_by_name():
  names = [f'prompt {i}' for i in range(8)]
  one = {'unit_prompts': names, 'unit_target_calls': [9, 9, *CALLS[2:]]}
  other = {
    'prompts': 6,
    'prompts_hash': 'of six',
    'unit_prompts': names[:1:-1],
    'unit_target_calls': [2 * c for c in CALLS[:1:-1]],
  }
  found = comparing.compare_cell(_cell(one, other), TAU)
  assert found.shared == 6
  assert found.ratio.value == pytest.approx(0.5)
  assert found.ratio.error == 0  # Each prompt took twice the calls.


@pytest.mark.parametrize(
  ('one', 'other', 'shared'),
  [('aabcdefg', 'aabcdefg', 8), ('abcdefgh', 'abcdstuv', 0)],
)
def test_a_prompt_is_paired_as_often_as_it_stands(one, other, shared):
  """Few shared prompts make no pairs."""
  one = {'unit_prompts': list(one)}
  other = {'unit_prompts': list(other), 'prompts_hash': 'other'}
  assert comparing.compare_cell(_cell(one, other), TAU).shared == shared


@pytest.mark.parametrize('names', [None, ['a', 'b', 'c']])
def test_too_few_prompts_for_an_interval_are_not_called_independent(names):
  row = {'prompts': 3, 'unit_prompts': names, 'unit_target_calls': [4, 5, 6]}
  (found,) = comparing.compare([_cell(row, row)], TAU)
  (line,) = comparing.table(('domain',), [found], 'tau', ('a', 'b')).lines
  assert any(cell.startswith('3, too few') and '5' in cell for cell in line)
  assert not any('independent' in cell for cell in line)


def test_what_both_runs_have_tells_cells_apart_and_what_differs_does_not():
  a = [made.row(temperature=t) for t in (0.0, 1.0)]
  b = [made.row(temperature=t, drafter='eagle1') for t in (0.0, 1.0, 2.0)]
  keys, cells = comparing.matched(a, b)
  assert 'drafter' not in keys
  assert [c.other['temperature'] for c in cells] == [0.0, 1.0]
  a, b = ([made.row(drafter=d) for d in x] for x in ('ab', 'bc'))
  keys, cells = comparing.matched(a, b)
  assert 'drafter' in keys
  assert [c.one['drafter'] for c in cells] == ['b']


def _simulated(rng, effect: float, same: bool):
  """Cells of two runs: calls of prompts, and a change of one cell."""
  made_up = []
  for i in range(12):
    hard = rng.gamma(8.0, 1.0, (2, 16))
    if same:
      hard[1] = hard[0]
    factor = effect if i == 0 else 1.0
    calls = rng.poisson(hard * np.array([[5.0], [5.0 * factor]])) + 1
    one, other = (
      {'prompts': 16, 'unit_tokens': [128] * 16,
       'unit_target_calls': c.tolist()}
      for c in calls
    )  # fmt: skip
    made_up.append(_cell(one, other | {'prompts_hash': 'abc' if same else 'b'}))
  return made_up


@pytest.mark.parametrize('same', [True, False])
def test_chance_makes_a_cell_differ_in_one_of_twenty_comparisons(same):
  rng = np.random.default_rng(0)
  alarms = 0
  for _ in range(400):
    found = comparing.compare(_simulated(rng, 1.0, same), TAU)
    alarms += any(one.differs for one in found)
  # Of 400 at 5%, up to 30 in 99 of 100 cases; as good as none is too careful.
  assert 8 <= alarms <= 30


def test_a_real_change_of_one_cell_is_found_and_named():
  rng = np.random.default_rng(1)
  found = [
    comparing.compare(_simulated(rng, 1.3, True), TAU) for _ in range(50)
  ]
  assert np.mean([one[0].differs for one in found]) > 0.9
  assert np.mean([any(x.differs for x in one[1:]) for one in found]) < 0.1


def test_holm_rejects_by_rank():
  same = comparing.compare([_cell({}, {})], TAU)
  assert (same[0].chance, same[0].differs) == (1.0, False)
  nan = float('nan')
  assert fit_tests.holm([0.04, 0.01, nan, 0.02], 0.05) == [
    True, True, False, True,
  ]  # fmt: skip
  assert fit_tests.holm([0.04, 0.02, 0.03], 0.05) == [False] * 3
  assert fit_tests.holm([0.05, 0.025], 0.05) == [True] * 2  # At the bounds.
  assert fit_tests.holm([], 0.05) == []


def test_the_program_prints_tables_and_counts(tmp_path, capsys):
  better = [2, 3, 3, 2, 3, 3, 2, 3]
  a = [made.row(unit_target_calls=CALLS, temperature=t) for t in (0.0, 1.0)]
  b = [made.row(unit_target_calls=better), made.row(temperature=2.0)]
  one = _store(tmp_path / 'one', a, name='x', seed=0, lists=[1])
  other = _store(tmp_path / 'other', b, name='x', seed=1, more={'a': 1})
  compare.main((one, other))
  *text, last = capsys.readouterr().out.splitlines()
  found = json.loads(last)
  same = {'cells': 1, 'paired': 1, 'higher': 0, 'lower': 0}
  assert found == {
    'cells': 1,
    'unmatched': [1, 1],
    'alpha': same,
    'tau': same | {'higher': 1},
    'speedup': dict.fromkeys(same, 0),
  }
  page = ' '.join(text)
  assert '`seed`: 0 | 1' in page
  assert 'only one: lists | only other: more' in page
  assert '1 of one and 1 of other' in page
  (line,) = (x for x in text if x.startswith('| draft ') and '+90.5%' in x)
  cells = [c.strip() for c in line.split('|')]
  assert (cells[-4], cells[-2]) == ('8 paired', 'yes')
  compare.main((one, other), 'latex')
  printed = capsys.readouterr().out
  assert r'\begin{tabular}' in printed
  assert r'+90.5\%' in printed


@pytest.mark.parametrize(
  ('one', 'other', 'says'),
  [
    ('run', 'run', 'given twice'),
    ('run', 'nothing', r'no config\.json'),
    ('run', 'probe', 'rows of probe'),
    ('far', 'two', 'no cell in common'),
  ],
)
def test_folders_that_cannot_be_compared_are_named(tmp_path, one, other, says):
  folders = {'run': [made.row()], 'probe': [made.row(program='probe')]}
  folders['far'] = [made.row(domain=d) for d in ('law', 'poetry')]
  folders['two'] = [made.row(domain=d) for d in ('a', 'b')]
  for name in {one, other} & folders.keys():
    _store(tmp_path / name, folders[name])
  with pytest.raises(UserError, match=says):
    compare.main((str(tmp_path / one), str(tmp_path / other)))


def test_a_report_names_the_program_that_made_the_rows(tmp_path):
  path = _store(tmp_path / 'a', [{'program': 'certify'}])
  with pytest.raises(UserError, match=r'^folder: .* rows of certify;'):
    report.main(path)
