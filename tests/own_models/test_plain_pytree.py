"""A model of plain functions, compared with whole texts read each time."""

import numpy as np
import pytest

import specjax
from experiments.own_models import plain_pytree
from tests.support import package_models

pytestmark = pytest.mark.slow


def _logits(params, text):
  """Logits [V] behind one text, without a cache or a batch."""
  words, places, layers = (np.asarray(params[n]) for n in sorted(params)[::-1])
  x = words[text] + places[: len(text)]
  for query, key, value, out in layers:
    scores = np.exp((x @ query) @ (x @ key).T) * np.tri(len(text))
    weights = scores / scores.sum(1, keepdims=True)
    x = np.tanh(x + weights @ (x @ value) @ out)
  return x[-1] @ words.T


def test_texts_are_those_of_a_loop_without_a_cache():
  target = plain_pytree.load(vocab=61)
  specjax.check_model(target.model, target.params)
  expected = package_models.greedy(lambda text: _logits(target.params, text))
  smaller = plain_pytree.load(vocab=61, seed=1, layers=1)
  package_models.check_target(target, smaller, expected)
