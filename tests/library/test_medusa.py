"""Medusa's options: biases, and output layers of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters import medusa
from specjax.drafters.heads import files
from specjax.drafters.medusa import module as medusa_model
from specjax.types import Params, Target
from tests.support import models

TARGET, WIDTH = models.TARGET, models.TARGET.config.width
OPTIONS = {'bias': True, 'unembedding': True}
FULL = medusa.trainable(TARGET, 3, **OPTIONS)
OWN = models.head_of(FULL, 0.3)
say = jax.jit(medusa_model.apply, static_argnums=0)


@pytest.mark.parametrize('tied', [False, True])
def test_fresh_output_layers_are_the_targets(tied):
  target = models.tiny(models.VOCAB, 1, tied_embeddings=tied)
  with jax.enable_x64(False):
    weights = target.init(jax.random.key(0))
  features = jnp.asarray(np.random.default_rng(0).normal(size=(2, WIDTH)))
  trained = medusa.trainable(target, 2, **OPTIONS)
  own = trained.init(None, weights)
  said = say(target, Params(weights, own), features)
  wanted = target.head(weights, target.norm(weights, features))
  for head in (0, 1):
    np.testing.assert_allclose(said[:, head], wanted, atol=1e-5)


def test_heads_without_options_have_no_further_weights():
  trained = medusa.trainable(TARGET, 3)
  assert trained.config == {'kind': 'medusa', 'count': 3}
  assert {*trained.init(None, models.target_weights())} == {'residual'}


def test_their_files_say_which_options_they_have(tmp_path):
  files.save(tmp_path / 'head', FULL.config, OWN())
  loaded = medusa.load(Target(TARGET), tmp_path / 'head')
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3),
    loaded.params,
    OWN(),
  )
  config = {k: v for k, v in FULL.config.items() if k != 'bias'}
  files.save(tmp_path / 'none', config, OWN())
  with pytest.raises(ValueError, match=r'do not fit its config\.json'):
    medusa.load(Target(TARGET), tmp_path / 'none')


def test_heads_can_be_read_one_place_further(tmp_path):
  files.save(tmp_path / 'head', {**FULL.config, 'target': ''}, OWN())
  target = Target(TARGET)
  usual = medusa.load(target, tmp_path / 'head')
  later = medusa.load(target, tmp_path / 'head', read_as={'skip': 1})
  feature = jax.random.normal(jax.random.key(1), (2, WIDTH))
  params = Params(models.target_weights(), usual.params)
  places = say(TARGET, params, feature)
  shifted = medusa_model.apply(
    TARGET, params, feature, medusa_model.Reading(skip=1)
  )
  np.testing.assert_array_equal(shifted, places[:, 1:])
  assert later.make(2).depth == 2
  with pytest.raises(ValueError, match='deeper than the 2 heads'):
    later.make(3)
  found = medusa.alternatives(target, tmp_path / 'head', read_as={'skip': 1})
  assert {'read_as': {'skip': 0}} in found.values()
  # Of a single head none can be left out.
  for count, skips in ((1, []), (2, [{'skip': 1}])):
    near = medusa_model.near(medusa_model.USUAL, count).values()
    assert [values for values in near if 'skip' in values] == skips
  with pytest.raises(ValueError, match="'taps' is none of a head"):
    medusa.load(target, tmp_path / 'head', read_as={'taps': (1,)})
