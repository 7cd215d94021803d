"""Divergences against numpy, and where chances are zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax.training import divergences

VOCAB = 5
ALL = (
  divergences.forward_kl, divergences.reverse_kl, divergences.jensen_shannon,
  divergences.total_variation, divergences.minus_log_alpha,
  divergences.cross_entropy, divergences.acceptance_hybrid,
)  # fmt: skip


@jax.jit
def evaluate(log_p, log_q):
  """Values [D] of all, and gradients [D, V] by the logits of q."""

  def values(logits):
    p, q = jax.nn.log_softmax(log_p), jax.nn.log_softmax(logits)
    return jnp.stack([divergence(p, q) for divergence in ALL])

  return values(log_q), jax.jacrev(values)(log_q)


def logits_of(probs):
  with np.errstate(divide='ignore'):
    return np.log(np.asarray(probs, np.float32))


def by_hand(p, q):
  """The same in numpy, where nothing is zero."""
  m = (p + q) / 2
  alpha = np.minimum(p, q).sum()
  return [
    (p * np.log(p / q)).sum(),
    (q * np.log(q / p)).sum(),
    ((p * np.log(p / m)).sum() + (q * np.log(q / m)).sum()) / 2,
    1 - alpha,
    -np.log(alpha),
    -(p * np.log(q)).sum(),
    np.exp(-3 * alpha) * (p * np.log(p / q)).sum()
    + (1 - np.exp(-3 * alpha)) * (1 - alpha),
  ]


distributions = st.lists(
  st.floats(1e-3, 1), min_size=VOCAB, max_size=VOCAB
).map(lambda x: np.array(x) / np.sum(x))


@given(distributions, distributions)
def test_values_are_those_of_numpy(p, q):
  values, _ = evaluate(logits_of(p), logits_of(q))
  np.testing.assert_allclose(values, by_hand(p, q), atol=3e-6)


@pytest.mark.parametrize(
  ('p', 'q', 'variation'),
  [
    ((1, 0, 0, 0, 0), (0, 1, 0, 0, 0), 1),
    ((1, 0, 0, 0, 0), (0.2,) * 5, 0.8),
    ((0.2,) * 5, (0, 0, 0, 0, 1), 0.8),
    ((0.5, 0.5, 0, 0, 0), (0, 0.5, 0.5, 0, 0), 0.5),
  ],
)
def test_zeros_are_finite(p, q, variation):
  values, gradients = evaluate(logits_of(p), logits_of(q))
  assert np.isfinite(values).all()
  assert np.isfinite(gradients).all()
  assert values[3] == pytest.approx(variation, abs=1e-6)
  assert values[2] <= np.log(2) + 1e-6
  if variation < 1:
    assert values[4] == pytest.approx(-np.log(1 - variation), abs=1e-5)
