"""The door: texts in, texts and counts out, a sentence for what is wrong."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.loop import generate
from tests.support import tiny

PROMPTS = ['def fib(n):', 'import os\n', 'class Stack:\n  def push']
NEW = 12


@pytest.fixture(scope='module')
def target(folder):
  return specjax.load(folder / 'target', max_length=96)


@pytest.fixture(scope='module')
def draft(folder, target):
  return specjax.drafters.lm.load(target, str(folder / 'draft'))


def decode(target, drafter, prompts=PROMPTS, **options):
  return specjax.decode(
    target, drafter, prompts, **{'gamma': 2, 'new_tokens': NEW} | options
  )


@pytest.mark.slow
def test_counts_are_told_without_the_state(target, draft):
  out = decode(target, draft)
  counts = out.counts
  calls, tokens = counts.target_calls.sum(), counts.tokens.sum()
  assert [len(new) for new in out.tokens] == counts.tokens.tolist()
  assert out.target_calls == calls
  assert out.tau == tokens / calls
  assert out.tau_by_row == (counts.tokens / counts.target_calls).tolist()
  assert out.acceptance_rate == counts.accepted.sum() / counts.drafted.sum()
  assert out.accepted_lengths == counts.histogram.sum(0).tolist()
  steps = sum(out.accepted_lengths)
  assert out.acceptance_by_position == [
    sum(out.accepted_lengths[1:]) / steps,
    sum(out.accepted_lengths[2:]) / steps,
  ]
  assert repr(out) == (
    f'<3 texts, {tokens} tokens, {calls} target calls, tau {out.tau:.2f}>'
  )


def test_greedy_texts_are_those_of_plain_decoding(target, draft):
  plain = decode(target, None)
  assert decode(target, draft).tokens == plain.tokens
  assert plain.tau == 1
  assert math.isnan(plain.acceptance_rate)
  assert plain.acceptance_by_position == []
  lookup = specjax.drafters.ngram.load(target)
  assert decode(target, lookup).texts == plain.texts


def test_texts_token_ids_and_a_single_text_are_the_same(target, draft):
  texts = decode(target, draft).tokens
  ids = [target.tokenizer.encode(prompt) for prompt in PROMPTS]
  assert decode(target, draft, ids).tokens == texts
  assert decode(target, draft, [np.array(i) for i in ids]).tokens == texts
  alone = decode(target, draft, PROMPTS[0])
  assert alone.tokens == texts[:1]
  assert alone.texts == [target.tokenizer.decode(texts[0])]


def test_an_end_of_text_is_in_the_tokens_and_not_in_the_text(target, draft):
  whole = decode(target, draft).tokens[0]
  ending = dataclasses.replace(target, eos=(whole[4],))
  first = whole.index(whole[4])
  out = decode(ending, draft, PROMPTS[0])
  assert out.ended == [True]
  assert out.tokens == [whole[: first + 1]]
  assert out.texts == [target.tokenizer.decode(whole[:first])]


def test_a_second_call_compiles_nothing(target, draft):
  decode(target, draft, temperature=0.5, seed=1)
  before = generate.count_programs(), generate.read_prompts._cache_size()
  other = [prompt[:-1] for prompt in PROMPTS]
  options = {'new_tokens': [3, 7, NEW], 'temperature': 1.5, 'seed': 2}
  decode(target, draft, other, **options)
  after = generate.count_programs(), generate.read_prompts._cache_size()
  assert after == before


def test_weights_are_loaded_as_asked(folder):
  target = specjax.load(folder / 'target', dtype='bfloat16')
  leaves = jax.tree.leaves(target.params)
  assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.bfloat16)}
  with pytest.raises(ValueError, match="dtype is 'int8': choose one of"):
    specjax.load(folder / 'target', dtype='int8')
  with pytest.raises(ValueError, match='is no directory'):
    specjax.load(folder / 'nowhere')
  with pytest.raises(ValueError, match='max_length must be a whole number'):
    specjax.load(folder / 'target', max_length='x')


def test_a_policy_is_no_name(folder, target):
  with pytest.raises(ValueError, match='policy must be one of specjax'):
    specjax.drafters.lm.load(target, str(folder / 'draft'), policy='nope')


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'target': 'a path'}, 'target must be what specjax.load returns, got str'),
    ({'drafter': 'lm'}, 'drafter must be what a loader returns'),
    ({'drafter': lambda t, d: d.make(2)}, 'or None for plain decoding'),
    ({'rule': 'block'}, r"such as specjax\.verify\.block, got str 'block'"),
    ({'prompts': []}, 'prompts must be a text, or a list of'),
    ({'prompts': ['x', '']}, 'prompt 1 is empty'),
    ({'prompts': [[0.5]]}, 'prompt 0 must be a text or a list of token ids'),
    ({'prompts': [[1, 99999]]}, 'prompt 0 has a token outside the vocabulary'),
    ({'gamma': 0}, 'gamma must be .* at least 1 and below 128, got int 0$'),
    ({'new_tokens': 0}, 'new_tokens must be a whole number of at least 1'),
    ({'new_tokens': [4, 4]}, 'new_tokens has 2 entries for 3 prompts'),
    ({'temperature': [0.0, 1.0]}, 'temperature must be one value or 3'),
    ({'temperature': None}, 'temperature must be a number from 0 to'),
    ({'tempreture': 1.0}, "no argument 'tempreture' .did you mean 'tempera"),
    ({'prompts': ['\ud800']}, 'prompt 0 is no text: character 0 is half'),
    *(({'stop': stop}, '^stop must be a text') for stop in ('', ['a', 3], 5)),
  ],
)
def test_what_is_wrong_gets_a_sentence(target, draft, change, message):
  change = dict(change)
  drafter = change.pop('drafter', draft)
  if callable(drafter):
    drafter = drafter(target, draft)
  with pytest.raises(ValueError, match=message):
    decode(change.pop('target', target), drafter, **change)


def test_a_stop_string_ends_its_row_and_changes_no_other(target, draft):
  options = {'temperature': 0.9, 'seed': 3, 'logprobs': 1}
  options['new_tokens'] = [40, 9, 1]
  whole = decode(target, draft, **options)
  stop = whole.texts[0][9:12]
  out = decode(target, draft, stop=['\0\0', stop], **options)
  for row, text in enumerate(whole.texts):
    assert out.texts[row] == text.partition(stop)[0]
    assert out.ended[row] == (stop in text or whole.ended[row])
    size = len(out.tokens[row])
    assert out.tokens[row] == whole.tokens[row][:size]
    assert out.logprobs[row] == whole.logprobs[row][:size]
    assert (size == len(whole.tokens[row])) == (stop not in text)
    found = target.tokenizer.decode(out.tokens[row])
    assert (stop in found) == (stop in text)
  assert not all(stop in text for text in whole.texts)
  calls = out.counts.target_calls
  assert calls[0] < whole.counts.target_calls[0]
  np.testing.assert_array_equal(calls[1:], whole.counts.target_calls[1:])


def test_a_drafter_of_another_target_is_refused(folder, target):
  other = dataclasses.replace(target, model=tiny.model(32, 1))
  loaded = specjax.drafters.ngram.load(other)
  with pytest.raises(ValueError, match='loaded for another target'):
    decode(target, loaded)


def test_a_target_without_a_tokenizer_takes_token_ids(target, draft):
  bare = dataclasses.replace(target, tokenizer=None)
  with pytest.raises(ValueError, match='has no tokenizer: give token ids'):
    decode(bare, draft)
  with pytest.raises(ValueError, match=r'^stop: .* has no tokenizer'):
    decode(bare, None, [[1, 2]], stop='a')
  out = decode(bare, draft, [[1, 2, 3]])
  assert out.texts is None
  assert len(out.tokens[0]) == NEW


def test_damaged_weights_are_named(target, draft):
  weights = dict(target.params)
  weights['embedding'] = weights['embedding'] * jnp.nan
  with pytest.raises(FloatingPointError, match='logits in row 0'):
    decode(dataclasses.replace(target, params=weights), draft)
