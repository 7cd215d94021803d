"""Results are read, compared and shown without JAX."""

import subprocess
import sys

from tests.support.processes import ROOT

WORK = """
import pathlib, sys
import specjax.stats.row, specjax.stats.sanity_checks
from specjax import reports
from specjax.programs import compare, report
from specjax.stats import folders

compare.main(('results/quickstart', 'results/quickstart/avx512'))
for name in ('explain', 'predict', 'certificate', 'quickstart'):
  rows, _ = folders.read_rows(pathlib.Path('results', name, 'rows.jsonl'))
  assert reports.summary(rows)
assert report.page.render(rows, [])
assert 'jax' not in sys.modules
"""


def test_no_jax():
  subprocess.run([sys.executable, '-c', WORK], check=True, cwd=ROOT)
