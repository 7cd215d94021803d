"""The kernel's attention, against a softmax of one query at a time in numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import native
from specjax.models import cache as caches
from specjax.models import rotary
from tests.support.attention import (
  CASES,
  LENGTH,
  SLOTS,
  B,
  G,
  R,
  expected,
  make,
  options_of,
)

pytestmark = pytest.mark.usefixtures('kernel')


@functools.partial(jax.jit, static_argnames=('sinks', 'cap'))
def attend(q, cache, length, block, mask, first, bias, sinks=0, cap=None):
  return native.attend(
    q, cache, length, block, mask, first=first, sinks=sinks, cap=cap, bias=bias
  )


SIZES = (
  *((4, 32, 9, 'float32', case) for case in CASES),
  *(
    (*sizes, case)
    for sizes in (
      (1, 64, 1, 'float32'), (7, 16, 16, 'float32'), (3, 32, 5, 'bfloat16')
    )
    for case in ('all', 'everything')
  ),
  # Blocks of several chunks, as those of prompts.
  *((block, 16, block, 'float32', 'all') for block in (130, 256)),
)  # fmt: skip


@pytest.mark.parametrize(('tokens', 'width', 'block', 'dtype', 'case'), SIZES)
def test_it_is_the_softmax_over_all_that_is_seen(
  tokens, width, block, dtype, case
):
  data = make(tokens, width, block, dtype)
  options = options_of(tokens, data[-1], **CASES[case])
  found = attend(data[0], data[1], LENGTH, *data[2:4], **options)
  want, scale = expected(data, **options)
  assert found.dtype == np.float32
  assert (np.abs(found - want) <= 4e-6 * scale).all()


@pytest.mark.parametrize(
  'case', ['all', 'long window', 'many sinks', 'everything']
)
def test_a_query_has_the_same_bits_beside_others(case):
  data = make(7, 32, 7)
  q, cache, block, mask, bias = data
  options = options_of(7, bias, **CASES[case])
  together = np.asarray(attend(q, cache, LENGTH, block, mask, **options))
  for b in range(B):
    for t in (0, 3, 6):
      row, token = slice(b, b + 1), slice(t, t + 1)
      own = dict(options)
      if own['first'] is not None:
        own['first'] = own['first'][row, token]
      if own['bias'] is not None:
        own['bias'] = tuple(x[row, :, token] for x in own['bias'])
      memories = ([x[row] for x in memory] for memory in (cache, block))
      cached, flight = memories
      alone = attend(
        q[row, token], cached, LENGTH[row], flight, mask[row, token], **own
      )
      np.testing.assert_array_equal(alone[0, 0], together[b, t])


def test_what_is_in_no_use_does_not_matter():
  q, cache, block, mask, _ = make(4, 16, 5)
  want = attend(q, cache, LENGTH, block, mask, None, None)
  unused = np.arange(SLOTS) >= LENGTH[:, None]
  broken = (
    np.where(unused[:, None, None], np.float32(1e30), cache[0]),
    np.where(unused[:, None, :, None], np.float32(np.nan), cache[1]),
  )
  found = attend(q, broken, LENGTH, block, mask, None, None)
  np.testing.assert_array_equal(found, want)
  # More in use than there is means all.
  full = np.full(B, SLOTS, np.int32)
  found = attend(q, cache, 2 * full, block, mask, None, None)
  want = attend(q, cache, full, block, mask, None, None)
  np.testing.assert_array_equal(found, want)


def test_a_query_that_sees_nothing_has_zeros():
  q, cache, block, mask, _ = make(2, 16, 3)
  found = attend(q, cache, LENGTH, block, np.zeros_like(mask), None, None)
  assert not np.asarray(found[0]).any()
  assert np.asarray(found[1]).any()


def test_scores_far_apart_and_equal_ones():
  _, cache, block, mask, _ = make(1, 16, 1)
  length = np.full(B, SLOTS, np.int32)
  keys = np.zeros((B, G, 16, SLOTS), np.float32)
  q = np.zeros((B, 1, G, R, 16), np.float32)
  q[..., 0] = 1
  nothing = np.zeros_like(mask)
  mean = attend(q, (keys, cache[1]), length, block, nothing, None, None)
  want = np.asarray(cache[1]).mean(2)[:, None, :, None]
  np.testing.assert_allclose(mean, np.broadcast_to(want, q.shape), atol=1e-6)
  for place, score in ((5, 1e30), (200, 100.0), (287, 3e38)):
    keys[..., 0, :] = -score if score < 1e38 else 0
    keys[..., 0, place] = score
    one = attend(q, (keys, cache[1]), length, block, nothing, None, None)
    want = np.asarray(cache[1])[:, :, place][:, None, :, None]
    np.testing.assert_array_equal(one, np.broadcast_to(want, q.shape))


@pytest.mark.parametrize(
  'where', ['query', 'key', 'value', 'infinite key', 'key of other bits']
)
def test_what_is_no_number_stays_so(where):
  """The loop ends a text by it."""
  q, cache, block, mask, _ = make(2, 16, 3)
  q, keys, values = q.copy(), np.array(cache[0]), np.array(cache[1])
  array, value = {
    'query': (q[1, 0], np.nan),
    'key': (keys[1], np.nan),
    'value': (values[1], np.nan),
    'infinite key': (keys[1], np.inf),
    'key of other bits': (keys[1], np.uint32(0x7FFFFFFF).view(np.float32)),
  }[where]
  array[..., 0] = value
  found = np.asarray(attend(q, (keys, values), LENGTH, block, mask, None, None))
  assert np.isnan(found[1, 0]).any(-1).all()
  assert np.isfinite(found[2]).all()


def test_weights_are_exponentials():
  """Within three units of the last place, from 0 on."""
  slots = 16 * 1024
  scores = -np.linspace(0, 80, slots, dtype=np.float32)
  scores[0] = 0
  q = np.zeros((1, 1, 1, 1, 16), np.float32)
  q[..., 0] = 1
  keys = np.zeros((1, 1, 16, slots), np.float32)
  keys[0, 0, 0] = scores
  mask, none = np.zeros((1, 1, 1), bool), np.zeros((1, 1, 1, 16), np.float32)
  exact = np.exp(scores.astype(np.float64))
  places = np.arange(0, slots, 97)
  for start in range(0, len(places), 16):
    some = places[start : start + 16]
    values = np.zeros((1, 1, slots, 16), np.float32)
    values[0, 0, some, np.arange(len(some))] = 1
    block, length = (none.swapaxes(2, 3), none), np.full(1, slots)
    found = attend(q, (keys, values), length, block, mask, None, None)
    found = np.asarray(found, np.float64)[0, 0, 0, 0, : len(some)]
    ratio = found * exact.sum() / exact[some]
    assert np.abs(ratio - 1).max() < 2e-6


def test_sequences_under_vmap_are_sequences():
  q, cache, block, mask, _ = make(2, 16, 3)
  want = attend(q, cache, LENGTH, block, mask, None, None)
  each = jax.vmap(lambda *x: native.attend(*jax.tree.map(lambda y: y[None], x)))
  found = jax.jit(each)(q, cache, LENGTH, block, mask)
  np.testing.assert_array_equal(found[:, 0], want)


@pytest.mark.parametrize(
  ('width', 'slots'), [(24, 128), (272, 128), (16, 120), (16, 128)]
)
def test_sizes_that_it_has(width, slots):
  fits = native.attends(width, slots)

  def zeros(*shape):
    return np.zeros((1, 1, *shape), np.float32)

  memory, block = ((zeros(width, n), zeros(n, width)) for n in (slots, 1))
  q, mask = zeros(1, 1, width), np.ones((1, 1, 1), bool)
  run = functools.partial(
    attend, q, memory, np.ones(1), block, mask, None, None
  )
  if fits:
    assert not np.asarray(run()).any()
    return
  with pytest.raises(jax.errors.JaxRuntimeError, match='multiples of 16'):
    jax.block_until_ready(run())


@pytest.mark.parametrize(
  ('name', 'change'),
  [
    *((name, lambda x: x[:1]) for name in ('mask', 'length', 'first')),
    ('bias', lambda x: (x[0][:1], x[1])),
    ('cache', lambda x: (x[0], x[1].astype(jnp.bfloat16))),
  ],
)
def test_what_does_not_fit_is_refused(name, change):
  names = 'q', 'cache', 'block', 'mask', 'bias'
  given = dict(zip(names, make(2, 16, 3), strict=True))
  given |= {'length': LENGTH, 'first': np.zeros((B, 2), np.int32)}
  given[name] = change(given[name])
  with pytest.raises(jax.errors.JaxRuntimeError, match='must be'):
    jax.block_until_ready(attend(**given))


def test_keys_of_a_cache_far_apart_are_copied():
  q, cache, block, mask, _ = make(3, 32, 5)
  room = 2048 - SLOTS
  wide = (
    np.pad(cache[0], ((0, 0), (0, 0), (0, 0), (0, room))),
    np.pad(cache[1], ((0, 0), (0, 0), (0, room), (0, 0))),
  )
  found = attend(q, wide, LENGTH, block, mask, None, None)
  want = attend(q, cache, LENGTH, block, mask, None, None)
  np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize('group', [1, 3])
@pytest.mark.parametrize('turned', [0, 8, 20])
def test_heads_are_turned_and_laid_out(turned, group):
  """As by `rotary.rotate`; some of the entries, all or none."""
  b, t, g, d = 2, 5, 3, 20
  draw = np.random.default_rng(0)
  qkv = draw.normal(size=(b, t, g, group + 2, d)).astype(np.float32)
  positions = draw.integers(0, 3000, (b, t)).astype(np.float32)
  turning = rotary.frequencies(10_000.0, turned), 1.1

  @jax.jit
  def made():
    turns = rotary.turns(jnp.asarray(positions), *turning) if turned else ()
    q, k, v = jnp.split(qkv, (group, group + 1), 3)
    if turned:
      q, k = (rotary.rotate(x, positions, *turning) for x in (q, k))
    kept = caches.block_of_rows(k[..., 0, :], v[..., 0, :])
    return turns, (0.25 * q, *kept)

  @jax.jit
  def one(x, *turn):
    return native.heads(x[None], tuple(y[None] for y in turn) or None, 0.25)

  turns, want = made()
  found = jax.jit(native.heads)(qkv, turns or None, 0.25)
  np.testing.assert_allclose(found[0], want[0], atol=1e-6)
  np.testing.assert_allclose(found[1], want[1], atol=4e-6)
  np.testing.assert_array_equal(found[2], want[2])
  for alone, together in zip(jax.vmap(one)(qkv, *turns), found, strict=True):
    np.testing.assert_array_equal(alone[:, 0], together)


def test_heads_that_do_not_fit_are_refused():
  qkv, turns = jnp.zeros((1, 2, 1, 3, 4)), jnp.zeros((1, 2, 3))
  with pytest.raises(jax.errors.JaxRuntimeError, match=r'qkv must be \[B'):
    jax.block_until_ready(native.heads(qkv, (turns, turns), 1.0))
