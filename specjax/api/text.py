"""Tokens become text as they come, and what a later one may change is kept.

  tokens    'caf'  c3     a9      ' '   'EN'     'D'
  certain   caf    -      é       ' '   -        end, at the stop string 'END'

Some tokenizers decode a text only as a whole: a character is spread over
tokens, bytes stand for what is in no vocabulary, the first space is dropped.
So the last few tokens are decoded again with each new one.
"""

import re
from collections.abc import Sequence
from typing import Any

from specjax.arguments import named

_UNKNOWN = '\ufffd'  # what incomplete and wrong bytes are decoded as
_BYTE = re.compile(r'<0x[0-9A-Fa-f]{2}>')
_WINDOW = 16  # tokens that are decoded again, at least
_CLEANED = 4  # characters at the end that cleaning up spaces may change


class Detokenizer:
  """The text of tokens that come one by one.

  Whatever it returns is never changed by later tokens, and all of it together
  is what the tokenizer decodes all tokens to.
  """

  def __init__(self, tokenizer: Any):
    self._tokenizer = tokenizer
    self._ids: list[int] = []  # from the beginning of the window on
    self._text = ''  # of these
    self._shown = 0  # characters of it that were returned
    self._clean: list[int] = []  # numbers of tokens whose text was all certain
    self._open = _CLEANED if _cleans_up(tokenizer) else 0

  def push(self, token: int) -> str:
    """The text that is certain now and was not before."""
    self._ids.append(token)
    if self._is_byte(token):
      # One wrong byte makes all of its row unknown, also whole characters.
      return ''
    self._text = self._tokenizer.decode(self._ids)
    # At most so much of a text changes with what follows: its last character.
    certain = len(self._text.rstrip(_UNKNOWN)) - self._open
    if certain + self._open == len(self._text):
      self._clean.append(len(self._ids))
    return self._show(certain)

  def finish(self) -> str:
    """The rest, when no token follows."""
    self._text = self._tokenizer.decode(self._ids) if self._ids else ''
    return self._show(len(self._text))

  def _show(self, certain: int) -> str:
    piece = self._text[self._shown : max(certain, self._shown)]
    self._shown += len(piece)
    self._forget()
    return piece

  def _forget(self) -> None:
    """Begins the window later, at a place where all text was certain."""
    if len(self._ids) < 2 * _WINDOW:
      return
    places = [n for n in self._clean if n <= len(self._ids) - _WINDOW]
    if not places:
      return
    rest, text = self._text[self._shown :], ''
    if self._ids[places[-1] :]:
      text = self._tokenizer.decode(self._ids[places[-1] :])
    if text.endswith(rest):
      self._ids = self._ids[places[-1] :]
      self._text, self._shown = text, len(text) - len(rest)
      self._clean = [n - places[-1] for n in self._clean if n > places[-1]]

  def _is_byte(self, token: int) -> bool:
    name = getattr(self._tokenizer, 'convert_ids_to_tokens', lambda _: None)
    return bool(_BYTE.fullmatch(str(name(token))))


def _cleans_up(tokenizer: Any) -> bool:
  """Returns whether decoding removes spaces, as before a full stop."""
  if not getattr(tokenizer, 'clean_up_tokenization_spaces', False):
    return False
  backend = getattr(tokenizer, 'backend_tokenizer', None)
  return type(getattr(backend, 'model', None)).__name__ != 'BPE'


class Stops:
  """Ends a text at the first of some strings, which is not shown.

  Of several that are found, the first to be complete counts, and of those the
  longest: so it does not matter in which pieces a text comes.
  """

  def __init__(self, stop: Sequence[str]):
    self._stop = tuple(stop)
    self._held = ''
    self.found: str | None = None  # the string that ended the text

  def push(self, text: str) -> str:
    """The text that is in no stop string, whatever follows."""
    if self.found is not None:
      return ''
    self._held += text
    places = [(self._held.find(s), s) for s in self._stop]
    ends = [(at + len(s), at, s) for at, s in places if at >= 0]
    if ends:
      _, at, self.found = min(ends)
      return self._release(at)
    begun = max((self._begun(s) for s in self._stop), default=0)
    return self._release(len(self._held) - begun)

  def finish(self) -> str:
    """The rest, when no text follows."""
    return self._release(len(self._held)) if self.found is None else ''

  def _begun(self, stop: str) -> int:
    """Characters of a stop string that the text ends with."""
    sizes = range(min(len(stop) - 1, len(self._held)), 0, -1)
    return next((n for n in sizes if self._held.endswith(stop[:n])), 0)

  def _release(self, size: int) -> str:
    piece, self._held = self._held[:size], self._held[size:]
    return piece


def check_stop(stop: Any) -> tuple[str, ...]:
  """The strings that end a text; a ValueError where they are none."""
  strings = (stop,) if isinstance(stop, str) else stop
  if not isinstance(strings, Sequence) or not all(
    isinstance(x, str) and x for x in strings
  ):
    raise ValueError(
      f'stop must be a text, or a list of texts that are not empty, got '
      f'{named(stop)}'
    )
  return tuple(strings)


class Shown:
  """The text of a row as its tokens come, up to what ends it.

  Attributes:
    ended: the text ended by itself, at a token or at a string.
  """

  def __init__(self, tokenizer: Any, eos: Sequence[int], stop: Sequence[str]):
    self._made, self._stops = Detokenizer(tokenizer), Stops(stop)
    self._eos, self.ended = eos, False

  def push(self, tokens: Sequence[int], done: bool) -> list[str]:
    """The text that each token made certain.

    Args:
      tokens: new ones; those behind a stop string are left out.
      done: no token follows.
    """
    texts: list[str] = []
    for token in tokens:
      is_end = token in self._eos
      texts.append(self._stops.push('' if is_end else self._made.push(token)))
      self.ended = is_end or self._stops.found is not None
      if self._stops.found is not None:
        return texts
    if done and texts:
      texts[-1] += self._stops.push(self._made.finish()) + self._stops.finish()
      self.ended |= self._stops.found is not None
    return texts
