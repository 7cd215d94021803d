"""Settings that every test shares."""

import gc
import os

import hypothesis
import jax
import pytest

from specjax.cli import cpu

# The same examples every time: a failure here is a failure everywhere.
hypothesis.settings.register_profile(
  'repeatable', deadline=None, derandomize=True, database=None
)
hypothesis.settings.load_profile('repeatable')

# Compiling takes a third less without some emitters, and a sixth less in one
# part.
cpu.add_xla_flags(f'{cpu.FAST_XLA} --xla_cpu_parallel_codegen_split_count=1')

# Nothing is left in the folder of programs of whoever runs the tests, neither
# by this process nor by those that it starts. Mutants name a folder.
if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
  os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'
  jax.config.update('jax_enable_compilation_cache', False)

# Processes that tests start do the same.
_QUICK = 'jax_disable_most_optimizations'
jax.config.update(_QUICK, True)
os.environ[_QUICK.upper()] = 'true'

# Accelerators round matrix products to fewer bits unless told otherwise.
jax.config.update('jax_default_matmul_precision', 'highest')


def pytest_addoption(parser):
  parser.addoption('--slow', action='store_true', help='run slow tests too')


def pytest_collection_modifyitems(config, items):
  if config.getoption('--slow'):
    return
  skip = pytest.mark.skip(reason='slow: give --slow')
  for item in items:
    if 'slow' in item.keywords:
      item.add_marker(skip)


@pytest.fixture(autouse=True, scope='module')
def _few_programs():
  """Forgets compiled programs before there are too many.

  Each of them maps some memory, of which Linux allows a process 65,530 maps,
  and takes some: those of all modules together are six gigabytes.
  """
  yield
  from specjax.bench import measure, memory

  if measure.maps_used() > 0.6 or memory.of_process() > 4 * 2**30:
    jax.clear_caches()
    gc.collect()
    memory.give_back()


@pytest.fixture(scope='session')
def folder(tmp_path_factory):
  """`target` and `draft` of a tiny pair: to be read, not to be written to."""
  from tests.support import tiny

  path = tmp_path_factory.mktemp('pair')
  tiny.write_pair(path)
  return path


@pytest.fixture(scope='session')
def tokenizer():
  """That of the embedded pair: copied before it is changed."""
  from specjax import checkpoints, pair

  return checkpoints.load_tokenizer(pair.path('target'))


@pytest.fixture(scope='session')
def kernel():
  """Needs the kernel of `specjax.native`, which is compiled."""
  from specjax import native

  if not native.available():
    pytest.skip(native.reason())


@pytest.fixture
def float64():
  """Everything inside the test is computed in double precision."""
  with jax.enable_x64(True):
    yield


@pytest.fixture(scope='module')
def optimized():
  """Programs are compiled as users have them.

  Elsewhere most optimisations are left out: many small programs run for an
  instant, and compiling them is what the tests cost. Tests of the bits of a
  result and of the embedded pair ask for this; `experiments.certify`, run as a
  program, tests the distribution of the loop with all optimisations.
  """
  jax.clear_caches()  # Others may have compiled the same programs quickly.
  jax.config.update(_QUICK, False)
  yield
  jax.config.update(_QUICK, True)
