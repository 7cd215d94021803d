"""Enumeration against the slower and shorter one of `reference`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import verify
from specjax.certify import cases, exact, tiny_models
from specjax.drafters import ngram
from tests.support import papers_in_numpy

TEXTS = exact.Texts(3, 4)
EOS = (2,)


def test_texts_are_numbered_by_length_and_then_by_token():
  assert len(TEXTS) == 1 + 3 + 9 + 27 + 81
  assert [TEXTS.tokens(i) for i in (0, 1, 3, 4)] == [(), (0,), (2,), (0, 0)]
  for number in range(len(TEXTS)):
    text = TEXTS.tokens(number)
    assert TEXTS.length(number) == len(text)
    again = 0
    for token in text:
      again = TEXTS.after(again, token)
    assert again == number


def test_texts_are_cut_at_the_limit_and_after_an_end():
  cut, ended = TEXTS.cut(2, EOS)
  for number in range(len(TEXTS)):
    text = TEXTS.tokens(number)
    ends = [i + 1 for i, token in enumerate(text) if token in EOS]
    right = text[: min([*ends, 2])]
    assert TEXTS.tokens(cut[number]) == right
    assert ended[number] == (len(right) == 2 or right[-1:] == EOS)
  numbers = exact.unfinished(TEXTS, 2, EOS)
  assert [TEXTS.tokens(i) for i in numbers] == [(), (0,), (1,)]


def model(seed):
  random = np.random.default_rng(seed)
  probs = random.dirichlet(np.ones(3), len(TEXTS))
  return exact.Distributions(probs, np.log(probs))


def function_of(found):
  probs = found.probs
  numbers = {TEXTS.tokens(i): i for i in range(len(TEXTS))}
  return lambda text: probs[numbers[text]]


def test_plain_decoding(float64):
  p = model(0)
  contexts = exact.unfinished(TEXTS, 3, EOS)
  step = exact.plain(TEXTS, p, contexts)
  found = exact.sequence(step, TEXTS, contexts, 3, EOS)
  ours = {TEXTS.tokens(i): found[i].sum() for i in range(len(TEXTS))}
  assert (
    papers_in_numpy.difference(
      ours, papers_in_numpy.sample(function_of(p), 3, EOS)
    )
    <= 1e-15
  )
  # Plain decoding takes as many steps as there are tokens.
  number, calls = np.nonzero(found)
  np.testing.assert_array_equal(TEXTS.length(number), calls)


def test_steps_are_counted(float64):
  """How many target calls there are, beside a recursion over texts."""
  p, q = model(0), model(1)
  contexts = exact.unfinished(TEXTS, 2, EOS)
  step = exact.step(verify.token, exact.tree((0, 1)), TEXTS, p, q, contexts)
  found = exact.sequence(step, TEXTS, contexts, 2, EOS)
  one = papers_in_numpy.leviathan(
    function_of(p), function_of(q), lambda text: len(text) < 2
  )
  # One call: everything but a single token that does not end the text.
  alone = sum(w for text, w in one.items() if len(text) == 1 and text != EOS)
  np.testing.assert_allclose(found.sum(0), [0, 1 - alone, alone], atol=1e-14)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_low_precision_is_off_by_its_rounding(dtype, float64):
  """And no more: what is drawn from is made to add up to 1."""
  p, q = (
    exact.Distributions(x.probs.astype(dtype), x.logits.astype(dtype))
    for x in (model(0), model(1))
  )
  chances = exact.step(verify.block, exact.tree((0, 1)), TEXTS, p, q, [0])[0]
  np.testing.assert_allclose(chances.sum(), 1, rtol=1e-12)
  wide = exact.step(
    verify.block, exact.tree((0, 1)), TEXTS, model(0), model(1), [0]
  )[0]
  far = exact.total_variation(chances, wide)
  unit = float(jnp.finfo(dtype).eps)
  assert 0 < far < 10 * unit


def test_drafts_of_lookup_are_those_of_the_drafter():
  """After 0 1 0 the last token was followed by 1 0."""
  tiny = tiny_models.tables(3, prompt=(0, 1, 0), eos=(), settings={'T 1': {}})
  source = cases.of_chosen(tiny, ngram.make(2))
  made = source(TEXTS, None, np.array([0, 3]))
  assert made.draft.probs is None
  first, second = np.asarray(made.draft.tokens)
  assert first.tolist() == [1, 0]
  assert np.asarray(made.draft.size).tolist() == [2, 0]  # No 2 before.
  assert TEXTS.tokens(made.rows[0, 2]) == (1, 0)
  assert TEXTS.tokens(made.rows[1, 0]) == (2,)
  assert second.shape == (2,)


def test_every_draft_is_enumerated_once(float64):
  q = model(1)
  for replacement in (False, True):
    source = exact.tree((0, 0, 1), replacement)
    made = source(TEXTS, q, np.array([0, 1]))
    assert len(made.weight) == 2 * 27
    totals = np.bincount(made.context, made.weight)
    np.testing.assert_allclose(totals, 1, rtol=1e-12)
    twice = np.asarray(made.draft.tokens[:, 0] == made.draft.tokens[:, 1])
    assert (made.weight[twice] > 0).any() == replacement
  assert jax.tree.leaves(made.draft)[0].shape == (54, 3)
