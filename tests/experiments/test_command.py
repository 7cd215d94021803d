"""The command line: whatever is wrong with it is one line that says so."""

import dataclasses
import runpy
import subprocess
import sys

import pytest

import specjax
from experiments.papers.published import Calculated, Published
from specjax.bench import config as settings
from specjax.bench.config import Candidate, Experiment, Parity
from specjax.bench.plan import settings_of
from specjax.bench.study import Refilled
from specjax.cli import COMMANDS, command, fields, names
from specjax.errors import UserError
from specjax.programs import parity, predict
from specjax.serving import config as service_settings
from specjax.serving.config import Serving
from specjax.training import recipes
from tests.support import processes
from tests.support.processes import ROOT

STUDIES = [
  f'experiments.{file.stem}'
  for file in sorted((ROOT / 'experiments').glob('*.py'))
  if '__main__' in file.read_text() and file.stem not in COMMANDS
]


def run_here(monkeypatch, capsys, module, *arguments) -> tuple[int, str, str]:
  """Status, stdout and stderr of a program that runs in this process."""
  monkeypatch.setattr(sys, 'argv', [module, *arguments])
  with pytest.raises(SystemExit) as end:
    runpy.run_module(module, run_name='__main__', alter_sys=True)
  return end.value.code or 0, *capsys.readouterr()


@pytest.mark.filterwarnings('ignore:.*found in sys.modules')
@pytest.mark.parametrize('program', [*COMMANDS, *STUDIES])
def test_help_says_what_a_program_is_for_and_takes(
  program, monkeypatch, capsys
):
  words = [program] if program in STUDIES else ['specjax', program]
  status, shown, err = run_here(monkeypatch, capsys, *words, '--help')
  assert (status, err) == (0, '')
  started = f'python -m {" ".join(words)}'
  assert f'  {started}' in shown  # An example.
  assert f'usage: {started} ' in shown
  # What is calculated draws nothing.
  calculates = program in ('experiments.paper_costs', 'compiled')
  draws = ' CONFIG [' in shown and not calculates
  assert ('--seed: int = 0\n' in shown) == draws


@pytest.mark.filterwarnings('ignore:.*found in sys.modules')
def test_the_console_lists_its_commands(monkeypatch, capsys):
  status, shown, _ = run_here(monkeypatch, capsys, 'specjax', '--help')
  assert status == 0
  assert all(f'  {name} ' in shown for name in COMMANDS)
  status, _, err = run_here(monkeypatch, capsys, 'specjax', 'rum')
  assert status == 1
  assert 'did you mean run?' in err
  for words, spelling in (
    (['specjax', 'train'], 'python -m specjax run'),
    (['experiments.train'], 'python -m experiments.run'),
  ):
    _, _, err = run_here(monkeypatch, capsys, *words, 'quickstart')
    assert f'give it to {spelling}\n' in err
  for name in ('train', 'report'):  # Each has a parser of its own.
    found = run_here(monkeypatch, capsys, 'specjax', name, '--version')
    assert found == (0, f'specjax {specjax.__version__}\n', '')


def test_help_shows_the_values_of_a_config_and_uses_no_device():
  flags = '--config=configs/quickstart.py', '--config.batch=4', '--help'
  done = processes.run('experiments.run', *flags, JAX_PLATFORMS='nowhere')
  assert (done.returncode, done.stderr) == (0, '')
  for text in (
    '  --batch: int = 4\n      prompts decoded together.\n',
    '  --candidates.draft-128.gamma: int = 3\n',
    '  --prompts.count: int = 16\n',
    "  --verifiers: tuple[str, ...] = ('token',)\n",
  ):
    assert text in done.stdout


def test_commands_without_models_are_started_without_jax():
  code = """
import sys
from specjax import cli
sys.argv = ['specjax', 'new', '--help']
try:
  cli.main()
except SystemExit:
  assert 'jax' not in sys.modules
"""
  subprocess.run([sys.executable, '-c', code], check=True, cwd=ROOT)


def parsed(*argv, kinds=(Experiment,), extends=False):
  return command.parse(argv, kinds, extends)


@pytest.mark.parametrize(
  'argv',
  [
    ('quickstart', '--batch=4', '--quick', "--gammas=(1, 2)"),
    ('--config', 'quickstart', '--config.batch=4', '--config.quick=True',
     '--config.gammas=1,2'),
    ('configs/quickstart.py', '--batch=4', '--quick', '--gammas=[1,2]'),
  ],
)  # fmt: skip
def test_one_command_in_several_spellings(argv):
  x = parsed(*argv)
  assert (x.name, x.batch, x.quick) == ('quickstart', 4, True)
  assert tuple(x.gammas) == (1, 2)


@pytest.mark.parametrize(
  ('part', 'kind', 'shrink'),
  [
    ('quickstart', Experiment, Experiment.shrink),
    ('quickstart', Experiment, predict.shrink),
    ('pair:parity', Parity, parity.shrink),
  ],
)
def test_fields_of_the_command_line_stay_in_the_quick_version(
  part, kind, shrink
):
  kinds = (kind,)
  given = '--max_new_tokens=70', '--config.prompts.count=7', '--gammas=1,2,3'
  x = parsed(part, '--quick', '--batches=1,2,6', *given, kinds=kinds)
  shrink(x)
  assert (x.max_new_tokens, x.prompts.count) == (70, 7)
  assert (x.gammas, x.batches) == ((1, 2, 3), (1, 2, 6))
  x = parsed(part, '--quick', kinds=kinds)
  shrink(x)
  assert x.max_new_tokens < 70
  assert x.prompts.count < 7


def test_prompts_of_the_quick_version_are_enough_for_given_batches():
  x = parsed('quickstart', '--quick', '--batches=1,2,6')
  x.shrink()
  assert x.prompts.count == 6


def test_a_file_of_prompts_has_domains_of_its_own():
  for more, expected in (
    ((), ('code',)),
    (('--prompts.path=a.jsonl',), ()),
    (('--prompts.dataset=a',), ()),
    (('--prompts.path=a.jsonl', '--config.prompts.domains=qa'), ('qa',)),
  ):
    assert tuple(parsed('explain', *more).prompts.domains) == expected


def test_values_have_the_declared_type(monkeypatch):
  monkeypatch.setenv('HOME', '/home/me')
  x = parsed(
    'pair:parity', '--target.path=~/models/a', '--temperatures=0',
    '--verifiers=token', '--drafters=lm:a,ngram:0.5,2,b', '--prompt=~/ is home',
    '--prompts.length=None', '--sampling.top_p=1', kinds=(Parity,),
  )  # fmt: skip
  assert x.target.path == '/home/me/models/a'
  assert x.prompt == '~/ is home'
  assert (x.temperatures, x.verifiers) == ((0,), ('token',))
  assert x.drafters == ('lm:a', 'ngram:0.5,2', 'b')
  assert x.prompts.length is None
  assert isinstance(x.sampling.top_p, float)


def test_defaults_are_what_pages_and_papers_have():
  some = 'a', None, {}
  for made, values in (
    (Experiment(*some), {'batch': 1, 'seed': 0, 'temperatures': (0.0, 1.0)}),
    (Experiment(*some), {'timed': True, 'probe': True, 'rounds': False}),
    (Parity(*some), {'temperatures': (0.0,), 'max_new_tokens': 64}),
    (settings.Mesh(), {'data': 1, 'model': 1, 'processes': 1, 'process': 0}),
    (settings.Mesh(), {'timeout': 300}),
    (settings.Certificate(), {'rows': 64, 'rounds': 128, 'level': 1e-3}),
    (settings.Certificate(), {'boost': 1.1, 'seed': 0, 'quick': False}),
    (settings.Compiled(), {'gamma': 4, 'widths': (4, 2, 1), 'alpha': 0.8}),
    (settings.Compiled(), {'temperature': 1.0, 'batch': 1, 'slots': 2048}),
    (settings.Compiled(), {'used': 1100}),
    (Refilled(*some), {'batch': 16, 'max_new_tokens': 128, 'shortest': 16}),
    (Refilled(*some), {'group': 4, 'repeats': 2, 'temperatures': (1.0,)}),
  ):
    assert values.items() <= vars(made).items()
  assert (settings.NEW_TOKENS, settings.Draft().vocabulary) == (128, 0)


def test_a_draft_of_a_gguf_file_comes_in_four_bits_too():
  given = {'vocabulary': 9, 'dtype': 'float16', 'policy': 'heuristic'}
  x = Experiment('a', None, {'b': Candidate('b', 1)}, rounds=True)
  x.draft = settings.Draft('a.gguf', **given)
  few = Candidate(
    'quantized', 4, 'a.gguf', {**given, 'bits': 4, 'rounds': True}
  )
  lm = Candidate('lm', 4, 'a.gguf', given)
  assert x.known == {'lm': lm, 'b': Candidate('b', 1), 'lm-int4': few}
  x.draft.path, x.draft.load = '', 'a.load'
  assert x.known['lm'].path == 'load:a.load'
  assert len(x.known) == 2


def test_every_field_has_a_sentence():
  kinds = [
    kind
    for module in (settings, recipes, service_settings)
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind) and isinstance(kind, type)
  ] + [Published, Calculated]
  for kind in kinds:
    names = {field.name for field in dataclasses.fields(kind)}
    assert names == fields.sentences(kind).keys(), kind


def test_a_program_may_add_fields_to_any_experiment():
  argv = ['configs/quickstart.py', '--candidates.draft-128.gamma=2']
  made = parsed(*argv, '--port=81', kinds=(Serving,), extends=True)
  assert type(made) is Serving
  assert (made.port, made.rows) == (81, 4)
  assert made.candidates['draft-128'].gamma == 2
  assert settings_of(made).items() >= settings_of(parsed(*argv)).items()
  extends = {'kinds': (Serving,), 'extends': True}
  for wrong, more, says in (
    (
      (*argv, '--prot=1'),
      extends,
      "no field 'prot'; did you mean 'prompt' or 'port'",
    ),
    ((*argv, '--port=81'), {}, "Experiment has no field 'port'"),
    (('certify',), extends, 'gives Certificate'),
  ):
    with pytest.raises(UserError, match=says):
      parsed(*wrong, **more)


def test_options_of_a_drafter_are_a_dictionary():
  flag = "--candidates['draft-128'].options"
  more = '--candidates.ngram.options.longest=3'
  x = parsed('quickstart', f'{flag}={{"policy": "a:1"}}', more)
  assert x.candidates['draft-128'].options == {'policy': 'a:1'}
  assert x.candidates['ngram'].options == {'longest': 3}
  with pytest.raises(UserError, match='options must be a dictionary'):
    parsed('quickstart', '--candidates.ngram.options=3')


def test_a_file_among_the_drafters_has_a_short_name(tmp_path, monkeypatch):
  (tmp_path / 'mine.py').write_text('def load(target):\n  pass\n')
  places = [*specjax.drafters.__path__, str(tmp_path)]
  monkeypatch.setattr(specjax.drafters, '__path__', places)
  assert names.LOAD.full('mine') == 'specjax.drafters.mine.load'
  assert 'plain' not in names.LOAD.choices()  # It is no loader.
  monkeypatch.delitem(sys.modules, 'specjax.drafters.mine')
  monkeypatch.delattr(specjax.drafters, 'mine')
