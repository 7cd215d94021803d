"""What may come next: states, and where each token leads.

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
from collections.abc import Sequence

import numpy as np


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
    """Whether each token [V] may come in a state."""
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
    far = np.iinfo(np.int32).max
    ends = np.unique(self.classes[list(self.eos)])
    steps = np.where((self.next[:, ends] >= 0).any(1), 1, far)
    inside = np.setdiff1d(np.arange(self.next.shape[1]), ends)
    onward = self.next[:, inside]
    while True:
      after = np.where(onward >= 0, steps[onward], far).min(1, initial=far)
      closer = np.minimum(steps, np.where(after < far, after, far - 1) + 1)
      if (closer == steps).all():
        return steps
      steps = closer
