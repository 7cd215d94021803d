"""The command line: whatever is wrong with it is one line that says so."""

import subprocess
import sys

import pytest
from ml_collections.config_flags import config_path

from configs import quickstart
from experiments.setup import command
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
  ],
)
def test_one_line_and_no_traceback(program, flags, message):
  done = subprocess.run(
    [sys.executable, '-m', program, *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode != 0
  assert not done.stdout
  # Where there is no torch, transformers says so in a line of its own.
  (line,) = (
    line
    for line in done.stderr.splitlines()
    if not line.startswith('[transformers]')
  )
  assert line.startswith('error: --config')
  assert message in line
