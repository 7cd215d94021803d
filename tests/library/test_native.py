"""The kernel's products, against those of JAX and of numpy, and its models."""

import concurrent.futures
import ctypes
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import native
from specjax.loop import generate
from specjax.models import layouts, linear, prefill, transformer, variants
from tests.support import models

pytestmark = pytest.mark.usefixtures('kernel')
ROWS = 1, 2, 3, 5, 6, 7, 8, 12, 13, 64
product = jax.jit(native.product)


def pair(rows, inputs, outputs, dtype='float32', seed=0):
  """Rows, and a weight whole in float64 and in blocks of a type."""
  draw = np.random.default_rng(seed)
  x = draw.standard_normal((rows, inputs)).astype(np.float32)
  w = draw.standard_normal((inputs, outputs))
  w = w.astype(jnp.dtype(dtype))
  return x, w.astype(np.float64), np.asarray(linear.to_blocks(w))


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('sizes', [(16, 16), (70, 48), (512, 256), (1, 32)])
def test_products_are_those_of_numpy(sizes, dtype):
  for rows in (1, 6, 13):  # Other numbers have the same bits, see below.
    x, w, blocks = pair(rows, *sizes, dtype)
    exact, scale = x.astype(np.float64) @ w, abs(x.astype(np.float64)) @ abs(w)
    found = product(x, blocks)
    assert found.dtype == np.float32
    # One rounding an input, of the sum so far.
    assert (np.abs(found - exact) <= sizes[0] * 2.0**-24 * scale).all()


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_a_row_has_the_same_bits_beside_others(dtype):
  x, _, blocks = pair(max(ROWS), 512, 1024, dtype)
  alone = [np.asarray(product(row[None], blocks))[0] for row in x]
  for rows in ROWS:
    np.testing.assert_array_equal(product(x[:rows], blocks), alone[:rows])


@pytest.mark.parametrize('activation', list(native.ACTIVATIONS))
@pytest.mark.parametrize('width', [37, 1024, 5000])  # 5000: on all cores
def test_gates_are_those_of_jax(activation, width):
  draw = np.random.default_rng(0)
  x = draw.normal(0, 6, (5, 2, width)).astype(np.float32)
  x[0, 0, :4] = -100, 100, 0, -np.finfo(np.float32).max
  found = np.asarray(native.gated(x, activation))
  with jax.enable_x64(True):
    gates, values = jnp.moveaxis(x.astype(np.float64), 1, 0)
    np.testing.assert_allclose(
      found, activation(gates) * values, rtol=1e-5, atol=1e-5
    )
  for i, row in enumerate(x):
    np.testing.assert_array_equal(native.gated(row, activation), found[i])
  x[2, 0, -1], x[3, 1, -1], x[4, 0, 0] = np.nan, np.inf, np.inf
  lost = np.array(native.gated(x, activation))
  assert not np.isfinite(lost[[2, 3, 4], [-1, -1, 0]]).any()
  lost[[2, 3, 4], [-1, -1, 0]] = found[[2, 3, 4], [-1, -1, 0]]
  np.testing.assert_array_equal(lost, found)


def test_products_at_the_same_time_do_not_disturb_each_other():
  cases = [pair(rows, 512, 2048, seed=rows) for rows in (1, 4, 8)]
  once = [np.asarray(product(x, blocks)) for x, _, blocks in cases]

  def again(case):
    (x, _, blocks), expected = case
    return all(np.array_equal(product(x, blocks), expected) for _ in range(60))

  with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
    assert all(pool.map(again, zip(cases, once, strict=True)))


def test_batches_are_rows():
  x, _, blocks = pair(12, 64, 48)
  together = np.asarray(product(x, blocks))
  batches = x.reshape(2, 3, 2, 64)
  of_batches = jax.vmap(jax.vmap(native.product, (0, None)), (0, None))
  found = np.asarray(jax.jit(of_batches)(batches, blocks))
  np.testing.assert_array_equal(found.reshape(12, -1), together)
  many = np.stack([blocks, 2 * blocks])
  for rows in (x, np.stack([x, x])):
    own = 0 if rows.ndim == 3 else None
    found = jax.jit(jax.vmap(native.product, (own, 0)))(rows, many)
    np.testing.assert_array_equal(found[0], together)
    np.testing.assert_array_equal(found[1], 2 * together)


@pytest.mark.parametrize(
  ('x', 'w'), [((2, 8), (3, 9, 16)), ((2, 8), (3, 8, 32)), ((2, 8), (3, 8, 8))]
)
def test_what_it_does_not_multiply_is_refused(x, w):
  with pytest.raises(jax.errors.JaxRuntimeError, match=r'x must be \[R, in\]'):
    jax.block_until_ready(product(*(np.zeros(y, 'float32') for y in (x, w))))


def test_rows_beyond_a_chunk_have_the_bits_of_a_few():
  """Of chunks of 256 rows at most, in equal parts."""
  x, w, blocks = pair(515, 130, 64)
  found = np.asarray(product(x, blocks))
  np.testing.assert_allclose(found, x @ w, atol=1e-4)
  for first in (0, 169, 340, 510):
    few = product(x[first : first + 5], blocks)
    np.testing.assert_array_equal(found[first : first + 5], few)


def weights(model):
  return jax.jit(model.init)(jax.random.key(0))


TOKENS = np.arange(7)[None]


def begun(model, params):
  cache = transformer.open_cache(model, params, 1, 128)
  length = jnp.full(1, 4, jnp.int32)  # The last token stays to be fed.
  tokens = jnp.asarray(TOKENS[:, :4])
  return prefill.prefill(model, params, tokens, length, cache)[0]


def fed(model, params, cache):
  tokens = TOKENS[:, 3:]
  mask, offset = transformer.causal(*tokens.shape)
  length = jnp.full(1, 3, jnp.int32)
  out = model.forward(params, tokens, 3 + offset, cache, length, mask)
  return model.head(params, out.hidden)


begin, feed = (jax.jit(x, static_argnums=0) for x in (begun, fed))


def logits(model, params):
  return feed(model, params, begin(model, params))


def logits_of_kernel(model, params):
  """Logits, and how often the program calls a product and the attention."""
  cache = begin(model, params)
  program = feed.lower(model, params, cache).compile()
  text = program.as_text()
  names = 'specjax_few_rows', 'specjax_attend'
  calls = [text.count(f'custom_call_target="{name}"') for name in names]
  return program(params, cache), calls


def test_a_prompt_is_read_in_short_blocks():
  """A row takes the kernel time, whether a text has it or not."""
  made = models.tiny(64, 2, width=32, head_dim=16, max_positions=1024)
  params, read = weights(made), []
  tokens = np.arange(1024)[None] % 64
  for model, its in ((made, params), layouts.to_native(made, params)):
    sizes = []

    def forward(params, tokens, *rest, model=model, sizes=sizes, **taps):
      sizes.append(tokens.shape[1])
      return model.forward(params, tokens, *rest, **taps)

    spy, length = model._replace(forward=forward), np.array([131], np.int32)
    cache, _ = generate.read_prompts(
      its, tokens, length, None, target=spy, taps=()
    )
    read.append((jax.device_get(cache), sizes))
  (whole, large), (blocks, small) = read
  assert set(large) == {512}
  assert set(small) == {32}
  for one, other in zip(whole, blocks, strict=True):
    for i, axis in enumerate((-1, -2)):
      # The last token stays to be fed.
      kept = [kv[i].take(np.arange(130), axis) for kv in (one, other)]
      np.testing.assert_allclose(*kept, atol=1e-5)
      assert abs(kept[0]).min() > 0


OPTIONS = {'plain': {}, 'bfloat16': {'tied_embeddings': True}, **models.CHOICES}


@pytest.mark.parametrize(
  'name', models.slow_unless(['plain', 'bfloat16', 'one norm'], OPTIONS)
)
def test_a_model_has_the_same_logits(name):
  model = models.tiny(64, 2, width=32, head_dim=16, **OPTIONS[name])
  draw, narrow = np.random.default_rng(0), name == 'bfloat16'
  dtype = 'bfloat16' if narrow else 'float32'
  params = jax.device_put(
    jax.tree.map(
      lambda x: draw.normal(x.ndim == 1, 0.3, x.shape).astype(dtype),
      weights(model),
    )
  )
  made = layouts.to_native(model, params)
  want, (found, calls) = logits(model, params), logits_of_kernel(*made)
  assert found.dtype == want.dtype == dtype
  found, want = found.astype(float), want.astype(float)
  assert want.std() > 0.3
  atol = 0.1 if narrow else 1e-5 * float(want.std())
  np.testing.assert_allclose(found, want, atol=atol)
  # It knows no sinks and no latents, and a state attends to nothing.
  config = model.config
  attention = sum(map(config.attends, range(config.num_layers)))
  other = config.sink_logits or config.latent is not None
  leaves = jax.tree.leaves(made[1], is_leaf=linear.is_native)
  blocks = sum(map(linear.is_native, leaves))
  assert calls == [blocks, 0 if other else attention]
  # Queries with keys and values, out, up and down of two layers, and the head.
  assert blocks >= (9 if name in ('plain', 'bfloat16') else 7)


def test_types_it_does_not_know_keep_their_layout():
  model = models.tiny(64, 2, width=32)
  params = weights(model)
  halves = jax.tree.map(lambda x: x.astype(jnp.float16), params)
  assert layouts.to_native(model, halves) is None
  _, drafts = variants.to_native(model, halves)
  assert not any(map(linear.is_native, drafts.values()))


@pytest.fixture(scope='module')
def programs(tmp_path_factory):
  return tmp_path_factory.mktemp('programs')


@pytest.mark.slow
@pytest.mark.parametrize('lanes', [4, 8])
def test_vectors_of_other_widths(lanes, tmp_path, programs):
  """What processors with other instructions compute, on this one."""
  compiler = os.environ.get('CC') or 'cc'
  environment = os.environ | {
    'CC': f'{compiler} -DLANES={lanes}',
    'XDG_CACHE_HOME': str(tmp_path),
    # Programs call the kernel by its name, whatever its width.
    'JAX_ENABLE_COMPILATION_CACHE': 'true',
    'JAX_COMPILATION_CACHE_DIR': str(programs),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  }
  here = pathlib.Path(__file__).parent
  names = 'native', 'native_attention', 'low_bits'
  files = [str(here / f'test_{name}.py') for name in names]
  command = [sys.executable, '-m', 'pytest', '-q', '-n', '0', *files]
  # What a width changes: products and attention, and how weights are laid out.
  # Models are made of these.
  others = (
    'compiled_once', 'who_needs_it', 'without_it', 'model', 'few_bits',
    'file', 'refused',
    'rounding', 'ends_of_a_group', 'floats_are_not_kept', 'short_blocks',
    'same_time', 'every_value', 'in_a_word', 'groups_divide',
    'no_path_is_given', 'keep_their_layout', 'left_to_it', 'nor_',
  )  # fmt: skip
  run = subprocess.run(
    [*command, '-k', ' and '.join(f'not {name}' for name in others)],
    cwd=here.parents[1],
    env=environment,
    capture_output=True,
    text=True,
    check=False,
  )
  assert run.returncode == 0, run.stdout
  assert ' passed' in run.stdout
  assert len([*tmp_path.rglob('*.so')]) == 1


@pytest.fixture
def fresh(monkeypatch, tmp_path):
  """A machine on which nothing was compiled yet."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  # A process tells JAX once.
  monkeypatch.setattr(native, '_register', ctypes.CDLL)
  native._look.cache_clear()
  yield tmp_path
  monkeypatch.undo()
  native._look.cache_clear()
  assert native.available()


def test_it_is_compiled_once_and_kept(fresh, monkeypatch):
  left = fresh / 'specjax' / 'native' / 'of a killed process'
  left.mkdir(parents=True)
  os.utime(left, (time.time() - 3700,) * 2)
  assert native.available()
  (kept,) = (fresh / 'specjax' / 'native').iterdir()
  assert kept.suffix == '.so'
  native._look.cache_clear()
  monkeypatch.setattr(native, '_compile', lambda *_: pytest.fail('again'))
  assert native.available()


def test_who_needs_it_waits_until_it_is_compiled(fresh, monkeypatch):
  compiled, make = [], native._compile

  def slowly(*args):
    time.sleep(0.1)
    make(*args)
    compiled.append(args)

  monkeypatch.setattr(native, '_compile', slowly)
  native.begin()
  assert native.available()
  assert len(compiled) == 1


@pytest.mark.parametrize(
  ('variables', 'why'),
  [
    ({'SPECJAX_NATIVE': 'off'}, 'SPECJAX_NATIVE is off'),
    ({'CC': 'false'}, 'false does not compile the kernel: it failed'),
    ({'CC': '/nowhere/cc'}, 'FileNotFoundError: '),
    ({'PATH': ''}, r'there is no C compiler \(cc, gcc or clang\)'),
  ],
)
def test_without_it_there_are_whole_weights(fresh, monkeypatch, variables, why):
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  assert re.match(why, native.reason())
  model = models.tiny(64, 2, width=32)
  assert [*layouts.arrange(model, weights(model))] == [layouts.WHOLE]


TWO_CORES = {
  'set_before': None, 'cores': 2, 'platforms': 'cpu', 'plugins': ['cuda'],
  'kernel': True,
}  # fmt: skip


@pytest.mark.parametrize(
  ('changes', 'count'),
  [
    ({}, '1'),
    ({'set_before': '1'}, '1'),
    ({'set_before': '4'}, '4'),
    ({'cores': 16}, None),
    ({'platforms': 'cuda,cpu', 'plugins': []}, None),
    ({'platforms': None}, None),
    ({'platforms': None, 'plugins': []}, '1'),
    ({'kernel': False}, None),
  ],
)
def test_the_cores_are_left_to_it(monkeypatch, changes, count):
  given = TWO_CORES | changes
  monkeypatch.setenv('NPROC', given['set_before'] or '')  # It is put back.
  if given['set_before'] is None:
    monkeypatch.delenv('NPROC')
  monkeypatch.setattr(
    importlib.metadata, 'entry_points', lambda group: given['plugins']
  )
  monkeypatch.setattr(native, 'cores', lambda: given['cores'])
  monkeypatch.setattr(native, '_begun', lambda: False)
  monkeypatch.setattr(native, 'available', lambda: given['kernel'])
  config = types.SimpleNamespace(jax_platforms=given['platforms'])
  with monkeypatch.context() as patch:
    patch.setattr(native.jax, 'config', config)
    assert native.claim_cores() == (count == '1')
  assert os.environ.get('NPROC') == count


def test_nor_when_jax_has_begun(monkeypatch):
  monkeypatch.setenv('NPROC', '')  # So that it is put back.
  monkeypatch.delenv('NPROC')
  jax.block_until_ready(jnp.zeros(1))
  assert not native.claim_cores()
  assert 'NPROC' not in os.environ
