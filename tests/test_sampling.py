"""The logits pipeline against its transcription, and drawing from it.

The chi-square tests have fixed seeds and a false-alarm rate of 1e-4 in all.
"""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from tests import reference

VOCAB = 9


@jax.jit
def law(logits, values):
  return sampling.distribution(logits, values)


def values(temperature, top_k=0, top_p=1.0, min_p=0.0):
  """Values of one sequence with every stage present."""
  made = sampling.make(1, temperature, top_k, top_p, min_p)
  return jax.tree.map(lambda x: x[0], made)


def rounded(temperature, top_k=0, top_p=1.0, min_p=0.0):
  """What `make` keeps of them: values are float32 whatever the logits are."""
  return (
    float(np.float32(temperature)),
    top_k,
    float(np.float32(top_p)),
    float(np.float32(min_p)),
  )


def clear_cut(logits, temperature, top_k, top_p, min_p):
  """Whether no token is so close to a cut that rounding decides."""
  if np.diff(np.sort(logits)).min() < 1e-6:
    return False
  kept = [
    reference.pipeline(
      logits, temperature, top_k, min(1, top_p * nudge), min_p * other
    )
    > 0
    for nudge in (1 - 1e-9, 1, 1 + 1e-9)
    for other in (1 - 1e-9, 1 + 1e-9)
  ]
  return all((k == kept[0]).all() for k in kept)


@hypothesis.settings(max_examples=300)
@hypothesis.given(
  logits=st.lists(
    st.floats(-8, 8), min_size=VOCAB, max_size=VOCAB, unique=True
  ),
  temperature=st.one_of(st.just(0.0), st.floats(0.1, 3)),
  top_k=st.integers(0, VOCAB + 3),
  top_p=st.one_of(st.just(1.0), st.floats(0.01, 1)),
  min_p=st.one_of(st.just(0.0), st.floats(0, 0.9)),
)
def test_distribution_is_that_of_the_reference(logits, **setting):
  setting = rounded(**setting)
  hypothesis.assume(clear_cut(logits, *setting))
  with jax.enable_x64(True):
    ours = law(jnp.asarray(logits, jnp.float64), values(*setting))
    theirs = reference.pipeline(logits, *setting)
    assert ours.dtype == jnp.float64
  np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
  assert ((np.asarray(ours) > 0) == (theirs > 0)).all()


@pytest.mark.parametrize('size', [1, 64, 1000])
def test_long_and_short_vocabularies(size, float64):
  logits = np.random.default_rng(size).normal(size=size) * 3
  for setting in (
    (1.0, 0, 0.9, 0.0),
    (0.7, 40, 1.0, 0.0),
    (1.5, 30, 0.8, 0.05),
    (0.0, 2, 0.1, 0.5),
  ):
    ours = law(jnp.asarray(logits), values(*setting))
    theirs = reference.pipeline(logits, *rounded(*setting))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_stages_are_applied_in_order():
  # After top-k the two largest have 2/3 and 1/3: top-p 0.6 then keeps one.
  # Before top-k they have 0.4 and 0.2: it would keep both.
  logits = jnp.log(jnp.array([0.4, 0.2, 0.2, 0.1, 0.1]) + jnp.arange(5) * 1e-6)
  probs = law(logits[::-1], values(1.0, top_k=2, top_p=0.6))
  np.testing.assert_allclose(probs, [0, 0, 0, 0, 1])
  # Temperature comes before top-p: 0.8 and 0.2 become 16 / 17 and 1 / 17.
  probs = law(jnp.log(jnp.array([0.8, 0.2])), values(0.5, top_p=0.9))
  np.testing.assert_allclose(probs, [1, 0])
  # Min-p is relative to the largest.
  probs = law(jnp.log(jnp.array([0.6, 0.3, 0.1])), values(1.0, min_p=0.25))
  np.testing.assert_allclose(probs, [2 / 3, 1 / 3, 0], rtol=1e-6)


def test_temperature_zero_is_the_first_of_the_largest():
  logits = jnp.array([1.0, 3.0, -2.0, 3.0, 3.0])
  probs = law(logits, values(0.0, top_k=1, top_p=0.1, min_p=0.9))
  np.testing.assert_array_equal(probs, [0, 1, 0, 0, 0])


def test_equal_probabilities_at_a_cut_are_all_kept():
  logits = jnp.log(jnp.array([0.4, 0.2, 0.2, 0.2]))
  for setting in ({'top_k': 2}, {'top_p': 0.5}):
    probs = law(logits, values(1.0, **setting))
    np.testing.assert_allclose(probs, [0.4, 0.2, 0.2, 0.2], rtol=1e-6)


def test_impossible_tokens_stay_impossible():
  logits = jnp.array([0.0, -jnp.inf, 1.0, -jnp.inf])
  probs = np.asarray(law(logits, values(1.3, top_k=3, top_p=0.99)))
  assert (probs[[1, 3]] == 0).all()
  np.testing.assert_allclose(probs.sum(), 1, rtol=1e-6)


def test_low_precision_logits_give_float32():
  logits = jnp.asarray([1.0, 2.0], jnp.bfloat16)
  assert law(logits, values(1.0)).dtype == jnp.float32


def test_stages_that_do_not_exist_change_nothing(float64):
  logits = jnp.asarray(np.random.default_rng(3).normal(size=VOCAB))
  alone = jax.tree.map(lambda x: x[0], sampling.make(1, 0.8))
  np.testing.assert_allclose(
    law(logits, alone), law(logits, values(0.8)), rtol=0, atol=1e-15
  )


@functools.cache
def weights_of(size):
  """Weights of which about half are 0, the first and the last among them."""
  random = np.random.default_rng(size)
  weights = random.exponential(size=size) * (random.random(size) < 0.5)
  weights[[0, -1]] = 0
  weights[size // 2] = 1
  return weights / weights.sum()


many = jax.jit(jax.vmap(sampling.draw, in_axes=(0, None)))
each = jax.jit(jax.vmap(sampling.draw))
SIZES = (5, 64, 65, 1000)


@pytest.mark.parametrize('size', SIZES)
def test_draw_inverts_the_cumulative_distribution(size, float64):
  weights = weights_of(size) * 3  # Weights need not sum to 1.
  edges = np.cumsum(weights)
  u = np.random.default_rng(0).random(4096)
  u[:2] = 0, 1 - 2**-53
  goal = u * edges[-1]
  expected = np.searchsorted(edges, goal, side='right')
  expected = np.minimum(expected, np.flatnonzero(weights)[-1])
  # At an edge rounding decides.
  away = np.abs(goal[:, None] - edges).min(1) > 1e-12
  away[0] = True
  drawn = np.asarray(many(u, weights))
  assert away.mean() > 0.99
  np.testing.assert_array_equal(drawn[away], expected[away])


@pytest.mark.parametrize('size', SIZES)
def test_draw_never_takes_a_weight_of_zero(size):
  """Even where the uniform falls on an edge, up to the last bit."""
  random = np.random.default_rng(size)
  weights = random.exponential(size=(500, size)).astype(np.float32)
  weights *= random.random(weights.shape) < 0.5
  weights[:, size // 2] += 0.1
  weights /= weights.sum(1, keepdims=True)
  edges = np.cumsum(weights, 1)
  rows = np.arange(500)
  for place in range(0, size, max(1, size // 24)):
    u = edges[:, place] / edges[:, -1]
    for near in (u, np.nextafter(u, np.float32(0)), np.nextafter(u, u + 1)):
      drawn = np.asarray(each(np.clip(near, 0, 1 - 2**-24), weights))
      assert (drawn < size).all()
      assert (weights[rows, drawn] > 0).all()


@pytest.mark.parametrize('size', SIZES)
def test_draws_follow_the_weights(size):
  weights = weights_of(size).astype(np.float32)
  u = jax.random.uniform(jax.random.key(size), (200_000,))
  counts = np.bincount(many(u, weights), minlength=size)
  misfit = reference.Misfit()
  seen = {i: int(n) for i, n in enumerate(counts) if n}
  misfit.add(seen, dict(enumerate(weights.astype(float) / weights.sum())))
  assert misfit.p_value() > 1e-4 / len(SIZES)


@pytest.mark.parametrize(
  ('setting', 'field'),
  [
    ({'temperature': -0.1}, 'temperature'),
    ({'temperature': float('nan')}, 'temperature'),
    ({'temperature': [0.0, float('inf')]}, 'temperature'),
    ({'top_k': -1}, 'top_k'),
    ({'top_p': 0.0}, 'top_p'),
    ({'top_p': [0.5, 1.1]}, 'top_p'),
    ({'min_p': 1.0}, 'min_p'),
    ({'min_p': -0.1}, 'min_p'),
  ],
)
def test_a_value_out_of_range_is_named(setting, field):
  with pytest.raises(ValueError, match=f'^{field} must be'):
    sampling.make(2, **setting)


def test_make_spreads_scalars_over_rows():
  made = sampling.make(3, 0.5, top_p=[0.1, 0.2, 0.3])
  np.testing.assert_allclose(made.temperature, [0.5] * 3)
  np.testing.assert_allclose(made.top_p, [0.1, 0.2, 0.3])
  assert made.top_k is None
  assert made.min_p is None
