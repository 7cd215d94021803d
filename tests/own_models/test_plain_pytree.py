"""Models of plain functions and of equinox, beside whole texts read anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from experiments.own_models import plain_pytree
from tests.support import package_models

pytestmark = pytest.mark.slow


def check(module, logits):
  """Compares with greedy texts by logits(params, text), without a cache."""
  target = module.load(vocab=61)
  specjax.check_model(target.model, target.params)
  expected = package_models.greedy(lambda text: logits(target.params, text))
  smaller = module.load(vocab=61, seed=1, layers=1)
  package_models.check_target(target, smaller, expected)


def test_texts_of_plain_functions():
  def logits(params, text):
    words, places, layers = (
      np.asarray(params[n]) for n in sorted(params)[::-1]
    )
    x = words[text] + places[: len(text)]
    for query, key, value, out in layers:
      scores = np.exp((x @ query) @ (x @ key).T) * np.tri(len(text))
      weights = scores / scores.sum(1, keepdims=True)
      x = np.tanh(x + weights @ (x @ value) @ out)
    return x[-1] @ words.T

  check(plain_pytree, logits)


def test_texts_of_equinox():
  pytest.importorskip('equinox')
  from experiments.own_models import equinox_model

  read = jax.jit(equinox_model.Decoder(0, 61, 32, 2).__call__)
  places = jnp.arange(64)
  inputs = places, [jnp.zeros((64, 32))] * 2, places <= places[:, None], 0

  def logits(params, text):
    del params  # Those of the seed.
    tokens = jnp.zeros(64, int).at[: len(text)].set(jnp.array(text))
    return read(tokens, *inputs)[0][len(text) - 1]

  check(equinox_model, logits)
