"""The bytes that the tokens of a tokenizer stand for.

Two kinds of tokenizers have a byte for every character of a token: those that
write bytes as letters (byte-level: 'Ġthe' is b' the'), and those that mark
spaces and fall back to bytes (SentencePiece: '▁the', '<0xE2>'). Others lower
cases or drop spaces, so that a text cannot be told from their tokens.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_BYTE = re.compile(r'<0x([0-9A-Fa-f]{2})>')
_SPACE = '▁'


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
  """The tokens of a vocabulary.

  Attributes:
    size: V, entries of the head; ids beyond them are not here.
    texts: bytes of every ordinary token.
    fallback: ids of those that stand for one byte where nothing else does.
    special: names of the others.
    ends: ids that end a text, the first of them first.
    begin: id that begins a text, or None.
    unknown: id of what no token stands for, or None.
    spell: (bytes) -> ids, as the tokenizer cuts a piece of text; None: by the
      longest token that fits, which is what is done where it loses bytes.
  """

  size: int
  texts: Mapping[int, bytes]
  fallback: frozenset[int] = frozenset()
  special: Mapping[int, str] = dataclasses.field(default_factory=dict)
  ends: tuple[int, ...] = ()
  begin: int | None = None
  unknown: int | None = None
  spell: Callable[[bytes], list[int]] | None = None

  @functools.cached_property
  def by_bytes(self) -> dict[bytes, list[int]]:
    """The tokens of each string, in order; those that fall back come last."""
    found: dict[bytes, list[int]] = {}
    for i in sorted(self.texts, key=lambda i: (i in self.fallback, i)):
      found.setdefault(self.texts[i], []).append(i)
    return found

  @functools.cached_property
  def longest(self) -> int:
    return max(map(len, self.by_bytes), default=0)

  def cut(self, text: bytes) -> list[int]:
    """Tokens that spell a piece of text; may be none."""
    if self.spell is not None:
      made = self.spell(text)
      if b''.join(self.texts.get(i, b'?') for i in made) == text:
        return made
    return list(self._greedy(text))

  def _greedy(self, text: bytes) -> Iterator[int]:
    at = 0
    while at < len(text):
      for end in range(min(len(text), at + self.longest), at, -1):
        if same := self.by_bytes.get(text[at:end]):
          yield same[0]
          break
      else:
        end = at + 1
        if self.unknown is not None:
          yield self.unknown
      at = end


@functools.cache
def _letters() -> dict[str, int]:
  """The byte that each letter of a byte-level tokenizer stands for."""
  shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
  rest = [b for b in range(256) if b not in shown]
  letters = {chr(b): b for b in shown}
  return letters | {chr(256 + n): b for n, b in enumerate(rest)}


def _parts(value: Any) -> Iterator[dict]:
  """All parts of a tokenizer that have a type."""
  if isinstance(value, dict):
    if 'type' in value:
      yield value
    for inner in value.values():
      yield from _parts(inner)
  elif isinstance(value, list):
    for inner in value:
      yield from _parts(inner)


def _writes(who: str, tokenizer: Any) -> tuple[bool, Any]:
  """Returns true for a byte-level tokenizer, and the model that cuts texts.

  Raises:
    ValueError: it has no byte representation.
  """
  backend = getattr(tokenizer, 'backend_tokenizer', None)
  parts, kind = {}, type(tokenizer).__name__
  if backend is not None:
    parts = json.loads(backend.to_str())
    model = parts.pop('model')
    kind = model['type']
    found = list(_parts(parts))
    names = {part['type'] for part in found}
    marks = 'Metaspace' in names or any(
      _SPACE in json.dumps(part, ensure_ascii=False) for part in found
    )
    if kind in ('BPE', 'Unigram'):
      if 'ByteLevel' in names:
        return True, backend.model
      if marks or model.get('byte_fallback'):
        return False, backend.model
  raise ValueError(
    f'the tokenizer of {who} ({kind}) has no byte representation, so that its '
    'tokens cannot be compared: use a byte-level or SentencePiece one, or a '
    'pair that shares its vocabulary'
  )


def _bytes(text: str, byte_level: bool) -> bytes:
  """Returns the bytes of an ordinary token."""
  if not byte_level:
    return text.replace(_SPACE, ' ').encode()
  letters = _letters()
  if any(c not in letters for c in text):
    return text.encode()
  return bytes(letters[c] for c in text)


def _speller(model: Any, byte_level: bool) -> Callable[[bytes], list[int]]:
  """A tokenizer's own model, without what it does before."""
  shown = {b: c for c, b in _letters().items()}

  def spell(text: bytes) -> list[int]:
    if byte_level:
      written = ''.join(shown[b] for b in text)
    else:
      try:
        written = text.decode().replace(' ', _SPACE)
      except UnicodeDecodeError:  # A part of a character.
        return [-1]
    return [token.id for token in model.tokenize(written)]

  return spell


def read_tokens(
  who: str, tokenizer: Any, size: int, ends: tuple[int, ...] = ()
) -> Tokens:
  """The tokens of a tokenizer of transformers.

  Args:
    who: has it, for the message.
    tokenizer: with a model of the tokenizers library.
    size: V.
    ends: ids that end a text; by default the tokenizer's.

  Raises:
    ValueError: it has no byte representation.
  """
  byte_level, model = _writes(who, tokenizer)
  special = {
    i: str(token.content)
    for i, token in tokenizer.added_tokens_decoder.items()
    if token.special and i < size
  }
  added = set(tokenizer.get_added_vocab())
  texts: dict[int, bytes] = {}
  fallback = set()
  for text, i in tokenizer.get_vocab().items():
    if i >= size or i in special:
      continue
    byte = None if byte_level or text in added else _BYTE.fullmatch(text)
    if byte:
      texts[i] = bytes([int(byte[1], 16)])
      fallback.add(i)
    else:
      texts[i] = text.encode() if text in added else _bytes(text, byte_level)
  if not ends and tokenizer.eos_token_id is not None:
    ends = (tokenizer.eos_token_id,)
  begin, unknown = (
    i if i is not None and i < size else None
    for i in (tokenizer.bos_token_id, tokenizer.unk_token_id)
  )
  return Tokens(
    size,
    texts,
    frozenset(fallback),
    special,
    tuple(i for i in ends if i < size),
    begin,
    unknown,
    _speller(model, byte_level),
  )
