"""The target without some of its sub-layers."""

import jax
import numpy as np
import pytest

from specjax import sampling
from specjax.drafters import early_exit, skip
from specjax.models import cache as caches
from specjax.models import transformer, variants
from specjax.models.config import Experts, Sharing
from specjax.types import Params, Target
from tests.library import test_drafter_promises as promises
from tests.support import models

TARGET = models.TARGET
HOST = Target(TARGET)


def with_zeros(params, attention, mlp):
  """Weights whose sub-layers add nothing."""
  changed = dict(params)
  for layers, name in ((attention, 'out'), (mlp, 'down')):
    for i in layers:
      layer = dict(changed[f'layer{i}'])
      part = name if name in layer else 'experts'
      layer[part] = jax.tree.map(np.zeros_like, layer[part])
      changed[f'layer{i}'] = layer
  return changed


SETS = [((0,), ()), ((1,), (0,)), ((1,), (0, 1))]
EXPERTS = Experts(3, 2, width=8, dense=(0,))


@pytest.mark.parametrize(
  ('attention', 'mlp', 'options'),
  [
    *((*one, {}) for one in SETS),
    (*SETS[1], {'parallel': True}),
    (*SETS[2], {'experts': EXPERTS, 'layer_scale': True}),
  ],
  ids=str,
)
def test_what_is_left_out_adds_nothing(attention, mlp, options):
  model = models.tiny(models.VOCAB, 2, **options)
  params, tokens = models.weights(model, 5), np.arange(22).reshape(2, 11) % 11
  # The number of a layer is of its stream, and stays.
  params = jax.tree.map(lambda x: 1.5 * x if x.shape == (1,) else x, params)
  fewer = variants.without(model, attention, mlp)
  ours = models.score(fewer, params, tokens)
  theirs = models.score(model, with_zeros(params, attention, mlp), tokens)
  np.testing.assert_allclose(ours, theirs, atol=1e-5)
  whole = models.score(model, params, tokens)
  assert np.abs(ours - whole).max() > 1e-3


def test_a_layer_without_keys_of_its_own_adds_none_to_a_block():
  model = models.tiny(models.VOCAB, 2, sharing=Sharing(1, 32))
  cache = caches.empty(model.config, 1, 8, np.float32)
  block = caches.open_block(cache, model.config, 3)
  tokens, mask = np.zeros((1, 1), int), np.ones((1, 1, 3), bool)
  made = jax.eval_shape(
    lambda key: variants.without(model, (1,), ()).forward(
      model.init(key), tokens, tokens, cache, tokens[0], mask, block
    ),
    jax.random.key(0),
  )
  sizes = (jax.tree.map(np.shape, x) for x in (made.flight, block))
  assert next(sizes) == next(sizes)


def test_every_layer_may_lose_one_part():
  made = skip.load(HOST, skip_attention=(1,), skip_mlp=(0,)).make(2)
  assert made.depth == 2


@pytest.mark.slow
def test_drafts_read_the_cache_of_the_target(float64):
  """A layer that is kept sees what the whole target wrote of the text."""
  params = models.double(models.target_weights())
  tokens, length = promises.texts(40)
  values = sampling.make(40)

  def first(drafter):
    ctx, memory = promises.fresh(
      drafter, Params(params, None), tokens, length, values
    )
    key = promises.generate.row_keys(0, range(40))
    made = jax.jit(drafter.propose)(Params(params, None), memory, ctx, key)
    return ctx, made[0].probs[:, 0]

  # The last layer left out is the exit before it.
  ctx, ours = first(skip.load(HOST, skip=(1,)).make(2))
  _, theirs = first(early_exit.load(HOST, layers=1).make(2))
  np.testing.assert_allclose(ours, theirs, atol=1e-12)
  # Without the first one, the last token is read by the second alone.
  _, ours = first(skip.load(HOST, skip=(0,)).make(2))
  changed = with_zeros(params, (0,), (0,))
  last = np.take_along_axis(tokens, length[:, None] - 1, 1)
  mask, _ = transformer.causal(40, 1)
  out = TARGET.forward(
    changed, last, length[:, None] - 1, ctx.cache, length - 1, mask
  )
  logits = TARGET.head(changed, out.hidden)[:, 0]
  np.testing.assert_allclose(ours, jax.nn.softmax(logits), atol=1e-12)


@pytest.mark.parametrize('options', [{}, models.CHOICES['a state']])
def test_matches_are_those_of_the_smaller_model(options):
  model = models.tiny(models.VOCAB, 2, **options)
  target = Target(model, models.weights(model, 5))
  tokens = np.arange(44).reshape(2, 22) % 11
  for attention, mlp in SETS:
    fewer = variants.without(model, attention, mlp)
    said, whole = (
      np.asarray(models.score(x, target.params, tokens)).argmax(-1)
      for x in (fewer, model)
    )
    share = skip.matches(target, tokens, attention, mlp)
    assert share == pytest.approx((said == whole).mean())
  assert skip.matches(target, tokens, (), ()) == 1


def test_the_search_leaves_out_what_is_missed_least():
  """A sub-layer that adds nothing is found first, and the best one next."""
  params = with_zeros(models.target_weights(), (), (0,))
  target = Target(TARGET, params)
  tokens = np.random.default_rng(0).integers(0, 11, (8, 40))
  assert skip.search(target, tokens, 1) == ((), (0,))
  attention, mlp = skip.search(target, tokens, 2)
  found = skip.matches(target, tokens, attention, mlp)
  fewer = Target(variants.without(TARGET, (0,), (1,)), models.target_weights())
  assert skip.search(fewer, tokens, 1) in [((1,), ()), ((), (0,))]
  others = [((0,), (0,)), ((1,), (0,)), ((), (0, 1))]
  assert (attention, mlp) in others
  assert found == max(skip.matches(target, tokens, *o) for o in others)
