"""The notebook for TPU slices, run here on simulated devices."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


def script_of(notebook: dict) -> str:
  """The cells as a program; IPython's own lines as what they stand for."""
  parts = ['import subprocess']
  for cell in notebook['cells']:
    if cell['cell_type'] != 'code':
      continue
    source = ''.join(cell['source'])
    if source.startswith('!'):
      source = f'subprocess.run(f{source[1:]!r}, shell=True, check=True)'
    elif source.startswith('%pip '):
      continue
    parts.append(source)
  return '\n\n'.join(parts)


@pytest.mark.slow
def test_the_notebook_runs_without_a_tpu(tmp_path):
  """In a folder of its own, where its results go."""
  for name in ('experiments', 'configs', 'specjax', 'notebooks'):
    (tmp_path / name).symlink_to(ROOT / name)
  shutil.copy(ROOT / 'setup.cfg', tmp_path)
  file = ROOT / 'notebooks' / 'cloud_tpu.ipynb'
  script = tmp_path / 'script.py'
  script.write_text(script_of(json.loads(file.read_text())))
  # Most of the time goes into compiling programs that run for an instant.
  quick = {'JAX_DISABLE_MOST_OPTIMIZATIONS': '1', 'PYTHONPATH': str(tmp_path)}
  path = f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}'
  environment = os.environ | quick | {'PATH': path}
  environment.pop('XLA_FLAGS', None)
  done = subprocess.run(
    [sys.executable, script],
    cwd=tmp_path,
    env=environment,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert '"refused": []' in done.stdout
  (rows,) = tmp_path.glob('runs/*/rows.jsonl')
  (row,) = map(json.loads, rows.read_text().splitlines())
  assert (row['mesh']['data'], row['mesh']['model']) == (2, 4)
  # The embedding, and two of each of the three layers; then the logits.
  assert row['collectives']['all-reduce']['count'] >= 7
  assert f'{row["collectives"]["all-gather"]["count"]} all-gather a step' in (
    done.stdout
  )
