"""Drafts of masks (P-EAGLE and PARD): what they see, learn and say."""

import functools
import json

import jax
import numpy as np
import optax
import pytest
import safetensors.numpy

from specjax import checkpoints
from specjax.drafters import cascade, eagle, lm, pard, quantized
from specjax.drafters.eagle import at_once
from specjax.drafters.eagle.module import Head, sizes_of
from specjax.drafters.heads import files, masked
from specjax.types import Params, Target
from tests.library import test_corrections, test_dflash
from tests.support import heads_in_numpy, models

TARGET, HOST, MASK, K = models.TARGET, Target(models.TARGET), 3, 3
OPTIONS = models.SMALL | {'mlp_width': 16, 'mask_token': MASK, 'places': K}
HEADS = {
  'eagle': eagle.trainable(TARGET, join='pair', own_embedding=True, **OPTIONS),
  'lm': lm.trainable(TARGET, num_layers=1, **OPTIONS),
}
EAGLE = Head(TARGET, sizes_of(HEADS['eagle'].config))
MODEL = HEADS['lm'].model
# Of each kind, its walker, what training says, and the tokens of a text that a
# draft behind its first row follows.
WALKERS = {
  'eagle': (
    at_once.walk(EAGLE, K),
    lambda params, seen, drafts: at_once.say_along(
      EAGLE, params, seen.tokens, seen.hidden, drafts
    ),
    2,
  ),
  'lm': (
    pard.walk(MODEL, MASK, K),
    lambda params, seen, drafts: pard.say_along(
      MODEL, MASK, params, seen.tokens, drafts
    ),
    1,
  ),
}


@pytest.mark.parametrize('name', HEADS)
def test_training_sees_what_drafting_sees(name):
  walker, say, first = WALKERS[name]
  own = models.head_of(HEADS[name], 0.3)()
  seen, key = test_corrections.seen_of(1, 12), jax.random.key(0)
  rows = 13 - first
  draw = jax.jit(masked.Masks(MASK, K).draw)
  drafts = jax.device_get(draw(key, np.ones((1, rows), np.float32)))

  @jax.jit
  @functools.partial(jax.value_and_grad, has_aux=True)
  def learn(own, drafts):
    params = Params(models.target_weights(), own)
    loss = HEADS[name].loss(params, seen, key)['token']
    return loss, say(params, seen, drafts)[0]

  (loss, said), slope = learn(own, drafts)
  assert all((x != 0).any() for x in jax.tree.leaves(jax.device_get(slope)))
  tokens = np.zeros((rows, 128), np.int32)
  tokens[:, :12] = seen.tokens
  length = np.arange(rows, dtype=np.int32) + first
  params, ctx, (state, block) = test_dflash.read(walker, tokens, length, own)
  step = jax.jit(walker.start)(params, state, block, ctx)
  wanted = np.asarray(step.block.logits)[drafts.begin[0], drafts.depth]
  np.testing.assert_allclose(said, wanted, atol=1e-5)
  assert {*drafts.depth.tolist()} == {0, 1, 2}
  # Places beyond the text do not count.
  at = drafts.at[0] + first - 1
  wanted, at = wanted[at < 12], at[at < 12]
  nats = jax.jit(optax.softmax_cross_entropy)(
    wanted, jax.nn.softmax(np.asarray(seen.logits)[0, at])
  )
  assert len(at) < len(said)
  assert loss == pytest.approx(float(nats.mean()), rel=1e-5)
  # A mask of another draft would be seen.
  begin = drafts.begin.copy()
  begin[0, rows:] = 0
  other = drafts._replace(begin=begin)
  assert np.abs(learn(own, other)[0][1] - said).max() > 1e-2


def test_a_mask_has_all_masks_before_it():
  weights = np.ones((2, 20), np.float32)
  weights[0, :10] = 0
  draw = jax.jit(masked.Masks(MASK, 5, 0.5).draw)
  drafts = draw(jax.random.key(0), weights)
  begin = np.asarray(drafts.begin)
  parts = [begin[:, drafts.depth == d] for d in range(5)]
  assert [part.shape[1] for part in parts] == [20, 10, 5, 4, 4]
  for row in range(2):
    near, *far = [{*part[row].tolist()} for part in parts]
    assert near == {*range(20)}
    assert [len(rows) for rows in far] == [10, 5, 4, 4]
    for less, more in zip(far[1:], far, strict=False):
      assert less <= more
  assert parts[1][0].min() == 10  # Rows that do not count come last.
  assert parts[1][1].min() < 10


@pytest.mark.parametrize('name', HEADS)
def test_what_has_learned_is_kept_with_its_masks(name, tmp_path):
  trained, weights = HEADS[name], models.target_weights()
  if name == 'eagle':  # Embeddings of its own begin as the target's.
    fresh = jax.jit(trained.init)(jax.random.key(1), weights)
    np.testing.assert_array_equal(fresh['embedding'], weights['embedding'])
  own, path = models.head_of(trained, 0.1)(), tmp_path / 'head'
  if name == 'lm':
    trained.save(path, trained.config, own, None)
    loaded = lm.load(HOST, path)
    # It learns on with them, or with others.
    again = [lm.trainable(TARGET, str(path), mask_token=x) for x in (None, 4)]
    assert again[0].drafter(K) == trained.drafter(K) != again[1].drafter(K)
    known = [x.config['mask_token'] for x in (trained, *again)]
    assert known == [MASK, MASK, 4]
    sizes = models.SMALL | {'mlp_width': 16, 'num_layers': 1}
    plain = lm.trainable(TARGET, **sizes).config
    assert 'mask_token' not in plain
    assert plain['next_token'] is False
  else:
    files.save(path, trained.config, own)
    loaded = eagle.load(HOST, path)
  stored = jax.tree.map(
    lambda x: x.astype(np.float16).astype(x.dtype), jax.device_get(own)
  )
  jax.tree.map(np.testing.assert_array_equal, loaded.params, stored)
  assert loaded.make(K) == trained.drafter(K)  # The same functions.


@pytest.mark.parametrize('kind', [eagle, lm])
@pytest.mark.parametrize(
  ('field', 'changes'),
  [
    ('mask_token', {'mask_token': models.VOCAB}),
    ('mask_token', {'mask_token': -1}), ('places', {'places': 1}),
    ('keep', {'keep': 0.0}), ('keep', {'keep': 1.5}), ('keep', {'keep': '1'}),
    ('keep', {'mask_token': None, 'places': None, 'keep': 0.5}),
    ('places', {'mask_token': None}),
  ],
)  # fmt: skip
def test_masks_that_no_draft_has_are_refused(kind, field, changes):
  options = OPTIONS | changes
  options |= {'num_layers': 1} if kind is lm else {}
  with pytest.raises(ValueError, match=rf'^{field} '):
    kind.trainable(TARGET, **options)


def test_windows_without_a_whole_draft_are_refused():
  with pytest.raises(
    ValueError, match=r'^places is 3, but windows have 2 rows'
  ):
    masked.Masks(MASK, K).draw(jax.random.key(0), np.ones((1, 2)))
  few = masked.Masks(MASK, 2, 0.1).draw(jax.random.key(0), np.ones((3, 2)))
  assert few.depth.tolist() == [0, 0, 1]  # A fifth of two rows is one.
  assert few.begin.shape == (3, 3)
  assert masked.masks_of(0, 1, None, None) == masked.Masks(0, 8, 0.7)
  assert masked.masks_of(0, 1, 2, 1) == masked.Masks(0, 2, 1)


# Drafts as PARD publishes them


@pytest.fixture(scope='module')
def published(tmp_path_factory):
  place = tmp_path_factory.mktemp('pard') / 'draft'
  attributes = {'pard_token': MASK, 'spd_type': 'pard'}
  model, weights = models.DRAFT, models.draft_weights()
  checkpoints.save(place, model, weights, attributes=attributes)
  return place


def expected(published, text):
  """Logits [3, V] behind a text, by numpy."""
  config = json.loads((published / 'config.json').read_text())
  tensors = safetensors.numpy.load_file(published / 'model.safetensors')
  tensors = {name: np.asarray(x, np.float64) for name, x in tensors.items()}
  tokens = np.array([*text, MASK, MASK])
  return heads_in_numpy.llama(tensors, config, tokens)[-3:]


def test_masks_say_what_the_checkpoint_says_of_them(published):
  loaded = lm.load(HOST, published)
  model, params = models.DRAFT, loaded.params
  test_dflash.check_along_a_text(
    pard.walk(model, MASK, 3), params, lambda text: expected(published, text)
  )


def test_other_loaders_read_its_masks_and_refuse_what_does_not_fit(published):
  few = quantized.load(HOST, published).make(3)
  assert few == lm.load(HOST, published).make(3)
  tree = lm.load(HOST, published, beam=3, nodes=6).make(3)
  assert (tree.at_once, tree.nodes) == (True, 6)
  assert tree.positions == models.DRAFT.config.max_positions
  assert few.at_once  # What `specjax predict` cannot replay.
  with pytest.raises(ValueError, match='with the text before it'):
    cascade.make(models.TARGET, few, 3)
  model, params = models.DRAFT, models.draft_weights()
  beyond = lm.of(HOST, model, params, mask=models.VOCAB)
  with pytest.raises(ValueError, match='is 11, but the draft has 11'):
    beyond.make(2)
  with pytest.raises(ValueError, match="needs the target's tokenizer"):
    lm.mask_token(published, object())


def test_a_mask_that_is_no_token_is_refused(tmp_path):
  for token in ('7', -1, 1.5):
    (tmp_path / 'config.json').write_text(json.dumps({'pard_token': token}))
    with pytest.raises(
      ValueError, match=r'pard_token = .* a whole number from 0'
    ):
      pard.mask_token(tmp_path)
