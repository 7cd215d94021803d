"""Traversal verification against its paper, and against the other rules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import verify
from specjax.certify import exact
from specjax.types import Draft, Scores
from tests.library import test_verify as rules
from tests.support import papers_in_numpy

TREES = {'siblings': (0, 0, 0), 'uneven': (0, 0, 1, 1), 'deep': (0, 0, 1, 2)}


def paper(p, q, parents):
  """Chances of what a step emits, summed over all drafts of a tree.

  Weng et al., arXiv:2505.12398, Algorithm 2, in its own words: the deepest
  first path is judged; where it is rejected its last node is deleted, and what
  is above it is left with less. Siblings repeat no token.
  """
  chances: dict[tuple[int, ...], float] = {}

  def judge(draw):
    """One draft: tokens, and the distribution of each when it was drawn."""
    tokens, drawn, probs = draw
    texts = {0: ()}
    for node, above in enumerate(parents, 1):
      texts[node] = (*texts[above], tokens[node - 1])
    below = {row: [] for row in texts}
    for node, above in enumerate(parents, 1):
      below[above].append(node)
    left = {row: p(text) for row, text in texts.items()}
    weight = {0: 1.0}
    path, reached = [0], drawn
    while path:
      here = path[-1]
      if below[here]:
        child = below[here][0]
        token = tokens[child - 1]
        ratio = left[here][token] / probs[child - 1][token]
        weight[child] = min(weight[here] * ratio, 1)
        path.append(child)
        continue
      for x, chance in enumerate(left[here]):
        emitted = (*texts[here], x)
        stays = reached * weight[here] * chance
        chances[emitted] = chances.get(emitted, 0) + stays
      reached *= 1 - weight[here]
      path.pop()
      if not path or not reached:
        return
      above = path[-1]
      below[above].pop(0)
      rest = np.maximum(weight[above] * left[above] - probs[here - 1], 0)
      left[above] = rest / rest.sum() if rest.sum() else left[above]
      weight[above] = rest.sum() / (rest.sum() + 1 - weight[above])

  def draws(tokens, chance, probs):
    node = len(tokens)
    if node == len(parents):
      yield tokens, chance, probs
      return
    text, above = (), parents[node]
    while above:
      text, above = (tokens[above - 1], *text), parents[above - 1]
    law = q(text).copy()
    law[[t for i, t in enumerate(tokens) if parents[i] == parents[node]]] = 0
    law /= law.sum()
    for token in np.flatnonzero(law):
      longer = (*tokens, int(token))
      yield from draws(longer, chance * law[token], (*probs, law))

  for draw in draws((), 1.0, ()):
    judge(draw)
  return chances


@pytest.mark.parametrize(
  ('tree', 'replacement'),
  [('siblings', True), ('uneven', False), ('uneven', True), ('deep', False)],
)
def test_it_accepts_at_least_as_much_as_recursive_rejection(
  tree, replacement, float64
):
  gains = []
  for seed in range(3):
    p, q = rules.pair(seed, 'plain')
    source = exact.tree(TREES[tree], replacement)
    ours, other = (
      exact.efficiency(rule, source, rules.TEXTS, p, q)
      for rule in (verify.traversal, verify.recursive)
    )
    gains.append(ours - other)
  assert min(gains) > -1e-12
  # With one level there are no paths, and both are the same rule.
  assert (max(gains) > 1e-3) == (tree != 'siblings')


@pytest.mark.parametrize('tree', TREES)
def test_a_step_is_that_of_the_paper(tree, float64):
  p, q = rules.pair(7, 'plain')
  parents = TREES[tree]
  ours = rules.emitted(verify.traversal, exact.tree(parents), p, q)
  law = paper(rules.function_of(p), rules.function_of(q), parents)
  assert papers_in_numpy.difference(ours, law) <= 1e-12


def test_what_hangs_below_a_repeated_token_does_not_exist():
  """The walk stands at the first of equal siblings, and never comes there."""
  p, flat = np.array([0.25, 0.5, 0.25]), [1 / 3] * 3
  scores = Scores(jnp.array([p] * 4), jnp.log(jnp.array([p] * 4)))
  draft = Draft(
    jnp.array([0, 0, 1]), jnp.array([0, 0, 2]), jnp.array(3),
    jnp.array([flat] * 3),
  )  # fmt: skip
  judge = jax.jit(verify.traversal.accept)
  accept = judge(draft, scores)
  without = judge(draft._replace(size=jnp.array(2)), scores)
  np.testing.assert_allclose(accept, without, rtol=1e-6)
  assert accept.tolist()[1:] == [0, 0]
  # 3/4, and of what is left, max(p - q, 0) = (0, 1/6, 0), nothing.
  assert accept[0] == pytest.approx(0.75)
