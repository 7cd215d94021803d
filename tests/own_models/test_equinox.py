"""A model of equinox, compared with whole texts read each time."""

import pytest

pytest.importorskip('equinox')

import jax
import jax.numpy as jnp

import specjax
from experiments.own_models import equinox_model
from tests.support import package_models

pytestmark = pytest.mark.slow


def test_texts_are_those_of_a_loop_without_a_cache():
  target = equinox_model.load(vocab=61)
  specjax.check_model(target.model, target.params)
  read, places = (
    jax.jit(equinox_model.Decoder(0, 61, 32, 2).__call__),
    jnp.arange(64),
  )
  inputs = places, [jnp.zeros((64, 32))] * 2, places <= places[:, None], 0

  def logits(text):
    tokens = jnp.zeros(64, int).at[: len(text)].set(jnp.array(text))
    return read(tokens, *inputs)[0][len(text) - 1]

  smaller = equinox_model.load(vocab=61, seed=1, layers=1)
  package_models.check_target(target, smaller, package_models.greedy(logits))
