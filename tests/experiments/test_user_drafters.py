"""The numbers of a draft, which nothing looks at in the loop."""

import types

import jax.numpy as jnp
import pytest

from specjax.loop import scoring
from specjax.types import Draft


def draft(**changes) -> Draft:
  """A chain of three nodes of which two exist."""
  fields = {
    'tokens': jnp.array([[0, 9, -1]]),
    'parents': jnp.array([[0, 1, 9]]),
    'size': jnp.array([2]),
    'probs': None,
  }
  return Draft(**fields | changes)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'size': jnp.array([4])}, 'size must be from 0 to its 3 nodes, got 4'),
    ({'size': jnp.array([-1])}, 'size must be from 0 to its 3 nodes, got -1'),
    ({'tokens': jnp.array([[7, 10, 1]])}, 'from 0 to 9, got 10'),
    ({'tokens': jnp.array([[-7, 1, 1]])}, 'from 0 to 9, got -7'),
    ({'parents': jnp.array([[1, 1, 2]])}, 'parent of node 0 must be .*, got 1'),
    ({'parents': jnp.array([[-1, 1, 2]])}, 'parent of node 0 must be .* -1'),
    (
      {'size': jnp.array([3]), 'parents': jnp.array([[0, 1, 2]])},
      'node 2 is 3',
    ),
  ],
)
def test_numbers_of_a_draft(changes, message):
  drafter = types.SimpleNamespace(nodes=3, depth=2)
  for size in (0, 2):
    scoring.check_numbers(drafter, draft(size=jnp.array([size])), 10)
  changes = {'tokens': jnp.array([[7, 8, 9]])} | changes
  with pytest.raises(scoring.DraftError, match=message):
    scoring.check_numbers(drafter, draft(**changes), 10)


def test_integers_of_any_width_become_those_of_the_loop():
  narrow = draft()._replace(
    **{x: getattr(draft(), x).astype(jnp.int8) for x in Draft._fields[:3]}
  )
  drafter = types.SimpleNamespace(
    nodes=3, depth=2, propose=lambda *_: (narrow, None)
  )
  ctx = types.SimpleNamespace(length=jnp.ones(1, jnp.int32))
  found, _ = scoring.propose(drafter, None, None, ctx, None)
  assert [x.dtype for x in found[:3]] == [jnp.int32] * 3
