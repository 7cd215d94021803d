"""PARD's drafts say what its checkpoint says after masks, in one pass."""

import json

import numpy as np
import pytest
import safetensors.numpy

import specjax
from specjax import checkpoints
from specjax.drafters import cascade, lm, pard, quantized
from specjax.types import Target
from tests.library import test_dflash
from tests.support import heads_in_numpy, models

HOST, MASK = Target(models.TARGET), 7


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A checkpoint as it is published."""
  place = tmp_path_factory.mktemp('pard') / 'draft'
  published = {'pard_token': MASK, 'spd_type': 'pard'}
  model, weights = models.DRAFT, models.draft_weights()
  checkpoints.save(place, model, weights, attributes=published)
  return place


def expected(folder, text):
  """Logits [3, V] behind a text, by numpy."""
  config = json.loads((folder / 'config.json').read_text())
  tensors = safetensors.numpy.load_file(folder / 'model.safetensors')
  tensors = {name: np.asarray(x, np.float64) for name, x in tensors.items()}
  tokens = np.array([*text, MASK, MASK])
  return heads_in_numpy.llama(tensors, config, tokens)[-3:]


def test_masks_say_what_the_checkpoint_says_of_them(folder):
  loaded = lm.load(HOST, folder)
  model, params = models.DRAFT, loaded.params
  test_dflash.check_along_a_text(
    pard.walk(model, MASK, 3), params, lambda text: expected(folder, text)
  )


@pytest.mark.slow
def test_a_mask_that_sees_a_rejected_token_is_seen(folder):
  """A planted bug: masks follow all tokens of a draft, whatever stayed."""
  loaded = lm.load(HOST, folder)
  model, params = models.DRAFT, loaded.params
  right = pard.walk(model, MASK, 3)

  def commit(params, state, block, ctx, verdict, hidden):
    whole = ctx._replace(length=state.length + verdict.path.shape[1])
    made = right.commit(params, state, block, whole, verdict, hidden)
    return made._replace(length=ctx.length + 0)

  with pytest.raises(AssertionError, match='Not equal to tolerance'):
    test_dflash.check_along_a_text(
      right._replace(commit=commit), params, lambda text: expected(folder, text)
    )


@pytest.mark.slow
@pytest.mark.parametrize('shape', [{}, {'beam': 3, 'nodes': 6}], ids=str)
def test_texts_are_those_of_the_target(folder, shape):
  host = Target(models.TARGET, models.target_weights(), max_length=100)
  draft = lm.load(host, folder, **shape)
  out, plain = (
    specjax.decode(
      host, one, [[1, 2, 3, 4, 5], [7, 6, 5]], gamma=3, new_tokens=24,
      temperature=[0.0, 0.8],
    )
    for one in (draft, None)
  )  # fmt: skip
  assert out.tokens[0] == plain.tokens[0]
  assert out.counts.accepted.sum() > 0


def test_other_loaders_read_its_masks_and_refuse_what_does_not_fit(folder):
  few = quantized.load(HOST, folder).make(3)
  assert few == lm.load(HOST, folder).make(3)
  assert few.at_once  # What `specjax predict` cannot replay.
  with pytest.raises(ValueError, match='with the text before it'):
    cascade.make(models.TARGET, few, 3)
  model, params = models.DRAFT, models.draft_weights()
  beyond = lm.of(HOST, model, params, mask=models.VOCAB)
  with pytest.raises(ValueError, match='is 11, but the draft has 11'):
    beyond.make(2)
  with pytest.raises(ValueError, match="needs the target's tokenizer"):
    lm.mask_token(folder, object())


@pytest.mark.parametrize('token', ['7', -1, 1.5])
def test_a_mask_that_is_no_token_is_refused(tmp_path, token):
  (tmp_path / 'config.json').write_text(json.dumps({'pard_token': token}))
  with pytest.raises(
    ValueError, match=r'pard_token = .* a whole number from 0'
  ):
    pard.mask_token(tmp_path)
