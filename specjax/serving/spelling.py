"""Log-probabilities of tokens, as each of the two kinds of answers has them."""

import codecs
from collections.abc import Sequence
from typing import Any

from specjax.checkpoints.vocabularies import tokens
from specjax.loop.token_records import Logprob

_LEAST = -9999.0  # instead of minus infinity, which JSON has not


class Spelled:
  """The bytes of each token of a vocabulary."""

  def __init__(self, tokenizer: Any, vocab_size: int):
    self._tokenizer = tokenizer
    self._texts: dict[int, bytes] = {}
    try:
      read = tokens.read('the target', tokenizer, vocab_size)
      self._texts = read.texts
    except ValueError:
      pass  # Its tokens have no bytes of their own: they are decoded.

  def bytes_of(self, token: int) -> bytes:
    if token in self._texts:
      return self._texts[token]
    return self._tokenizer.decode([token]).encode()

  def text_of(self, token: int) -> str:
    """Its text, or the bytes of one that is no text by itself."""
    made = self.bytes_of(token)
    try:
      return made.decode()
    except UnicodeDecodeError:
      return 'bytes:' + ''.join(rf'\x{one:02x}' for one in made)


class Offsets:
  """Where tokens begin in a text: characters before each of them."""

  def __init__(self, spelled: Spelled):
    self._spelled, self._passed = spelled, 0
    self._decoder = codecs.getincrementaldecoder('utf-8')('replace')

  def push(self, token: int) -> int:
    """Of the next token; half a character begins where the whole one does."""
    begin = self._passed
    self._passed += len(self._decoder.decode(self._spelled.bytes_of(token)))
    return begin


def _number(logprob: float) -> float:
  return max(logprob, _LEAST)


def of_chat(
  said: Sequence[tuple[int, Logprob]], count: int, spelled: Spelled
) -> dict[str, Any]:
  """What a chat has of some tokens, with so many alternatives of each."""

  def one(token: int, value: float) -> dict[str, Any]:
    return {
      'token': spelled.text_of(token),
      'logprob': _number(value),
      'bytes': [*spelled.bytes_of(token)],
    }

  content = [
    one(token, it.value) | {'top_logprobs': [one(*x) for x in it.top[:count]]}
    for token, it in said
  ]
  return {'content': content, 'refusal': None}


def of_completion(
  said: Sequence[tuple[int, Logprob]],
  count: int,
  spelled: Spelled,
  offsets: Offsets,
) -> dict[str, Any]:
  """What a completion has of them.

  Args:
    said: tokens with what was told of them.
    count: alternatives of each.
    spelled: the tokens.
    offsets: of the text, up to these tokens.
  """
  return {
    'tokens': [spelled.text_of(token) for token, _ in said],
    'token_logprobs': [_number(it.value) for _, it in said],
    'top_logprobs': [
      {spelled.text_of(token): _number(x) for token, x in it.top[:count]}
      for _, it in said
    ],
    'text_offset': [offsets.push(token) for token, _ in said],
  }
