"""The command line: whatever is wrong with it is one line that says so."""

import ast
import dataclasses
import runpy
import sys

import pytest

import specjax
from experiments.papers.published import Calculated, Published
from specjax.bench import config as settings
from specjax.bench.plan import settings_of
from specjax.cli import command, fields, names
from specjax.errors import UserError
from specjax.serving import config as service_settings
from specjax.serving.config import Serving
from specjax.training import recipes
from tests.support import processes
from tests.support.processes import ROOT

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
  assert '--version' in shown
  assert f'  python -m {program} ' in purpose  # An example.
  assert f'usage: python -m {program} ' in shown
  # What is calculated draws nothing.
  draws = '--config FILE' in shown and program != 'experiments.paper_costs'
  assert ('--config.seed: int = 0\n' in shown) == draws
  version = run_here(monkeypatch, capsys, program, '--version')
  assert version == f'specjax {specjax.__version__}\n'


def test_help_shows_the_values_of_a_config_and_uses_no_device():
  flags = '--config=configs/quickstart.py', '--config.batch=4', '--help'
  done = processes.run('experiments.run', *flags, JAX_PLATFORMS='nowhere')
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
    for module in (settings, recipes, service_settings)
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind)
  ] + [Published, Calculated]
  for kind in kinds:
    names = {field.name for field in dataclasses.fields(kind)}
    assert names == fields.sentences(kind).keys(), kind


def test_a_program_may_add_fields_to_any_experiment():
  argv = ['serve', '--config', 'configs/quickstart.py', '--config.port=81']
  flag = "--config.candidates['draft-128'].gamma"
  made = command.parse([*argv, f'{flag}=2'], None, Serving)
  assert type(made.config) is Serving
  assert (made.config.port, made.config.rows, made.rest) == (81, 4, [])
  assert made.config.candidates['draft-128'].gamma == 2
  plain = command.parse(argv[:-1]).config
  plain.candidates['draft-128'].gamma = 2
  assert settings_of(made.config).items() >= settings_of(plain).items()
  with pytest.raises(UserError, match=r"no field 'prot' .did you"):
    command.parse([*argv, '--config.prot=1'], None, Serving)
  with pytest.raises(UserError, match="Experiment has no field 'port'"):
    command.parse(argv)
  other = ['serve', '--config=configs/certify.py']
  assert not isinstance(command.parse(other, None, Serving).config, Serving)


def test_options_of_a_drafter_are_a_dictionary():
  argv = ['run', '--config=configs/quickstart.py']
  flag = "--config.candidates['draft-128'].options"
  config, *_ = command.parse([*argv, f'{flag}={{"policy": "a:1"}}'])
  assert config.candidates['draft-128'].options == {'policy': 'a:1'}
  flag = '--config.candidates.ngram.options'
  config, *_ = command.parse([*argv, f'{flag}={{"longest": 3}}'])
  assert config.candidates['ngram'].options == {'longest': 3}
  with pytest.raises(UserError, match='options=3: give a dictionary as Python'):
    command.parse([*argv, f'{flag}=3'])
  with pytest.raises(UserError, match='cannot be overridden so'):
    command.parse([*argv, '--config.candidates[draft-128].gamma=3'])


def test_a_file_among_the_drafters_has_a_short_name(tmp_path, monkeypatch):
  (tmp_path / 'mine.py').write_text('def load(target):\n  pass\n')
  places = [*specjax.drafters.__path__, str(tmp_path)]
  monkeypatch.setattr(specjax.drafters, '__path__', places)
  assert names.LOAD.full('mine') == 'specjax.drafters.mine.load'
  assert 'plain' not in names.LOAD.choices()  # It is no loader.
  monkeypatch.delitem(sys.modules, 'specjax.drafters.mine')
  monkeypatch.delattr(specjax.drafters, 'mine')
