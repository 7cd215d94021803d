"""Medusa's options: biases, and output layers of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters import medusa
from specjax.drafters.heads import files
from specjax.drafters.medusa import module as medusa_model
from specjax.models import linear
from specjax.types import Params, Target
from tests.support import heads_in_numpy, models

TARGET, WIDTH = models.TARGET, models.TARGET.config.width
OPTIONS = {'bias': True, 'unembedding': True}
FULL = medusa.trainable(TARGET, 3, **OPTIONS)
OWN = models.head_of(FULL, 0.3)
say = jax.jit(medusa_model.apply, static_argnums=0)


def published(own):
  """Our weights by their published names."""
  tensors = {}
  for i, head in enumerate(own['unembedding'].values()):
    mine = slice(i * WIDTH, (i + 1) * WIDTH)
    tensors[f'{i}.0.linear.weight'] = own['residual'][:, mine].T
    tensors[f'{i}.0.linear.bias'] = own['bias'][mine]
    tensors[f'{i}.1.weight'] = head.T
  return {name: np.asarray(x, np.float64) for name, x in tensors.items()}


def test_heads_of_their_own_are_those_of_the_paper():
  weights = models.target_weights()
  features = jnp.asarray(np.random.default_rng(0).normal(size=(4, WIDTH)))
  said = say(TARGET, Params(weights, OWN()), features)
  normed = np.asarray(TARGET.norm(weights, features), np.float64)
  for row, feature in zip(said, normed, strict=True):
    wanted = heads_in_numpy.medusa(published(OWN()), feature)
    np.testing.assert_allclose(row, wanted, atol=1e-5)


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


@pytest.mark.usefixtures('kernel')
def test_output_layers_in_blocks_say_the_same():
  target = models.tiny(64, 1, width=64, num_heads=4, head_dim=16)
  weights = models.weights(target, 0)
  trained = medusa.trainable(target, 2, **OPTIONS)
  own = models.head_weights(lambda key, _: trained.init(key, weights), 0.1)
  arranged = linear.to_native(own)
  assert arranged['unembedding']['head1'].blocks.shape == (4, 64, 16)
  features = jnp.asarray(np.random.default_rng(0).normal(size=(2, 64)))
  one, other = (
    say(target, Params(weights, params), features) for params in (own, arranged)
  )
  np.testing.assert_allclose(one, other, atol=1e-5)


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
