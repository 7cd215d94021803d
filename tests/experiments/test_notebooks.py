"""The notebooks run as they stand: on smaller pairs, and one on devices."""

import json

import pytest

from specjax import checkpoints
from tests.support import hub, notebooks, tiny

FOLDER = notebooks.ROOT / 'notebooks'
EVERY = [pytest.param(path, id=path.stem) for path in FOLDER.glob('*.ipynb')]
QUICKSTART = FOLDER / 'quickstart.ipynb'
PAYS = FOLDER / 'does_speculation_pay.ipynb'
# One short text of a tiny target with the notebook's own drafter: the others
# are compiled alike.
SMALL = """
x.target.path = {target!r}
x.drafters, x.temperatures = ('copy',), (0.0,)
x.prompt, x.max_new_tokens = 'for i in a:\\n  for i in', 12
"""
# What a reader would write in place of the larger pair of the Hub.
PAIR = """
TARGET, DRAFT, DTYPE = 'tiny/target@main', 'tiny/draft', 'float32'
GAMMAS, NEW_TOKENS, PROMPTS = (2,), 12, PROMPTS[:5]
"""


@pytest.mark.slow
def test_the_quick_start_runs(folder, monkeypatch):
  monkeypatch.setenv('JAX_DISABLE_MOST_OPTIMIZATIONS', 'true')
  shown = notebooks.run_cells(
    QUICKSTART,
    # The predictor is a program of its own.
    skip_tags=('install', 'predict'),
    after={'config': SMALL.format(target=str(folder / 'target'))},
  )
  assert '| copy ' in shown
  assert '"report": "runs/notebook/report.html"' in shown
  # Rendered as a notebook would: coloured text, figures and the last output.
  assert '<span class="token ' in shown
  assert shown.count('<Figure size') == 4
  assert 'accepted lengths [' in shown


@pytest.mark.slow
def test_a_pair_of_the_hub_has_its_verdict(tmp_path, monkeypatch):
  """One with a chat template, in a cache of the Hub."""
  monkeypatch.setenv('JAX_DISABLE_MOST_OPTIMIZATIONS', 'true')
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
def test_without_the_hub_the_embedded_pair_has_a_verdict(monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  shown = notebooks.run_cells(
    PAYS,
    skip_tags=('install',),
    after={'pair': 'GAMMAS, NEW_TOKENS = (1, 2), 24'},
    timeout=600,
  )
  assert 'draft-128\n' in shown
  assert '; the best draft length is ' in shown
  assert '\nsame text           ' in shown


@pytest.mark.parametrize('path', EVERY)
def test_a_notebook_is_kept_without_its_outputs(path):
  cells = json.loads(path.read_text())['cells']
  code = [cell for cell in cells if cell['cell_type'] == 'code']
  assert code
  assert [c for c in code if c['outputs'] or c['execution_count']] == []


@pytest.mark.parametrize('path', [QUICKSTART, PAYS], ids=lambda p: p.stem)
def test_outside_of_a_checkout_a_notebook_asks_where_it_is(
  path, tmp_path, monkeypatch
):
  """Before anything is installed."""
  monkeypatch.chdir(tmp_path)
  (install,) = (s for tags, s in notebooks.cells(path) if 'install' in tags)
  with pytest.raises(AssertionError, match='Set REPOSITORY above'):
    exec(notebooks.translate(install), {})


def test_a_cell_that_fails_is_named(tmp_path):
  path = tmp_path / 'a.ipynb'
  path.write_text(
    '{"cells": [{"cell_type": "code", "metadata": {}, "source": ["x = 1"]},'
    '{"cell_type": "code", "metadata": {"tags": ["no"]}, "source": ["1 / 0"]},'
    '{"cell_type": "code", "metadata": {}, "source": ["!exit {x + 2}"]}]}'
  )
  with pytest.raises(notebooks.CellError, match='exit status 3'):
    notebooks.run_cells(path, skip_tags=('no',))
  with pytest.raises(notebooks.CellError, match='ZeroDivisionError'):
    notebooks.run_cells(path)
  with pytest.raises(ValueError, match='no cell with the tags'):
    notebooks.run_cells(path, after={'other': ''})


def test_lines_of_shell_and_notebook_become_calls():
  source = 'if a:\n  !ls \\\n    {b}\n%cd ..\n%matplotlib inline\nc = 5 % 2\n'
  assert notebooks.translate(source).splitlines() == [
    'if a:',
    "  _shell(f'ls     {b}')",
    '__import__("os").chdir(\'..\')',
    'pass  # matplotlib inline',
    'c = 5 % 2',
  ]


@pytest.mark.slow
def test_many_devices_run_without_a_tpu(tmp_path, monkeypatch):
  """On simulated ones, as the notebook says."""
  # Most of the time goes into compiling programs that run for an instant.
  monkeypatch.setenv('JAX_DISABLE_MOST_OPTIMIZATIONS', 'true')
  shown = notebooks.run_cells(
    FOLDER / 'cloud_tpu.ipynb',
    skip_tags=('install',),
    after={'rows': "print('--- last row')\nprint(json.dumps(rows[-1]))"},
  )
  assert '"refused": []' in shown
  last = json.loads(shown.split('--- last row\n')[1].splitlines()[0])
  assert (last['mesh']['data'], last['mesh']['model']) == (2, 4)
  # The embedding, and two of each of the three layers; then the logits.
  assert last['collectives']['all-reduce']['count'] >= 7
  assert f'{last["collectives"]["all-gather"]["count"]} all-gather a step' in (
    shown
  )
