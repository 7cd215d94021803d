"""The small bugs that are planted, of a file that has most of them."""

import argparse

import pytest

from tests import mutants
from tests.support import mutations

NEAREST = ('near', 'a'), ('far', 0), ('far', 1)
SOURCE = """def f(a: int = 2, *, key=None):
  '''Says 3.'''
  while a < 1 and not key:
    a += 1
  if a:
    raise ValueError(f'{a} is {1}')
  return min(a[:4], é=True) + 0.5
"""
WANTED = [
  (1, 'def f(a: int = 3, *, key=None):'),
  (3, 'while not (a < 1 and (not key)):'),
  (3, 'while (a < 1 or not key):'),
  (3, 'while (a < 1):'),
  (3, 'while (a <= 1) and not key:'),
  (3, 'while a < 2 and not key:'),
  (3, 'while a < 1 and (key):'),
  (4, 'pass'),
  (4, 'a += 2'),
  (5, 'if not (a):'),
  (6, 'pass'),
  (7, 'return (min(a[:4], é=True) - 0.5)'),
  (7, 'return min(a[:4]) + 0.5'),
  (7, 'return max(a[:4], é=True) + 0.5'),
  (7, 'return min(a[:], é=True) + 0.5'),
  (7, 'return min(a[:5], é=True) + 0.5'),
  (7, 'return min(a[:4], é=False) + 0.5'),
  (7, 'return min(a[:4], é=True) + 1.0'),
]


def test_mutants_are_small_and_parse(tmp_path):
  file, lines = tmp_path / 'a.py', SOURCE.splitlines()
  file.write_text(SOURCE)
  found = [*mutations.of_file(file)]
  assert [(line, new) for line, _, new, _ in found] == WANTED
  for line, old, new, text in found:
    compile(text, 'a', 'exec')
    assert old == lines[line - 1].strip()
    changed = lines[line - 1].replace(old, new)
    assert text.decode().splitlines() == [
      changed if i == line else x for i, x in enumerate(lines, 1)
    ]


def test_a_test_that_hangs_catches_a_mutant(tmp_path):
  file = tmp_path / 'tests/test_it.py'
  file.parent.mkdir()
  file.write_text('def test_loop():\n  while True:\n    pass\n')
  (tmp_path / 'pytest.ini').write_text(
    '[pytest]\nfaulthandler_exit_on_timeout = true\n'
  )
  x = argparse.Namespace(limit=15, slow=[])
  tests = ['tests/test_it.py']
  found = mutants.outcome(str(tmp_path), 'specjax/x.py', tests, x)
  assert found == ('caught', 'tests/test_it.py::test_loop')


def test_files_that_name_what_changes_come_first(tmp_path, monkeypatch):
  monkeypatch.setattr(mutants, 'ROOT', tmp_path)
  files = {'a.py': 'this', 'b.py': 'this rare', 'c.py': '', 'd.py': 'rarely'}
  for name, text in files.items():
    (tmp_path / name).write_text(text)
  found = mutants.naming('f(this, rare)', 'f(this)', [*files])
  assert found == ['b.py', 'a.py', 'c.py', 'd.py']
  # Without a word that changes, the words of the statement count.
  found = mutants.naming('this + rare + 1', 'this + rare + 2', [*files])
  assert found == ['b.py', 'a.py', 'c.py', 'd.py']
  found = mutants.naming('f(rare=True)', 'f(rare=False)', [*files])
  assert found == ['b.py', 'a.py', 'c.py', 'd.py']
  assert mutants.naming('x', 'y', [*files]) == [*files]


class Contexts:
  """The tests that ran lines, as coverage tells them."""

  def __init__(self, path, lines):
    self.path, self.lines = path, lines

  def contexts_by_lineno(self, path):
    return self.lines if path == self.path else {}


@pytest.mark.parametrize('whole', [False, True])
def test_tests_that_ran_a_statement_come_by_nearness(
  whole, tmp_path, monkeypatch
):
  monkeypatch.setattr(mutants, 'ROOT', tmp_path)
  (tmp_path / 'a.py').write_text('if f(\n  1\n):\n  g(\n    2\n  )\n')
  many = [f'far.py::test_{i}|run' for i in range(9)]
  lines = {1: ['', 'near.py::test_a|setup', *many], 5: ['own.py::test_b|run']}
  path = str(tmp_path / 'a.py') if whole else 'a.py'
  contexts = Contexts(path, lines)

  def found(line):
    return mutants.covering(contexts, 'a.py', line, ['near.py'])

  # Eight of a file come before the ninth, and a header is not its body.
  assert found(2)[:3] == [f'{x}.py::test_{i}' for x, i in NEAREST]
  assert len(found(3)) == 10
  assert found(3)[-1] == 'far.py::test_8'
  assert found(4) == ['own.py::test_b']
  assert found(6) == found(5)


def test_tests_of_special_cases_come_first(tmp_path, monkeypatch):
  monkeypatch.setattr(mutants, 'ROOT', tmp_path)
  source = 'def f(x):\n  if x:\n    raise x\n  return 1\n\n\nf(0)\n'
  (tmp_path / 'a.py').write_text(source)
  names = [f'a.py::test_{x}' for x in 'abc']
  lines = {2: names, 3: names[2:], 4: names[:2], 7: names[1:2]}
  contexts = Contexts('a.py', lines)
  found = mutants.covering(contexts, 'a.py', 2, [])
  assert found == [names[2], *names[:2]]
  assert mutants.covering(contexts, 'a.py', 7, []) == names[1:2]


def test_tests_are_chosen_by_the_seconds_that_they_took(tmp_path):
  (tmp_path / 'times.xml').write_text("""<testsuites><testsuite>
    <testcase classname="tests.test_a" name="test_it[a-1]" time="2.5"/>
    <testcase classname="tests.test_a" name="test_b" time="1.5"/>
    <testcase classname="tests.test_a" name="test_c" time="1"><failure/>
    </testcase></testsuite></testsuites>""")
  times = mutants.times_of(tmp_path / 'times.xml')
  one, two, bad = (f'tests/test_a.py::test_{x}' for x in ('it[a-1]', 'b', 'c'))
  assert times == {one: 2.5, two: 1.5, bad: float('inf')}
  assert mutants.within(['new', one, bad, two], times, 4) == ['new', one, two]
  assert mutants.within([two, one, 'new'], times, 3.9) == [two, 'new']
