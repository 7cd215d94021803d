"""Drafts of masks in training (P-EAGLE and PARD): what they see and learn."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from specjax import sampling, verify
from specjax.drafters import eagle, lm, pard
from specjax.drafters.eagle import at_once
from specjax.drafters.eagle.module import Head, sizes_of
from specjax.drafters.heads import files, masked
from specjax.types import Params, Spec, Target
from tests.library import test_corrections, test_dflash
from tests.support import models

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
  """Masks say, and are judged by, what they say in a draft of the text."""
  walker, say, first = WALKERS[name]
  own = models.head_of(HEADS[name], 0.3)()
  params = Params(models.target_weights(), own)
  seen, key = test_corrections.seen_of(1, 12), jax.random.key(0)
  rows = 13 - first
  drafts = masked.Masks(MASK, K).draw(key, jnp.ones((1, rows)))

  @jax.jit
  def learn(drafts):
    loss = HEADS[name].loss(params, seen, key)['token']
    return loss, say(params, seen, drafts)[0]

  loss, said = learn(drafts)
  tokens = np.zeros((rows, 128), np.int32)
  tokens[:, :12] = seen.tokens
  length = np.arange(rows, dtype=np.int32) + first
  params, ctx, (state, block) = test_dflash.read(walker, tokens, length, own)
  step = jax.jit(walker.start)(params, state, block, ctx)
  wanted = step.block.logits[drafts.begin[0], drafts.depth]
  np.testing.assert_allclose(said, wanted, atol=1e-5)
  assert {*drafts.depth.tolist()} == {0, 1, 2}
  # Places beyond the text do not count.
  at = drafts.at[0] + first - 1
  wanted, at = wanted[at < 12], at[at < 12]
  p = jax.nn.softmax(seen.logits[0, at])
  nats = -(p * jax.nn.log_softmax(wanted)).sum(-1)
  assert len(at) < len(said)
  assert loss == pytest.approx(float(nats.mean()), rel=1e-5)
  # A mask of another draft would be seen.
  other = drafts._replace(begin=drafts.begin.at[0, rows:].set(0))
  assert np.abs(learn(other)[1] - said).max() > 1e-2


def test_a_mask_has_all_masks_before_it():
  weights = jnp.ones((2, 20)).at[0, :10].set(0)
  drafts = masked.Masks(MASK, 5, 0.5).draw(jax.random.key(0), weights)
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


def accepted(drafter, params):
  """The share of tried tokens that is accepted."""
  values = sampling.make(len(models.PROMPTS), 0.7)
  spec = Spec(TARGET, drafter, verify.token)
  counts = models.decoded(spec, params, models.PROMPTS, values).counts
  return counts.accepted.sum() / counts.tried.sum()


@pytest.mark.slow
@pytest.mark.parametrize('name', HEADS)
def test_what_has_learned_is_kept_and_accepted_more(name, tmp_path):
  trained, weights = HEADS[name], models.target_weights()
  fresh = trained.init(jax.random.key(1), weights)
  if name == 'eagle':  # Embeddings of its own begin there.
    np.testing.assert_array_equal(fresh['embedding'], weights['embedding'])
  seen = test_corrections.seen_of(16, 24)
  adam = optax.adam(1e-2)

  @jax.jit
  def learn(own, state, key):
    def loss(own):
      return trained.loss(Params(weights, own), seen, key)['token']

    slope = jax.grad(loss)(own)
    change, state = adam.update(slope, state)
    return optax.apply_updates(own, change), state, slope

  own, state = fresh, adam.init(fresh)
  for step in range(200):
    own, state, slope = learn(own, state, jax.random.key(step))
    if not step:
      assert all(bool((x != 0).any()) for x in jax.tree.leaves(slope))
  path = tmp_path / 'head'
  if name == 'lm':
    trained.save(path, trained.config, own, None)
    loaded = lm.load(HOST, path)
  else:
    files.save(path, trained.config, own)
    loaded = eagle.load(HOST, path)
  stored = jax.tree.map(lambda x: x.astype(np.float16).astype(x.dtype), own)
  jax.tree.map(np.testing.assert_array_equal, loaded.params, stored)
  drafter = loaded.make(K)
  assert drafter == trained.drafter(K)  # The same functions: the same logits.
  before, after = (
    accepted(drafter, Params(weights, own)) for own in (fresh, loaded.params)
  )
  assert after > before + 0.1


def test_a_draft_with_masks_learns_on_with_them(tmp_path):
  trained = HEADS['lm']
  own = models.head_of(trained, 0.1)()
  trained.save(tmp_path / 'draft', trained.config, own, None)
  path = str(tmp_path / 'draft')
  same, other = (lm.trainable(TARGET, path, mask_token=x) for x in (None, 4))
  assert same.drafter(K) == trained.drafter(K) != other.drafter(K)


@pytest.mark.parametrize('kind', [eagle, lm])
@pytest.mark.parametrize(
  ('field', 'changes'),
  [
    ('mask_token', {'mask_token': models.VOCAB}),
    ('mask_token', {'mask_token': -1}),
    ('places', {'places': 1}),
    ('keep', {'keep': 0.0}),
    ('keep', {'keep': 1.5}),
    ('places', {'mask_token': None}),
  ],
)
def test_masks_that_no_draft_has_are_refused(kind, field, changes):
  options = OPTIONS | changes
  options |= {'num_layers': 1} if kind is lm else {}
  with pytest.raises(ValueError, match=rf'^{field} '):
    kind.trainable(TARGET, **options)


def test_windows_without_a_whole_draft_are_refused():
  with pytest.raises(
    ValueError, match=r'^places is 3, but windows have 2 rows'
  ):
    masked.Masks(MASK, K).draw(jax.random.key(0), jnp.ones((1, 2)))
