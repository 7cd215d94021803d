"""Losses of heads, computed by hand for a text of a few tokens.

A vocabulary of two tokens. `soft(a, b)` is the cross-entropy of q, which
gives its first token a chance a, under one that gives it b.
"""

import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters import early_exit, medusa
from specjax.drafters.eagle import training
from specjax.drafters.heads import masked
from specjax.drafters.heads.trainable import Seen
from specjax.drafters.shapes.parallel import Masked
from specjax.types import Params
from tests.support import models

GOAL = (0.5, 0.25, 0.75, 0.125)  # of the target, after tokens 0 to 3
SEEN = Seen(
  jnp.array([[0, 1, 1, 0]]),
  jnp.zeros((1, 4, 1, 2)),
  jnp.log(jnp.array([[[p, 1 - p] for p in GOAL]])),
)


def soft(a, b):
  return -a * math.log(b) - (1 - a) * math.log(1 - b)


def logits(*chances):
  """Logits [1, T, 2] that give their first token these chances."""
  return jnp.log(jnp.array([[[p, 1 - p] for p in chances]]))


def test_cross_entropy_counts_places_by_their_weight():
  goal, said = logits(0.5, 0.25), logits(0.75, 0.5)
  terms = soft(0.5, 0.75), soft(0.25, 0.5)
  for weight, expected in (
    ((1, 1), (terms[0] + terms[1]) / 2),
    ((1, 0), terms[0]),
    ((0, 1), terms[1]),
    ((0, 0), 0),
    ((3, 1), (3 * terms[0] + terms[1]) / 4),
    ((0.5, 0.25), (2 * terms[0] + terms[1]) / 3),
  ):
    found = SEEN.judge(goal, said, jnp.array([weight], float))
    assert found == pytest.approx(expected, rel=1e-5)


def test_texts_may_be_learned_instead_of_the_target():
  seen = SEEN.replace(counts=jnp.array([[0, 1, 1, 1]]), divergence=None)
  seen = seen.following(2)  # Of tokens 0, 1, 1, 0; nothing follows the last.
  said = logits(0.5, 0.25, 0.75, 0.5)
  found = seen.judge(seen.logits, said, seen.weights)
  terms = math.log(1 - 0.25), math.log(0.75)
  assert found == pytest.approx(-sum(terms) / 2, rel=1e-5)
  assert SEEN.behind(2).weights.tolist() == [[1, 1]]


def test_the_loss_of_version_3():
  """Step j is weighted by 0.8^j, over the pairs from j on.

  Pair i, of tokens i and i + 1, is judged by p after token i + 1.
  """
  steps = (
    (0.5, 0.5, 0.5),
    (0.9, 0.25, 0.75),
    (0.9, 0.9, 0.125),
    (0.9, 0.9, 0.9),  # No pair is that far.
    (0.8, 0.8, 0.8),
  )
  asked = []

  def unroll(params, tokens, hidden, count):
    asked.append((tokens.shape, count))
    return [logits(*step) for step in steps]

  head = types.SimpleNamespace(
    unroll=unroll, learned=lambda params, goal: (goal, 1.0, lambda x: x)
  )
  found = training.tokens(head, None, SEEN, None)
  mean = [
    (soft(0.25, 0.5) + soft(0.75, 0.5) + soft(0.125, 0.5)) / 3,
    (soft(0.75, 0.25) + soft(0.125, 0.75)) / 2,
    soft(0.125, 0.125),
    0,
    0,
  ]
  assert asked == [((1, 4), 5)]
  assert list(found) == [f'step{j}' for j in range(5)]
  for j, value in enumerate(mean):
    assert found[f'step{j}'] == pytest.approx(0.8**j * value, rel=1e-5)


def test_the_loss_of_version_1():
  """A smooth distance of features, and a tenth of what is said of tokens.

  Pair i, of feature i and token i + 1, makes feature i + 1.
  """
  features = jnp.array([[[1.0], [2.0], [3.0], [5.0]]])
  made = jnp.array([[[2.5], [3.25], [2.0]]])  # Off by 0.5, 0.25 and 3.
  asked = []

  def forward(params, tokens, read, at, cache, used, mask, flight, row):
    asked.append((tokens.tolist(), np.abs(read - features[:, :-1]).max()))
    assert at.tolist() == [[0, 1, 2]]
    assert mask.tolist() == [np.tri(3, dtype=bool).tolist()]
    return made, None

  head = types.SimpleNamespace(
    read=lambda params, hidden: features,
    forward=forward,
    logits=lambda params, x: logits(0.5, 0.25, 0.75),
  )
  found = training.features(head, None, SEEN, jax.random.key(0))
  smooth = (0.5**2 / 2 + 0.25**2 / 2 + (3 - 0.5)) / 3
  said = (soft(0.25, 0.5) + soft(0.75, 0.25) + soft(0.125, 0.75)) / 3
  assert found['feature'] == pytest.approx(smooth, rel=1e-5)
  assert found['token'] == pytest.approx(0.1 * said, rel=1e-5)
  ((tokens, noise),) = asked
  assert tokens == [[1, 1, 0]]
  assert 0.01 < noise <= 0.1


def test_the_loss_of_masks():
  """Mask d behind row a is judged by p after token a + d, if that is there."""
  begin, depth = jnp.array([[0, 1, 2, 3, 2, 3]]), jnp.array([0, 0, 0, 0, 1, 1])
  drafts = Masked(begin, depth)
  said = (0.5, 0.25, 0.75, 0.9, 0.125, 0.9)
  terms = [soft(*x) for x in zip((*GOAL, GOAL[3]), said, strict=False)]
  found = masked.judge(drafts, SEEN, logits(*said))
  assert found == pytest.approx(sum(terms) / 5, rel=1e-5)
  some = SEEN.replace(counts=jnp.array([[0, 1, 0, 0]]))
  found = masked.judge(drafts, some, logits(*said))
  assert found == pytest.approx(terms[1], rel=1e-5)


TARGET = models.tiny(2, 1)
HIDDEN = jnp.asarray(
  np.random.default_rng(0).normal(size=(1, 4, 1, 8)), jnp.float32
)


def said_by_the_target(block=0.0, hidden=HIDDEN, adapter=0.0):
  weights = models.weights(TARGET, 0)
  normed = TARGET.norm(weights, hidden[:, :, 0])
  normed = normed + jax.nn.silu(normed @ jnp.full((8, 8), block))
  normed = normed + normed @ jnp.full((8, 8), adapter)
  return jax.nn.softmax(TARGET.head(weights, normed))[0, :, 0].tolist()


def test_the_loss_of_medusa():
  """Head k has the k-th block of the weights, and is k places ahead."""
  trained = medusa.trainable(TARGET, 3)
  weights = models.weights(TARGET, 0)
  fresh = trained.init(None, None)['residual']
  blocks = [0.25, -0.5, 0.125]
  own = {'residual': fresh + jnp.repeat(jnp.array(blocks), 8)}
  seen = SEEN.replace(hidden=HIDDEN)
  found = jax.jit(trained.loss)(Params(weights, own), seen, None)
  assert list(found) == ['head1', 'head2', 'head3']
  for k, block in enumerate(blocks, 1):
    said = said_by_the_target(block)
    terms = [soft(GOAL[t + k], said[t]) for t in range(4 - k)]
    expected = 0.8**k * sum(terms) / len(terms)
    assert found[f'head{k}'] == pytest.approx(expected, rel=1e-4)


def test_the_loss_of_an_exit():
  trained = early_exit.trainable(TARGET, 1, 2)
  weights = models.weights(TARGET, 0)
  own = trained.init(jax.random.key(0), weights)
  assert own['scale'].tolist() == [1] * 8
  assert not own['up'].any()
  assert own['down'].std() == pytest.approx(8**-0.5, rel=0.5)
  own['scale'] = weights['norm']['scale']
  own |= {'down': jnp.full((8, 2), 0.25), 'up': jnp.full((2, 8), 0.5)}
  # So small that what is added to their squares counts.
  small, params = 1e-3 * HIDDEN, Params(weights, own)
  found = trained.loss(params, SEEN.replace(hidden=small), None)
  said = said_by_the_target(hidden=small, adapter=0.25)  # 2 x 0.25 x 0.5
  terms = [soft(a, b) for a, b in zip(GOAL, said, strict=True)]
  assert found == {'token': pytest.approx(sum(terms) / 4, rel=1e-4)}
