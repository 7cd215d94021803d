"""Block verification of the best path, against its definition."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import verify
from specjax.certify import exact
from specjax.verify.multi_path import law_of_best
from tests.library import test_verify as rules
from tests.support import papers_in_numpy


def best_of(p, q, count, depth):
  """The distribution of the best of some chains, from all of them together.

  Thomas and Pal, arXiv:2602.16961: where two chains part, the one whose token
  has the larger p / q ranks higher. No formula is used.
  """

  def ranks(path):
    every = [(p(path[:i]) / q(path[:i]), path[i]) for i in range(depth)]
    return [(ratio[token], token) for ratio, token in every]

  chances = {
    path: np.prod([q(path[:i])[path[i]] for i in range(depth)])
    for path in itertools.product(range(rules.VOCAB), repeat=depth)
  }
  passes: dict[tuple[int, ...], float] = {}
  for drawn in itertools.product(chances, repeat=count):
    best, chance = max(drawn, key=ranks), np.prod([chances[x] for x in drawn])
    for i in range(depth + 1):
      passes[best[:i]] = passes.get(best[:i], 0) + chance

  def law(text):
    longer = [passes.get((*text, x), 0) for x in range(rules.VOCAB)]
    return np.array(longer) / passes[text] if text in passes else q(text)

  return law


@pytest.mark.parametrize(
  ('count', 'parents'),
  [(2, (0, 0, 1, 2)), pytest.param(3, (0, 0, 0), marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_step_is_block_verification_of_the_best_path(count, parents, float64):
  p, q = rules.pair(7, 'plain')
  depth = len(parents) // count
  ours = rules.emitted(verify.multi_path, exact.tree(parents, True), p, q)
  target, draft = rules.function_of(p), rules.function_of(q)
  law = best_of(target, draft, count, depth)
  paper = papers_in_numpy.sun(target, law, depth)
  assert papers_in_numpy.difference(ours, paper) <= 1e-12


def test_one_path_is_judged_as_block_verification_judges_it(float64):
  for seed, kind in enumerate(rules.KINDS):
    p, q = rules.pair(seed, kind)
    ours, block = (
      rules.emitted(rule, rules.CHAINS['until an unlikely one'], p, q)
      for rule in (verify.multi_path, verify.block)
    )
    assert ours == block


@pytest.mark.parametrize('through', [1.0, 0.3, 1e-30])
def test_float32_is_enough_for_many_paths(through):
  q = jnp.array([1e-7, 0.3, 0.7 - 1e-7], jnp.float32)
  below = jnp.float32(1 - through)
  lower = below + through * (jnp.cumsum(q) - q)
  law = law_of_best(q, lower, through, below, 32)
  np.testing.assert_allclose(law.sum(), 1, rtol=1e-5)
  if through < 0.1:
    np.testing.assert_allclose(law, q, rtol=1e-5)
  else:
    assert law[2] > q[2]
