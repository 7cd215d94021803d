"""A target that drafts from a window of its own cache.

Caches are walked in blocks of 32 and then of 8 slots.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.drafters import cascade, early_exit, ngram, plain, windowed
from specjax.drafters.shapes import chain, static_tree
from specjax.loop import generate
from specjax.models import cache_attention, variants
from specjax.types import KV, Params, Spec, Target
from tests.library import test_drafter_promises as promises
from tests.support import models

DEPTH, SLOTS = 3, 128
TARGET = variants.with_cache_attention(
  models.TARGET, cache_attention.walk(32, 8)
)
TREE = (0, 0, 1, 1, 2, 5)


def texts():
  """Rows that end in all blocks, and one of a single token."""
  random = np.random.default_rng(0)
  length = np.array([1, 7, 40, 64, 97, 120], np.int32)
  tokens = random.integers(0, models.VOCAB, (len(length), SLOTS))
  used = np.arange(SLOTS) < length[:, None]
  return np.where(used, tokens, 0).astype(np.int32), length


@functools.partial(jax.jit, static_argnums=(0, 1))
def propose(drafter, target, params, rows, outside=None):
  """The drafts; with what is outside [B, S] of a mask made no number."""
  values = sampling.make(len(rows[1]), np.resize([0, 0.7, 1.2], len(rows[1])))
  ctx, memory = promises.fresh(drafter, params, *rows, values, target=target)
  if outside is not None:
    spoiled = tuple(
      KV(
        jnp.where(outside[:, None, None], jnp.nan, kv.k),
        jnp.where(outside[:, None, :, None], jnp.nan, kv.v),
      )
      for kv in ctx.cache
    )
    ctx = ctx._replace(cache=spoiled)
  keys = generate.row_keys(0, range(len(rows[1])))
  return drafter.propose(params, memory, ctx, keys)[0]


def shaped(walker, tree):
  if tree:
    return static_tree.make(walker, TREE)
  return chain.make(walker, DEPTH)


@pytest.mark.slow
@pytest.mark.parametrize('tree', [False, True])
def test_a_window_of_the_whole_text_is_none_bit_for_bit(tree):
  """Also of a family whose layers with windows turn at another pace."""
  options = {} if tree else {'windows': (5, None), 'local_rope_theta': 50.0}
  model = models.tiny(models.VOCAB, 2, **options)
  model = variants.with_cache_attention(model, TARGET.config.attention)
  params = Params(models.weights(model, 5), None)
  assert model.config.max_positions > SLOTS  # So that it is looked at.
  whole, window, narrow = (
    propose(shaped(walker, tree), model, params, texts())
    for walker in (
      early_exit.walk(model, 2),
      windowed.walk(model, SLOTS, 50 if tree else 0),
      windowed.walk(model, 9, 3),
    )
  )
  jax.tree.map(np.testing.assert_array_equal, window, whole)
  assert np.abs(narrow.probs - whole.probs)[3:].max() > 1e-3


@pytest.mark.parametrize(
  'tree', [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_only_blocks_of_the_window_and_the_sinks_are_read(tree):
  """Whatever the lengths of the rows, each reads as many slots at most."""
  window, sinks, rest = 11, 3, 8
  tokens, length = texts()
  slot, used = np.arange(SLOTS), length[:, None] - 1
  # Its first token sees from here on; blocks of `rest` slots.
  begin = np.maximum(used - window + 1, 0) // rest * rest
  most = -(-(window + rest - 1) // rest) * rest
  first = -(-sinks // rest) * rest
  inside = ((slot >= begin) & (slot < begin + most)) | (slot < first)
  assert inside.sum(1).max() <= window + sinks + 3 * rest
  drafter = shaped(windowed.walk(TARGET, window, sinks), tree)
  params = Params(models.target_weights(), None)
  clean, spoiled = (
    propose(drafter, TARGET, params, (tokens, length), outside)
    for outside in (inside & False, ~inside)  # One program.
  )
  jax.tree.map(np.testing.assert_array_equal, clean, spoiled)


@pytest.mark.parametrize(('window', 'sinks'), [(11, 0), (1, 1)])
def test_a_draft_is_of_the_tokens_that_are_seen(window, sinks, float64):
  """With a single layer it is a pass over the text under such a mask."""
  model = variants.with_cache_attention(models.DRAFT, TARGET.config.attention)
  params = Params(models.double(models.draft_weights()), None)
  tokens, length = texts()
  row, column = np.arange(SLOTS)[:, None], np.arange(SLOTS)
  mask = (column <= row) & ((column > row - window) | (column < sinks))
  positions = np.broadcast_to(column, tokens.shape)
  masks = np.broadcast_to(mask, (len(tokens), SLOTS, SLOTS))
  out = jax.jit(model.forward)(
    params.target, tokens, positions, None, None, masks
  )
  logits = np.asarray(model.head(params.target, out.hidden))
  drafter = chain.make(windowed.walk(model, window, sinks), DEPTH)
  values = sampling.make(len(length))
  ctx, memory = promises.fresh(
    drafter, params, tokens, length, values, target=model
  )
  keys = generate.row_keys(0, range(len(length)))
  draft = jax.jit(drafter.propose)(params, memory, ctx, keys)[0]
  expected = jax.nn.softmax(logits[np.arange(len(length)), length - 1])
  np.testing.assert_allclose(draft.probs[:, 0], expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize('levels', [1, 2])
def test_a_cache_is_neither_copied_nor_made_again(levels):
  """Beside what plain decoding holds, for a step and for what it remembers."""
  slots = 8192
  target = models.tiny(models.VOCAB, 1, max_positions=slots)
  weights = models.weights(target, 5)
  drafter = chain.make(windowed.walk(target, 128, 4), 2)
  if levels == 2:
    narrow = variants.narrow(target, 128, 4)
    drafter = cascade.make(narrow, ngram.make(2), 2, shares=True)

  def held(drafter):
    spec, params = Spec(target, drafter, verify.token), Params(weights, None)
    values = sampling.make(1)
    state = models.run(spec, params, [(1, 2, 3)], values, slots=slots)
    made = generate.loop.lower(params, state, jnp.int32(1), spec=spec).compile()
    memory = sum(x.nbytes for x in jax.tree.leaves(state.drafter))
    return made.memory_analysis().temp_size_in_bytes + memory

  c = target.config
  cache = 2 * 4 * c.num_kv_heads * c.head_dim * slots
  assert held(drafter) < held(plain.make()) + cache / 2


def test_the_smaller_window_of_a_layer_wins():
  config = dataclasses.replace(
    TARGET.config, num_layers=3, windows=(4, None, 40)
  )
  target = TARGET._replace(config=config)
  narrowed = variants.narrow(target, 12, 3).config
  views = [(narrowed.reach(i), narrowed.sinks(i)) for i in range(3)]
  assert views == [(4, 0), (12, 3), (12, 0)]
  # What a layer is does not change with what it sees.
  assert [narrowed.window(i) for i in range(3)] == [4, None, 40]
  made = windowed.load(Target(TARGET)).make(2)
  assert made is chain.make(windowed.walk(TARGET, 512, 4), 2, None)
