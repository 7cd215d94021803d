"""Automata over tokens: states, and where each token leads.

A text is followed token by token from state 0. Tokens that lead to the same
state from everywhere are of one class, of which there are few: a vocabulary of
2,048 tokens has about a hundred under a schema.

  regex  ab?        next     a   b  end  other       classes of tokens
                    state 0  1   .   .   .           a 0, b 1, end 2, ...
                          1  .   2   3   .
                          2  .   .   3   .
                          3  .   .   3   .           . no text goes on so

After a token that ends the text only such tokens may come, and no state is a
dead end: each leads to an end of the text.
"""

import dataclasses
import functools
import os
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

_VERSION = 1
# What numpy raises of a file that is cut, pickled or of something else.
_DAMAGED = (
  EOFError,
  KeyError,
  TypeError,
  ValueError,
  zipfile.BadZipFile,
  zlib.error,
)


def edges(table: np.ndarray) -> Any:
  """Sparse graph [Q, Q] of a table [Q, C] of states, negative where none."""
  from scipy import sparse  # Takes a tenth of a second, of every start.

  states = len(table)
  source, column = np.nonzero(table >= 0)
  pairs = np.unique(source * states + table[source, column].astype(np.int64))
  which = (pairs // states, pairs % states)
  ones = np.ones(len(pairs), np.int8)
  return sparse.csr_array((ones, which), shape=(states, states))


def distance(table: np.ndarray, end: int) -> np.ndarray:
  """Steps [Q] from each state of a table to one; inf where no way leads."""
  from scipy.sparse import csgraph

  return csgraph.dijkstra(edges(table).T.tocsr(), unweighted=True, indices=end)


@dataclasses.dataclass(frozen=True, eq=False)
class Automaton:
  """The texts of a language, over the tokens of one vocabulary.

  Attributes:
    what: the language, as messages call it, such as "regex 'ab?'".
    classes: [V] int16, the class of every token.
    next: [Q, C] int16, the state that a token of a class leads to; negative
      where it is not allowed. Texts begin in state 0.
    eos: tokens that end a text.
    vocabulary: digest of the tokens' bytes, which it was made for.
  """

  what: str
  classes: np.ndarray
  next: np.ndarray
  eos: tuple[int, ...]
  vocabulary: str

  def follow(self, tokens: Sequence[int], state: int = 0) -> int:
    """The state after tokens; negative where they are in no text."""
    for token in tokens:
      if state < 0:
        return -1
      state = int(self.next[state, self.classes[token]])
    return state

  def allowed(self, state: int) -> np.ndarray:
    """Returns which tokens [V] may come in a state."""
    return self.next[state, self.classes] >= 0

  @functools.cached_property
  def only(self) -> np.ndarray:
    """The one token [Q] that is allowed in each state; -1 where there are more.

    Nothing is left to decide there. Behind the end of a text it is -1, too.
    """
    allowed = self.next >= 0
    members = np.bincount(self.classes, minlength=allowed.shape[1])
    first = np.full(allowed.shape[1], -1)
    first[self.classes[::-1]] = np.arange(len(self.classes))[::-1]
    single = (allowed * members).sum(1) == 1
    found = np.where(single, first[np.argmax(allowed * members, 1)], -1)
    ends = self.next[:, self.classes[list(self.eos)]]
    behind = (ends == np.arange(len(ends))[:, None]).all(1)
    return np.where(behind, -1, found).astype(np.int32)

  @functools.cached_property
  def distance(self) -> np.ndarray:
    """Tokens [Q] of the shortest way to the end of a text from each state.

    The token that ends it counts.
    """
    ends = np.unique(self.classes[list(self.eos)])
    states = len(self.next)
    # One more state, to which every end of a text leads.
    table = np.full((states + 1, self.next.shape[1] + 1), states, np.int32)
    table[:-1, :-1] = self.next
    table[:-1, -1][(self.next[:, ends] < 0).all(1)] = -1
    steps = distance(table, states)[:-1]
    far = np.iinfo(np.int32).max
    return np.where(np.isinf(steps), far, steps).astype(np.int32)

  def check(self, vocabulary: str, vocab_size: int, eos: Sequence[int]) -> None:
    """Refuses a target that it was not made for.

    Args:
      vocabulary: digest of the target's tokens, see `constraints.vocabulary`.
      vocab_size: V, entries of its head.
      eos: tokens that end its texts.

    Raises:
      ValueError: it was made for another tokenizer, size or other ends.
    """
    for name, own, other in (
      ('tokenizer', self.vocabulary[:12], vocabulary[:12]),
      ('vocab_size', len(self.classes), vocab_size),
      ('eos', sorted(set(self.eos)), sorted(set(eos))),
    ):
      if own != other:
        raise ValueError(
          f'the constraint {self.what} was made for {name} {own}, but the '
          f'target has {other}: compile it anew for this target'
        )

  def save(self, path: str | os.PathLike) -> None:
    """Writes a file that `load` reads."""
    with open(path, 'wb') as file:
      np.savez_compressed(
        file,
        allow_pickle=False,
        version=np.array(_VERSION),
        what=np.array(self.what),
        classes=self.classes,
        next=self.next,
        eos=np.array(self.eos, np.int64),
        vocabulary=np.array(self.vocabulary),
      )


def _wrong(read: dict[str, np.ndarray]) -> str | None:
  """Describes what is wrong in the arrays of a file."""
  table, classes, eos = read['next'], read['classes'], read['eos']
  kinds = [read[name].dtype.kind for name in ('what', 'vocabulary')]
  if kinds != ['U', 'U'] or read['what'].shape or read['vocabulary'].shape:
    return 'what or vocabulary is no text'
  if table.dtype != np.int16 or classes.dtype != np.int16:
    return 'next or classes is not int16'
  if table.ndim != 2 or classes.ndim != 1 or eos.ndim != 1 or not table.size:
    return f'shapes {table.shape}, {classes.shape} and {eos.shape}'
  if eos.dtype.kind != 'i' or not eos.size or not classes.size:
    return 'no token ends a text'
  if eos.min() < 0 or eos.max() >= classes.size:
    return f'eos beyond the {classes.size:,} tokens'
  if classes.min() < 0 or classes.max() >= table.shape[1]:
    return f'classes beyond the {table.shape[1]:,} of next'
  if table.max() >= len(table):
    return f'states beyond the {len(table):,} of next'
  return None


def load(path: str | os.PathLike) -> Automaton:
  """An automaton that was saved.

  Raises:
    ValueError: the file is none, or not one of this version.
  """
  try:
    with np.load(path, allow_pickle=False) as file:
      read = {name: file[name] for name in file.files}
    version = int(read['version'])
    names = [field.name for field in dataclasses.fields(Automaton)]
    wrong = None
    if version == _VERSION:
      wrong = _wrong({name: read[name] for name in names})
  except OSError as error:
    raise ValueError(
      f'no automaton {os.fspath(path)!r} can be read: {error.strerror or error}'
    ) from None
  except _DAMAGED:
    raise ValueError(
      f'{os.fspath(path)!r} is not a whole automaton: save it anew'
    ) from None
  if version != _VERSION:
    raise ValueError(
      f'{os.fspath(path)!r} is of version {version}, and this specjax reads '
      f'{_VERSION}: compile it anew'
    )
  if not wrong:
    made = Automaton(
      str(read['what']),
      read['classes'],
      read['next'],
      tuple(read['eos'].tolist()),
      str(read['vocabulary']),
    )
    if made.distance.max() < np.iinfo(np.int32).max:
      return made
    wrong = 'a state from which no text ends'
  raise ValueError(
    f'{os.fspath(path)!r} is no automaton ({wrong}): compile it anew'
  )
