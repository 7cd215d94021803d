"""Data flows one way, and so do the imports."""

import ast
import functools
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent

ROOTS = ('specjax', 'experiments')
PROGRAMS = sorted(
  path.stem
  for path in (ROOT / 'experiments').glob('*.py')
  if '__main__' in path.read_text()
)

# Every module imports only from earlier layers or from its own, and nothing
# imports a program.
LAYERS = (
  {'specjax.types', 'specjax.pair', 'specjax.native'},
  {
    'specjax.arguments',
    'specjax.trees',
    'specjax.sampling',
    'specjax.cache',
    'specjax.counting',
    'specjax.sharding',
    'specjax.text',
  },
  {'specjax.models', 'specjax.verify'},
  {'specjax.families', 'specjax.block_width'},
  {'specjax.layouts'},
  {'specjax.checkpoints'},
  {'specjax.published'},
  {'specjax.scoring'},
  {'specjax.vocabularies'},
  {'specjax.constraints'},
  {'specjax.drafting'},
  {'specjax.drafters'},
  {'specjax.inputs'},
  {'specjax.generate'},
  {'specjax.told', 'specjax.stages'},
  {'specjax.refilling'},
  {'specjax.varying'},
  {'specjax.cost_table'},
  {'specjax.goodput'},
  {'specjax.pool'},
  {'specjax.continuous'},
  {'specjax.prepared', 'specjax.decoded'},
  {'specjax.decoding'},
  {'specjax.streaming'},
  {'specjax.__init__'},
  {
    'specjax.estimates',
    'specjax.metrics',
    'specjax.goodness',
    'specjax.exact',
    'specjax.theory',
  },
  {
    'experiments.__init__',
    'experiments.errors',
    'experiments.settings',
    'experiments.step_settings',
    'experiments.prompt_settings',
    'experiments.corpus',
  },
  {'experiments.service_settings'},
  {'experiments.recipe_parts'},
  {'experiments.recipes'},
  {'experiments.prompts'},
  {'experiments.setup'},
  {'experiments.measuring'},
  {'experiments.serving'},
  {'experiments.reports'},
  {'experiments.training'},
  {'experiments.certificate'},
  {'experiments.papers'},
  {'configs'},
  {'benchmarks'},
  {f'experiments.{name}' for name in PROGRAMS},
)

SOURCES = sorted(
  path.relative_to(ROOT)
  for folder in ('specjax', 'experiments', 'configs', 'benchmarks')
  for path in (ROOT / folder).rglob('*.py')
  if path.read_text().strip()
)


def layer_of(module: str) -> int | None:
  """Place of a module in the order; None where it is not ours."""
  if module in ROOTS:  # A module of it has a name of its own.
    return 0
  parts = module.split('.')
  names = {'.'.join(parts[: i + 1]) for i in range(len(parts))}
  for place, layer in enumerate(LAYERS):
    if names & layer:
      return place
  assert parts[0] not in {'specjax', 'tests'}, f'{module} has no layer'
  return None


def imported(source: str, package: str) -> set[str]:
  """Modules that a source imports, wherever in it, but for a type checker."""
  found, tree = set(), ast.parse(source)
  for node in tree.body:
    if isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING':
      node.body = []
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      found |= {name.name for name in node.names}
    elif isinstance(node, ast.ImportFrom):
      above = package.rsplit('.', node.level - 1)[0] if node.level else ''
      origin = '.'.join(part for part in (above, node.module) if part)
      # `from specjax import cache` imports a module, not a name of one.
      found |= {
        f'{origin}.{name.name}' if origin in ROOTS else origin
        for name in node.names
      }
  return found


def wrong_imports(module: str, source: str) -> set[str]:
  """Imports that point to a later layer."""
  own = layer_of(module)
  assert own is not None, f'{module} has no layer'
  package = module.rpartition('.')[0]
  places = {name: layer_of(name) for name in imported(source, package)}
  return {x for x, place in places.items() if place is not None and place > own}


@pytest.mark.parametrize('path', SOURCES, ids=str)
def test_imports_point_to_earlier_layers(path):
  module = '.'.join(path.with_suffix('').parts)
  assert not wrong_imports(module, (ROOT / path).read_text())


@pytest.mark.parametrize(
  ('module', 'source'),
  [
    ('specjax.sampling', 'from specjax import verify'),
    ('specjax.models.prefill', 'import specjax.drafters.lm'),
    ('specjax.models.prefill', 'from ..drafters import lm'),
    ('specjax.trees', 'from .verify import walk'),
    ('specjax.verify', 'def f():\n  from specjax.drafters import lm'),
    ('specjax.drafters.lm', 'from specjax.generate import step'),
    ('specjax.generate', 'from experiments import settings'),
    ('specjax.metrics', 'import configs.embedded_pair'),
    ('experiments.setup.checks', 'from experiments.measuring import runner'),
    ('experiments.reports.run', 'from experiments.run import main'),
    ('experiments.papers.findings', 'from configs import embedded_pair'),
    ('benchmarks.limits', 'from experiments import inspect'),
  ],
)
def test_an_import_of_a_later_layer_is_seen(module, source):
  assert wrong_imports(module, source)


def test_no_program_is_imported():
  programs = {f'experiments.{name}' for name in PROGRAMS}
  for path in SOURCES:
    package = '.'.join(path.parent.parts)
    assert not imported((ROOT / path).read_text(), package) & programs, path


@functools.cache
def floor(part: str) -> int:
  """Of a package or a module of `experiments`: one above what it imports."""
  below = set()
  for path in SOURCES:
    name = '.'.join(path.with_suffix('').parts)
    if f'{name}.'.startswith(f'{part}.'):
      found = imported((ROOT / path).read_text(), name.rpartition('.')[0])
      names = (name.split('.') for name in found)
      below |= {'.'.join(x[:2]) for x in names if x[0] == 'experiments'}
  return 1 + max(map(floor, below - {part, 'experiments'}), default=0)


def test_experiments_have_at_most_eight_floors():
  assert 5 < max(floor(f'experiments.{name}') for name in PROGRAMS) <= 8


def test_no_module_is_long():
  lengths = {path: len((ROOT / path).open().readlines()) for path in SOURCES}
  assert {path for path, length in lengths.items() if length > 350} == set()


def test_a_module_without_a_layer_is_refused():
  with pytest.raises(AssertionError, match='no layer'):
    wrong_imports('specjax.types', 'from specjax import nowhere')
  with pytest.raises(AssertionError, match='no layer'):
    wrong_imports('specjax.generate', 'from tests import models')
