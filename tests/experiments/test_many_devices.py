"""Simulated devices, in one process and in two, against a single one."""

import json
import os
import signal
import socket
import subprocess

import pytest

from specjax.programs import generate
from tests.experiments.test_run import CONFIG
from tests.support import processes, resumed, tiny
from tests.support.many_devices import SIZES

CPU = {'JAX_PLATFORMS': 'cpu'}
FLAGS = os.environ.get('XLA_FLAGS', '')
EIGHT, FOUR, TWO = (
  {'XLA_FLAGS': f'{FLAGS} --xla_force_host_platform_device_count={n}'}
  for n in (8, 4, 2)
)


@pytest.fixture(scope='module')
def found(tmp_path_factory):
  folder = tmp_path_factory.mktemp('devices')
  done = python('tests.support.many_devices', folder, **EIGHT)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_texts_are_those_of_one_device(found):
  """In float64: every row, greedy and sampled, token for token.

  Everything lies where it is declared to, takes what was predicted, and stays
  there.
  """
  meshes = {name: x for name, x in found.items() if 'collectives' in x}
  assert len(meshes) == 3
  for name, x in meshes.items():
    one = found[f'{name.split()[0]} 1x1 False']
    assert x['texts'] == one['texts'], name
    assert x['accepted'] == one['accepted'] > 0
    assert x['placed']
    assert x['kept']
    for part in x.keys() & {'target', 'draft'}:
      sizes = x[part]
      assert sizes['declared']
      assert sizes['parameters'] == sizes['predicted_parameters']
      assert sizes['cache'] == sizes['predicted_cache']
  assert all(x['donated'] for x in found.values())
  rows = found['lm 1x1 False']['texts']
  assert len({tuple(row) for row in rows}) > 4
  # Four heads: 4 devices have one each, and 8 all of them.
  cache = {name: x['target']['cache'][0] for name, x in meshes.items()}
  rows, both, heads = (
    cache[name] for name in ('ngram 8x1 False', 'lm 2x4 True', 'lm 1x8 False')
  )
  assert (rows, heads) == (both, 8 * both)
  split, whole = (
    found[name]['draft']['parameters'][0]
    for name in ('lm 2x4 True', 'lm 1x8 False')
  )
  assert 3 * split < whole


@pytest.mark.slow
def test_a_step_exchanges_what_it_must(found):
  """Rows: whether all are done. Models: two sums a layer, and the logits."""
  none = {'turn_count': 0, 'turn_bytes': 0}
  rows = found['ngram 8x1 False']['collectives']
  assert rows == {'all-reduce': {'count': 1, 'bytes': 1} | none}
  # The embedding and each MLP, for 8 rows of 3 tokens, 16 wide. Eight devices
  # do not divide four heads: attention is whole, and so is the draft.
  sums = {'count': 1 + 2, 'bytes': 3 * 8 * 3 * 16 * 8}
  logits = {'count': 1, 'bytes': 8 * 3 * 32 * 8}
  assert found['lm 1x8 False']['collectives'] == {
    'all-reduce': sums | none,
    'all-gather': logits | none,
  }

  # Both models split: five sums and one for all rows; the draft three, twice.
  both = found['lm 2x4 True']['collectives']
  assert both.keys() == {'all-reduce', 'all-gather'}
  assert both['all-reduce']['count'] == 5 + 1 + 2 * 3
  assert both['all-gather']['count'] == 1 + 2


JOINS = """
import os, signal, sys, time
from specjax.bench.config import Mesh
from specjax.cli import command, hosts

coordinator, process, timeout, what = sys.argv[1:]

def main():
  hosts.join(Mesh(1, 1, False, 2, int(process), coordinator, int(timeout)))
  if what != 'idle':
    hosts.broadcast(1)  # All are there.
  if process == '1':
    if what == 'bug':
      raise KeyError('x')
    os.kill(os.getpid(), signal.SIGKILL)
  if what == 'idle':
    time.sleep(100)
  hosts.broadcast(2)

command.guard(main)
"""


def python(program, *flags, **environment) -> subprocess.CompletedProcess:
  return processes.run(program, *flags, **CPU, **environment)


def join(coordinator, process, timeout, what='idle') -> subprocess.Popen:
  """One of two processes: the other one dies once both are there."""
  program = '-c', JOINS, coordinator, process, timeout, what
  return processes.start(*program, **CPU)


def end(process: subprocess.Popen) -> tuple[int, list[str]]:
  """Exit status and stderr, but for what Gloo says of its connections."""
  _, said = process.communicate(timeout=120)
  lines = said.splitlines()
  return process.returncode, [x for x in lines if not x.startswith('[Gloo]')]


def test_a_process_that_is_not_joined_says_what_it_waited_for():
  """The other one never comes, or the address is not its own."""
  place = f'127.0.0.1:{processes.free_port()}'
  one, other = join('127.0.0.1:1', 1, 1), join(place, 0, 1)
  status, (line,) = end(one)
  assert status == 1
  assert line.startswith(
    'error: mesh.coordinator: process 1 (of 0 to 1) waited 1 s for process 0, '
    'but nothing answers at 127.0.0.1:1 '
  )
  assert '; start process 0 there, correct the address, or raise' in line
  status, (line,) = end(other)
  assert status == 1
  assert line.startswith(
    'error: mesh.timeout: process 0 (of 0 to 1) waited 1 s for all 2 to join '
    f'at {place}; start each with the same mesh.processes and '
  )


def test_a_port_in_use_is_named():
  with socket.create_server(('', 0)) as taken:
    port = taken.getsockname()[1]
    status, (line,) = end(join(f'127.0.0.1:{port}', 0, 60))
  assert status == 1
  assert line.startswith(
    f'error: mesh.coordinator: process 0 (of 0 to 1) cannot open port {port} '
  )
  assert 'choose another one' in line


@pytest.mark.parametrize(
  'what',
  [
    *(pytest.param(x, marks=pytest.mark.slow) for x in ('idle', 'computing')),
    'bug',
  ],
)
def test_where_a_process_dies_the_other_one_says_so(what):
  """By jax's heartbeat, or by the connection that breaks."""
  place = f'127.0.0.1:{processes.free_port()}'
  one, other = (join(place, process, 10, what) for process in (0, 1))
  status, lines = end(other)
  if what == 'bug':
    assert status == 1
    assert lines[-2] == "KeyError: 'x'"
    assert lines[-1].startswith('error: this process met a bug, see above')
  else:
    assert status == -signal.SIGKILL
  status, lines = end(one)
  assert status == 1
  if what == 'idle':
    assert 'process 0 (of 0 to 1) was ended by jax, which misses' in lines[-1]
  else:
    (line,) = lines
    assert 'process 0 (of 0 to 1) lost another one while they' in line
  assert lines[-1].startswith('error: ')
  assert 'see what the others said, and start all of them again' in lines[-1]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('pair')
  tiny.write_pair(path, **SIZES)
  (path / 'config.py').write_text(CONFIG.format(folder=str(path)))
  return path


@pytest.mark.slow
def test_two_processes_make_the_same_text(folder, capsys):
  generate.main(
    tiny.experiment(folder, prompt='def f(x):', drafters=('ngram',))
  )
  expected = capsys.readouterr().out.splitlines()[-1]
  first, second = processes.two(
    'experiments.generate', f'--config={folder / "config.py"}',
    '--config.prompt=def f(x):', '--config.drafters=("ngram",)',
    '--config.mesh.model=4', **CPU, **TWO,
  )  # fmt: skip
  assert first.returncode == second.returncode == 0, first.stderr
  assert len(json.loads(expected)['tokens']) == 12
  # Only the first of them prints.
  assert first.stdout.count(expected) == 1
  assert expected not in second.stdout


@pytest.mark.slow
def test_two_processes_make_the_same_rows(folder, tmp_path):
  flags = [
    f'--config={folder / "config.py"}',
    '--config.mesh.data=2',
    '--config.mesh.model=2',
    '--config.batch=2',
    '--config.max_new_tokens=6',
    "--config.drafters=('draft',)",
  ]
  rows = []
  for name in ('one', 'two'):
    command = 'experiments.run', *flags, f'--config.results={tmp_path / name}'
    if name == 'one':
      ended = [python(*command, **FOUR)]
    else:
      ended = processes.two(*command, **TWO)
    assert not any(done.returncode for done in ended), ended[0].stderr
    rows.append(resumed.lines(tmp_path / name / 'rows.jsonl'))
  for row, other in zip(*rows, strict=True):
    assert (row['mesh']['processes'], other['mesh']['processes']) == (1, 2)
    for name in ('tokens', 'histogram', 'target_calls', 'collectives'):
      assert row[name] == other[name]
    verdicts = [d['verdict'] for d in row['differences']]
    assert 'bug' not in verdicts
