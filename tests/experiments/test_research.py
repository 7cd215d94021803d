"""The way from an idea to a table: what begins it, and that it goes through."""

import functools
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from specjax.bench import results
from specjax.bench.config import Certificate
from specjax.bench.plan import plan
from specjax.cli import names
from specjax.errors import UserError
from specjax.programs import new
from tests.support import rows
from tests.support.processes import ROOT

PAGE = ROOT / 'docs/research.md'


@pytest.fixture
def here(tmp_path, monkeypatch):
  """An empty folder to begin in, from which modules are imported."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  return tmp_path


def load(path):
  """What a config file returns."""
  space = {}
  exec(compile(path.read_text(), path, 'exec'), space)
  return space['get_config']()


@pytest.mark.parametrize('kind', sorted(new.ATTRIBUTES))
def test_what_is_begun_can_be_planned_and_is_neat(here, kind, capsys):
  name = f'my_{kind}'
  new.main(kind, name, '.')
  *lines, last = capsys.readouterr().out.splitlines()
  assert "pip install -e '.[test]'" in lines
  said = json.loads(last)
  assert said['module'] == f'{name}.{new.ATTRIBUTES[kind]}'
  assert sorted(said['files']) == sorted(
    [f'{name}.py', f'test_{name}.py', f'compare_{name}.py']
  )
  planned = plan(load(here / f'compare_{name}.py'))
  if kind == 'rule':
    assert names.resolve('rule', 'my_rule.rule').lossless
    assert 'my_rule.rule' in next(iter(planned.drafters.values())).rules
  else:
    assert name in planned.drafters
  for command in (['check'], ['format', '--check']):
    subprocess.run(
      [sys.executable, '-m', 'ruff', *command, '--config',
       ROOT / 'pyproject.toml', '--config', 'lint.isort.known-first-party='
       '["benchmarks", "experiments", "specjax"]', here],
      check=True,
    )  # fmt: skip


def test_files_may_go_into_a_folder(here):
  (here / 'ideas').mkdir()
  new.write('policy', 'slow_start', pathlib.Path('ideas'))
  x = load(here / 'ideas/compare_slow_start.py')
  option = x.candidates['slow_start'].options['policy']
  assert option == 'ideas.slow_start.policy'
  assert plan(x).drafters['slow_start'].options['policy'].start() == 2


@pytest.mark.parametrize(
  ('name', 'folder', 'message'),
  [
    ('not-one', '.', 'is no name of a module'),
    ('class', '.', 'is no name of a module'),
    ('Echo', '.', 'is no name of a module'),
    ('json', '.', 'a module json is there already'),
    ('echo', 'none', 'none is no folder'),
    ('echo', '/', 'is outside of'),
    ('echo', 'a-b', 'cannot be part of the name'),
    ('taken', '.', 'test_taken.py exists'),
  ],
)
def test_names_that_cannot_be_used_are_refused(here, name, folder, message):
  (here / 'a-b').mkdir()
  (here / 'test_taken.py').write_text('')
  with pytest.raises(UserError, match=message):
    new.write('rule', name, pathlib.Path(folder))
  assert not (here / f'{name}.py').exists()


def numbers(page: str, title: str) -> list[list[str]]:
  """The lines of the first table behind a heading."""
  return rows.cells(page[page.index(title) :])[1:]


def near(one: float, other: float) -> bool:
  """As equal as other processors' rounding may leave it."""
  return abs(one - other) <= 0.02 * max(abs(one), 0.5)


@pytest.mark.slow
def test_the_tutorial_prints_what_it_says(here):
  page = PAGE.read_text()
  blocks = re.findall(r'```sh\n(.*?)```', page, re.DOTALL)
  lines = [line for block in blocks for line in block.splitlines()]
  timed = 'specjax run compare_echo.py --results=runs/echo-timed'
  assert timed in lines  # No test takes times: tables are of the other run.
  environment = {
    'PYTHONPATH': str(ROOT),
    # The second run takes the programs of the first.
    'JAX_ENABLE_COMPILATION_CACHE': 'true',
    'XDG_CACHE_HOME': str(here / 'cache'),
  }
  printed = {}
  for line in lines:
    if line == timed:
      continue
    line = re.sub('^specjax', 'python -m specjax', line)
    line = line.replace('runs/echo-timed', 'runs/echo')
    if 'certify' in line:  # How sure it is has its own tests.
      line += ' --rounds=8'
    done = subprocess.run(
      line.replace('python', sys.executable, 1), shell=True, cwd=here,
      env=os.environ | environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed[' '.join(line.split()[2:4])] = done.stdout
  verdict = json.loads(printed['specjax certify'].splitlines()[-1])
  assert verdict['verdict'] == 'exact'
  runs = {
    name: {(r['drafter'], r['temperature']): r for r in made}
    for name in ('echo', 'echo2')
    for made in [results.read_rows(here / f'runs/{name}/rows.jsonl')[0]]
  }
  table = numbers(page, '## 3.')
  assert len(table) == len(runs['echo'])
  for drafter, temperature, alpha, tau in table:
    row = runs['echo'][drafter, float(temperature)]
    found = map(float, re.findall(r'[\d.]+', tau))
    assert near(row['alpha'], float(alpha))
    for one, other in zip((row['tau'], *row['tau_ci']), found, strict=True):
      assert near(one, other)
  for drafter, temperature, before, after, change, beyond in numbers(
    page, '## 4.'
  ):
    cell = drafter, float(temperature)
    assert near(runs['echo'][cell]['tau'], float(before))
    assert near(runs['echo2'][cell]['tau'], float(after))
    said = numbers(printed['specjax compare'], '### tau')
    (cells,) = (x for x in said if (x[0], x[4]) == (drafter, temperature))
    value = float(change.partition('%')[0])
    assert abs(float(cells[8].partition('%')[0]) - value) < 1
    assert cells[-1] == beyond
  assert (here / 'runs/echo/tables.tex').exists()


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['rule', 'policy'])
def test_what_is_begun_is_exact(here, kind, capsys, monkeypatch):
  """By the test that comes with it, of fewer texts."""
  new.main(kind, f'own_{kind}', '.')
  test = importlib.import_module(f'test_own_{kind}')
  few = functools.partial(Certificate, rounds=8)
  monkeypatch.setattr(test, 'Certificate', few)
  getattr(test, f'test_own_{kind}_is_exact')(here / 'rows', capsys)
  said = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert said['verdict'] == 'exact'
