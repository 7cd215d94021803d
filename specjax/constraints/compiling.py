"""Table over bytes -> automaton over the tokens of a vocabulary."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from specjax.checkpoints.vocabularies import tokens as vocabularies
from specjax.checkpoints.vocabularies.tokens import Tokens
from specjax.constraints import bytewise, states
from specjax.sampling.automaton import Automaton

# Entries of a table are int16, and it lies in the memory of every device.
MOST_STATES, MOST_BYTES = np.iinfo(np.int16).max, 16_000_000

_REMEDY = 'bound lengths and repeats lower, or use fewer alternatives'


def digest(tokens: Tokens) -> str:
  """Names what the tokens of a vocabulary stand for."""
  made = hashlib.sha256()
  special = {i: name.encode() for i, name in tokens.special.items()}
  for kind, texts in ((b'text', tokens.texts), (b'special', special)):
    for i in sorted(texts):
      made.update(b'%s %d %d ' % (kind, i, len(texts[i])) + texts[i])
  return made.hexdigest()


def vocabulary(tokenizer: Any, vocab_size: int) -> str:
  """The `Automaton.vocabulary` of a tokenizer of transformers.

  Raises:
    ValueError: the tokenizer has no byte representation.
  """
  return digest(vocabularies.read_tokens('the target', tokenizer, vocab_size))


def from_regex(
  what: str,
  pattern: str,
  tokens: Tokens,
  seconds: float = bytewise.SECONDS,
) -> Automaton:
  """The texts that match a regex, in tokens.

  Args:
    what: the language, as messages call it.
    pattern: the whole text must match it.
    tokens: `ends` end a text; there is one at least.
    seconds: see `bytewise.build`.

  Raises:
    ValueError: see `regex`.
  """
  table = bytewise.build(what, pattern, seconds=seconds)
  different, which = states.columns(table[:, :256])
  table = states.merge(np.concatenate([different, table[:, 256:]], 1))
  ordinary = [
    i for i in tokens.texts if tokens.texts[i] and i not in tokens.ends
  ]
  made, columns = _walk(
    what, table[:, :-1], which, [tokens.texts[i] for i in ordinary]
  )
  dead = np.full((len(table), 1), -1, made.dtype)
  trimmed = states.trim(np.concatenate([made, dead, table[:, -1:]], 1))
  if trimmed is None:
    raise ValueError(
      f'nothing matches {what} in the tokens of this vocabulary: none of them '
      'spell it'
    )
  end = trimmed.shape[1] - 1
  columns_of = np.full(tokens.size, end - 1)
  columns_of[ordinary] = columns
  columns_of[list(tokens.ends)] = end
  # Merging reads the last column as the end of a text.
  different, which = states.columns(trimmed[:, :-1])
  table = states.merge(np.concatenate([different, trimmed[:, -1:]], 1))
  table, again = states.columns(table)
  classes = again[np.append(which, len(again) - 1)][columns_of]
  size = 2 * table.size
  if max(table.shape) > MOST_STATES or size > MOST_BYTES:
    raise ValueError(
      f'{what} makes {table.shape[0]:,} states and {table.shape[1]:,} classes '
      f'of tokens, a table of {size / 1e6:,.1f} MB, where {MOST_STATES:,} '
      f'states and {MOST_BYTES / 1e6:g} MB are the most: {_REMEDY}'
    )
  return Automaton(
    what,
    classes.astype(np.int16),
    np.ascontiguousarray(table.astype(np.int16)),
    tuple(tokens.ends),
    digest(tokens),
  )


def _walk(
  what: str, table: np.ndarray, which: np.ndarray, texts: Sequence[bytes]
) -> tuple[np.ndarray, np.ndarray]:
  """Follows texts from every state.

  What a text does is a vector [Q] of states, and few are different: all texts
  are read at once, byte by byte, and each vector goes on once.

  Args:
    what: for the message.
    table: [Q, K] over classes of bytes.
    which: [256], the class of each byte.
    texts: T strings of at least one byte.

  Returns:
    Different vectors as columns [Q, N], and the one [T] of each text.

  Raises:
    ValueError: they take too much memory.
  """
  count, symbols = table.shape
  table = table.astype(np.int16 if count <= MOST_STATES else np.int32)
  table = np.concatenate([table, np.full((1, symbols), -1, table.dtype)])
  dead = np.full(count, -1, table.dtype)
  vectors = [dead, np.arange(count, dtype=table.dtype)]
  known = {vector.tobytes(): n for n, vector in enumerate(vectors)}
  spelled = which[np.frombuffer(b''.join(texts), np.uint8)]
  lengths = np.array([len(text) for text in texts], np.int64)
  starts = np.cumsum(lengths) - lengths
  at = np.ones(len(texts), np.int64)
  for place in range(max(lengths, default=0)):
    live = np.flatnonzero((lengths > place) & (at > 0))
    pairs = at[live] * symbols + spelled[starts[live] + place]
    ways, back = np.unique(pairs, return_inverse=True)
    after = np.empty(len(ways), np.int64)
    for n, way in enumerate(ways):
      vector = table[vectors[way // symbols], way % symbols]
      after[n] = known.setdefault(vector.tobytes(), len(vectors))
      if after[n] == len(vectors):
        vectors.append(vector)
        if len(vectors) * vector.nbytes > bytewise.MEMORY // 4:
          raise ValueError(
            f'{what} makes {count:,} states over bytes, which the tokens '
            f'connect in too many ways: {_REMEDY}'
          )
    at[live] = after[back]
  used, columns = np.unique(at, return_inverse=True)
  made = [vectors[n] for n in used]
  return np.array(made, table.dtype).reshape(-1, count).T, columns
