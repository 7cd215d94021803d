"""Results are read, compared and shown without JAX."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
QUICK = ROOT / 'results' / 'quickstart'


@pytest.mark.parametrize(
  'work',
  [
    'from specjax.programs import compare, report\n'
    "report.page.FILE, compare.main(('results/quickstart', "
    "'results/quickstart/avx512'))",
    'import specjax.stats.row, specjax.stats.sanity_checks',
    'import pathlib\n'
    'from specjax import reports\n'
    'from specjax.stats import folders\n'
    "rows, _ = folders.read_folders(pathlib.Path('results'), lambda row: '')\n"
    "for name in ('quickstart', 'explain', 'predict', 'certificate'):\n"
    '  assert reports.summary(rows[name])\n',
    'from specjax.stats import folders\n'
    'from specjax.reports import page\n'
    f'rows, _ = folders.read_rows(folders.pathlib.Path({str(QUICK)!r})'
    " / 'rows.jsonl')\n"
    'assert page.render(rows, [])\n',
  ],
)
def test_no_jax(work):
  code = f"{work}\nimport sys; assert 'jax' not in sys.modules"
  subprocess.run([sys.executable, '-c', code], check=True, cwd=ROOT)
