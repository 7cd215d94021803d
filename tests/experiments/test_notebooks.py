"""The notebooks run as they stand: one on a smaller pair, one on devices."""

import json

import pytest

from tests.support import notebooks

QUICKSTART = notebooks.ROOT / 'notebooks' / 'quickstart.ipynb'
# One short text of a tiny target with the notebook's own drafter: the others
# are compiled alike.
SMALL = """
x.target.path = {target!r}
x.drafters, x.temperatures = ('copy',), (0.0,)
x.prompt, x.max_new_tokens = 'for i in a:\\n  for i in', 12
"""


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
    notebooks.ROOT / 'notebooks' / 'cloud_tpu.ipynb',
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
