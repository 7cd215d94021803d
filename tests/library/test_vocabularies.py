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
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordPiece

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
  'or else the first token, and a name is spelled': (
    Tokens(3, {0: b'a', 1: b'\xff'}, special={2: 'aé'}),
    Tokens(3, {1: b'a', 2: 'é'.encode()}),
    [1, 3, 3], [[1], [0], [1, 2]],
  ),
}  # fmt: skip


@pytest.mark.parametrize('name', BUILT)
def test_tables_are_those_typed_out(name):
  target, draft, places, pieces = BUILT[name]
  found = built(target, draft)
  assert places in (None, found[0])
  assert pieces in (None, found[1])


def test_vocabularies_without_a_token_in_common_are_refused():
  target, draft = (
    Tokens(2, {0: text}, special={1: 'e'}, ends=(1,)) for text in (b'a', b'b')
  )
  with pytest.raises(ValueError, match='no token in common'):
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
  assert theirs.texts[2] == b'\xe2'
  assert (theirs.unknown, theirs.fallback) == (0, {2, 3})
  #        </s> a  b  ' '  ab      ' ab'   E2   96
  places = [1, 5, 6, 4, 9, 9, 2, 3]
  pieces = [[1], [5], [6], [4], [5, 6], [7, 6], [2], [3]]
  assert built(mine, theirs) == (places, pieces)
  # Of a pair, too; each has its own ends.
  made = vocabularies.compare(
    byte_level(), sentence_piece(), 8, 9, eos=(6, 0), draft_eos=(3, 1)
  )
  assert np.asarray(made.tables.places)[[6, 0]].tolist() == [3, 1]


def test_a_tokenizer_without_bytes_is_refused_where_ids_differ():
  assert vocabularies.compare(byte_level(), byte_level(), 8, 16) is None
  made = tokenizers.Tokenizer(WordPiece({'[UNK]': 0, 'a': 1, '##b': 2}))
  wrong = fast(made, unk_token='[UNK]')
  with pytest.raises(ValueError, match=r'draft \(WordPiece\) has no byte'):
    vocabularies.compare(byte_level(), wrong, 8, 3)


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
  anew, made = jax.device_get(jax.jit(part.begin)(spelled, ctx))
  last = jax.device_get(jax.jit(part.last)(spelled, ends, ctx))
  for row, count in enumerate(made[np.arange(3), length - 1]):
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


# Numbers of tables, and sizes, by hand


def test_what_both_vocabularies_have_is_counted():
  """The draft has two of the target's six tokens, and the end of a text."""
  texts = {0: b'a', 1: b'b', 2: b'ab', 3: b'aab', 4: b'\xff'}
  target = Tokens(8, texts, special={5: '</s>'}, ends=(5,))
  draft = Tokens(4, {0: b'b', 1: b'a', 3: b'x'}, special={2: 'e'}, ends=(2,))
  made, found = tables.build(target, draft)
  assert (found.shared, found.target) == (3, 6)
  assert found.share == 3 / 6
  assert np.flatnonzero(found.can_draft).tolist() == [0, 1, 5]
  # One piece, one, two, three, and the draft's end for want of anything.
  assert found.spelled == (1 + 1 + 2 + 3 + 1) / 5
  assert found.of_tokens([[0, 1], [2], [0, 4, 5]]) == 4 / 6
  assert np.diff(made.starts).tolist() == [1, 1, 2, 3, 1, 1, 1, 1]
  assert reading.length_of(made, [3, 2, 0]) == 6
  # Eleven pieces of eight tokens are 1.375 a token: room for 1.5.
  sizes = reading.sizes_of(made)
  assert sizes == reading.Sizes(3, 1.5, reading.SLACK)
  assert (sizes.longest_text(10), sizes.width) == (15 + 64, 4)


@pytest.mark.parametrize(
  ('longest', 'ratio', 'slack', 'width', 'text', 'slots'),
  [
    (1, 1.0, 0, 2, 128, 128),
    (2, 1.5, 0, 4, 192, 256),
    (3, 1.25, 94, 4, 254, 256),
    (3, 1.25, 95, 4, 255, 384),
    (8, 9.0, 0, 10, 1024, 1536),  # No token has more than eight.
  ],
)
def test_room_for_a_text_of_128_tokens(
  longest, ratio, slack, width, text, slots
):
  """Sizes by hand: room for the pieces of the text, and for those of a step."""
  sizes = reading.Sizes(longest, ratio, slack)
  assert sizes.width == width
  assert sizes.longest_text(128) == text
  assert sizes.slots(128) == slots


class Vocabulary:
  """A tokenizer of which ids alone are looked at."""

  def __init__(self, text, added=''):
    self.ids, self.added = dict(zip(text, range(99), strict=False)), added

  def get_vocab(self):
    return self.ids

  def get_added_vocab(self):
    return {x: self.ids[x] for x in self.added}


@pytest.mark.parametrize(
  ('draft', 'sizes', 'alike'),
  [
    ('abcd', (4, 4), True),
    ('abcd', (5, 9), True),
    ('abcd', (3, 4), False),  # The draft's last is beyond the target's head.
    ('abcd', (4, 3), True),  # The draft lacks what was added later,
    ('abcd', (4, 2), False),  # but no ordinary token.
    ('abcd', (3, 3), True),
    ('abc', (4, 4), True),
    ('abce', (4, 4), False),
    ('abdc', (4, 4), False),
    ('abcde', (5, 4), True),  # Its last is padding to itself.
    ('abcde', (5, 5), False),
  ],
)
def test_ids_that_are_the_same(draft, sizes, alike):
  target = Vocabulary('abcd', added='d')
  assert vocabularies.same(target, Vocabulary(draft), *sizes) is alike
  if draft == 'abcd':
    assert vocabularies.same(target, target, *sizes) is alike


def test_what_a_tokenizer_says_of_its_tokens():
  """Ids beyond the head are no tokens, nor what begins or ends with them."""
  tokenizer = byte_level()
  tokenizer.add_special_tokens({'bos_token': '<s>', 'unk_token': '<u>'})
  tokenizer.add_tokens(['Ġx'])
  found = tokens.read_tokens('the target', tokenizer, 11)
  assert (found.ends, found.begin, found.unknown) == ((0,), 8, 9)
  assert found.special == {0: '</s>', 8: '<s>', 9: '<u>'}
  assert found.texts[10] == 'Ġx'.encode()  # What is added means itself.
  assert found.texts[3] == b' '
  found = tokens.read_tokens('the target', tokenizer, 9, (8, 9, 2))
  assert (found.ends, found.begin, found.unknown) == ((8, 2), 8, None)
  assert sorted(found.special) == [0, 8]
  assert sorted(found.texts) == [*range(1, 8)]
  # What looks like a byte is one where bytes are no letters, and not added.
  other = sentence_piece()
  other.add_tokens(['<0x41>'])
  found = tokens.read_tokens('the draft', other, 10)
  assert (found.texts[9], found.fallback) == (b'<0x41>', {2, 3})


@pytest.mark.parametrize('target_first', [False, True])
def test_what_begins_texts_of_one_may_not_end_those_of_the_other(target_first):
  one = Tokens(3, {0: b'a'}, special={1: 'x', 2: 'e'}, ends=(2,), begin=1)
  other = Tokens(2, {0: b'a'}, special={1: 'x'}, ends=(1,))
  pair = (one, other) if target_first else (other, one)
  whose = 'target' if target_first else 'draft'
  with pytest.raises(ValueError, match=f"'x' begins texts of the {whose} and"):
    tables.build(*pair)
  # Where one token does both, as in GPT-2, it has no single role.
  both = dataclasses.replace(one, ends=(1,))
  assert tables.match(both, other) == {0: 0, 1: 1}
  both = dataclasses.replace(other, begin=1)
  assert tables.match(one, both)[0] == 0


@pytest.mark.parametrize(
  ('target', 'draft', 'matched'),
  [
    # What only one of them begins texts with is no pair.
    ({'begin': 1}, {'begin': None}, {0: 0}),
    ({'begin': None}, {'begin': 1}, {0: 0}),
    # A second end is no ordinary token of the draft, whatever it is called.
    (
      {'ends': (1, 2)},
      {'special': {1: 'y', 2: 'x'}, 'ends': (1,)},
      {0: 0, 2: 1},
    ),
    # What begins texts is taken, before names are looked at.
    ({'begin': 1}, {'special': {1: 'y'}, 'begin': 1}, {0: 0, 1: 1}),
  ],
)
def test_special_tokens_are_told_by_what_they_do_first(target, draft, matched):
  one = Tokens(3, {0: b'a'}, special={1: 'x', 2: 'y'})
  other = Tokens(3, {0: b'a'}, special={1: 'z', 2: 'u'})
  one = dataclasses.replace(one, **target)
  assert tables.match(one, dataclasses.replace(other, **draft)) == matched


def pieces(form, **parts):
  """A tokenizer of letters, 'ab' and 'bc', of which it makes 'bc' first."""
  space = 'Ġ' if form == 'bytes' else '▁'
  words = ['a', 'b', 'c', space, 'ab', 'bc']
  model = BPE(
    {word: i for i, word in enumerate(words)}, [('b', 'c'), ('a', 'b')]
  )
  made = tokenizers.Tokenizer(model)
  for name, part in parts.items():
    setattr(made, name, part)
  return fast(made)


MARKED = normalizers.Replace(' ', '▁')
SCORED = [*zip('abc▁', (-1.0,) * 4, strict=True), ('ab', -2.0), ('bc', -1.0)]


@pytest.mark.parametrize(
  ('form', 'parts'),
  [
    ('bytes', {'pre_tokenizer': pre_tokenizers.ByteLevel(False)}),
    ('marks', {'pre_tokenizer': pre_tokenizers.Metaspace()}),
    ('marks', {'normalizer': MARKED, 'decoder': decoders.Fuse()}),
    ('marks', {'model': Unigram(SCORED, 0, byte_fallback=True)}),
    ('', {'pre_tokenizer': pre_tokenizers.Whitespace()}),
  ],
)
def test_text_is_cut_as_its_tokenizer_does(form, parts):
  """Not by the longest token, where the tokenizer has its own way."""
  made = pieces(form, **parts)
  if not form:
    with pytest.raises(ValueError, match='no byte representation'):
      tokens.read_tokens('the draft', made, 6)
    return
  found = tokens.read_tokens('the draft', made, 6)
  assert (found.texts[3], found.fallback) == (b' ', frozenset())
  assert found.cut(b' abc') == [3, 0, 5]
  # Bytes that it cannot write are left out, and the rest is cut.
  assert found.cut(b'abc\xff') == [4, 2]
  assert dataclasses.replace(found, spell=None).cut(b'abc') == [4, 2]


def test_letters_stand_for_bytes_as_in_gpt2():
  from transformers.convert_slow_tokenizer import bytes_to_unicode

  assert tokens._letters() == {c: b for b, c in bytes_to_unicode().items()}
  twice = Tokens(3, {0: b'a', 1: b'a', 2: b'a'}, frozenset([0]))
  assert twice.by_bytes == {b'a': [1, 2, 0]}
