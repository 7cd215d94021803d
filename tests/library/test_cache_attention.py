"""Ways to attend over a cache: one result, whatever is read for it.

Caches of 96 slots, walked in blocks of 32 and then of 8; the reference is a
softmax over the seen slots and the block together, in numpy.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import cache as caches
from specjax import checkpoints
from specjax.models import attention, cache_attention, transformer, variants
from specjax.types import KV
from tests.support import models

SLOTS, B, T, G, R, D = 96, 4, 3, 2, 2, 4
LENGTH = np.array([0, 5, 64, 90], np.int32)
WALK = cache_attention.walk(32, 8)
FUSED = cache_attention.fused('xla')
ALL = {'window': 11, 'cap': 2.0, 'bias': True}
CASES = [
  (WALK, {}, 1e-12),
  (WALK, ALL, 1e-12),
  (cache_attention.padded, ALL, 1e-12),
  # The fused softmax is one of float32.
  (FUSED, {}, 2e-6),
  (FUSED, {'window': 11, 'bias': True}, 2e-6),
]


@pytest.fixture(autouse=True)
def _double(float64):
  """Every test of this file."""


@functools.partial(jax.jit, static_argnames=('window', 'cap', 'way'))
def attend(data, length, window=None, cap=None, curve=None, way=None):
  q, cache, flight = data
  positions = length[:, None] + jnp.arange(T)
  mask, _ = transformer.causal(B, T)
  bias = None
  if curve is not None:
    near = attention.look_up(curve, attention.distance(mask))
    bias = attention.Bias(curve, near)
  return attention.attend(
    q, cache, length, flight, mask, positions, window, cap, bias, way
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


def reference(data, window=None, cap=None, curve=None):
  """[B, T, G, R, D], one query at a time."""
  q, cache, flight = data
  out = np.zeros(q.shape)
  for b, t, g, r in np.ndindex(B, T, G, R):
    used = LENGTH[b]
    k, v = (
      np.concatenate([c[b, g, :used], f[b, g, : t + 1]])
      for c, f in (
        (cache.k.swapaxes(2, 3), flight.k.swapaxes(2, 3)),
        (cache.v, flight.v),
      )
    )
    back = np.arange(len(k))[::-1]
    score = k @ q[b, t, g, r]
    if cap is not None:
      score = cap * np.tanh(score / cap)
    if curve is not None:
      score = score + curve[np.minimum(back, len(curve) - 1), g * R + r]
    weight = np.exp(score - score.max()) * (back < (window or len(k)))
    out[b, t, g, r] = weight @ v / weight.sum()
  return out


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


def test_fused_attention_has_no_cap(data):
  with pytest.raises(ValueError, match='fused attention has no soft cap'):
    attend(data, LENGTH, cap=2.0, way=FUSED)


@pytest.mark.parametrize(
  ('length', 'window', 'read'),
  [
    (65, None, (0, 72)),  # two large blocks, and a small one
    (65, 11, (32, 72)),  # the first query sees from slot 55 on
    (60, 5, (56, 64)),  # from slot 56 on: no large block
  ],
)
def test_the_walk_reads_blocks_in_use_alone(data, length, window, read):
  q, cache, flight = data
  lengths = np.full(B, length, np.int32)
  slot = np.arange(SLOTS)
  outside = (slot < read[0]) | (slot >= read[1])
  broken = KV(
    np.where(outside, np.nan, cache.k),
    np.where(outside[:, None], np.nan, cache.v),
  )
  found = attend((q, broken, flight), lengths, window, way=WALK)
  expected = attend(data, lengths, window, way=cache_attention.padded)
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_blocks_that_do_not_fit_are_refused(data):
  with pytest.raises(ValueError, match='rest is 24: it must divide the 32'):
    cache_attention.walk(32, 24)
  with pytest.raises(ValueError, match='96 slots is no multiple of 64'):
    attend(data, LENGTH, way=cache_attention.walk(64, 8))


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
