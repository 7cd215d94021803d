"""Logits over some of the target's tokens."""

import jax
import numpy as np
import pytest

from specjax.models import reduced_vocab_head


def test_every_token_has_its_logit_and_the_others_none():
  places = reduced_vocab_head.places(np.array([1, 3]), 5)
  assert places.tolist() == [2, 0, 2, 1, 2]
  logits = np.array([[0.5, -1.0], [2.0, 0.0]], np.float32)
  wide = np.asarray(reduced_vocab_head.spread(logits, places))
  none = -np.inf
  expected = [[none, 0.5, none, -1, none], [none, 2, none, 0, none]]
  np.testing.assert_array_equal(wide, expected)
  q = np.asarray(jax.nn.softmax(wide))
  small = np.asarray(jax.nn.softmax(logits))
  np.testing.assert_allclose(q[:, [1, 3]], small, rtol=1e-6)
  assert (q[:, [0, 2, 4]] == 0).all()


@pytest.mark.parametrize(
  ('ids', 'message'),
  [([0, 5], 'and the target 5'), ([-1, 2], 'tokens -1'), ([2, 2], 'twice')],
)
def test_impossible_vocabularies_are_refused(ids, message):
  with pytest.raises(ValueError, match=message):
    reduced_vocab_head.places(np.array(ids), 5)
