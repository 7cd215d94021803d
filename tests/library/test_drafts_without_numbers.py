"""Drafts whose probabilities are no numbers: the text keeps its distribution.

A draft that overflows says NaN of every token, and what is drawn from that
promises nothing. `scoring.propose` makes it one that no rule accepts. Here that
is multiplied out, as in `test_verify`.
"""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.certify import exact
from specjax.loop import scoring
from specjax.types import Draft, Scores
from tests.library import test_verify as rules

NAN, INF = np.nan, np.inf
# Of every token, of some, or an amount that is none.
BROKEN = {
  'all': [NAN] * 4,
  'one': [0.25, 0.5, NAN, 0.25],
  'endless': [INF, 0.0, 0.0, 0.0],
}
CHAIN, TREE = (0, 1, 2), (0, 0, 1, 1)
CASES = {
  'token': (verify.token, CHAIN, False),
  'block': (verify.block, CHAIN, False),
  'recursive': (verify.recursive, TREE, False),
  'recursive, replaced': (verify.recursive, TREE, True),
  'k_seq': (verify.k_seq, TREE, True),
  'importance': (verify.importance, TREE, True),
  'multi_path': (verify.multi_path, (0, 0, 1, 2), True),
  'naive': (verify.naive, TREE, True),
}


def proposed(draft: Draft) -> Draft:
  """The draft as a rule is given it."""
  batch, nodes = draft.tokens.shape
  drafter = types.SimpleNamespace(
    propose=lambda *_: (draft, None), depth=nodes, nodes=nodes
  )
  ctx = types.SimpleNamespace(length=jnp.ones(batch, jnp.int32))
  return scoring.propose(drafter, None, None, ctx, None)[0]


def breaking(parents, replacement, broken, guard):
  """All drafts, of a distribution that is broken after every third text.

  What is drawn there is the same token, whatever the coin. A later sibling
  that repeats none has a distribution again.
  """
  coins = jnp.full(2, 2**31, jnp.uint32)
  token = int(sampling.draw(coins, jnp.array(broken)))
  plain = exact.tree(parents, replacement)

  def source(texts, q, contexts):
    lost = np.arange(len(texts)) % 3 == 1
    drawn = np.eye(rules.VOCAB)[token]
    probs = np.where(lost[:, None], drawn, q.probs)
    made = plain(texts, q._replace(probs=probs), contexts)
    probs = np.array(made.draft.probs)
    for node, parent in enumerate(parents):
      if replacement or parent not in parents[:node]:
        probs[lost[made.rows[:, parent]], node] = broken
    return made._replace(draft=guard(made.draft._replace(probs=probs)))

  return source


def error(case, broken, guard):
  """Of the distribution of whole texts."""
  rule, parents, replacement = CASES[case]
  p, q = rules.pair(0, 'plain')
  source = breaking(parents, replacement, BROKEN[broken], guard)
  return np.abs(
    rules.texts_of(rule, source, p, q) - rules.plain_texts(0, 'plain')
  ).max()


@pytest.mark.parametrize(
  ('case', 'broken'),
  [
    *((case, 'one') for case in CASES),
    *((case, x) for case in ('token', 'recursive') for x in ('all', 'endless')),
  ],
)
def test_the_law_of_the_text_is_kept(case, broken, float64):
  assert error(case, broken, proposed) <= 1e-12


@pytest.mark.parametrize('broken', BROKEN)
def test_what_is_counted_stays_a_number(broken):
  draft = Draft(
    jnp.array([[0, 1]]),
    jnp.array([[0, 1]]),
    jnp.array([2]),
    jnp.array([[BROKEN[broken], [0.25] * 4]]),
  )
  found = proposed(draft)
  one = Draft(*(x[0] for x in found))
  scores = Scores(jnp.full((3, 4), 0.25), jnp.zeros((3, 4)))
  assert verify.overlap(one, scores) == 0
  assert verify.token.accept(one, scores).tolist() == [0, 1]
  np.testing.assert_array_equal(found.probs[0, 1], draft.probs[0, 1])
