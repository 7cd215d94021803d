"""Text as it comes: nothing is taken back, and nothing is missing."""

import functools
import itertools

import pytest
import tokenizers
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specjax import checkpoints, pair
from specjax.api import text

STOPS = ['stop', 'é', 'ab', 'b', 'abc', ' \n', '日本', '\ufffd!']


@functools.cache
def embedded():
  return checkpoints.load_tokenizer(pair.path('target'))


@functools.cache
def sentence_piece(clean: bool = False):
  """Spaces as a letter, bytes for what is unknown, no first space."""
  pieces = ['▁', 'a', 'b', '▁ab', '▁.', '.', "'", '▁n', 't', 's', 'é', '日']
  names = [f'<0x{byte:02X}>' for byte in range(256)]
  vocab = {name: i for i, name in enumerate(['<unk>', *names, *pieces])}
  scores = [(name, -float(i)) for name, i in vocab.items()]
  model = tokenizers.models.Unigram(scores, 0, byte_fallback=True)
  made = tokenizers.Tokenizer(model)
  decoders = tokenizers.decoders
  made.decoder = decoders.Sequence(
    [
      decoders.Replace('▁', ' '),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Strip(' ', 1, 0),
    ]
  )
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=made, clean_up_tokenization_spaces=clean
  )


def pieces(tokenizer, ids):
  """What is certain after each token, and the rest."""
  told = text.Detokenizer(tokenizer)
  return [*map(told.push, ids), told.finish()]


def of_bytes(data: bytes):
  """Token ids of single bytes."""
  names = [f'<0x{byte:02X}>' for byte in data]
  return sentence_piece().convert_tokens_to_ids(names)


def _joined(lists):
  return [*itertools.chain(*lists)]


# Texts whose characters are cut anywhere, and tokens that make no sense.
_CUT = st.text(max_size=12).map(lambda x: embedded().encode(x))
_ANY = st.lists(st.integers(0, 2047), max_size=12)
EMBEDDED = st.lists(_CUT | _ANY, max_size=16).map(_joined)
_SPELLED = st.text(max_size=6).map(lambda x: of_bytes(x.encode()))
_WRONG = st.binary(max_size=4).map(of_bytes)
_PIECES = st.lists(st.integers(257, 268), max_size=8)
SPELLED = st.lists(_SPELLED | _WRONG | _PIECES, max_size=16).map(_joined)


@settings(max_examples=300)
@given(EMBEDDED)
def test_pieces_of_random_tokens_are_their_text(ids):
  assert ''.join(pieces(embedded(), ids)) == embedded().decode(ids)


@pytest.mark.parametrize('clean', [False, True])
@settings(max_examples=300)
@given(ids=SPELLED)
@example(ids=of_bytes('é'.encode()) + of_bytes(b'\xe2'))
@example(ids=[258, 264, 258, 261, 258, 263, 258, 262, 263])
def test_pieces_are_their_text_where_bytes_stand_for_characters(ids, clean):
  tokenizer = sentence_piece(clean)
  assert ''.join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_spaces_are_cleaned_up_in_these_texts():
  ids = [258, 261, 259, 261]
  assert sentence_piece(True).decode(ids) == 'a.b.'
  assert sentence_piece().decode(ids) == 'a .b .'


def test_half_a_character_waits_for_its_other_half():
  ids = embedded().encode('ab é日!')
  found = pieces(embedded(), ids)
  assert ''.join(found) == 'ab é日!'
  assert not any('\ufffd' in piece for piece in found)
  assert len([x for x in found if x]) < len(ids)


def test_text_is_told_as_soon_as_it_is_certain():
  words = embedded().encode('def fib(n): return n')
  *told, rest = pieces(embedded(), words)
  assert all(told)
  assert rest == ''


def test_only_a_few_tokens_are_decoded_again():
  class Counting:
    longest = 0

    def decode(self, ids):
      self.longest = max(self.longest, len(ids))
      return embedded().decode(ids)

  tokenizer = Counting()
  ids = embedded().encode('a, é and 日本! ' * 40)
  assert len(ids) > 400
  assert ''.join(pieces(tokenizer, ids)) == embedded().decode(ids)
  assert tokenizer.longest < 40


# Stop strings


def cut(whole: str, stop) -> tuple[str, str | None]:
  """A text up to the stop string that is complete first."""
  for end in range(len(whole) + 1):
    for string in sorted(stop, key=len, reverse=True):
      if whole[:end].endswith(string):
        return whole[: end - len(string)], string
  return whole, None


@settings(max_examples=300)
@given(
  st.lists(st.text('abcé日本stop \n\ufffd!', max_size=4), max_size=12),
  st.lists(st.sampled_from(STOPS), max_size=3, unique=True),
)
def test_a_text_ends_before_the_first_stop_string(parts, stop):
  stops = text.Stops(stop)
  shown = ''.join([*map(stops.push, parts), stops.finish()])
  assert (shown, stops.found) == cut(''.join(parts), stop)


def test_what_may_be_a_stop_string_is_held_back():
  stops = text.Stops(['END', 'ENTER'])
  assert [stops.push(x) for x in ('a E', 'N', 'T', 'ITY E', 'N')] == [
    'a ', '', '', 'ENTITY ', '',
  ]  # fmt: skip
  assert stops.finish() == 'EN'
  assert stops.found is None
