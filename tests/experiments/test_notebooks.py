"""The notebooks run as they stand: on smaller pairs, and one on devices."""

import base64
import json
import subprocess
import sys

import pytest

import specjax
from specjax import checkpoints, pair
from tests.support import hub, notebooks, tiny

FOLDER = notebooks.ROOT / 'notebooks'
EVERY = [pytest.param(path, id=path.stem) for path in FOLDER.glob('*.ipynb')]
QUICKSTART = FOLDER / 'quickstart.ipynb'
PAYS = FOLDER / 'does_speculation_pay.ipynb'
# One short text of a tiny target with the notebook's own drafter: the others
# are compiled alike. Times of so tiny a pair may be anything, counts may not.
SMALL = """
from specjax.stats import sanity_checks
sanity_checks._times = lambda row: ()
x.target.path = {target!r}
x.drafters, x.temperatures = ('copy',), (0.0,)
x.prompt, x.max_new_tokens = 'for i in a:\\n  for i in', 12
"""
# What a reader would write in place of the larger pair of the Hub.
PAIR = """
TARGET, DRAFT, DTYPE = 'tiny/target@main', 'tiny/draft', 'float32'
GAMMAS, NEW_TOKENS, PROMPTS = (2,), 12, PROMPTS[:5]
"""
# The programs of the other cells are those of a pair of the Hub.
INSPECT = """
_shell(f'{sys.executable} -m specjax inspect {flags}')
raise SystemExit
"""

LAST_ROW = """
print('--- last row')
print(json.dumps({name: rows[-1][name] for name in ('mesh', 'collectives')}))
"""


@pytest.mark.slow
def test_the_quick_start_runs(folder):
  shown = notebooks.run_cells(
    QUICKSTART,
    # The predictor is a program of its own.
    skip_tags=('install', 'predict'),
    after={'config': SMALL.format(target=str(folder / 'target'))},
  )
  assert '| copy ' in shown
  assert 'runs/notebook/summary.md' in shown
  # Rendered as a notebook would: coloured text, figures and the last output.
  assert '<span class="token ' in shown
  assert shown.count('<Figure size') == 3
  assert 'accepted lengths [' in shown


@pytest.mark.slow
def test_a_pair_of_the_hub_has_its_verdict(tmp_path, monkeypatch):
  """One with a chat template, in a cache of the Hub."""
  monkeypatch.setenv('HF_HUB_CACHE', str(tmp_path / 'hub'))
  monkeypatch.setenv('HF_HUB_OFFLINE', '1')
  tiny.write_pair(tmp_path, max_positions=256)
  target = tmp_path / 'target'
  tokenizer = checkpoints.load_tokenizer(target)
  tokenizer.chat_template = '{% for m in messages %}Q: {{ m.content }}\nA:'
  tokenizer.chat_template += '{% endfor %}'
  tokenizer.save_pretrained(target)
  for name in ('target', 'draft'):
    hub.store(tmp_path / 'hub', f'tiny/{name}', tmp_path / name)
  shown = notebooks.run_cells(
    PAYS,
    skip_tags=('install', 'fallback'),
    after={
      'pair': PAIR,
      'verdict': 'print(check["prompts"], check["same_text"], gamma)',
      'decode': 'print(target.tokenizer.decode(prompt))',
    },
  )
  assert '"refused": []' in shown
  assert 'Speculation ' in shown
  assert '\n5 5 2\n' in shown
  assert '\nsame text           True\n' in shown
  assert '\nQ: Write a Python function' in shown  # In its template.


@pytest.mark.slow
def test_on_a_cpu_the_embedded_pair_takes_its_place(monkeypatch):
  """Runs the cells up to the flags, and inspects the pair that they name."""
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  shown = notebooks.run_cells(
    PAYS, skip_tags=('install',), after={'flags': INSPECT}
  )
  assert f'cpu: {pair.path("target")} with {pair.path("draft-128")}' in shown
  assert '"refused": []' in shown


@pytest.mark.parametrize('path', EVERY)
def test_a_notebook_is_kept_with_few_outputs(path):
  """Small figures of a run of the notebook as it is, and nothing else."""
  notebook = json.loads(path.read_text())
  code = [c for c in notebook['cells'] if c['cell_type'] == 'code']
  assert code
  kept = [c for c in code if 'kept' in c['metadata'].get('tags', ())]
  assert len(kept) == (2 if path == QUICKSTART else 0)
  assert [c for c in code if c['outputs'] or c['execution_count']] == kept
  for cell in kept:
    (output,) = cell['outputs']
    assert output['output_type'] == 'execute_result'
    picture = base64.b64decode(output['data']['image/png'])
    assert picture.startswith(b'\x89PNG')
  if kept:
    # Else python -m tests.support.notebooks NOTEBOOK stores them anew.
    assert notebook['metadata']['outputs_of'] == notebooks.digest(path)
  assert path.stat().st_size < 150_000
  assert install_cell(path) == install_cell(QUICKSTART)


def install_cell(path) -> str:
  (found,) = (s for tags, s in notebooks.cells(path) if 'install' in tags)
  return found


def installed(monkeypatch, driver='', tpu=(), fails=()) -> list[list[str]]:
  """The packages that the first cell installs on a kind of machine.

  It has a driver of some version, files of TPUs, and requirements that fail.
  """
  asked = []

  def run(command, **_):
    if command[0] == 'nvidia-smi':
      return subprocess.CompletedProcess(command, 0, f'{driver}\n', '')
    assert command[:4] == [sys.executable, '-m', 'pip', 'install']
    asked.append(command[4:])
    failed = any(one in fails for one in command)
    return subprocess.CompletedProcess(command, int(failed), '', 'not found')

  monkeypatch.setattr(subprocess, 'run', run)
  monkeypatch.setattr('glob.glob', lambda pattern: list(tpu))
  monkeypatch.setattr('shutil.which', lambda name: driver and name)
  monkeypatch.setattr(sys, 'path', list(sys.path))
  exec(notebooks.translate(install_cell(QUICKSTART)), {})
  return asked


@pytest.mark.parametrize(
  ('machine', 'extra', 'more', 'words'),
  [
    ({}, '', [], 'CPU'),
    ({'driver': '580.65.06'}, '[gpu]', [], 'driver 580'),
    ({'driver': '550.54'}, '', ['jax[cuda12]'], 'too old for CUDA 13'),
    ({'driver': 'no devices were found'}, '', [], 'names no GPU'),
    ({'tpu': ['/dev/accel0']}, '[tpu]', [], 'TPU'),
  ],
)
def test_a_notebook_installs_what_its_machine_needs(
  machine, extra, more, words, tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)  # No checkout lies above it.
  assert installed(monkeypatch, **machine) == [
    ['-q', f'specjax{extra}=={specjax.__version__}', *more]
  ]
  assert words in capsys.readouterr().out
  monkeypatch.chdir(FOLDER)
  found = installed(monkeypatch, **machine)
  assert found == [['-q', '-e', f'{notebooks.ROOT}{extra}', *more]]


def test_without_that_release_the_latest_is_installed(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  pinned = f'specjax=={specjax.__version__}'
  asked = installed(monkeypatch, fails=[pinned])
  assert asked == [['-q', pinned], ['-q', 'specjax']]
  assert f'pip install {pinned}: not found' in capsys.readouterr().out
  with pytest.raises(AssertionError, match='pip installed no specjax'):
    installed(monkeypatch, fails=[pinned, 'specjax'])


def test_a_cell_that_fails_is_named(tmp_path):
  path = tmp_path / 'a.ipynb'
  shell = '%matplotlib inline\nif x % 2:\n  !exit \\\n    {x + 2}'
  sources = {'one': 'x = 1', 'no': '1 / 0', 'shell': shell}
  made = [
    {'cell_type': 'code', 'metadata': {'tags': [tag]}, 'source': [source]}
    for tag, source in sources.items()
  ]
  path.write_text(json.dumps({'cells': made}))
  with pytest.raises(notebooks.CellError, match='exit status 3'):
    notebooks.run_cells(path, skip_tags=('no',))
  with pytest.raises(notebooks.CellError, match='ZeroDivisionError'):
    notebooks.run_cells(path)
  with pytest.raises(ValueError, match='no cell with the tags'):
    notebooks.run_cells(path, after={'other': ''})
  with pytest.raises(notebooks.CellError, match='a cell prints'):
    notebooks.run_cells(
      path, skip_tags=('no', 'shell'), after={'one': "print('a' * 5000)"}
    )


@pytest.mark.slow
def test_many_devices_run_without_a_tpu():
  """On simulated ones, as the notebook says."""
  shown = notebooks.run_cells(
    FOLDER / 'cloud_tpu.ipynb', skip_tags=('install',), after={'rows': LAST_ROW}
  )
  assert '"refused": []' in shown
  last = json.loads(shown.split('--- last row\n')[1].splitlines()[0])
  assert (last['mesh']['data'], last['mesh']['model']) == (2, 4)
  # The embedding, and two of each of the three layers; then the logits.
  assert last['collectives']['all-reduce']['count'] >= 7
  assert f'{last["collectives"]["all-gather"]["count"]} all-gather a step' in (
    shown
  )
