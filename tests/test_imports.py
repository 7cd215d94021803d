"""Rules between packages: few, and each with a reason."""

import ast
import configparser
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent

# A package and what it never imports.
RULES = (
  # The library decodes; what measures, trains or serves stands on it.
  (
    (
      'specjax.types', 'specjax.arguments', 'specjax.trees', 'specjax.sampling',
      'specjax.verify', 'specjax.models', 'specjax.native', 'specjax.loop',
      'specjax.requests', 'specjax.drafters', 'specjax.checkpoints',
      'specjax.constraints', 'specjax.api',
    ),
    (
      'specjax.bench', 'specjax.certify', 'specjax.cli', 'specjax.programs',
      'specjax.prompts', 'specjax.reports', 'specjax.serving', 'specjax.stats',
      'specjax.training',
    ),
  ),
  # A rule and a model know nothing of the loop that runs them. A cascade
  # scores within its step, and so drafters may import `loop.scoring`.
  (
    ('specjax.sampling', 'specjax.verify', 'specjax.models'),
    ('specjax.drafters', 'specjax.loop', 'specjax.requests', 'specjax.api'),
  ),
  (
    ('specjax.drafters',),
    ('specjax.loop.generate', 'specjax.requests', 'specjax.api'),
  ),
  # The wheel has no studies.
  (('specjax',), ('experiments', 'configs', 'tests')),
  # Statistics and tables need no model, and no JAX.
  (
    ('specjax.stats', 'specjax.reports'),
    ('jax', 'flax', 'specjax.bench', 'specjax.loop', 'specjax.models'),
  ),
  # A program is imported by the console command alone.
  (('experiments', 'configs', 'specjax.bench'), ('specjax.programs',)),
)  # fmt: skip

SOURCES = {
  '.'.join(path.relative_to(ROOT).with_suffix('').parts): path
  for folder in ('specjax', 'experiments', 'configs')
  for path in (ROOT / folder).rglob('*.py')
}


def within(module: str, packages: tuple[str, ...]) -> bool:
  return any(f'{module}.'.startswith(f'{name}.') for name in packages)


def imported(source: str) -> set[str]:
  """Returns the modules and names that a source imports when it runs."""
  found, tree = set(), ast.parse(source)
  for node in tree.body:
    if isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING':
      node.body = []
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      found |= {name.name for name in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, 'imports are absolute'
      found |= {f'{node.module}.{name.name}' for name in node.names}
  return found


def wrong_imports(module: str, source: str) -> set[str]:
  """Returns the imports of a module that a rule forbids."""
  return {
    name
    for packages, never in RULES
    if within(module, packages)
    for name in imported(source)
    if within(name, never)
  }


@pytest.mark.parametrize('module', SOURCES)
def test_imports_follow_the_rules(module):
  assert not wrong_imports(module, SOURCES[module].read_text())


@pytest.mark.parametrize(
  ('module', 'source'),
  [
    ('specjax.sampling', 'from specjax import drafters'),
    ('specjax.verify.chains', 'def f():\n  from specjax.drafters import lm'),
    ('specjax.drafters.lm', 'from specjax.loop.generate import step'),
    ('specjax.loop.generate', 'import specjax.bench.measure'),
    ('specjax.reports.run', 'import jax'),
    ('specjax.reports.run', 'from experiments import arrivals'),
  ],
)
def test_a_forbidden_import_is_seen(module, source):
  assert wrong_imports(module, source)


WITHOUT_JAX = """
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


def test_results_are_read_compared_and_shown_without_jax():
  subprocess.run([sys.executable, '-c', WITHOUT_JAX], check=True, cwd=ROOT)


def test_what_the_package_imports_is_what_it_requires():
  config = configparser.ConfigParser()
  config.read(ROOT / 'setup.cfg')
  imports = {'absl-py': 'absl', 'orbax-checkpoint': 'orbax'}

  def names(text: str) -> set[str]:
    packages = re.findall(r'^[\w-]+', text, re.M)
    return {imports.get(x, x).replace('-', '_') for x in packages}

  extras = config['options.extras_require']
  optional = 'serve', 'constraints', 'datasets', 'gguf', 'parity'
  extra = names(''.join(extras[x] for x in optional))
  found = {
    name.partition('.')[0]
    for module, path in SOURCES.items()
    if within(module, ('specjax',))
    for name in imported(path.read_text())
  } - {'specjax', *sys.stdlib_module_names}
  assert found - extra == names(config['options']['install_requires'])
  # Constraints ask whether it is there, and start a process that imports it.
  assert extra - found == {'outlines_core'}
