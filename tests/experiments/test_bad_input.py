"""What users cause ends in one clear line and exit status 1, in every program.

Programs run in this process, as `python -m` runs them; one that reads the
target's weights fails the test. What is tried stands in `bad_inputs`.
"""

import json
import os
import runpy
import sys

import pytest

from specjax import checkpoints
from tests.support import bad_inputs, tiny
from tests.support.rows import row

_CONFIGS = {
  'tiny.py': """
import pathlib
from tests.support import tiny
def get_config():
  return tiny.experiment(pathlib.Path('{}'), quick=False, results='{}/never')
""",
  'parity.py': """
import pathlib
from specjax.bench.config import Parity
from tests.support import tiny
def get_config():
  x = tiny.experiment(pathlib.Path('{}'), quick=False, temperatures=(0.0,))
  return Parity(**vars(x) | {'results': '{}/never'})
""",
  'types.py': """
import pathlib
from specjax.bench.config import Candidate
from tests.support import tiny
def get_config():
  x = tiny.experiment(pathlib.Path('{}'))
  x.candidates['draft'].options['inner'] = Candidate('a.load', gamma=2.5)
  return x
""",
  'certificate.py': """
from specjax.bench.config import Certificate
def get_config():
  return Certificate(rows=True)
""",
  'heads.py': """
from specjax.training.recipes import *
def get_config():
  return Heads(
    folder='{}/heads', target='{}/target', data='{}/data',
    trainable='specjax.drafters.medusa.trainable',
    optimization=Optimization(((2, 1e-3), (4, 0.0)), 4, 32),
    texts=Texts(8, 8, batch=8, length=32), held_out=HeldOut(1, 16, 8),
  )
""",
  'syntax.py': 'def get_config(:\n',
  'function.py': 'x = 1\n',
  'nothing.py': 'def get_config():\n  pass\n',
  'bug.py': 'def get_config():\n  return {}[1]\n',
}
_TEXTS = {
  'half.jsonl': b'{"text": "ab \\ud800 c"}\n',
  'two.jsonl': b'{"a": "x", "b": "y"}\n',
  'talks.jsonl': b'{"turns": ["a", "b"], "category": "code"}\n',
  'one.json': b'{"text": "a"}',
  'latin.txt': b'\xff\xfe abc\n',
  'short.txt': b'a\n',
}
_GOOD = json.dumps(row()) + '\n'
# config.json and rows.jsonl of folders of results.
_RESULTS = {
  'cut': ('{}', f'{_GOOD}{{"a": 1\n{_GOOD}'),
  'binary': ('{}', '\udcff\n'),
  'config': ('{"a"', _GOOD),
  'other': ('{"seed": 1}', _GOOD),
}


# Programs are imported already.
pytestmark = pytest.mark.filterwarnings('ignore::RuntimeWarning')


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """A folder with a pair, and configs, prompts and results, good and bad."""
  folder = tmp_path_factory.mktemp('place')
  tiny.write_pair(folder)
  for name, text in _CONFIGS.items():
    (folder / name).write_text(text.replace("'{}", f"'{folder}"))
  for name, content in _TEXTS.items():
    (folder / name).write_bytes(content)
  for name, (config, rows) in _RESULTS.items():
    (folder / name / 'rows').mkdir(parents=True)
    (folder / name / 'rows' / 'config.json').write_text(config)
    file = folder / name / 'rows' / 'rows.jsonl'
    file.write_bytes(rows.encode(errors='surrogateescape'))
  (folder / 'full').mkdir()
  (folder / 'full' / 'notes.txt').write_text('mine')
  os.mkfifo(folder / 'pipe')
  return folder


def no_weights(path, *arguments, **options):
  """`checkpoints.load`, for what ends before the target is read."""
  del arguments, options  # Unused.
  assert not str(path).endswith('target'), 'the target was read'


class Runner:
  """Runs programs in this process."""

  def __init__(self, place, monkeypatch, capsys):
    self.place, self.capsys = place, capsys
    self.patch = monkeypatch
    self.patch.setattr(checkpoints, 'load', no_weights)
    # Remedies are spelled by the name of the program, whoever runs the tests.
    self.patch.setattr(sys.modules['__main__'], '__spec__', None)

  def run(self, program: str, arguments: list[str]):
    """Exit status, stdout and stderr."""
    self.patch.setattr(sys, 'argv', [program, *arguments])
    with pytest.raises(SystemExit) as stop:
      runpy.run_module(program, run_name='__main__')
    return stop.value.code, *self.capsys.readouterr()

  def arguments(self, text: str) -> list[str]:
    return text.replace('{}', str(self.place)).split()

  def refuses(self, program: str, arguments: list[str], *words: str) -> None:
    """Checks that a program ends in one line, which has some words."""
    status, _, err = self.run(f'experiments.{program}', arguments)
    assert status == 1
    # Where there is no torch, transformers says so in a line of its own.
    (line,) = (x for x in err.splitlines() if not x.startswith('[transf'))
    assert line.startswith('error: ')
    for word in words:
      assert word in line
    assert not (self.place / 'never').exists()
    # So the right recipe may have the folder.
    assert not list(self.place.glob('**/recipe.json'))


@pytest.fixture
def runner(place, monkeypatch, capsys):
  return Runner(place, monkeypatch, capsys)


@pytest.mark.parametrize(
  ('program', 'config', 'overrides', 'words'), bad_inputs.fields()
)
def test_a_field(runner, program, config, overrides, words):
  file = config if '/' in config else '{}/' + config
  flags = [f'--{one}' for one in overrides.split()]
  runner.refuses(program, runner.arguments(' '.join([file, *flags])), words)


@pytest.mark.parametrize('case', bad_inputs.ARGUMENTS.strip().splitlines())
def test_an_argument(runner, case):
  arguments, _, words = case.partition(' => ')
  program, *arguments = runner.arguments(arguments)
  runner.refuses(program, arguments, words)


def test_a_prompt_that_is_no_text_or_too_long(runner):
  for prompt in ('\udcff', 200 * 'x+'):
    arguments = runner.arguments(f'{{}}/tiny.py --prompt={prompt}')
    runner.refuses('run', arguments, 'prompt')


@pytest.mark.parametrize(('name', 'message'), bad_inputs.OWN)
def test_a_drafter_of_ones_own(runner, name, message):
  load = f'tests.support.user_drafters.{name}'
  arguments = runner.arguments(f'{{}}/tiny.py --drafters={load}')
  runner.refuses('run', arguments, 'drafters: ', load, message)


def test_the_first_draft_of_ones_own_drafter_is_looked_at(runner, monkeypatch):
  """Unknown tokens ran silently: JAX reads some row for any index."""
  monkeypatch.undo()
  load = 'tests.support.user_drafters.unknown_tokens'
  arguments = runner.arguments(f'{{}}/tiny.py --drafters={load}')
  runner.refuses(
    'run',
    arguments,
    'user_drafters (tests.support.user_drafters.unknown_tokens) with gamma 1',
    'tokens must be from 0 to 2047, got 5007',
  )
