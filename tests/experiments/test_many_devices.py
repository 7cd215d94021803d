"""Eight simulated devices, in one process and in two, against a single one."""

import json
import os
import subprocess
import sys

import pytest

from tests.experiments.test_run import CONFIG, ROOT
from tests.support import tiny
from tests.support.many_devices import SIZES

QUICK = {'JAX_DISABLE_MOST_OPTIMIZATIONS': '1', 'JAX_PLATFORMS': 'cpu'}
FLAGS = os.environ.get('XLA_FLAGS', '')
EIGHT = {'XLA_FLAGS': f'{FLAGS} --xla_force_host_platform_device_count=8'}


def python(*arguments, **environment) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, '-m', *map(str, arguments)],
    cwd=ROOT,
    env=os.environ | QUICK | environment,
    capture_output=True,
    text=True,
    check=False,
    timeout=900,
  )


@pytest.fixture(scope='module')
def found(tmp_path_factory):
  folder = tmp_path_factory.mktemp('devices')
  done = python('tests.support.many_devices', folder, **EIGHT)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


def meshes(found) -> dict:
  return {name: x for name, x in found.items() if 'collectives' in x}


def test_texts_are_those_of_one_device(found):
  """In float64: every row, greedy and sampled, token for token."""
  assert len(meshes(found)) == 3
  for name, x in meshes(found).items():
    one = found[f'{name.split()[0]} 1x1 False']
    assert x['texts'] == one['texts'], name
    assert x['accepted'] == one['accepted'] > 0
  rows = found['lm 1x1 False']['texts']
  assert len({tuple(row) for row in rows}) > 4


def test_everything_lies_where_it_is_declared_to(found):
  for x in meshes(found).values():
    assert x['placed']
    for part in x.keys() & {'target', 'draft'}:
      assert x[part]['declared']


def test_bytes_are_those_that_were_predicted(found):
  for x in meshes(found).values():
    for part in x.keys() & {'target', 'draft'}:
      sizes = x[part]
      assert sizes['parameters'] == sizes['predicted_parameters']
      assert sizes['cache'] == sizes['predicted_cache']


def test_what_is_split_takes_less(found):
  """Four heads: 4 devices have one each, and 8 all of them."""
  cache = {n: x['target']['cache'][0] for n, x in meshes(found).items()}
  rows, both, heads = (
    cache[name] for name in ('ngram 8x1 False', 'lm 2x4 True', 'lm 1x8 False')
  )
  assert (rows, heads) == (both, 8 * both)
  drafts = {
    n: x['draft']['parameters'][0]
    for n, x in meshes(found).items()
    if 'draft' in x
  }
  assert 3 * drafts['lm 2x4 True'] < drafts['lm 1x8 False']


def test_a_step_leaves_everything_in_place(found):
  for x in found.values():
    assert x['donated']
  for x in meshes(found).values():
    assert x['kept']


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


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('pair')
  tiny.write_pair(path, **SIZES)
  (path / 'config.py').write_text(CONFIG.format(folder=str(path)))
  return path


@pytest.mark.slow
def test_two_processes_make_the_same_text(folder):
  flags = [
    f'--config={folder / "config.py"}',
    '--config.prompt=def f(x):',
    '--config.drafters=("ngram",)',
  ]
  one = python('experiments.generate', *flags)
  assert one.returncode == 0, one.stderr
  launch = ['experiments.launch', '--processes', 2, '--devices', 4, '--']
  command = [sys.executable, '-m', 'experiments.generate', *flags]
  two = python(*launch, *command, '--config.mesh.model=8')
  assert two.returncode == 0, two.stderr
  expected = one.stdout.splitlines()[-1]
  assert len(json.loads(expected)['tokens']) == 12
  # Only the first of them prints.
  assert two.stdout.splitlines()[-1] == expected
  assert two.stdout.count(expected) == 1


@pytest.mark.slow
def test_two_processes_make_the_same_rows(folder, tmp_path):
  flags = [
    f'--config={folder / "config.py"}',
    '--config.mesh.data=2',
    '--config.mesh.model=4',
    '--config.batch=2',
  ]
  rows = []
  for name, start, devices in (
    ('one', (), EIGHT),
    ('two', ('experiments.launch', '--', sys.executable, '-m'), {}),
  ):
    out = f'--config.results={tmp_path / name}'
    done = python(*start, 'experiments.run', *flags, out, **devices)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / name / 'rows.jsonl').read_text().splitlines()
    rows.append([json.loads(line) for line in lines])
  for row, other in zip(*rows, strict=True):
    assert (row['mesh']['processes'], other['mesh']['processes']) == (1, 2)
    for name in ('tokens', 'histogram', 'target_calls', 'collectives'):
      assert row[name] == other[name]
    verdicts = [d['verdict'] for d in row['differences']]
    assert 'bug' not in verdicts
