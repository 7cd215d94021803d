"""An EAGLE-3 head that begins with the target's own logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters import eagle
from specjax.drafters.eagle import training
from specjax.drafters.eagle.module import Head, Sizes
from specjax.types import Params
from tests.support import models, tiny

TOKENS = jnp.array([[4, 5, 6, 4, 5, 7, 8, 1], [9, 3, 3, 1, 2, 0, 4, 5]])


def seen(model, params):
  """Features of all layers, and the logits, of a text."""
  layers = tuple(range(model.config.num_layers))
  out = models.see(model, params, TOKENS, layers)
  return out.taps, model.head(params, out.hidden)


def begun(model, params, width):
  """A head and its logits of the target's features, before any training."""
  head = Head(model, Sizes(3, (0, 1), width=width, num_heads=2, num_kv_heads=1))
  fresh = head.init(jax.random.key(1))
  own = Params(params, training.from_target(head, fresh, params))
  hidden, goal = seen(model, params)
  features = head.read(own, hidden)
  return head.logits(own, features), goal


@pytest.mark.slow
@pytest.mark.parametrize(
  'options', [{}, {'layer_norm': True}, {'norm_plus_one': True}]
)
def test_logits_of_a_head_as_wide_as_the_target_are_the_targets(options):
  model = tiny.model(32, 2, 17, **options)
  params = model.init(jax.random.key(0))
  # A norm that does something.
  scale = params['norm']['scale']
  other = scale + jnp.linspace(-0.5, 0.5, scale.size)
  params = params | {'norm': params['norm'] | {'scale': other}}
  logits, goal = begun(model, params, 32)
  # Features differ by their sizes alone, one for each place.
  size = (logits * goal).sum(-1) / (logits**2).sum(-1)
  if options.get('layer_norm'):  # Features keep the mean that is taken there.
    assert (logits.argmax(-1) == goal.argmax(-1)).mean() > 0.8
    return
  np.testing.assert_allclose(logits * size[..., None], goal, atol=1e-4)
  assert 0.5 < float(size.min()) < float(size.max()) < 2


@pytest.mark.slow
def test_a_narrow_head_has_the_directions_that_logits_depend_on_most():
  model = tiny.model(32, 2, 17)
  params = model.init(jax.random.key(0))
  goal_of = []
  for width in (8, 16):
    logits, goal = begun(model, params, width)
    p, q = jax.nn.softmax(goal), jax.nn.softmax(logits)
    goal_of.append(float(jnp.minimum(p, q).sum(-1).mean()))
  fresh = Head(model, Sizes(3, (0, 1), width=16))
  own = Params(params, fresh.init(jax.random.key(1)))
  hidden, goal = seen(model, params)
  q = jax.nn.softmax(fresh.logits(own, fresh.read(own, hidden)))
  random = float(jnp.minimum(jax.nn.softmax(goal), q).sum(-1).mean())
  assert random < goal_of[0] < goal_of[1]


def test_training_begins_there_only_where_it_is_told_to():
  sizes = dict(width=8, num_heads=2, num_kv_heads=1, head_dim=4, mlp_width=16)
  target, params = models.TARGET, models.target_weights()
  usual = eagle.trainable(target, **sizes)
  told = eagle.trainable(target, start='target', **sizes)
  assert usual.config == told.config  # The same head, of other weights.

  @jax.jit
  def compared(key, params):
    made = [t.init(key, params) for t in (usual, told)]
    return jax.tree.map(lambda x, y: (x == y).all(), *made)

  same = compared(jax.random.key(0), params)
  changed = {
    name for name, leaf in same.items() if not all(jax.tree.leaves(leaf))
  }
  assert changed == {'fuse', 'norm', 'unembedding'}
