"""Every kind of row: its report, its fields, and a headline that is true."""

import functools
import json
import pathlib
import re

import pytest

from experiments import tables
from specjax import reports
from specjax.bench import results
from specjax.cli import names
from specjax.reports import explain, predict, run
from specjax.stats import row as fields
from tests.support import rows as made

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted((ROOT / 'results').rglob('rows.jsonl'))
# A full name, perhaps with numbers behind it, as configs and rows store it.
_NAME = re.compile(r'(?:specjax|experiments|benchmarks|configs)(?:\.\w+)+')


def said(headline: str) -> str:
  return ' '.join(headline.split())


@functools.cache
def committed() -> dict[str, list[dict]]:
  return {
    file.parent.relative_to(ROOT / 'results').as_posix(): results.read_rows(
      file
    )[0]
    for file in FILES
  }


def test_every_field_of_committed_rows_is_declared():
  older = re.compile('.*_percentile(_ci)?')  # Of rows that were made before.
  for rows in committed().values():
    for one in rows:
      if declared := fields.of(one):
        unknown = one.keys() - {*fields.names(declared)}
        assert all(map(older.fullmatch, unknown)), unknown


def test_a_new_field_is_one_declaration():
  declared = fields.RUN | {
    'weight': fields.Field(float, 'of the machine', 'kg')
  }
  assert fields.fault(made.row(weight='much'), declared).startswith(
    'has the weight'
  )
  assert fields.fault(made.row(weight=3), declared) == ''
  assert ['`weight`', 'a number', 'kg', '', 'of the machine'] in (
    fields.documentation(declared)
  )


def test_definitions_are_told_apart_where_rows_have_them():
  old = made.row()
  assert 'By definition' not in run.summary([old])
  new = made.row(
    tau_per_request=2.125,
    tau_per_request_ci=[2.05, 2.25],
    tau_per_step=2.5,
    speedup_of_rates=None,
  )
  lines = run.summary([old, new]).splitlines()
  place = lines.index('### By definition')
  head, _, *table = (x for x in lines[place:] if x.startswith('|'))
  names = [cell.strip() for cell in head.strip('|').split('|')]
  cells = [cell.strip() for cell in table[0].strip('|').split('|')]
  line = dict(zip(names, cells, strict=True))
  assert line['tau'] == '2.00 [1.90, 2.10]'
  assert line['tau per request'] == '2.12 [2.05, 2.25]'
  assert line['tau per step'] == '2.50'
  assert line['speed-up of rates'] == line['speed-up'] == '-'


def stored_names(value) -> set[str]:
  """Full names anywhere in JSON."""
  if isinstance(value, dict):
    return set().union(*map(stored_names, value.values()))
  if isinstance(value, list):
    return set().union(*map(stored_names, value))
  name = value.partition(':')[0] if isinstance(value, str) else ''
  return {name} if _NAME.fullmatch(name) else set()


def test_every_stored_drafter_and_rule_imports():
  """Names of studies are those of their time."""
  found = stored_names(list(committed().values()))
  for file in (ROOT / 'results').rglob('config.json'):
    found |= stored_names(json.loads(file.read_text()))
  assert {'specjax.verify.token', 'benchmarks.sweeps.batch'} < found
  for name in found:
    if re.match(r'specjax\.(drafters|verify)\.', name):
      names.resolve('results', name)


def test_rows_of_no_known_program_are_refused():
  for program in ('nobody', 'markdown', 'run_headline', '../run', 'a.b', ''):
    with pytest.raises(ValueError, match='no report in specjax/reports'):
      reports.summary([made.row(program=program)])
  with pytest.raises(ValueError, match='parity and run'):
    reports.of([made.row(), made.row(program='parity')])


@pytest.mark.parametrize(
  ('changes', 'fault'),
  [
    ({'tau': '2.0'}, "has the tau '2.0'"),
    ({'tau_ci': [1, 'x']}, 'has the tau_ci '),
    ({'temperature': None}, 'has the temperature None'),
    ({'differences': [3]}, 'has the differences [3]'),
    ({'unit_tokens': 7}, 'has the unit_tokens 7'),
    ({'lossless': 'yes'}, "has the lossless 'yes'"),
    ({'drafter': 3}, 'has the drafter 3'),
  ],
)
def test_a_value_of_another_type_is_named(changes, fault):
  found = reports.fault(made.row(**changes))
  assert found.startswith(fault)
  assert found.endswith(
    ': remove it, and the command that made it measures it again'
  )


def test_a_missing_field_is_named_and_an_optional_one_is_not():
  row = made.row()
  assert reports.fault(row) == ''
  del row['new_tokens'], row['repetition']
  assert reports.fault(row) == ''
  del row['tau'], row['c']
  assert reports.fault(row).startswith('has no tau, c: remove it')
  for name, rows in committed().items():
    assert reports.fault({'program': rows[0]['program']}).startswith('has no ')
    assert reports.fault(rows[0] | {'program': 'unknown'}) == '', name


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Results of several programs, some of them damaged."""
  root = tmp_path / 'results'
  folders = {
    'right': [made.row(), made.row(domain='prose')],
    'wrong': [made.row(), made.row(domain='prose', tau='much')],
    'old': [made.row()],
  }
  for name, rows in folders.items():
    there = results.Folder(root / name, {})
    for row in rows:
      if name == 'old':
        del row['program']
      there.add(row)
  monkeypatch.setattr(tables.published, 'page', lambda: '')
  return root


def test_damaged_rows_are_named_and_the_rest_is_written(folder, capsys):
  tables.regenerate(str(folder))
  out, err = capsys.readouterr()
  old, wrong = sorted(err.splitlines())
  assert old.startswith(f'{folder}/old/rows.jsonl: 1 of 1 rows do not say')
  assert wrong.startswith(
    f"{folder}/wrong/rows.jsonl: line 2 is left out, it has the tau 'much'"
  )
  assert json.loads(out)['left_out'] == 2
  assert '| draft ' in (folder / 'wrong/summary.md').read_text()
  assert 'prose' in (folder / 'right/summary.md').read_text()
  assert (folder / 'findings.md').exists()
  assert not (folder / 'old/summary.md').exists()


def test_documents_quote_the_folder_results_alone(folder):
  readme = folder.parent / 'README.md'
  readme.write_text('<!-- headline: right -->\nold\n<!-- end -->\n')
  other = folder.rename(folder.parent / 'runs')
  tables.regenerate(str(other))
  assert 'old' in readme.read_text()
  tables.regenerate(str(other.rename(folder)))
  assert 'old' not in readme.read_text()


def replayed(**changes):
  row = {'program': 'predict', 'part': 'replay', 'drafter': 'a'}
  row |= {'domain': 'code', 'temperature': 0.0, 'prompts': 8, 'tokens': 1000}
  row |= {'gammas': [2], 'tau': [2.0], 'unit_target_calls': [[500]]}
  return row | {'device': 'an abacus'} | changes


def priced(**changes):
  row = {'program': 'predict', 'part': 'cost', 'drafter': 'a', 'gamma': 2}
  return row | {'c': 0.1, 'v': 1.2, 'plain_seconds': 0.002} | changes


def test_a_prediction_is_said_before_it_is_complete():
  rows = [replayed(), replayed(drafter='b'), priced(speedup=None)]
  found = said(predict.headline(rows[:2]))
  assert 'no times were taken' in found
  assert found.endswith('1,000 tokens of the target in all.')
  assert '| a ' in predict.summary(rows[:2])
  found = said(predict.headline(rows))
  assert '| 0 | a | 2 | 1.43 | - |' in found
  assert 'a plain step took 2.0 ms' in found


def explained(gamma, predicted, speedup, **changes):
  row = made.row(program='explain', gamma=gamma, timed=True, **changes)
  row |= {'predicted_speedup': predicted, 'speedup': speedup, 'c': 0.1}
  row |= {'v': 1.2, 'measured_over_predicted': speedup / predicted}
  row |= {'asked_gamma': gamma, 'steps': 9, 'seconds': 1.0}
  return row | {'baseline_tokens_per_second': 50.0, 'tau': 2.0}


def test_an_explanation_is_said_before_it_is_complete():
  rows = [explained(2, 1.2, 0.6), explained(1, 1.1, 1.1)]
  found = said(explain.headline(rows))
  assert found.startswith('Best gamma: 2, 0.60 times plain decoding. Where')
  assert 'Measured over predicted is 0.50 to 1.00.' in found
  bad = [row | {'impossible': ['v is 0.4']} for row in rows]
  found = said(explain.headline(bad))
  assert found.startswith('No draft length has numbers that can be true.')
  assert 'in 2 of 2 rows' in found


@pytest.mark.parametrize('name', list(committed()))
def test_any_part_of_committed_rows_can_be_summed_up(name):
  """A run that was stopped has the first rows, or one alone."""
  rows = committed()[name]
  for part in (rows[:1], rows[-1:], rows[: len(rows) // 2]):
    text = reports.summary(part)
    assert not text.startswith(('#', '|')), text[:80]
    assert 'None' not in reports.of(part).headline(part)


def test_figures_are_those_of_the_rows():
  timed = committed()['quickstart']
  assert [draw.__name__ for draw in reports.figures(timed)] == [
    'drafters',
    'speedup_against_gamma',
    'acceptance_by_position',
  ]
  untimed = [draw.__name__ for draw in reports.figures([made.row()])]
  assert untimed == ['drafters', 'acceptance_by_position']
  assert reports.figures(committed()['parity/float32']) == ()
  (speedup,) = reports.figures(committed()['explain'])
  assert speedup(committed()['explain']).axes
