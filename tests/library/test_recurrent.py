"""Layers with a state in place of attention: nothing rejected is in it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.drafters import cascade, lm, ngram, plain
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.models import recurrent
from specjax.models.config import GatedDelta, Mamba2, ShortConv
from specjax.types import Params, Spec
from tests.support import models

SIZES = {
  'delta': GatedDelta((0, 2), 2, 4, 4, 6, kernel=4),
  'mamba': Mamba2((0, 2), 2, 4, 4, 6, kernel=4),
}
# One in the place of attention. The other beside it, with a layer of an MLP
# alone, and one without any.
OPTIONS = {
  'delta': dict(attention_gate=True),
  'mamba': dict(state_beside=True, without_attention=(1,), without_mlp=(2,)),
}
MODELS = {
  kind: models.tiny(models.VOCAB, 3, recurrent=sizes, **OPTIONS[kind])
  for kind, sizes in SIZES.items()
}
MODEL = MODELS['delta']
PROMPTS = [[1], [2, 3], [4, 5, 6, 4, 5, 6, 4, 5], list(range(10)) * 2]


@functools.cache
def weights(model=MODEL, seed=0):
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  random = np.random.default_rng(seed)
  return jax.device_put(
    jax.tree.map(lambda x: random.normal(x.ndim == 1, 0.5, x.shape), shapes)
  )


def params(model):
  one, two = jax.device_get((weights(model), weights(model, seed=1)))
  near = jax.tree.map(lambda x, y: 0.9 * x + 0.1 * y, one, two)
  return Params(weights(model), jax.device_put(near))


TREE = 0, 0, 0, 1, 1, 2, 5
WAYS = {
  'mamba': lambda model: Spec(
    model, lm.make_tree(model, TREE), verify.recursive
  ),
  'delta': lambda model: Spec(model, lm.make(model, 3), verify.token),
}


@pytest.mark.parametrize(
  'kind', ['mamba', pytest.param('delta', marks=pytest.mark.slow)]
)
def test_texts_and_states_are_those_of_plain_decoding(kind, float64):
  """Inside a text the state is that of reading it."""
  model, values = MODELS[kind], sampling.make(len(PROMPTS), 0.0)
  given, spec = params(model), WAYS[kind](model)
  state = models.run(spec, given, PROMPTS, values, new_tokens=24)
  state = generate.generate(given, state, jnp.int32(3), spec=spec)
  accepted = state.counts.accepted.sum()
  assert 0 < accepted < state.counts.tried.sum()
  assert not state.done.any()
  again, _ = generate.read_prompts(
    weights(model), state.tokens, state.length, None, target=model, taps=()
  )
  found, wanted = caches.states(state.cache), caches.states(again)
  assert len(found) == len(SIZES[kind].layers)
  for kept, read in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
    assert np.abs(read).max() > 0.1
    np.testing.assert_allclose(kept, read, rtol=0, atol=1e-10)
  state = generate.generate(given, state, jnp.int32(99), spec=spec)
  plainly = Spec(model, plain.make(), verify.token)
  other = models.decoded(plainly, given, PROMPTS, values, new_tokens=24)
  assert models.new_tokens(state) == models.new_tokens(other)
  if kind == 'delta':  # A row that is filled again begins with no state.
    refilled = models.pooled(spec, given, PROMPTS, [0.0] * 4, 24)
    texts = [tuple(models.joined(x)) for x in refilled]
    assert texts == models.new_tokens(other)


def test_of_layers_that_convolve_the_last_inputs_are_kept():
  """Along a path, of rows that lie elsewhere in the block."""
  sizes = ShortConv((0,), 2, kernel=3)
  path, count = np.array([[0, 2, 3]] * 2), np.array([1, 3])

  @jax.jit
  def advanced():
    before = recurrent.empty(sizes, 2, jnp.float32)
    before = before._replace(last=jnp.arange(-8.0, 0).reshape(2, 2, 2))
    rows = recurrent.open_rows(before, sizes, 4)
    rows = rows._replace(inputs=jnp.arange(16.0).reshape(2, 4, 2))
    return recurrent.advance(before, rows, path, count)

  after = advanced()
  assert after.last.tolist() == [[[-6, -5], [0, 1]], [[12, 13], [14, 15]]]
  assert after.state.size == 0


def test_what_is_in_flight_is_small():
  """At the sizes of Qwen3.5, K = 4: bytes of rows against whole states."""
  sizes = GatedDelta((0,), 16, 32, 128, 128, kernel=4)

  def make():
    before = recurrent.empty(sizes, 1, jnp.bfloat16)
    return before, recurrent.open_rows(before, sizes, 5)

  before, rows = jax.eval_shape(make)
  assert before.state.size * 4 == 2 * 2**20
  held, left = (
    sum(x.size * x.dtype.itemsize for x in tree) for tree in (before, rows)
  )
  assert left < 5 * held / 20


def test_a_model_with_states_is_not_inside_a_cascade(float64):
  inside = cascade.make(MODEL, ngram.make(2), 3)
  spec = Spec(MODEL, inside, verify.token, ())
  values = sampling.make(1, 0.0)
  with pytest.raises(ValueError, match='inside a cascade'):
    models.run(spec, Params(weights(), Params(weights(), None)), [[1]], values)


def test_heads_of_values_share_keys_evenly():
  with pytest.raises(ValueError, match='heads of values'):
    GatedDelta((0,), 3, 4, 4, 6, kernel=4)
