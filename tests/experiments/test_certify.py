"""The certificate, the quick one, as a user runs it."""

import json

import numpy as np
import pytest

from specjax import verify
from specjax.bench import results
from specjax.bench.config import Certificate
from specjax.certify import cases, certificate, planted, tiny_models
from specjax.certify.certificate import Cases
from specjax.errors import UserError
from specjax.programs import certify
from specjax.reports import certify as report
from specjax.stats import folders

# Some twenty loops are compiled.
pytestmark = pytest.mark.slow

PLANTED = 18 + 2 + 3
# What runs its loop, and each other rule once: rules with other drafts are
# multiplied out by their own tests.
LOOPS = [case for case in cases.CASES if case.quick]
_SEEN = {case.rule for case in LOOPS}
_REST = [c for c in cases.CASES if not c.full and c.rule not in _SEEN]
FEW = [*LOOPS, *{case.rule: case for case in reversed(_REST)}.values()]


def settings(folder, **more) -> Certificate:
  return Certificate(
    results=str(folder), rounds=16, boost=1.2, quick=True, **more
  )


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp('certificate') / 'rows'


@pytest.fixture(scope='module')
def rows(folder):
  """Rows of a run that may fail: the tests below say whether it did."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(certificate, 'CASES', FEW)
    certify.certify(settings(folder))
  return folders.existing(str(folder)).rows


def part(rows, name):
  return [row for row in rows if row['part'] == name]


def test_exact_rules_are_exact(rows):
  made = part(rows, 'distribution')
  exact = [r for r in made if r['lossless']]
  lossless = sum(case.verify.lossless for case in FEW)
  assert len({(r['rule'], r['drafter'], r['model']) for r in exact}) == lossless
  assert len({r['setting'] for r in exact}) == len(tiny_models.SETTINGS)
  assert max(r['max_error'] for r in exact) <= 1e-12
  # The lossy ones are not, and say by how much.
  lossy = [r for r in made if not r['lossless'] and r['setting'] == 'T 1']
  assert len(lossy) == len(FEW) - lossless
  assert min(r['total_variation'] for r in lossy) > 0.01


def test_the_compiled_loops_have_the_distribution(rows):
  loops = part(rows, 'loop')
  assert len(loops) == len(LOOPS) * (len(tiny_models.SETTINGS) + 1)
  assert all(r['p_value'] >= r['level'] for r in loops)
  assert all(r['level'] == pytest.approx(1e-3 / len(loops)) for r in loops)
  # They would hardly miss a rule that accepts a fifth too readily.
  assert all(r['power'] > 0.9 for r in loops if r['setting'] == 'all')


def every_case(**more) -> Cases:
  return Cases(Certificate(**more), list(cases.CASES))


EIGHT = 'transformer in eight bits'


@pytest.mark.parametrize(
  ('name', 'wide', 'dtype'),
  [
    ('table in bfloat16', 'table', 'auto'),
    ('table', 'table', 'float16'),
    (EIGHT, 'transformer', 'auto'),
  ],
)
def test_the_loop_of_a_target_in_few_bits_has_its_distribution(
  request, name, wide, dtype
):
  if name == EIGHT:
    request.getfixturevalue('kernel')
  case = cases.find('token', cases.CHAIN, name)
  made = every_case(rounds=16, boost=1.2, dtype=dtype)
  tiny, floats = made.models(name), cases.models(wide)
  if name == EIGHT:
    words = tiny.params.target['layer0']['qkv']['w']
    assert (words.bits, words.blocked) == (8, True)
  else:
    assert tiny.params.target.dtype.itemsize == 2
  found = [*made.enumerate(case), *made.run(case)]
  assert max(r['max_error'] for r in part(found, 'distribution')) <= 1e-12
  assert all(r['p_value'] >= r['level'] for r in part(found, 'loop'))
  assert [r['power'] > 0.9 for r in found if r['setting'] == 'all'] == [True]
  # The distribution is that of the rounded target.
  off = np.abs(tiny.plain['T 1'] - floats.plain['T 1']).max()
  assert (1e-6 if name == EIGHT else 1e-7) < off < 1e-2


def test_every_planted_bug_is_caught(rows):
  found = part(rows, 'mutant')
  assert {r['test'] for r in found} == {'distribution', 'loop', 'memory'}
  assert len(found) == PLANTED
  assert [r['mutant'] for r in found if not r['caught']] == []
  # Memories without the bug differ by a tenth of this at most.
  bounds = [r['bound'] for r in found if r['test'] == 'memory']
  assert bounds == [1e-4] * 3
  # What is planted at what is right already survives.
  harmless = planted.WrongRule('nothing', verify.token)
  (row,) = every_case().plant_rule(harmless)
  assert (row['mutant'], row['caught']) == ('nothing', False)


def test_published_examples_and_gains_of_block_verification(rows):
  accepted = {r['rule']: r['accepted'] for r in part(rows, 'published')}
  assert accepted == {
    'token': pytest.approx(10 / 9, abs=1e-12),
    'block': pytest.approx(11 / 9, abs=1e-12),
    'with replacement': pytest.approx(0.75, abs=1e-12),
    'without replacement': pytest.approx(1, abs=1e-12),
  }
  for row in part(rows, 'block'):
    assert row['least'] >= -1e-12
    if row['gamma'] == 1 or row['temperature'] == 0:
      assert abs(row['mean']) <= 1e-12
    else:
      assert row['mean'] > 0.01


def test_precision_matters_as_much_as_its_rounding(rows):
  found = part(rows, 'arithmetic')
  assert {r['rule'] for r in found} == {'token', 'block'}
  assert {r['dtype'] for r in found} == {'float32', 'float16', 'bfloat16'}
  for row in found:
    unit = {'float32': 1e-7, 'float16': 1e-3, 'bfloat16': 1e-2}[row['dtype']]
    assert 0 < row['total_variation'] < 2 * unit


def changed(rows, name, **fields):
  """Rows whose first one of a part has other fields."""
  first = part(rows, name)[0]
  return [row | fields if row is first else row for row in rows]


def test_the_verdict_counts_what_fails(rows):
  verdict = report.verdict(rows)
  assert verdict['failures'] == 0
  assert verdict['mutants'] == PLANTED
  assert verdict['max_error'] <= 1e-12
  for name, fields in (
    ('distribution', {'max_error': 1e-9}),
    ('mutant', {'caught': False}),
    ('loop', {'p_value': 0.0}),
    ('published', {'accepted': 0.0}),
    ('block', {'least': -1.0}),
  ):
    spoiled = report.verdict(changed(rows, name, **fields))
    assert spoiled['failures'] == 1, name
    assert spoiled['survivors'] == (name == 'mutant')


def test_a_survivor_fails_the_program(rows, tmp_path, capsys):
  """A finished folder in which one planted bug was not found."""
  x = settings(tmp_path / 'a')
  there = results.Folder(x.results, results.settings_of(x))
  for row in changed(rows, 'mutant', caught=False):
    there.add(row)
  with pytest.raises(SystemExit) as ended:
    certify.main(x)
  assert ended.value.code == 1
  out = capsys.readouterr().out
  assert out.count('SURVIVED') == 1
  assert json.loads(out.splitlines()[-1])['survivors'] == 1


def test_a_finished_certificate_is_printed_again(rows, folder, capsys):
  before = (folder / 'rows.jsonl').read_text()
  certify.main(settings(folder))
  out = capsys.readouterr().out
  assert '| planted bug' in out
  assert json.loads(out.splitlines()[-1])['survivors'] == 0
  # Another one does not overwrite it.
  with pytest.raises(UserError, match='holds results of another config'):
    certify.main(Certificate(results=str(folder), rounds=5, quick=True))
  assert (folder / 'rows.jsonl').read_text() == before


def test_a_draft_with_another_vocabulary_is_certified():
  """Its loop, and what is planted there."""
  made = every_case(rounds=16, boost=1.2)
  case = cases.find('token', cases.OTHER, 'other transformer')
  assert all(r['p_value'] >= r['level'] for r in made.run(case))
  bugs = [bug for bug in planted.WRONG_LOOPS if bug.case is case]
  assert len(bugs) == 2
  for bug in bugs:
    (row,) = made.plant_loop(bug)
    assert row['caught'], row['mutant']


@pytest.mark.parametrize('kind', {c.kind.name: c for c in cases.CASES})
def test_every_kind_of_draft_can_be_made(kind):
  """Those of the whole certificate, too, which the quick one leaves out."""
  case = next(c for c in cases.CASES if c.kind.name == kind)
  tiny = cases.models(case.model)
  assert case.kind.drafter(tiny).nodes >= 1
  assert callable(case.kind.source(tiny))
