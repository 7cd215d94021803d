"""The notebooks run as they stand, on a smaller pair."""

import pytest

from tests import notebooks, tiny

QUICKSTART = notebooks.ROOT / 'notebooks' / 'quickstart.ipynb'
# The notebook's config on the tiny pair, and its own drafter alone.
SMALL = """
import pathlib
from tests import tiny
known = tiny.experiment(pathlib.Path({folder!r}))
x.target, x.candidates = known.target, known.candidates
x.prompts, x.max_new_tokens = known.prompts, known.max_new_tokens
x.drafters = ('copy',)
"""


def test_the_quick_start_runs(tmp_path, monkeypatch):
  monkeypatch.setenv('JAX_DISABLE_MOST_OPTIMIZATIONS', 'true')
  tiny.write_pair(tmp_path)
  shown = notebooks.run_cells(
    QUICKSTART,
    # The predictor is a program of its own.
    skip_tags=('install', 'predict'),
    after={'config': SMALL.format(folder=str(tmp_path))},
  )
  assert '| copy ' in shown
  assert '"report": "runs/notebook/report.html"' in shown
  # Rendered as a notebook would: coloured text, figures and the last output.
  assert '<span class="token ' in shown
  assert shown.count('<Figure size') == 4
  assert 'accepted lengths [[' in shown


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
