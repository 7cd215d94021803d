"""Ways to attend over a cache: one result, whatever is read for it.

Caches of 96 slots, walked in blocks of 32 and then of 8; the reference is a
softmax over the seen slots and the block together, in numpy.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import checkpoints
from specjax.models import attention, cache_attention, transformer, variants
from specjax.models import cache as caches
from specjax.types import KV
from tests.support import attention as by_hand
from tests.support import models

pytestmark = pytest.mark.usefixtures('float64')
SLOTS, B, T, G, R, D = 96, 4, 3, 2, 2, 4
LENGTH = np.array([0, 5, 64, 90], np.int32)
WALK = cache_attention.walk(32, 8)
FUSED = cache_attention.fused('xla')
ALL = {'window': 11, 'cap': 2.0, 'bias': True}
CASES = [
  (WALK, {}, 1e-12),
  (WALK, ALL, 1e-12),
  (cache_attention.padded, ALL, 1e-12),
  (cache_attention.few(96), ALL, 1e-12),
  # Blocks of sinks lie apart, in the first block of a window, or in two.
  (WALK, {'window': 11, 'sinks': 3, 'bias': True}, 1e-12),
  (WALK, {'window': 50, 'sinks': 20}, 1e-12),
  (WALK, {'window': 200, 'sinks': 3}, 1e-12),
  (cache_attention.padded, {'window': 11, 'sinks': 3}, 1e-12),
  # Large blocks that do not divide the cache.
  (cache_attention.walk(64, 8), {}, 1e-12),
  (cache_attention.walk(64, 8), {'window': 40}, 1e-12),
  # The fused softmax is one of float32.
  (FUSED, {}, 2e-6),
  (FUSED, {'window': 11, 'bias': True}, 2e-6),
  (FUSED, {'window': 11, 'sinks': 3}, 2e-6),
]


@functools.partial(jax.jit, static_argnames=('window', 'cap', 'way', 'sinks'))
def attend(data, length, window=None, cap=None, curve=None, way=None, sinks=0):
  q, cache, flight = data
  positions = length[:, None] + jnp.arange(T)
  mask, _ = transformer.causal(B, T)
  if window is not None:
    mask = attention.narrow(mask, window, sinks, positions)
  bias = None
  if curve is not None:
    near = attention.look_up(curve, attention.distance(mask))
    bias = attention.Bias(curve, near)
  return attention.attend(
    q, cache, length, flight, mask, positions, window, cap, bias, way, sinks
  )


@pytest.fixture(scope='module')
def data():
  random = np.random.default_rng(0)
  shape = (B, T, G, R, D)
  cache, flight = (
    caches.block_of_rows(*(random.normal(size=(B, n, G, D)) for _ in range(2)))
    for n in (SLOTS, T)
  )
  return random.normal(size=shape), cache, flight


@pytest.fixture(scope='module')
def curve():
  return np.random.default_rng(1).normal(size=(70, G * R))


def reference(data, window=None, cap=None, curve=None, sinks=0):
  """[B, T, G, R, D], one query at a time."""
  mask = np.broadcast_to(np.tri(T, dtype=bool), (B, T, T))
  positions = LENGTH[:, None] + np.arange(T)
  first = window and positions - (window - 1)
  bias = None
  if curve is not None:
    back = (
      positions[..., None] - slots
      for slots in (np.arange(SLOTS), positions[:, None])
    )
    bias = [np.moveaxis(curve[x.clip(0, len(curve) - 1)], -1, 1) for x in back]
  given = *data, mask, None
  return by_hand.expected(given, first, sinks, cap, bias, LENGTH)[0]


@pytest.mark.parametrize(('way', 'options', 'error'), CASES)
def test_every_way_is_the_softmax_over_what_is_seen(
  data, curve, way, options, error
):
  options = dict(options)
  if options.pop('bias', False):
    options['curve'] = curve
  found = attend(data, LENGTH, way=way, **options)
  expected = reference(data, **options)
  np.testing.assert_allclose(found, expected, rtol=0, atol=error)


def test_fused_attention_has_no_cap_and_reads_no_latents(data):
  with pytest.raises(ValueError, match='fused attention has no soft cap'):
    attend(data, LENGTH, cap=2.0, way=FUSED)
  q, k, v = (jnp.zeros((1, 1, *x)) for x in ((2, 6), (2, 8), (8, 4)))
  with pytest.raises(ValueError, match='the model has latents'):
    FUSED(q, KV(k, v), attention.View(jnp.ones(1, jnp.int32)), None)


@pytest.mark.parametrize(
  ('lengths', 'window', 'sinks', 'read'),
  [
    ([65] * 4, None, 0, [(0, 72)] * 4),  # two large blocks, and a small one
    ([65] * 4, 11, 0, [(48, 72)] * 4),  # the first query sees from slot 55 on
    ([60] * 4, 5, 0, [(56, 64)] * 4),  # from slot 56 on: no large block
    ([65] * 4, 40, 0, [(24, 72)] * 4),  # a large block and small ones
    # Every row from its own window on, as many slots as the one with the most.
    ([3, 20, 60, 90], 5, 0, [(0, 16), (16, 32), (56, 72), (80, 96)]),
    ([95, 20, 60, 90], 40, 0, [(56, 96), (0, 48), (16, 64), (48, 96)]),
    # Sinks in blocks apart, unless the window begins in these.
    ([65] * 4, 11, 3, [(0, 8, 48, 72)] * 4),
    ([65] * 4, 11, 9, [(0, 16, 48, 72)] * 4),
    (
      [3, 15, 60, 90],
      5,
      9,
      [(0, 16), (0, 16), (0, 16, 56, 72), (0, 16, 80, 96)],
    ),
  ],
)
def test_the_walk_reads_what_is_seen_alone(data, lengths, window, sinks, read):
  q, cache, flight = data
  lengths, slot = np.array(lengths, np.int32), np.arange(SLOTS)
  outside = np.ones((B, 1, SLOTS), bool)
  for row, places in zip(outside, read, strict=True):
    for begin, end in zip(places[::2], places[1::2], strict=True):
      row[0, (slot >= begin) & (slot < end)] = False
  broken = KV(
    np.where(outside[:, None], np.nan, cache.k),
    np.where(outside[..., None], np.nan, cache.v),
  )
  options = {'window': window, 'sinks': sinks}
  found = attend((q, broken, flight), lengths, way=WALK, **options)
  padded = cache_attention.padded
  expected = attend(data, lengths, way=padded, **options)
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_small_cache_is_not_walked_over(data):
  at_once = cache_attention.walk(32, 8, at_once=SLOTS)
  found = attend(data, LENGTH, way=at_once, window=11)
  expected = attend(data, LENGTH, way=cache_attention.padded, window=11)
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
  ('slots', 'queries', 'walks'),
  [(1024, 4, False), (1023, 4, True), (1024, 3, True)],
)
def test_few_queries_of_a_short_cache_do_not_walk(slots, queries, walks):
  q, k = jnp.zeros((1, 1, 4, 2)), jnp.zeros((1, 1, 2, 1024))
  part = attention.Partial(q[..., 0], q[..., 0], q)
  view = attention.View(jnp.ones(1, jnp.int32))
  way = cache_attention.few(slots, queries)
  made = jax.make_jaxpr(lambda *x: way(*x, part))
  assert ('while' in str(made(q, KV(k, k.swapaxes(2, 3)), view))) == walks


def test_blocks_that_do_not_fit_are_refused(data):
  with pytest.raises(ValueError, match='rest is 24: it must divide the 32'):
    cache_attention.walk(32, 24)
  with pytest.raises(ValueError, match='96 slots is no multiple of 64'):
    attend(data, LENGTH, way=cache_attention.walk(64, 64))


def test_another_way_is_the_same_model(tmp_path):
  model = models.tiny(11, 1)
  short = model._replace(head=lambda params, hidden: hidden)
  other = variants.with_cache_attention(short, FUSED)
  assert other.config.attention is FUSED
  assert other.head is short.head
  assert variants.with_cache_attention(other, model.config.attention) == short
  assert variants.with_cache_attention(model, model.config.attention) is model
  checkpoints.save(
    tmp_path / 'saved',
    variants.with_cache_attention(model, FUSED),
    models.weights(model, 0),
  )
  found = checkpoints.describe(str(tmp_path / 'saved')).model.config
  assert found.attention is model.config.attention


def test_the_kernel_attends_unless_another_attention_was_chosen():
  model = models.tiny(64, 2, width=32)
  params = jax.jit(model.init)(jax.random.key(0))
  chosen = variants.with_cache_attention(model, cache_attention.padded)
  for given, want in (
    (model, cache_attention.kernel),
    (chosen, cache_attention.padded),
  ):
    blocked, _ = variants.to_native(given, params)
    assert blocked.config.attention is want
