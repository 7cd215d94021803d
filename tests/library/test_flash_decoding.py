"""Kernels of GPUs, interpreted, against a softmax of one query at a time."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.drafters import lm
from specjax.drafters.heads import modules
from specjax.models import (
  attention,
  cache_attention,
  devices,
  flash_decoding,
  transformer,
  variants,
)
from specjax.models import cache as caches
from specjax.models.sharding import Placement, make_mesh
from specjax.types import KV, Params, Spec
from tests.support import models, processes
from tests.support.attention import (
  CASES,
  LENGTH,
  SLOTS,
  B,
  G,
  expected,
  make,
  options_of,
)

WAY = cache_attention.split
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6]]


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch):
  """Nine turns of slots, shared by four programs: the first has three turns."""
  monkeypatch.setattr(flash_decoding, '_SLOTS', 32)
  monkeypatch.setattr(flash_decoding, '_PROGRAMS', 4 * B * G)


def attend(data, first=None, sinks=0, cap=None, length=LENGTH, sink=None):
  q, cache, block, mask, _ = data
  cache, block = KV(*map(jnp.asarray, cache)), KV(*map(jnp.asarray, block))
  q = jnp.asarray(q, cache.k.dtype)
  assert WAY.fits(q, cache, block, None, sink)

  @jax.jit
  def run(length, first):
    view = attention.View(length, first, sinks, cap=cap)
    return WAY.attend(q, cache, view, block, mask, None, sink)

  return run(length, first)


@pytest.mark.parametrize(
  ('tokens', 'width', 'block', 'dtype', 'case'),
  [
    *(
      (4, 32, 9, 'float32', case)
      for case in CASES
      if not CASES[case].get('bias')
    ),
    (1, 64, 1, 'float32', 'all'),
    (1, 16, 16, 'float32', 'sinks'),
    (3, 32, 5, 'bfloat16', 'all'),
    # Two and three rounds of 64 queries.
    (40, 16, 40, 'float32', 'window'),
    (80, 16, 80, 'float32', 'all'),
  ],
)
def test_it_is_the_softmax_over_all_that_is_seen(
  tokens, width, block, dtype, case
):
  data = make(tokens, width, block, dtype)
  options = options_of(tokens, data[-1], **CASES[case])
  del options['bias']
  found = np.asarray(attend(data, **options), np.float64)
  q = np.asarray(jnp.asarray(data[0], dtype), np.float32)
  want, scale = expected((q, *data[1:]), **options)
  # A weight and a result of 16 bits are each rounded by half of this.
  error = float(jnp.finfo(dtype).eps) if dtype == 'bfloat16' else 4e-6
  assert (np.abs(found - want) <= error * scale).all()


@pytest.mark.parametrize('case', ['all', 'short window', 'sinks'])
def test_a_logit_without_a_token_takes_its_share(case):
  data = make(5, 16, 5)
  options = options_of(5, data[-1], **CASES[case])
  del options['bias']
  sink = np.array([[-1.0, 3.0], [0.5, 40.0]], np.float32)
  found = np.asarray(attend(data, **options, sink=jnp.asarray(sink)))
  want, scale = expected(data, **options, sink=sink)
  assert (np.abs(found - want) <= 4e-6 * np.maximum(scale, 1e-3)).all()
  assert np.abs(found[..., 1, 1, :]).max() < 1e-6  # The last one takes all.


SLOT, FEW = np.arange(SLOTS), np.array([0, 1, 33], np.int32)
FIRST = np.array([[-5], [70], [250]], np.int32)


@pytest.mark.parametrize(
  ('length', 'first', 'unseen', 'number'),
  [
    (LENGTH, None, LENGTH[:, None] <= SLOT, 1e30),
    # Turns of 32 slots of which none is in use are not read, nor are turns
    # before a window.
    (FEW, None, -(-FEW[:, None] // 32) * 32 <= SLOT, np.nan),
    (LENGTH, FIRST, SLOT < FIRST // 32 * 32, np.nan),
  ],
)
def test_what_is_not_seen_does_not_matter(length, first, unseen, number):
  q, cache, block, mask, bias = make(4 if first is None else 1, 16, 5)
  broken = (
    np.where(unseen[:, None, None], np.float32(number), cache[0]),
    np.where(unseen[:, None, :, None], np.float32(number), cache[1]),
  )
  want = attend((q, cache, block, mask, bias), first, length=length)
  found = attend((q, broken, block, mask, bias), first, length=length)
  np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize('tokens', [1, 2])
def test_a_pass_reads_no_turns_before_its_windows(tokens):
  """Nor does its second row, where a single token has two."""
  model = variants.for_device(
    models.tiny(models.VOCAB, 1, head_dim=16, windows=(40,)),
    devices.FORMS['gpu'],
  )
  weights = model.init(jax.random.key(0))
  length = np.array([200], np.int32)
  mask, place = transformer.causal(1, tokens)

  @jax.jit
  def hidden(cache):
    given = jnp.ones((1, tokens), jnp.int32), place + length
    return model.forward(weights, *given, cache, length, mask).hidden

  draw = np.random.default_rng(0)
  keys, values = (
    draw.normal(size=x.shape).astype(np.float32)
    for x in caches.empty(model.config, 1, 256, np.float32)[0]
  )
  want = hidden((KV(keys, values),))
  keys[..., :160], values[:, :, :160] = np.nan, np.nan  # 161 is the first seen.
  np.testing.assert_array_equal(hidden((KV(keys, values),)), want)


def test_numbers_of_64_bits_change_nothing():
  data = make(3, 16, 5)
  want = attend(data)
  with jax.enable_x64(True):
    found = attend(data)
  assert found.dtype == np.float32
  np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize('where', ['query', 'key', 'value'])
def test_what_is_no_number_stays_so(where):
  """The loop ends a text by it."""
  q, cache, block, mask, bias = make(2, 16, 3)
  q, keys, values = q.copy(), *(np.array(x) for x in cache)
  array = {'query': q[1, 0], 'key': keys[1], 'value': values[1]}[where]
  array[..., 0] = np.nan
  found = np.asarray(attend((q, (keys, values), block, mask, bias)))
  assert np.isnan(found[1, 0]).any(-1).all()
  assert np.isfinite(found[2]).all()


def test_a_query_that_sees_nothing_has_zeros():
  q, cache, block, mask, bias = make(2, 16, 3)
  found = attend((q, cache, block, np.zeros_like(mask), bias))
  assert not np.asarray(found[0]).any()
  assert np.asarray(found[1]).any()


@pytest.mark.parametrize(
  ('change', 'fits'),
  [
    ({}, True),
    ({'d': 256}, True),
    ({'bias': attention.Bias(jnp.zeros((4, 2)), jnp.zeros(1))}, False),
    ({'dtype': np.float16}, True),
    ({'dtype': np.float64}, False),
    ({'own': np.float16}, False),
    ({'d': 48}, False),  # no power of 2
    ({'d': 8}, False),  # less than a product has
    ({'keys': 16}, False),  # latents
    ({'slots': 48}, False),
    ({'t': 256}, True),
    ({'t': 257}, False),
  ],
)
def test_shapes_that_it_has(change, fits):
  x = {'d': 32, 't': 3, 'slots': 64, 'dtype': np.float32, 'bias': None}
  x |= change
  keys, dtype = x.get('keys', x['d']), x['dtype']

  def memory(slots, dtype):
    return KV(
      np.zeros((1, 1, keys, slots), dtype),
      np.zeros((1, 1, slots, x['d']), dtype),
    )

  q = np.zeros((1, x['t'], 1, 2, x['d']), dtype)
  cache, block = memory(x['slots'], dtype), memory(3, x.get('own', dtype))
  assert WAY.fits(q, cache, block, x['bias'], None) is fits


@functools.cache
def _pair():
  """A target whose heads have 16 entries, and its first layer as a draft."""
  target, draft = (
    models.tiny(models.VOCAB, n, head_dim=16, width=32) for n in (2, 1)
  )
  return target, draft, target.init(jax.random.key(0))


@pytest.mark.parametrize('prompts', [PROMPTS, PROMPTS[:1]])
def test_the_form_of_a_gpu_decodes_the_same_texts(prompts, monkeypatch):
  """A pass of a single text has a row more than tokens."""
  target, draft, weights = _pair()
  weights = Params(weights, weights)
  calls = []
  run = flash_decoding._run
  monkeypatch.setattr(
    flash_decoding, '_run', lambda *x, **y: calls.append(0) or run(*x, **y)
  )

  def decode(form):
    one, other = (variants.for_device(m, form) for m in (target, draft))
    spec = Spec(one, lm.make(other, 3), verify.token)
    values = sampling.make(len(prompts), [1.0, 0.0][: len(prompts)])
    return models.decoded(
      spec, weights, prompts, values, new_tokens=20, slots=256
    ).tokens

  want = decode(devices.CPU)
  assert not calls
  np.testing.assert_array_equal(decode(devices.FORMS['gpu']), want)
  assert calls


def test_a_model_on_a_mesh_keeps_its_kernels_when_it_is_changed():
  target, *_ = _pair()
  form = devices.FORMS['gpu']
  placement = Placement(make_mesh(1, 1))
  placed = variants.place(variants.for_device(target, form), placement)
  way = placed.config.attention
  assert (way.fits, way.otherwise) == (WAY.fits, WAY.otherwise)
  assert placed.config.device == form
  assert variants.narrow(placed, 9).config.attention is way
  # A draft of another place attends there, and a head as before.
  elsewhere = dataclasses.replace(placement, split_draft=True)
  draft = variants.place(target, elsewhere)
  draft = variants.with_cache_attention(draft, way)
  assert draft.config.attention is not way
  assert isinstance(draft.config.attention, variants.OnEachDevice)
  sizes = types.SimpleNamespace(
    layers=1, width=8, num_heads=1, num_kv_heads=1, head_dim=4, mlp_width=8
  )
  head = modules.layer_config(sizes, placed.config)
  assert head.attention is WAY.otherwise
  whole = variants.for_device(target, form).config
  assert modules.layer_config(sizes, whole).attention is WAY


@pytest.mark.slow
def test_devices_of_a_mesh_attend_to_what_they_have():
  flag = '--xla_force_host_platform_device_count=4'
  done = processes.run(
    'tests.support.split_on_mesh', XLA_FLAGS=flag, JAX_PLATFORMS='cpu'
  )
  assert done.returncode == 0, done.stderr
  difference, largest = map(float, done.stdout.split())
  assert difference < 1e-5 * largest


@pytest.mark.parametrize(
  ('version', 'kernel'),
  [
    ('9.0', True),
    ('8.0', True),
    ('7.5', False),
    ('gfx942', False),
    ('', False),
  ],
)
def test_an_old_gpu_has_no_kernel(monkeypatch, version, kernel):
  class Device:
    compute_capability = version

  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  monkeypatch.setattr(jax, 'devices', lambda: [Device])
  form = devices.FORMS['gpu']
  attend = form.attention if kernel else form.attention.otherwise
  assert devices.here().attention is attend
  assert devices.here().rows == form.rows
