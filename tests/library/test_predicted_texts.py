"""Drafts out of a text that a row is predicted to go on with."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import sampling, verify
from specjax.drafters import cascade, lm, ngram
from specjax.drafters.ngram import predicted
from specjax.loop import generate
from specjax.requests import pool, request_sampling
from specjax.sampling import Predicted
from specjax.types import Params, Prediction, Spec, Target
from tests.support import models

VOCAB, SLOTS, ROOM, DEPTH, NEW, START = 3, 24, 40, 4, 40, 5
TARGET = Target(models.TARGET, models.target_weights(), eos=(10,))
COPIES = ngram.load(TARGET)

texts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=SLOTS)
predictions = st.lists(st.integers(0, VOCAB - 1), max_size=ROOM)


def padded(text, size):
  return jnp.array(text + [1] * (size - len(text)), jnp.int32)


@functools.partial(jax.jit, static_argnames='depth')
def look_up(source, tokens, length, depth=DEPTH):
  return predicted.look_up(source, tokens, length, depth)


def prediction_of(tokens, start):
  return Prediction(padded(tokens, ROOM), len(tokens), start)


def best_naively(prediction, text):
  found = []
  for i in range(len(prediction) - 1):
    pairs = [*zip(prediction[i::-1], text[::-1], strict=False)]
    alike = [a == b for a, b in pairs[: predicted.LONGEST]]
    run = [*alike, False].index(False)
    found.append((run, -abs(i - (len(text) - 1 - START)), -i))
  if not found or not max(found)[0]:
    return []
  return prediction[1 - max(found)[2] :][:DEPTH]


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(prediction=predictions, text=texts)
def test_copies_are_those_of_plain_python(prediction, text):
  source = prediction_of(prediction, START)
  copied, size = look_up(source, padded(text, SLOTS), len(text))
  assert copied[:size].tolist() == best_naively(prediction, text)


def test_copies_begin_with_the_prediction_and_go_on_behind_what_was_replaced():
  prompt, prediction = [7, 8], [5, 6, 5, 4, 3, 5, 2]
  source = sampling.behind(prompt, prediction)
  for new, expected in (
    ([], [5, 6, 5, 4]),
    ([5, 6], [5, 4, 3, 5]),
    ([5, 6, 9], []),
    ([5, 6, 9, 4], [3, 5, 2]),
    ([5], [6, 5, 4, 3]),
    ([5, 6, 9, 4, 3, 5], [2]),
    ([5, 6, 5, 4, 3, 5], [2]),
  ):
    text = prompt + new
    there = prediction_of(*source)
    copied, size = look_up(there, padded(text, SLOTS), len(text))
    assert copied[:size].tolist() == expected
  # No more than six tokens of the prompt come before it.
  assert sampling.behind([*range(8)], [9]) == ([2, 3, 4, 5, 6, 7, 9], 2)


def decode(prompts, drafter=COPIES, **options):
  given = {'gamma': DEPTH, 'new_tokens': NEW} | options
  return specjax.decode(TARGET, drafter, prompts, **given)


def test_a_right_prediction_is_accepted_whole_and_a_wrong_one_changes_nothing():
  prompts = [[1], [2, 3]]
  plain = decode(prompts)
  right = decode(prompts, prediction=plain.tokens)
  assert right.tokens == plain.tokens
  for tokens, calls in zip(
    right.tokens, right.counts.target_calls, strict=True
  ):
    assert calls <= np.ceil((len(tokens) + 1) / (DEPTH + 1))
  wrong = decode(prompts, prediction=[[9, 9, 9], None])
  assert wrong.tokens == plain.tokens
  assert wrong.counts.accepted[0].sum() < right.counts.accepted[0].sum()
  for mine, other in zip(wrong.counts, plain.counts, strict=True):
    np.testing.assert_array_equal(mine[1], other[1])


def test_trees_and_cascades_copy_from_it_too():
  prompts = [[1], [2, 3]]
  plain = decode(prompts)
  tree = decode(
    prompts, ngram.load(TARGET, candidates=2), prediction=plain.tokens
  )
  assert tree.tokens == plain.tokens
  assert tree.tau == decode(prompts, prediction=plain.tokens).tau
  inner = ngram.make(DEPTH)
  made = cascade.make(models.DRAFT, inner, DEPTH)
  assert made.predicts
  assert not lm.make(models.DRAFT, DEPTH).predicts


@pytest.mark.slow
def test_rows_of_a_pool_are_those_that_each_is_alone():
  spec = Spec(models.TARGET, ngram.make(DEPTH), verify.token, (10,))
  params = Params(models.target_weights(), None)
  kinds = request_sampling.of(spec, 'top_p', prediction=64)
  prompts = [[1], [4, 5, 6], [2, 3], [7]] * 2
  source = decode(prompts[:4]).tokens

  def open_pool():
    values = kinds.values()
    return pool.Pool(params, spec=spec, values=values, rows=3, slots=128)

  def request(i):
    prediction = sampling.behind(prompts[i], source[i % 4] if i % 3 else ())
    values = kinds.values(i % 2, prediction, top_p=0.9)
    key = generate.row_keys(5, [i])
    return pool.Request(prompts[i], 20, key, values)

  together = open_pool()
  for i in range(8):
    together.submit(request(i))
  found = models.texts_of(together)
  for i in range(8):
    alone = open_pool()
    alone.submit(request(i))
    assert models.texts_of(alone)[0] == found[i]


LM = specjax.types.LoadedDrafter(
  models.TARGET, lambda depth: lm.make(models.DRAFT, depth)
)


@pytest.mark.parametrize(
  ('drafter', 'given', 'says'),
  [
    (COPIES, [[1, 2]], 'a list of 2, one a prompt'),
    (
      COPIES,
      [[1, 99], None],
      'prediction must name tokens from 0 to 10, got 99',
    ),
    (
      COPIES,
      'a text',
      'prediction 0 is a text, but the target has no tokenizer',
    ),
    (COPIES, [[1], 3.5], 'prediction 1 must be a text or a list of token ids'),
    (None, [[1], [2]], 'the drafter copies from none'),
    (LM, [[1], [2]], 'the drafter copies from none'),
  ],
)
def test_predictions_that_are_none_are_refused(drafter, given, says):
  with pytest.raises(ValueError, match=says):
    decode([[1], [2]], drafter, prediction=given)


def test_predictions_have_the_room_that_the_pool_was_opened_with():
  kinds = request_sampling.Stages((), VOCAB, prediction=4)
  made = kinds.values(prediction=Predicted([1, 2], 3)).prediction
  assert made.tokens.shape == (1, 4)
  assert made.length.tolist() == [2]
  with pytest.raises(ValueError, match='has 5 tokens, but there is room for 4'):
    kinds.values(prediction=Predicted([0] * 5))
  with pytest.raises(ValueError, match='there is room for 0'):
    request_sampling.Stages((), VOCAB).values(prediction=Predicted([0]))
  with pytest.raises(ValueError, match='prediction has 1 rows instead of 2'):
    sampling.make(2, vocab_size=VOCAB, prediction=[Predicted([0])])
  for rows in ([[0]], 3, 'a', [None], [Predicted([0]), None]):
    with pytest.raises(ValueError, match='prediction must be a list of what'):
      sampling.make(1, vocab_size=VOCAB, prediction=rows)
  for token in (1.5, 'a', None, -1, VOCAB):
    with pytest.raises(ValueError, match='prediction must name tokens from 0'):
      sampling.make(1, vocab_size=VOCAB, prediction=[Predicted([token])])


@pytest.mark.parametrize(('tokens', 'room'), [(1, 128), (128, 128), (129, 256)])
def test_a_long_prediction_has_room_for_a_power_of_two(tokens, room):
  rows = [Predicted([0]), Predicted([1] * tokens, 2)]
  made = sampling.make(2, vocab_size=VOCAB, prediction=rows).prediction
  assert made.tokens.shape == (2, room)
  assert made.tokens.sum(1).tolist() == [0, tokens]
  assert made.length.tolist() == [1, tokens]
