"""A draft with another vocabulary: what is the same, and what is drafted.

Tables are compared with ones typed out. A draft that is the target in other
tokens must say what the target says, to the last digit.
"""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE, WordPiece

from specjax import sampling, verify
from specjax.checkpoints import vocabularies
from specjax.checkpoints.vocabularies import reading, tables, tokens
from specjax.checkpoints.vocabularies.tokens import Tokens
from specjax.drafters import lm
from specjax.drafters.shapes import chain
from specjax.loop import generate
from specjax.types import Context, History, Params, Spec
from tests.support import heads_in_numpy, models


def built(target, draft):
  """Places and pieces of two vocabularies as lists."""
  made, _ = tables.build(target, draft)
  starts, pieces = np.asarray(made.starts), np.asarray(made.pieces).tolist()
  spelled = [pieces[a:b] for a, b in itertools.pairwise(starts)]
  return np.asarray(made.places).tolist(), spelled


# Tables


# Tokens of a target and of a draft, places and pieces; or not all of these.
BUILT = {
  'tokens of equal bytes are the same': (
    Tokens(3, {0: b'b', 1: b' a', 2: b'ab'}),
    Tokens(4, {0: b'a', 1: b'b', 2: b' a', 3: b'x'}),
    [1, 2, 4], [[1], [2], [0, 1]],
  ),
  'of duplicates the first are the same, others are only spelled': (
    Tokens(3, {0: b'a', 1: b'a', 2: b'b'}),
    Tokens(3, {0: b'b', 1: b'a', 2: b'b'}),
    [1, 3, 0], [[1], [1], [0]],
  ),
  'a byte beside a letter': (
    Tokens(3, {0: b'a', 1: b'a', 2: b'\xe2'}, frozenset([0])),
    Tokens(3, {0: b'a', 1: b'a', 2: b'\xe2'}, frozenset([1, 2])),
    [1, 0, 2], [[1], [0], [2]],
  ),
  'a byte that is a letter, as there is none': (
    Tokens(3, {0: b'a', 1: b'a', 2: b'\xe2'}, frozenset([0])),
    Tokens(2, {0: b'a', 1: b'\xe2'}),
    [2, 0, 1], [[0], [0], [1]],
  ),
  'ends of text are told by what they do': (
    Tokens(4, {0: b'a'}, special={1: '<s>', 2: 'end', 3: 'pad'},
           ends=(2,), begin=1),
    Tokens(4, {3: b'a'}, special={0: '</s>', 1: 'pad', 2: 'begin'},
           ends=(0,), begin=2),
    [3, 2, 0, 1], None,
  ),
  'several ends of text keep their names': (
    Tokens(3, {0: b'a'}, special={1: 'turn', 2: 'text'}, ends=(1, 2)),
    Tokens(2, {0: b'a'}, special={1: 'text'}, ends=(1,)),
    [0, 2, 1], None,
  ),
  'an end of text of another name is the first': (
    Tokens(3, {0: b'a'}, special={1: 'turn', 2: 'text'}, ends=(1, 2)),
    Tokens(2, {0: b'a'}, special={1: '</s>'}, ends=(1,)),
    [0, 1, 2], None,
  ),
  'a long token is read by its last pieces': (
    Tokens(2, {0: b'a', 1: b'bbbb' + b'a' * 8}),
    Tokens(2, {0: b'b', 1: b'a'}),
    None, [[1], [1] * tables.LONGEST],
  ),
  'bytes that a draft cannot write are unknown': (
    Tokens(3, {0: b'a', 1: b'a\xff', 2: b'\xff'}),
    Tokens(2, {0: b'a'}, special={1: 'unk'}, unknown=1),
    None, [[0], [0, 1], [1]],
  ),
}  # fmt: skip


@pytest.mark.parametrize('name', BUILT)
def test_tables_are_those_typed_out(name):
  target, draft, places, pieces = BUILT[name]
  found = built(target, draft)
  assert places in (None, found[0])
  assert pieces in (None, found[1])


@pytest.mark.parametrize(
  ('target', 'draft', 'message'),
  [
    (
      Tokens(3, {0: b'a'}, special={1: '<x>', 2: 'e'}, ends=(2,), begin=1),
      Tokens(2, {0: b'a'}, special={1: '<x>'}, ends=(1,)),
      "'<x>' begins texts of the target and",
    ),
    (
      Tokens(2, {0: b'a'}, special={1: 'e'}, ends=(1,)),
      Tokens(2, {0: b'b'}, special={1: 'e'}, ends=(1,)),
      'no token in common',
    ),
  ],
)
def test_vocabularies_that_do_not_fit_are_refused(target, draft, message):
  with pytest.raises(ValueError, match=message):
    tables.build(target, draft)


# Tokenizers


def fast(tokenizer, **special):
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, **special
  )


def byte_level():
  words = ['</s>', 'a', 'b', 'Ġ', 'ab', 'Ġab', 'â', 'ĸ']
  places = {word: i for i, word in enumerate(words)}
  made = tokenizers.Tokenizer(BPE(places, [('a', 'b'), ('Ġ', 'ab')]))
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = decoders.ByteLevel()
  return fast(made, eos_token='</s>')


def sentence_piece():
  words = ['<unk>', 'end', '<0xE2>', '<0x96>', '▁', 'a', 'b', '▁a', 'ba']
  made = tokenizers.Tokenizer(
    BPE(
      {w: i for i, w in enumerate(words)},
      [('▁', 'a'), ('b', 'a')],
      unk_token='<unk>',
      byte_fallback=True,
    )
  )
  made.pre_tokenizer = pre_tokenizers.Metaspace()
  made.decoder = decoders.Metaspace()
  return fast(made, eos_token='end', unk_token='<unk>')


def test_tokens_of_tokenizers_are_compared_by_what_they_write():
  mine = tokens.read_tokens('the target', byte_level(), 8)
  theirs = tokens.read_tokens('the draft', sentence_piece(), 9)
  assert mine.texts[5] == b' ab'
  assert mine.texts[6] == b'\xe2'
  assert theirs.texts[7] == b' a'
  assert theirs.fallback == {2, 3}
  #        </s> a  b  ' '  ab      ' ab'   E2   96
  places = [1, 5, 6, 4, 9, 9, 2, 3]
  pieces = [[1], [5], [6], [4], [5, 6], [7, 6], [2], [3]]
  assert built(mine, theirs) == (places, pieces)


def test_a_tokenizer_without_bytes_is_refused():
  made = tokenizers.Tokenizer(WordPiece({'[UNK]': 0, 'a': 1, '##b': 2}))
  wrong = fast(made, unk_token='[UNK]')
  with pytest.raises(ValueError, match=r'draft \(WordPiece\) has no byte'):
    vocabularies.compare(byte_level(), wrong, 8, 3)


def test_equal_ids_need_no_tables():
  assert vocabularies.compare(byte_level(), byte_level(), 8, 8) is None
  assert vocabularies.compare(byte_level(), byte_level(), 8, 16) is None
  # A draft that lacks ordinary tokens of the target could not read them.
  assert vocabularies.compare(byte_level(), byte_level(), 8, 6) is not None


# Reading


@pytest.mark.parametrize(
  'sizes', [reading.Sizes(3, 1.25, 2), reading.Sizes(3, 1, 0)]
)
def test_a_text_has_the_same_length_read_at_once_and_by_steps(sizes):
  random = np.random.default_rng(0)
  text = random.integers(0, models.VOCAB, (3, 128)).astype(np.int32)
  own = models.OTHER_TABLES
  ends_of = jax.jit(reading.ends_of, static_argnums=0)
  whole = np.asarray(ends_of(sizes, own, text))
  counts, end = np.diff(np.asarray(own.starts)), 0
  for i, token in enumerate(text[0]):
    room = math.floor(sizes.ratio * (i + 1)) + sizes.slack
    end = min(end + counts[token], room)
    assert whole[0, i] == end
  part = reading.other(sizes)
  spelled = reading.Spelled(None, own)
  extend = jax.jit(part.extend, static_argnums=3)
  ends = np.where(np.arange(128) < 4, whole, 99)
  length = np.full(3, 4)
  for step in ([1, 2, 3], [3, 1, 1], [2, 2, 2], [3, 3, 3]):
    length = length + step
    ctx = Context(text, length, (), None, History())
    ends = extend(spelled, ends, ctx, 3)
  ends = np.asarray(ends)
  for row, count in enumerate(length):
    np.testing.assert_array_equal(ends[row, :count], whole[row, :count])
  anew, m, _ = jax.device_get(jax.jit(part.begin)(spelled, ctx))
  last = jax.device_get(jax.jit(part.last)(spelled, ends, ctx))
  for row, count in enumerate(m):
    place = last.base[row] + np.arange(part.width)
    unknown = place >= last.known[row]
    assert place[-1] == count - 1
    np.testing.assert_array_equal(
      last.tokens[row, unknown], anew[row, place[unknown]]
    )


def permuted(order, slack=0, longest=1):
  """A walker whose draft is the target with its tokens in another order."""
  vocab = models.VOCAB
  order = order.astype(np.int32)
  made = vocabularies.Tables(order, order, np.arange(vocab + 1, dtype=np.int32))
  params = models.double(models.target_weights())
  back = np.argsort(order)
  moved = {
    'embedding': params['embedding'][back],
    'unembedding': params['unembedding'][:, back],
  }
  sizes = reading.sizes_of(made)
  assert sizes == reading.Sizes(1, 1, 0)
  sizes = dataclasses.replace(sizes, slack=slack, longest=longest)
  walker = lm.walk(models.TARGET, reading.other(sizes))
  return walker, reading.Spelled(params | moved, made)


@pytest.mark.parametrize(
  ('slack', 'slots', 'longest'), [(600, 768, 1), (0, 128, 4)]
)
def test_the_target_in_another_order_is_always_accepted(
  slack, slots, longest, float64
):
  """Also with more than 512 slots, read at once or walked over."""
  order = np.random.default_rng(0).permutation(models.VOCAB)
  walker, own = permuted(order, slack, longest)
  sizes = reading.Sizes(longest, 1, slack)
  assert longest > 1 or sizes.slots(128) == slots
  drafter = chain.make(walker, 3)
  spec = Spec(models.TARGET, drafter, verify.token)
  params = Params(models.double(models.target_weights()), own)
  values = sampling.make(6, np.array([0, 0.5, 0.7, 1.0, 1.3, 2.0]))
  prompts = models.PROMPTS
  if longest > 1:  # No longer than what a step feeds: nothing is prefilled.
    prompts = [prompt[: sizes.width - 1] for prompt in prompts]
  state = models.decoded(spec, params, prompts, values)
  counts = jax.device_get(state.counts)
  assert (counts.histogram[:, :3] == 0).all()
  assert (counts.histogram[:, 3] == 10).all()
  np.testing.assert_allclose(counts.overlap / counts.tried[:, 0], 1, atol=1e-9)


def all_texts(depth):
  """Every text of one token and `depth` more, padded."""
  every = np.indices((models.VOCAB,) * depth).reshape(depth, -1).T
  text = np.zeros((len(every), 128), np.int32)
  text[:, 1 : depth + 1] = every
  return text


def test_alpha_is_the_mass_of_the_tokens_that_are_left(float64):
  """By enumeration: q is p on the tokens that both have, and 0 elsewhere."""
  temperature = 0.5
  order = np.random.default_rng(0).permutation(models.VOCAB)
  walker, own = permuted(order)
  gone = np.array([1, 4, 8])  # Of eleven.
  places = own.tables.places.copy()
  places[gone] = models.VOCAB
  own = own._replace(tables=own.tables._replace(places=places))
  text = all_texts(2)
  length = np.full(len(text), 3, np.int32)
  values = sampling.make(len(text), temperature)
  target = models.double(models.target_weights())
  ctx = Context(text, length, (), values, History())
  params = Params(target, own)
  drafter = chain.make(walker, 1)
  memory = jax.jit(drafter.init)(params, ctx, None)
  key = generate.row_keys(0, range(len(text)))
  draft, _ = jax.jit(drafter.propose)(params, memory, ctx, key)
  logits = np.asarray(models.score(models.TARGET, target, text[:, :3]))[:, 2]
  p = heads_in_numpy.softmax(logits / temperature)
  q = np.asarray(draft.probs)[:, 0]
  assert (q[:, gone] == 0).all()
  alpha, left = np.minimum(p, q).sum(1), np.delete(p, gone, 1).sum(1)
  np.testing.assert_allclose(alpha, left, atol=1e-9)
  assert abs(alpha.mean() - left.mean()) < 1e-9
  assert 0.3 < left.mean() < 0.95
