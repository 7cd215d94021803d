"""Every kind of row: its report, its fields, and a headline that is true."""

import importlib.util
import json
import re

import pytest

from experiments import tables
from specjax import reports
from specjax.bench import results
from specjax.cli import names
from specjax.programs import run as run_program
from specjax.reports import (
  certify,
  parity,
  predict,
  run,
  verdicts,
)
from specjax.stats import row as fields
from tests.support import rows as made
from tests.support.processes import ROOT
from tests.support.rows import committed

# A full name, perhaps with numbers behind it, as configs and rows store it.
_NAME = re.compile(r'(?:specjax|experiments|benchmarks|configs)(?:\.\w+)+')


def said(headline: str) -> str:
  return ' '.join(headline.split())


def test_every_field_of_committed_rows_is_declared():
  older = re.compile('.*_percentile(_ci)?')  # Of rows that were made before.
  for rows in committed().values():
    for one in rows:
      if declared := fields.of(one):
        unknown = one.keys() - {*fields.names(declared)}
        assert all(map(older.fullmatch, unknown)), unknown


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
  assert reports.fault(made.row(**changes)).startswith(fault)


def test_a_missing_field_is_named_and_an_optional_one_is_not():
  row = made.row()
  assert reports.fault(row) == ''
  del row['new_tokens'], row['repetition']
  assert reports.fault(row) == ''
  del row['tau'], row['c']
  found = reports.fault(row)
  assert found.startswith('has no tau, c: remove it')
  assert found.endswith(
    ': remove it, and the command that made it measures it again'
  )
  for name, rows in committed().items():
    program = rows[0]['program']
    assert importlib.util.find_spec(f'experiments.{program}')
    assert reports.fault({'program': program}).startswith('has no ')
    assert reports.fault(rows[0] | {'program': 'unknown'}) == '', name
  # A new field is one declaration.
  kilograms = fields.Field(float, 'of the machine', 'kg')
  declared = fields.RUN | {'weight': kilograms}
  heavy = fields.fault(made.row(weight='much'), declared)
  assert heavy.startswith('has the weight')
  assert fields.fault(made.row(weight=3), declared) == ''
  line = ['`weight`', 'a number', 'kg', '', 'of the machine']
  assert line in fields.documentation(declared)


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Results of several programs, some of them damaged."""
  root = tmp_path / 'results'
  folders = {
    'right': [made.row(), made.row(domain='prose')],
    'wrong': [made.row(), made.row(domain='prose', tau='much')],
    'old': [made.row()],
    'foreign': [made.row(program='nobody')],
    'deep': [made.row(parameters=3, training={'seconds': 'x', 'tokens': 1})],
  }
  for name, rows in folders.items():
    there = results.Folder(root / name, {})
    for row in rows:
      if name == 'old':
        del row['program']
      there.add(row)
  file = root / 'wrong' / 'rows.jsonl'
  file.write_text('\n' + file.read_text())  # Empty lines count.
  monkeypatch.setattr(tables.published, 'page', lambda: '')
  return root


def test_damaged_rows_are_named_and_the_rest_is_written(folder, capsys):
  tables.regenerate(str(folder))
  out, err = capsys.readouterr()
  deep, foreign, old, wrong = sorted(err.splitlines())
  assert old.startswith(f'{folder}/old/rows.jsonl: 1 of 1 rows do not say')
  assert 'put "program": "run"' in old
  assert wrong.startswith(
    f"{folder}/wrong/rows.jsonl: line 3 is left out, it has the tau 'much'"
  )
  # What types do not show is named without a line, and is no traceback.
  assert deep.startswith(f'{folder}/deep/summary.md: not written: TypeError')
  assert foreign.startswith(
    f'{folder}/foreign/summary.md: not written: program is nobody, which has no'
  )
  assert json.loads(out)['left_out'] == 4
  assert '| draft ' in (folder / 'wrong/summary.md').read_text()
  assert 'prose' in (folder / 'right/summary.md').read_text()
  assert (folder / 'findings.md').exists()
  written = {x.parent.name for x in folder.glob('*/summary.md')}
  assert written == {'right', 'wrong'}


def test_documents_quote_the_folder_results_alone(folder):
  readme = folder.parent / 'README.md'
  readme.write_text('<!-- headline: right -->\nold\n<!-- end -->\n')
  other = folder.rename(folder.parent / 'runs')
  tables.regenerate(str(other))
  assert 'old' in readme.read_text()
  tables.regenerate(str(other.rename(folder)))
  assert 'old' not in readme.read_text()


def check(**changes):
  """A row of `experiments.parity`."""
  row = {'program': 'parity', 'drafter': 'small', 'verifier': 'token'}
  row |= {'gamma': 3, 'domain': 'code', 'against': 'plain', 'batch': 1}
  row |= {'dtype': 'bfloat16', 'compared': 8, 'ties': 0, 'bugs': 0}
  return row | {'differences': [], 'device': 'an abacus'} | changes


def test_texts_that_part_are_counted():
  rows = [check(), check(gamma=4, ties=2, bugs=1)]
  assert said(parity.headline(rows)) == (
    '13 of 16 greedy texts, compared with plain in bfloat16, are identical; 2 '
    'part at a tie and 1 by a bug. On an abacus: batch 1.'
  )
  assert 'are identical. On' in said(parity.headline(rows[:1]))

  # The operation at which bits part is said.
  def part(operation, rows, **more):
    change = dict.fromkeys(('gap', 'margin', 'noise', 'rounding'), 0.1)
    change |= {'prompt': 3, 'position': 5, 'tokens': [1, 2], 'verdict': 'bug'}
    return change | {'operation': operation, 'rows': rows} | more

  first, none = part('layer0/up', 4), part('no operation', None)
  found = [first, none, first, part(None, None)]
  of_old = {k: v for k, v in none.items() if k not in ('operation', 'rows')}
  row = check(bugs=5, differences=[*found, of_old])
  assert said(parity.summary([row])).endswith(
    'In passes over these texts bits first part in layer0/up at 4 rows (2 '
    'texts), in no operation (1 text).'
  )
  assert verdicts.faults(row | {'lossless': True}) == [
    '5 of its texts at temperature 0 differ from plain decoding by more than a '
    'tie; bits first part in layer0/up at 4 rows (2 texts), in no operation (1 '
    'text)'
  ]
  assert 'bits' not in parity.summary([check(bugs=1, differences=[of_old])])


def certificate(*more):
  exact = {'part': 'distribution', 'rule': 'token', 'drafter': 'chain'}
  exact |= {'model': 'table', 'setting': 'T 1', 'lossless': True}
  exact |= {'max_error': 1e-16, 'total_variation': 0.0, 'calls': 1.3}
  bug = {'part': 'mutant', 'mutant': 'forgets q', 'test': 'memory'}
  bug |= {'setting': '', 'evidence': 0.5, 'caught': True}
  end = {'part': 'end', 'seconds': 9.0, 'boost': 1.1, 'device': 'an abacus'}
  rows = [exact, bug, end]
  return [
    {'program': 'certify'} | row | change
    for row, change in zip(rows, [*more, {}, {}, {}], strict=False)
  ]


def test_a_certificate_says_whether_it_holds():
  whole = said(certify.headline(certificate()))
  assert whole.startswith('The certificate holds: nothing that should hold')
  assert '| planted bugs found' in whole
  assert whole.endswith('Took 9 s. On an abacus.')
  wrong = said(certify.headline(certificate({'max_error': 0.1})))
  assert wrong.startswith('The certificate does not hold: 1 of its checks')
  assert '| 1e-01' in wrong
  survived = said(certify.headline(certificate({}, {'caught': False})))
  assert 'does not hold: 1 of its checks' in survived
  assert '| planted bug not found' in survived
  assert '| forgets q' in survived
  for count in (1, 2):
    rows = certificate()[:count]
    assert 'is not finished; so far nothing fails' in certify.headline(rows)
    assert '### Distribution of whole texts' in certify.summary(rows)


def replayed(**changes):
  row = {'program': 'predict', 'part': 'replay', 'drafter': 'a'}
  row |= {'domain': 'code', 'temperature': 0.0, 'prompts': 8, 'tokens': 1000}
  row |= {'gammas': [2], 'tau': [2.0], 'unit_target_calls': [[500]]}
  return row | {'device': 'an abacus'} | changes


def test_a_prediction_is_said_before_it_is_complete():
  cost = {'program': 'predict', 'part': 'cost', 'drafter': 'a', 'gamma': 2}
  cost |= {'c': 0.1, 'v': 1.2, 'plain_seconds': 0.002, 'speedup': None}
  rows = [replayed(), replayed(drafter='b'), cost]
  found = said(predict.headline(rows[:2]))
  assert 'no times were taken' in found
  assert found.endswith('1,000 tokens of the target in all.')
  assert '| a ' in predict.summary(rows[:2])
  assert predict.Board(rows[:2]).last_line()['recommendation'] is None
  found = said(predict.headline(rows))
  assert '| 0 | a | 2 | 1.43 | - |' in found
  assert 'a plain step took 2.0 ms' in found
  many = [row | {'batch': 2} for row in rows]
  assert '2 rows at a time' in said(predict.headline(many))


@pytest.mark.parametrize('name', list(committed()))
def test_any_part_of_committed_rows_can_be_summed_up(name):
  """A run that was stopped has the first rows, or one alone."""
  rows = committed()[name]
  for part in (rows[:1], rows[-1:], rows[: (len(rows) + 1) // 2]):
    text = reports.summary(part)
    assert not text.startswith(('#', '|')), text[:80]
    assert 'None' not in reports.of(part).headline(part)


def test_figures_are_those_of_the_rows():
  timed = committed()['quickstart']
  names = ['drafters', 'speedup_against_gamma', 'acceptance_by_position']
  assert [draw.__name__ for draw in reports.figures(timed)] == names
  untimed = [draw.__name__ for draw in reports.figures([made.row()])]
  assert untimed == names[::2]
  assert reports.figures(committed()['parity/float32']) == ()
  (speedup,) = reports.figures(committed()['explain'])
  assert speedup(committed()['explain']).axes


def test_a_reader_is_told_what_is_doubtful():
  row = made.row(timed=True, speedup=1.2)
  assert run.doubts([made.row()]) == []  # Nothing was timed.
  (old,) = run.doubts([row, made.row()])
  assert 'over plain decoding with weights in blocks' in old
  new = row | {'baseline': {'layout': 'whole', 'seconds_per_step': None}}
  assert run.doubts([new]) == []
  (said,) = run.doubts([new, new | {'impossible': ['no']}])
  assert 'in 1 of 2 rows' in said


@pytest.mark.parametrize('folder', ['quickstart', 'drafters/timed'])
def test_the_last_line_of_a_run_is_short(folder):
  rows = committed()[folder]
  follower = results.Follower(rows)
  follower.path = ROOT / 'results' / folder
  line = run_program.last_line(follower)
  assert len(json.dumps(line)) < 1000
  best = run.best(rows)
  assert line['best'].keys() > {*results.KEY, 'tau', 'alpha', 'speedup_ci'}
  assert line['best'].items() <= best.items()
