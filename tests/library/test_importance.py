"""The selection of one of two candidates, and the best that there could be."""

import itertools

import jax
import numpy as np
import pytest

from specjax.stats import optimal
from specjax.verify.importance import select
from tests.support import papers_in_numpy


def distributions(seed, vocab, near):
  random = np.random.default_rng(seed)
  p, q = random.exponential(size=(2, vocab)) ** 3 + 1e-9
  p, q = p / p.sum(), q / q.sum()
  return p, near * p + (1 - near) * q


@pytest.mark.parametrize('near', [0.0, 0.4, 0.8, 1.0])
def test_it_accepts_nearly_as_much_as_any_rule_could(near, float64):
  judge = jax.jit(select)
  for seed in range(20):
    p, q = distributions(seed, 8, near)
    found = judge(p, q)
    accepted = np.minimum(p, found.law).sum()
    most = optimal.acceptance(p, q, 2)
    assert 0.98 * most <= accepted <= most + 1e-12
    assert accepted >= papers_in_numpy.k_seq(p, q, 2) - 0.002


def test_it_accepts_as_much_as_any_rule_could_of_most_pairs(float64):
  pairs = np.random.default_rng(0).dirichlet(np.ones(8), (2, 1000))
  laws = jax.jit(jax.vmap(select))(*pairs).law
  accepted = np.minimum(pairs[0], laws).sum(1)
  most = [optimal.acceptance(p, q, 2) for p, q in zip(*pairs, strict=True)]
  assert np.quantile(accepted / most, 0.01) > 0.995
  assert (accepted / most).min() > 0.98


def test_a_selection_by_hand():
  """Token 0 goes first, and 1 gives way to 2 every second time.

  So 0 is selected with 1 - 1/4, and 1 with 1/16 and half of 2/16.
  """
  p, q = np.array([0.75, 0.125, 0.125]), np.array([0.5, 0.25, 0.25])
  found = jax.jit(select)(p, q)
  np.testing.assert_allclose(found.law, p, rtol=1e-6)
  assert found.gives.tolist() == [0, 0.5, 0]
  assert not found.takes.any()


@pytest.mark.parametrize('near', [0.0, 0.6])
def test_its_law_is_that_of_the_selected_token(near, float64):
  p, q = distributions(3, 8, near)
  q[1] = 0
  q /= q.sum()
  rank, late, gives, takes, law = jax.device_get(jax.jit(select)(p, q))
  selected = np.zeros(8)
  for one, two in itertools.product(range(8), repeat=2):
    early, later = sorted((one, two), key=lambda token: rank[token])
    swap = (gives[early] + takes[later]) * (late[early] == late[later])
    selected[early] += q[one] * q[two] * (1 - swap)
    selected[later] += q[one] * q[two] * swap
  np.testing.assert_allclose(selected, law, atol=1e-12)
  assert max(gives.max(), takes.max()) > 0
  assert law[1] == 0


def test_float32_is_enough_for_many_tokens():
  p, q = (x.astype(np.float32) for x in distributions(0, 20_000, 0.5))
  law = np.asarray(jax.jit(select)(p, q).law)
  np.testing.assert_allclose(law.sum(dtype=float), 1, atol=1e-5)
  accepted = np.minimum(p, law).sum(dtype=float)
  assert accepted > 0.98 * optimal.acceptance(p, q, 2)
