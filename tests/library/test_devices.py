"""Forms of other platforms decode the same texts, and lie as they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.drafters import dflash, eagle, lm, medusa
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
  # Within a program a state lies nowhere yet.
  jax.eval_shape(lambda x: generate.generate(weights, x, 1, spec=spec), state)
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


def products(jaxpr):
  """Yields what is multiplied by a weight: shapes, also of inner programs."""
  for one in jaxpr.eqns:
    if one.primitive.name == 'dot_general':
      _, batches = one.params['dimension_numbers']
      yield from () if batches[0] else [one.invars[0].aval.shape]
    for x in jax.tree.leaves(list(one.params.values())):
      inner = getattr(x, 'jaxpr', x)
      yield from products(inner) if hasattr(inner, 'eqns') else ()


@pytest.mark.parametrize(
  ('method', 'sizes'),
  [
    (medusa, {'count': 3}),
    (eagle, models.SMALL | {'version': 3, 'mlp_width': 16}),
    (dflash, models.SPARK_SIZES),
    (dflash, models.SPARK_SIZES | {'correction': 'gated'}),
    (dflash, models.DOMINO_SIZES),
    (dflash, models.DFLASH2_SIZES),
  ],
)
def test_no_product_of_a_head_has_a_single_row_on_a_gpu(method, sizes):
  """Its compiler writes a weight times a single row to memory."""
  target = variants.for_device(models.TARGET, devices.FORMS['gpu'])
  head = method.trainable(target, **sizes)
  spec = Spec(target, head.drafter(3), verify.token)

  def step(params):
    params = Params(params, head.init(jax.random.key(0), params))
    values = sampling.make(1, 1.0)
    state = models.run(spec, params, [[1, 2]], values, new_tokens=8)
    return generate.generate(params, state, 3, spec=spec)

  traced = jax.make_jaxpr(step)(models.target_weights())
  shapes = [*products(traced.jaxpr)]
  assert len(shapes) > 8
  assert [x for x in shapes if x[-2] < 2] == []
