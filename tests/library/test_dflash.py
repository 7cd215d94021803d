"""DFlash: its module beside numpy, its losses, and what is refused."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters import dflash
from specjax.drafters.dflash.module import Head, Places, Sizes
from specjax.drafters.heads import files
from specjax.drafters.heads.trainable import Seen
from specjax.models import linear, prefill, transformer, variants
from specjax.types import Params, Target, Verdict
from tests.library import test_drafter_promises as promises
from tests.support import heads_in_numpy, models

TARGET, HEAD, BLOCK = models.TARGET, models.DFLASH_HEAD, 5
WIDTH = TARGET.config.width
OWN = models.head_of(models.DFLASH, 0.3)


def published(own):
  """Our weights by their published names."""
  tensors = {
    'fc.weight': own['fuse']['w'].T,
    'hidden_norm.weight': own['norm_context']['scale'],
    'norm.weight': own['norm']['scale'],
  }
  for i in range(HEAD.sizes.layers):
    layer = own[f'layer{i}']
    k, v = (layer['kv']['w'][:, :, j].reshape(WIDTH, -1).T for j in range(2))
    gate, up = (layer['up']['w'][:, j].T for j in range(2))
    tensors |= {
      f'layers.{i}.{name}.weight': w
      for name, w in {
        'self_attn.q_proj': layer['q']['w'].reshape(WIDTH, -1).T,
        'self_attn.k_proj': k,
        'self_attn.v_proj': v,
        'self_attn.o_proj': layer['out']['w'].T,
        'self_attn.q_norm': layer['q_norm']['scale'],
        'self_attn.k_norm': layer['k_norm']['scale'],
        'mlp.gate_proj': gate,
        'mlp.up_proj': up,
        'mlp.down_proj': layer['down']['w'].T,
        'input_layernorm': layer['norm1']['scale'],
        'post_attention_layernorm': layer['norm2']['scale'],
      }.items()
    }
  return {name: np.asarray(w, np.float64) for name, w in tensors.items()}


CONFIG = {
  'num_attention_heads': 2, 'num_key_value_heads': 1, 'head_dim': 4,
  'num_hidden_layers': HEAD.sizes.layers, 'rms_norm_eps': 1e-5,
  'rope_theta': 10000.0,
}  # fmt: skip


@functools.partial(jax.jit, static_argnums=1)
def _features(tokens, taps):
  mask, at = transformer.causal(*tokens.shape)
  weights = models.target_weights()
  return TARGET.forward(weights, tokens, at, None, None, mask, taps=taps).taps


def features_of(text, taps=models.DFLASH.taps):
  """The target's features [T, len(taps), E] of a text, without a cache."""
  padded = np.zeros((1, 64), np.int32)  # One program for all lengths.
  padded[0, : len(text)] = text
  return np.asarray(_features(padded, taps))[0, : len(text)]


def expected(text, rows):
  """Logits [rows - 1, V] behind a text, by numpy."""
  weights = models.target_weights()
  table = np.asarray(weights['embedding'], np.float64)
  masks = np.repeat(np.asarray(OWN()['mask'])[None], rows - 1, 0)
  block = np.concatenate([table[text[-1:]], masks])
  before = features_of(text)[:-1]
  before = before.reshape(len(before), before.shape[1] * WIDTH)
  made = heads_in_numpy.dflash(
    published(OWN()), CONFIG, before, block, len(text) - 1
  )
  return made[1:] @ np.asarray(weights['unembedding'], np.float64)


def read(walker, tokens, length, own):
  """Weights, a context of texts, and what a walker knows after reading them."""
  params = Params(models.target_weights(), own)
  drafter = models.DRAFTERS['plain'][0]._replace(taps=walker.taps)
  values = promises.sampling.make(len(tokens))
  ctx, _ = promises.fresh(drafter, params, tokens, length, values)
  _, hidden = prefill.prefill(
    TARGET, params.target, tokens, length, ctx.cache, walker.taps
  )
  made = jax.jit(walker.init, static_argnums=3)(params, ctx, hidden, 1)
  return params, ctx, made


def check_along_a_text(walker, own, expected):
  """And after rejections: each step keeps what was accepted and no more.

  Args:
    walker: that says three places at once.
    own: its weights.
    expected: (text) -> logits [3, V].
  """
  random = np.random.default_rng(0)
  tokens = random.integers(0, models.VOCAB, (4, 128)).astype(np.int32)
  length = np.array([1, 2, 9, 30], np.int32)
  params, ctx, (state, block) = read(walker, tokens, length, own)
  start, commit = jax.jit(walker.start), jax.jit(walker.commit)
  for accepted in ([0, 3, 1, 2], [2, 0, 0, 3], [1, 1, 3, 0]):
    step = start(params, state, block, ctx)
    for row, text in enumerate(tokens):
      wanted = expected(text[: ctx.length[row]])
      np.testing.assert_allclose(step.block.logits[row], wanted, atol=1e-5)
    # What was rejected is seen by the target, and must leave no trace.
    hidden = []
    for row, text in enumerate(tokens):
      at, n = int(ctx.length[row]), accepted[row]
      fed = (*text[: at + n], *random.integers(0, models.VOCAB, 4 - n))
      hidden.append(features_of(fed, walker.taps)[at - 1 : at + 3])
    new = jnp.asarray(accepted, jnp.int32)
    path = jnp.minimum(jnp.arange(4), new[:, None])
    ctx = ctx._replace(length=ctx.length + new + 1)
    verdict = Verdict(path, new, new)
    hidden = jnp.asarray(np.stack(hidden), jnp.float32)
    state = commit(params, state, step.block, ctx, verdict, hidden)


def test_the_module_is_that_of_the_paper():
  walker = dflash.walk(HEAD, 4)
  check_along_a_text(walker, OWN(), lambda text: expected(text, 4))


def test_a_block_looks_both_ways_and_at_no_later_text():
  walker = dflash.walk(HEAD, 4)
  tokens, length = promises.texts(3)
  tokens, length = tokens[2:], length[2:]
  params, ctx, (state, block) = read(walker, tokens, length, OWN())
  start, short = (jax.jit(dflash.walk(HEAD, n).start) for n in (4, 2))
  said = start(params, state, block, ctx).block.logits
  alone = short(params, state, block, ctx).block.logits
  assert np.abs(said[:, 0] - alone[:, 0]).max() > 1e-3
  behind = tokens.copy()
  behind[0, length[0] :] = 7
  params, ctx, (state, block) = read(walker, behind, length, OWN())
  again = start(params, state, block, ctx).block.logits
  np.testing.assert_array_equal(said, again)


def test_training_sees_what_drafting_sees():
  """A packed block says what a draft of the same length says there."""
  tokens = promises.texts(2)[0][:, :20]
  tokens[:] = np.random.default_rng(1).integers(0, models.VOCAB, tokens.shape)
  params = Params(models.target_weights(), OWN())
  hidden = np.stack([features_of(row) for row in tokens])
  first = jnp.array([[0, 7, 15], [3, 4, 5]])
  said = jax.jit(HEAD.say_many)(params, tokens, hidden, first).logits
  for row, places in enumerate(first.tolist()):
    for i, place in enumerate(places):
      wanted = expected(tokens[row, : place + 1], BLOCK)
      np.testing.assert_allclose(said[row, i], wanted, atol=1e-5)


def test_a_mask_may_be_a_token_of_the_target():
  sizes = Sizes(models.DFLASH.taps, **models.DFLASH_SIZES, mask_token=3)
  own = {name: x for name, x in OWN().items() if name != 'mask'}
  weights = models.target_weights()
  params = Params(weights, own)
  assert {*Head(TARGET, sizes).shapes()} == {*own}
  ours = Head(TARGET, sizes).embed(params, jnp.array([5]), 3)
  np.testing.assert_array_equal(
    ours[0], weights['embedding'][jnp.array([5, 3, 3])]
  )


@pytest.mark.slow
@pytest.mark.usefixtures('kernel')
def test_weights_in_blocks_say_the_same():
  """In the layout of a CPU that decodes, and with a target in it."""
  options = dict(
    width=64, num_heads=4, head_dim=16, mlp_width=64, num_kv_heads=2
  )
  model = models.tiny(64, 2, **options)
  sizes = {k: v for k, v in options.items() if k != 'width'}
  trained = dflash.trainable(model, **sizes, block=4)
  weights = models.weights(model, 0)
  own = trained.init(jax.random.key(0), weights)
  blocked, laid = variants.to_native(model, weights)
  one, other = (
    Head(m, Sizes(trained.taps, **sizes, block=4)) for m in (model, blocked)
  )
  arranged = linear.to_native(own)
  leaves = jax.tree.leaves(arranged, is_leaf=linear.is_native)
  assert sum(map(linear.is_native, leaves)) > 8
  random = np.random.default_rng(0)
  hidden = jnp.asarray(random.normal(size=(2, 6, 2, 64)), jnp.float32)
  at = jnp.broadcast_to(jnp.arange(6), (2, 6))
  used, tokens = jnp.array([6, 3]), jnp.array([4, 9])

  @functools.partial(jax.jit, static_argnums=0)
  def say(head, params):
    cache = head.read(params, hidden, at)
    return head.say(params, tokens, used, cache, used, 4).logits

  said = [
    say(head, params)
    for head, params in (
      (one, Params(weights, own)),
      (other, Params(laid, arranged)),
    )
  ]
  np.testing.assert_allclose(*said, atol=1e-5)


# Training


def test_the_loss_weighs_near_places_more(monkeypatch):
  """Place k of a block at token a is judged by p after token a + k - 1."""
  chances = (0.5, 0.25, 0.75, 0.125, 0.5)  # of the target, after each token
  said = (0.5, 0.75)  # of the two places of every block

  def law(chance):
    return jnp.log(jnp.array([chance, 1 - chance]))

  seen = Seen(
    jnp.array([[0, 1, 1, 0, 1]]),
    jnp.zeros((1, 5, 2, WIDTH)),
    jnp.stack([law(p) for p in chances])[None],
  )
  asked = []

  def say_many(self, params, tokens, hidden, first):
    asked.append(first)
    both = jnp.stack([law(q) for q in said])
    return Places(jnp.broadcast_to(both, (1, first.shape[1], 2, 2)), None)

  monkeypatch.setattr(Head, 'say_many', say_many)
  trained = dflash.trainable(
    TARGET, **models.DFLASH_SIZES | {'block': 3}, anchors=9
  )
  found = trained.loss(None, seen, jax.random.key(0))
  assert sorted(asked[0][0].tolist()) == [0, 1, 2]
  weight = 1 / (1 + math.exp(-1 / 1.5))
  for k, share in ((0, weight), (1, 1 - weight)):
    terms = [
      -p * math.log(said[k]) - (1 - p) * math.log(1 - said[k])
      for p in chances[k : k + 3]
    ]
    assert found[f'place{k + 1}'] == pytest.approx(share * sum(terms) / 3)
  two = dflash.trainable(
    TARGET, **models.DFLASH_SIZES | {'block': 3}, anchors=2
  )
  keys = jax.random.split(jax.random.key(0), 9)
  for key in keys:
    two.loss(None, seen, key)
  places = [tuple(first[0].tolist()) for first in asked[1:]]
  assert all(a != b for a, b in places)
  assert len({*places}) > 3


def test_windows_that_hold_no_block_are_refused():
  seen = Seen(jnp.zeros((1, 4), int), jnp.zeros((1, 4, 2, 8)), None)
  with pytest.raises(
    ValueError, match='windows of 4 tokens hold no block of 5'
  ):
    models.DFLASH.loss(None, seen, jax.random.key(0))


def test_guesses_are_counted_behind_the_prompt():
  tokens = jnp.asarray(promises.texts(3)[0][:, :16])
  params = Params(models.target_weights(), OWN())
  logits = models.score(TARGET, params.target, tokens)
  hidden = np.stack([features_of(row) for row in tokens])
  seen = Seen(tokens, hidden, logits)
  found = jax.jit(models.DFLASH.measure, static_argnums=2)(params, seen, 6)
  first = jnp.broadcast_to(jnp.arange(6, 12), (3, 6))
  said = jax.jit(HEAD.say_many)(params, tokens, hidden, first).logits
  for k in range(BLOCK - 1):
    goal = seen.logits[:, 6 + k : 12 + k].argmax(-1)
    assert found['hits'][k, 0] == (said[:, :, k].argmax(-1) == goal).sum()
    assert found['hits'][k].sum() <= found['counted'][k] == 18


# What is refused


def test_drafts_longer_than_the_block_are_refused(tmp_path):
  files.save(tmp_path / 'head', models.DFLASH.config, OWN())
  loaded = dflash.load(Target(TARGET), tmp_path / 'head')
  assert loaded.make(4).depth == 4
  with pytest.raises(ValueError, match='choose a gamma of at most 4'):
    loaded.make(5)
  with pytest.raises(ValueError, match='nobody counted'):
    dflash.load(Target(TARGET), tmp_path / 'head', tree=4)
