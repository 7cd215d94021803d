"""An EAGLE-3 head that begins with the target's own logits."""

import jax
import numpy as np
import pytest

from specjax.drafters import eagle
from tests.support import models


@pytest.mark.parametrize(
  ('options', 'width', 'tokens'),
  [({}, 8, 0), ({'layer_norm': True}, 4, 0), ({'norm_plus_one': True}, 4, 5)],
)
def test_logits_begin_as_the_targets_on_their_largest_directions(
  options, width, tokens
):
  target = models.tiny(17, 2, **options)
  params = models.random_of(target.init, jax.random.key(0))
  sizes = models.SMALL | {'width': width, 'mlp_width': 16, 'vocabulary': tokens}
  usual = eagle.trainable(target, **sizes)
  told = eagle.trainable(target, start='target', **sizes)
  assert usual.config == told.config  # The same head, of other weights.

  @jax.jit
  def begun(key, params):
    made, other = (t.init(key, params) for t in (told, usual))
    return made, jax.tree.map(lambda x, y: (x == y).all(), made, other)

  made, same = jax.device_get(begun(jax.random.key(0), params))
  changed = {name for name, x in same.items() if not all(jax.tree.leaves(x))}
  assert changed == {'fuse', 'norm', 'unembedding'}
  factor = params['norm']['scale'][:, None] + float('norm_plus_one' in options)
  directions, strength, _ = np.linalg.svd(params['unembedding'])
  assert (np.diff(strength) < -1e-3).all()
  directions = directions[:, :width]
  first, last = np.split(made['fuse']['w'], 2)
  assert not first.any()
  expected = factor * (directions @ directions.T @ params['unembedding'])
  expected = expected[:, : tokens or 17]
  found = last @ made['unembedding']
  np.testing.assert_allclose(found, expected, atol=1e-4)
  size = np.linalg.norm(factor * directions) / width**0.5
  np.testing.assert_allclose(made['norm']['scale'], [size] * width, rtol=1e-4)
