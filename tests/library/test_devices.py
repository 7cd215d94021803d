"""Forms of other platforms decode the same texts, and lie as they say."""

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling, verify
from specjax.drafters import lm
from specjax.loop import generate
from specjax.models import devices, variants
from specjax.types import Params, Spec
from tests.support import models

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6]]


def decode(form):
  """Texts of a model and a draft in the form of a platform, and the state."""
  target, draft = (
    variants.for_device(model, form) for model in (models.TARGET, models.DRAFT)
  )
  weights = jax.tree.map(
    jnp.array, models.double((models.target_weights(), models.draft_weights()))
  )
  weights = Params(*(devices.lay_weights(form, x) for x in weights))
  spec = Spec(target, lm.make(draft, 3), verify.token)
  values = sampling.make(2, 1.0)
  state = models.run(spec, weights, PROMPTS, values, new_tokens=20, slots=256)
  state = generate.generate(weights, state, 3, spec=spec)
  state = generate.generate(weights, state, 20, spec=spec)
  return weights, state


def orders(tree):
  return [x.format.layout.major_to_minor for x in jax.tree.leaves(tree)]


def test_the_form_of_a_tpu_decodes_the_same_texts(float64):
  form = devices.FORMS['tpu']
  weights, state = decode(form)
  np.testing.assert_array_equal(state.tokens, decode(devices.CPU)[1].tokens)
  caches = state.cache, state.drafter.state
  # Heads of these models are narrow.
  assert orders(caches) == [(0, 1, 2, 3), (0, 1, 3, 2)] * 3
  layer = weights.target['layer1']
  assert orders((layer['up']['w'], layer['qkv']['w'])) == [
    (1, 0, 2),
    (1, 2, 3, 0),
  ]
