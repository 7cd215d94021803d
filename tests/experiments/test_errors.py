"""The boundary of programs: what users cause is told from bugs."""

import ast
import functools
import json
import subprocess
import sys

import numpy as np
import pytest

from specjax.bench import results
from specjax.cli import command
from specjax.errors import UserError
from specjax.training import data, folders, generated
from tests.support.processes import ROOT
from tests.support.rows import row


def fail(error):
  raise error


@pytest.mark.parametrize(
  'error', [ValueError('of JAX'), KeyError('x'), OSError('without a file')]
)
def test_a_bug_keeps_its_traceback(error):
  with pytest.raises(type(error)):
    command.guard(functools.partial(fail, error))


@pytest.mark.parametrize(
  ('error', 'said'),
  [
    (UserError('a\n  b'), 'a b\n'),
    (PermissionError(13, 'Denied', '/a'), '/a: Denied; allow it'),
    (
      IsADirectoryError(21, 'A directory', '/a'),
      '/a: A directory; name a file',
    ),
    (FileNotFoundError(2, 'No such', '/a'), '/a: No such; check the path'),
    (OSError(28, 'No space', '/a'), '/a: No space; see that the disk has room'),
  ],
)
def test_what_users_cause_is_one_line(error, said, capsys):
  with pytest.raises(SystemExit) as stop:
    command.guard(functools.partial(fail, error))
  line = capsys.readouterr().err
  assert (stop.value.code, line.count('\n')) == (1, 1)
  assert line.startswith(f'error: {said}')


def test_programs_tell_users_from_bugs():
  """A bare ValueError would be shown as a bug."""
  bare = []
  of_code = {'own_models/tunix_sampler.py'}  # Called by other code.
  for folder in ('experiments', 'configs'):
    for file in (ROOT / folder).rglob('*.py'):
      name = file.relative_to(ROOT / folder).as_posix()
      for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Raise) or name in of_code:
          continue
        call = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if isinstance(call, ast.Name) and call.id == 'ValueError':
          bare.append(f'{file}:{node.lineno}')
  assert not bare


INTERRUPTED = """
import contextlib, time, types
from specjax.cli import command

class Lost:
  def __del__(self):
    signal.raise_signal(2)

def lose():
  Lost()
  time.sleep(60)

def swallow():
  with contextlib.suppress(KeyboardInterrupt):
    signal.raise_signal(2)
  time.sleep(60)

start = lambda: command.guard({}, resumes=True)
cli.importlib.import_module = lambda name: types.SimpleNamespace(start=start)
cli.main('run')
"""
STARTING = """
cli.importlib.import_module = lambda name: signal.raise_signal(2)
cli.main('run')
"""
GUARD = 'from specjax.cli import command; command.guard'
RUNNING = f'{GUARD}(lambda: signal.raise_signal(2), resumes=True)'


@pytest.mark.parametrize(
  ('code', 'status', 'said'),
  [
    (STARTING, 130, 'interrupted\n'),
    (RUNNING, 130, 'interrupted; the same command goes on'),
    (INTERRUPTED.format('lose'), 130, 'interrupted; the same'),
    (INTERRUPTED.format('swallow'), 130, 'interrupted\n'),
    (f"{GUARD}(lambda: print('x', flush=True))", 1, 'error: stdout: No space'),
  ],
)
def test_the_end_of_a_process_is_one_line(code, status, said):
  """A program is stopped, or has no room for its output.

  It is stopped while it starts, while it runs, and where its interrupt is lost,
  also where the tests run behind a shell, which makes processes ignore it.
  """
  code = f'import signal\nfrom specjax import cli\n{code}'
  with open('/dev/full', 'w') as full:
    done = subprocess.run(
      ['env', '--default-signal=INT', sys.executable, '-c', code],
      stdout=full,
      stderr=subprocess.PIPE,
      text=True,
      cwd=ROOT,
    )
  assert done.returncode == status
  assert done.stderr.startswith(said)
  assert done.stderr.count('\n') == 1


def test_a_full_disk_names_the_folder(tmp_path):
  folder = results.Folder(tmp_path / 'a', {})
  folder.add(row())
  (folder.path / 'rows.jsonl').unlink()
  (folder.path / 'rows.jsonl').symlink_to('/dev/full')
  with pytest.raises(UserError, match=r'results: .*No space left.*has room'):
    folder.add(row())


def test_texts_of_other_settings_are_refused(tmp_path):
  """They would fill windows that are shorter than they should be."""
  file = tmp_path / '000000.npy'
  np.save(file, np.zeros((8, 17), np.uint32))
  with pytest.raises(
    UserError, match=r'data: .*holds texts \(8, 17\).*ask for'
  ):
    generated._read_texts(file, (8, 33))
  file.write_bytes(b'x')
  with pytest.raises(UserError, match=r'data: .* is damaged .* remove it'):
    generated._read_texts(file, (8, 33))
  with pytest.raises(UserError, match=r'data: .* cannot be used .* move the'):
    data.write_arrays('data', file / '000000.npy', np.zeros(1))


def test_a_folder_is_for_one_thing(tmp_path):
  file = tmp_path / 'new/recipe.json'
  for _ in range(2):
    folders.hold('folder', file, {'a': (1, 2)}, 'it has another a')
  with pytest.raises(UserError, match=r'^folder: it has another a; name a'):
    folders.hold('folder', file, {'a': (1, 3)}, 'it has another a')
  assert json.loads(file.read_text()) == {'a': [1, 2]}
  assert [*file.parent.iterdir()] == [file]
  file.write_text('{')
  with pytest.raises(UserError, match=r'^folder: .*recipe\.json is damaged'):
    folders.hold('folder', file, {'a': (1, 2)}, 'it has another a')
