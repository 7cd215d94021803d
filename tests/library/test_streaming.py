"""Pieces of a text: those of `decode`, with where each token came from."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import specjax
from tests.support import models

PROMPT, NEW = 'def fib(n):', 24


@pytest.fixture(scope='module')
def target(folder):
  return specjax.load(folder / 'target', max_length=96)


@pytest.fixture(scope='module')
def drafters(folder, target):
  path = str(folder / 'draft')
  return {
    'draft': specjax.drafters.lm.load(target, path),
    'tree': specjax.drafters.lm.load(target, path, widths=(2,)),
  }


def given(changes):
  usual = {'gamma': 2, 'new_tokens': NEW, 'repetition_penalty': 1.1}
  return usual | changes


@pytest.fixture(scope='module')
def whole(target, drafters):
  """The result of `decode` at temperature 0, with log-probabilities."""
  options = given({'logprobs': 0})
  out = specjax.decode(target, drafters['draft'], PROMPT, **options)
  assert len(out.logprobs[0]) == len(out.tokens[0])
  return out


def pieces(target, drafter, prompt=PROMPT, **changes):
  return [*specjax.stream(target, drafter, prompt, **given(changes))]


REGEX = '[0-9]{2,4}( or [a-z]{3})?'
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
  ('name', 'options'),
  [
    ('draft', {'temperature': 0.9}),
    slow('tree', {'temperature': 0.9}),
    slow('draft', {'temperature': 1.0, 'regex': REGEX}),
  ],
)
def test_a_stream_is_the_text_of_decode(target, drafters, name, options):
  options = {'seed': 3, 'logprobs': 2} | options
  whole = specjax.decode(target, drafters[name], PROMPT, **given(options))
  ids = np.array(target.tokenizer.encode(PROMPT))
  found = pieces(target, drafters[name], ids, **options)
  assert models.joined(found, 'tokens') == whole.tokens[0]
  assert ''.join(piece.text for piece in found) == whole.texts[0]
  told = models.joined(found, 'logprobs')
  for one, other in zip(told, whole.logprobs[0], strict=True):
    np.testing.assert_allclose(one.value, other.value, atol=1e-5)
    assert [x for x, _ in one.top] == [x for x, _ in other.top]
  for piece in found:
    parts = piece.tokens, piece.origins, piece.texts, piece.logprobs
    assert len({*map(len, parts)}) == 1
  *rest, last = found
  assert [told] == last.whole.logprobs
  assert not any(piece.finish or piece.whole for piece in rest)
  assert last.finish == ('stop' if 'regex' in options else 'length')
  assert (last.whole.texts, last.whole.tokens) == (whole.texts, whole.tokens)
  assert last.whole.ended == ['regex' in options]
  assert len(found) == whole.target_calls == last.whole.target_calls
  for mine, own in zip(last.whole.counts, whole.counts, strict=True):
    np.testing.assert_array_equal(mine, own)


def test_prompts_of_any_length_share_the_programs_of_a_size(target, caplog):
  prompts = [[1] * size for size in (3, 40, 70)]
  expected = [models.joined(pieces(target, None, x), 'tokens') for x in prompts]
  pieces(target, None, prompts[0], slots=256)
  with jax.log_compiles():
    for prompt, tokens in zip(prompts, expected, strict=True):
      found = pieces(target, None, prompt, slots=256)
      assert models.joined(found, 'tokens') == tokens
  assert 'Compiling' not in caplog.text


def test_what_ends_a_text_is_not_shown(target, drafters, whole):
  tokens = whole.tokens[0]
  ending = dataclasses.replace(target, eos=(tokens[5],))
  first = tokens.index(tokens[5])
  found = pieces(ending, drafters['draft'])
  assert found[-1].finish == 'stop'
  assert found[-1].whole.ended == [True]
  assert models.joined(found, 'tokens') == tokens[: first + 1]
  text = target.tokenizer.decode(tokens[:first])
  assert ''.join(piece.text for piece in found) == text
  assert found[-1].texts[-1] == ''


def test_a_stop_string_ends_a_text_wherever_it_is(target, drafters, whole):
  text, tokens = whole.texts[0], whole.tokens[0]
  for begin in range(0, len(text) - 6, 5):
    stop = text[begin : begin + 5]
    found = pieces(target, drafters['draft'], stop=['\0\0', stop], logprobs=2)
    shown = ''.join(piece.text for piece in found)
    assert shown == text[: text.find(stop)]
    assert found[-1].finish == 'stop'
    assert found[-1].whole.texts == [shown]
    mine = models.joined(found, 'tokens')
    assert mine == tokens[: len(mine)] == found[-1].whole.tokens[0]
    assert len(found[-1].whole.logprobs[0]) == len(mine)
    assert stop in target.tokenizer.decode(mine)
    if '\ufffd' not in stop:  # Which may be half a character, and waits.
      assert stop not in target.tokenizer.decode(mine[:-1])
  # A single one needs no list.
  found = pieces(target, drafters['draft'], stop=stop, logprobs=2)
  assert found[-1].whole.texts == [shown]


def test_numbers_that_are_none_are_said(target):
  broken = dataclasses.replace(
    target,
    params=target.params | {'embedding': target.params['embedding'] * np.nan},
  )
  found = specjax.stream(broken, None, PROMPT, **given({}))
  with pytest.raises(FloatingPointError, match='NaN or infinite logits'):
    next(found)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'prompt': ['a', 'b']}, 'prompt must be one text, or the token ids'),
    ({'prompt': [[1], [2, 3]]}, 'prompt must be one text, or the token ids'),
    ({'new_tokens': [3]}, 'new_tokens must be a whole number of at least 1'),
    ({'stop': ['']}, 'stop must be a text, or a list of texts'),
    ({'logprobs': 21}, 'logprobs must be a whole number of at least 0 and'),
    ({'slots': 0}, 'slots must be a whole number of at least 1'),
    ({'regex': '('}, "regex '.'"),
    ({'topp': 0.9}, "stream has no argument 'topp' .did you mean 'top_"),
    ({'target': models.TARGET}, 'target must be what specjax.load returns'),
  ],
)
def test_mistakes_are_named_at_the_call(target, changes, message):
  options = {'target': target, 'drafter': None, 'prompt': PROMPT} | changes
  with pytest.raises(ValueError, match=message):
    specjax.stream(**options)


def test_a_target_without_a_tokenizer_makes_no_text(target):
  silent = dataclasses.replace(target, tokenizer=None)
  with pytest.raises(ValueError, match='has no tokenizer, which makes text'):
    specjax.stream(silent, None, [1, 2])
