"""The results folder: resumed, refused, never overwritten."""

import pytest

from specjax.reports import run as run_report
from specjax.stats import folders as results
from specjax.stats.row import SCHEMA
from tests.support import rows as made


def row(**changes):
  cell = {'drafter': 'ngram', 'verifier': 'token', 'gamma': 2}
  return cell | {'domain': 'code', 'temperature': 0.0} | changes


def test_rows_come_back(tmp_path):
  folder = results.Folder(tmp_path / 'a', {'seed': 0})
  folder.add(row())
  again = results.Folder(tmp_path / 'a', {'seed': 0})
  assert again.rows == [{'schema': SCHEMA} | row()]
  assert again.has(**row())
  assert not again.has(**row(gamma=3))
  with pytest.raises(ValueError, match=r'\(different: more, seed\); .*results'):
    results.Folder(tmp_path / 'a', {'seed': 1, 'more': 2})
  assert results.existing_run(tmp_path / 'a').rows == again.rows
  again.add(row(program='predict'))
  with pytest.raises(ValueError, match=r'^folder: .*/a holds rows of predict;'):
    results.existing_run(tmp_path / 'a')


def test_truncated_last_line_is_dropped_and_the_rest_kept(tmp_path):
  folder = results.Folder(tmp_path / 'a', {'seed': 0})
  folder.add(row())
  file = tmp_path / 'a' / 'rows.jsonl'
  file.write_text(file.read_text() + '{"drafter": "ng')
  again = results.Folder(tmp_path / 'a', {'seed': 0})
  assert again.rows == [{'schema': SCHEMA} | row()]
  again.add(row(gamma=3))
  assert len(results.Folder(tmp_path / 'a', {'seed': 0}).rows) == 2


def test_rows_of_another_layout_are_set_aside_and_stay(tmp_path):
  folder = results.Folder(tmp_path / 'a', {'seed': 0})
  folder.add(row())
  folder.add(row(gamma=3))
  file = tmp_path / 'a' / 'rows.jsonl'
  mine = f'{{"schema": {SCHEMA}, '
  lines = file.read_text().splitlines()
  changed = [lines[0].replace(mine, '{"schema": 99, '), lines[1]]
  changed.append(lines[1].replace(mine, '{'))
  file.write_text('\n'.join(changed) + '\n')
  again = results.Folder(tmp_path / 'a', {'seed': 0})
  assert [r['gamma'] for r in again.rows] == [3]
  assert not again.has(**row())  # So the cell is measured again.
  for word in ('2 of 3 rows', '99, none', f'reads {SCHEMA}', 'again'):
    assert word in again.warning
  _, warnings = results.read_folders(tmp_path, lambda row: '')
  assert '2 of 3 rows' in warnings[0]
  assert len(file.read_text().splitlines()) == 3


def test_folders_that_do_not_belong_together_are_left_out(tmp_path):
  for name, rows in {
    'good': [{'program': 'run', 'config': 'a'}] * 2,
    'mixed': [{'program': 'run', 'config': name} for name in 'ab'],
    'other': [{'program': name, 'config': 'a'} for name in ('run', 'parity')],
    'silent': [{'program': 'run', 'config': 'a'}, {}],
  }.items():
    folder = results.Folder(tmp_path / name, {})
    for gamma, more in enumerate(rows):
      folder.add(row(gamma=gamma, **more))
  found, said = results.read_folders(tmp_path, lambda row: '')
  configs, programs, silent = said
  assert list(found) == ['good']
  assert 'several configs (a, b)' in configs
  assert 'several programs (parity, run)' in programs
  assert '1 of 2 rows do not say which program made them' in silent
  with pytest.raises(ValueError, match='no folder'):
    results.read_folders(tmp_path / 'nowhere', lambda row: '')


def test_what_no_step_tried_has_no_number():
  """Where gamma + 1 tokens never had room, no step was whole."""
  cell = {'acceptance_by_position': [0.5, None], 'tau_without_bonus': None}
  (table,) = run_report.positions([made.row(**cell)])
  assert table.lines[0][-2:] == ['-', '0.50 -']
