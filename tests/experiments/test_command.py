"""The command line: whatever is wrong with it is one line that says so."""

import ast
import dataclasses
import os
import runpy
import subprocess
import sys

import pytest
from ml_collections.config_flags import config_path

import specjax
from configs import quickstart
from experiments import recipes, settings
from experiments.errors import UserError
from experiments.papers.published import Calculated, Published
from experiments.setup import command, fields
from tests.experiments.test_run import ROOT


@pytest.mark.parametrize(
  ('field', 'message'),
  [
    ('gama', "Experiment has no field 'gama' (did you mean 'gammas'?"),
    ('prompts.cuont', "Prompts has no field 'cuont' (did you mean 'count'?"),
    ('promts.count', "no field 'promts' (did you mean 'prompts'?"),
    ('seed.first', "a value of type int has no field 'first'"),
    ('candidates.lmx.gamma', "there is no 'lmx' in the config"),
    ('xyzzy', "no field 'xyzzy'; its fields are name, target, "),
  ],
)
def test_an_unknown_field_is_named_with_the_known(field, message):
  with pytest.raises(KeyError) as error:
    config_path.get_type(field, quickstart.get_config())
  assert message in command.explain(error.value)


def start(program, *flags, **environment) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, '-m', program, *flags],
    cwd=ROOT,
    env=os.environ | environment,
    capture_output=True,
    text=True,
    check=False,
  )


@pytest.mark.parametrize(
  ('program', 'flags', 'message'),
  [
    (
      'experiments.train',
      ['--config=configs/embedded_pair.py', '--config.foldr=x'],
      "Recipe has no field 'foldr' (did you mean 'folder'?",
    ),
    (
      'experiments.run',
      ['--config=configs/embedded_pair.py'],
      'gives Recipe where this program takes Experiment',
    ),
    ('experiments.run', ['--config=nowhere.py'], 'cannot be read:'),
    ('experiments.run', ['--config=nowhere.py', '--help'], 'cannot be read:'),
  ],
)
def test_one_line_and_no_traceback(program, flags, message):
  done = start(program, *flags)
  assert done.returncode == 1
  assert not done.stdout
  (line,) = done.stderr.splitlines()
  assert line.startswith('error: --config')
  assert message in line


PROGRAMS = [
  f'{folder}.{file.stem}'
  for folder in ('experiments', 'benchmarks')
  for file in sorted((ROOT / folder).glob('*.py'))
  if '__main__' in file.read_text()
]


def run_here(monkeypatch, capsys, program, *flags) -> str:
  """What a program prints that ends well, run in this process."""
  monkeypatch.setattr(sys, 'argv', [program, *flags])
  with pytest.raises(SystemExit) as end:
    runpy.run_module(program, run_name='__main__', alter_sys=True)
  shown = capsys.readouterr()
  assert not end.value.code
  assert not shown.err
  return shown.out


@pytest.mark.filterwarnings('ignore:.*found in sys.modules')
@pytest.mark.parametrize('program', PROGRAMS)
def test_help_says_what_a_program_is_for_and_takes(
  program, monkeypatch, capsys
):
  shown = run_here(monkeypatch, capsys, program, '--help')
  purpose = ast.get_docstring(
    ast.parse((ROOT / program.replace('.', '/')).with_suffix('.py').read_text())
  )
  assert purpose in shown
  assert f'  python -m {program} ' in purpose  # An example.
  assert f'usage: python -m {program} ' in shown
  assert ('--config.seed: int = 0\n' in shown) == ('--config FILE' in shown)
  version = run_here(monkeypatch, capsys, program, '--version')
  assert version == f'specjax {specjax.__version__}\n'


def test_help_shows_the_values_of_a_config_and_uses_no_device():
  done = start(
    'experiments.run',
    '--config=configs/quickstart.py',
    '--config.batch=4',
    '--help',
    JAX_PLATFORMS='nowhere',
  )
  assert (done.returncode, done.stderr) == (0, '')
  for text in (
    '  --config.batch: int = 4\n      prompts decoded together.\n',
    "  --config.candidates['draft-128'].gamma: int = 3\n",
    '  --config.prompts.count: int = 16\n',
    "  --config.verifiers: tuple[str, ...] = ('token',)\n",
  ):
    assert text in done.stdout


def test_every_field_has_a_sentence():
  kinds = [
    kind
    for module in (settings, recipes)
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind)
  ] + [Published, Calculated]
  for kind in kinds:
    names = {field.name for field in dataclasses.fields(kind)}
    assert names == fields.sentences(kind).keys(), kind


def test_options_of_a_drafter_are_a_dictionary():
  argv = ['run', '--config=configs/quickstart.py']
  flag = "--config.candidates['draft-128'].options"
  config, _ = command.parse([*argv, f'{flag}={{"policy": "a:1"}}'])
  assert config.candidates['draft-128'].options == {'policy': 'a:1'}
  flag = '--config.candidates.ngram.options'
  config, _ = command.parse([*argv, f'{flag}={{"longest": 3}}'])
  assert config.candidates['ngram'].options == {'longest': 3}
  with pytest.raises(UserError, match='options=3: give a dictionary as Python'):
    command.parse([*argv, f'{flag}=3'])
  with pytest.raises(UserError, match='cannot be overridden so'):
    command.parse([*argv, '--config.candidates[draft-128].gamma=3'])
