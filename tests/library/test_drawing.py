"""Draws from small and large vocabularies.

What is drawn from is computed, not sampled: by bisection over all coins of the
code that runs. The chi-square tests beside it have fixed seeds and a
false-alarm rate of 1e-4 in all.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.loop import scoring
from specjax.sampling import drawing
from specjax.stats import fit_tests
from specjax.types import Context, Draft
from tests.support import heads_in_numpy

pytestmark = pytest.mark.usefixtures('optimized')
LARGE = 151_936


def above(weights):
  """How many of the 2**30 coins draw each place [n] or one before it."""
  shift = 32 - drawing._BITS
  invert = jax.vmap(lambda i: drawing._invert(i << shift, weights))
  place = jnp.arange(len(weights))

  def halve(_, ends):
    low, high = ends
    middle = low + (high - low) // 2
    later = invert(middle) > place
    return jnp.where(later, low, middle + 1), jnp.where(later, middle, high)

  low = jnp.zeros(len(weights), jnp.uint32)
  high = jnp.full(len(weights), 2**drawing._BITS, jnp.uint32)
  return jax.lax.fori_loop(0, drawing._BITS + 1, halve, (low, high))[1]


@jax.jit
def levels(weights):
  size = len(weights)
  blocks = jnp.pad(weights, (0, -size % 64)).reshape(-1, 64)
  inside = jax.lax.map(above, blocks, batch_size=64)
  return above(blocks.sum(-1)), inside


def drawn_from(weights):
  """The distribution [V] that `draw` has, from its own inversion."""
  first, inside = (
    np.diff(np.asarray(x, float), prepend=0) / 2**drawing._BITS
    for x in levels(weights)
  )
  return (first[:, None] * inside).ravel()[: len(weights)]


@functools.cache
def distribution(name, size):
  """A flat, a usual and a peaked one [V]."""
  normal = np.random.default_rng(0).normal(size=size)
  logits = {
    'flat': np.zeros(size),
    'usual': 3 * normal,
    'one of 0.999': np.where(np.arange(size) == 777, 20, normal / 3),
  }[name]
  return heads_in_numpy.softmax(logits).astype(np.float32)


@pytest.mark.parametrize(
  ('name', 'size'),
  [
    pytest.param('flat', 262_144, marks=pytest.mark.slow),
    ('usual', LARGE),
    ('one of 0.999', LARGE),
  ],
)
def test_a_large_vocabulary_is_drawn_from_exactly(name, size):
  weights = distribution(name, size)
  drawn = drawn_from(weights)
  exact = np.asarray(weights, float) / np.sum(weights, dtype=float)
  assert drawn.sum() == pytest.approx(1, abs=1e-12)
  assert np.abs(drawn - exact).sum() / 2 < 1e-6
  # Only what is next to impossible is never drawn.
  assert exact[drawn == 0].max(initial=0) < 1e-9


@pytest.mark.parametrize('size', [1, 1000])
def test_a_small_vocabulary_is_drawn_from_exactly(size):
  for weights in (
    weights_of(size),
    3 * weights_of(size),
    1e-30 * weights_of(size),
  ):
    drawn = drawn_from(weights.astype(np.float32))
    np.testing.assert_allclose(drawn, weights / weights.sum(), atol=1e-7)
    assert not drawn[weights == 0].any()


@functools.cache
def weights_of(size):
  """Weights of which about half are 0, the first and the last among them."""
  random = np.random.default_rng(size)
  weights = random.exponential(size=size) * (random.random(size) < 0.5)
  weights[[0, -1]] = 0
  weights[size // 2] = 1
  return weights / weights.sum()


@functools.partial(jax.jit, static_argnames='count')
def many(key, weights, count):
  return jax.vmap(sampling.draw, (0, None))(sampling.coins(key, count), weights)


def fit(drawn, groups, weights):
  """Tests draws by the groups [V] of their tokens."""
  counts = np.bincount(groups[drawn], minlength=groups.max() + 1)
  return fit_tests.fit(counts, np.bincount(groups, weights))


def test_draws_of_a_large_vocabulary_follow_the_weights():
  """By place, and by probability down to the rarest tokens."""
  weights = distribution('usual', LARGE)
  exact = np.asarray(weights, float) / np.sum(weights, dtype=float)
  drawn = np.concatenate(
    [many(jax.random.key(i), weights, 10_000) for i in range(6)]
  )
  # The eighth of the vocabulary, and of the block.
  token = np.arange(len(exact))
  places = 8 * (8 * token // len(exact)) + token % 64 // 8
  order = np.argsort(exact)
  rarer = np.cumsum(exact[order])
  rank = np.empty(len(exact), int)
  rank[order] = np.digitize(rarer, [1e-3, 1e-2, 0.03, 0.1, 0.3, 0.6])
  for groups in (places, rank):
    assert fit(drawn, groups, exact).p_value > 1e-4 / 5


def test_where_there_is_no_weight_some_token_comes():
  for value in (0.0, np.nan):
    drawn = many(jax.random.key(0), np.full(70, value, np.float32), 100)
    assert {*drawn.tolist()} <= {*range(70)}


@pytest.mark.parametrize(('dtype', 'bits'), [('float32', 24), ('float64', 32)])
def test_uniform_numbers_are_below_1(dtype, bits, float64):
  ends = jnp.array([0, 1 << (32 - bits), 2**32 - 1], jnp.uint32)
  u = sampling.uniform(ends, jnp.dtype(dtype))
  assert u.dtype == dtype
  assert u.tolist() == [0, 2.0**-bits, 1 - 2.0**-bits]


def test_a_token_is_drawn_with_the_key_of_its_place_in_the_text():
  """Siblings are at one place, and so share a key."""
  length, parents = np.array([5, 9]), np.array([[0, 0, 1, 3]] * 2)

  @jax.jit
  def found():
    keys = jax.random.split(jax.random.key(3), 2)
    draft = Draft(parents, parents, np.array([4, 4]), None)
    ctx = Context(parents, length, None, None, None)
    places = length[:, None] + np.array([0, 1, 1, 2, 3])
    wanted = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(keys, places)
    both = scoring.placed(keys, ctx, draft), wanted
    return [*map(jax.random.key_data, both)]

  np.testing.assert_array_equal(*found())
