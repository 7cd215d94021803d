"""Tables from one vocabulary to another: equal tokens, and spelled ones.

Everything is decided token by token: how a draft reads a text depends on the
text alone, never on the steps that made it.

  target    ' the'  'cat'   's'   <end>     draft   ' the' 's' 'c' 'at' </s>
  id           0      1      2      3       id         0    1   2    3    4
  places       0      5      1      4       V_d = 5 stands for none
  pieces       0     2 3     1      4
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints.vocabularies.tokens import Tokens
from specjax.models import reduced_vocab_head

LONGEST = 8  # tokens of the draft that a target's token is spelled by at most


class Tables(NamedTuple):
  """A draft's vocabulary, seen from the target's; arrays.

  The pieces of token t are `pieces[starts[t]:starts[t + 1]]`, one at least.
  """

  places: jax.Array  # [V] as `reduced_vocab_head.places` gives them
  pieces: jax.Array  # [M] tokens of the draft
  starts: jax.Array  # [V + 1]


@dataclasses.dataclass(frozen=True)
class Overlap:
  """The tokens that a draft can propose.

  Attributes:
    shared: tokens that both vocabularies have.
    target: tokens of the target's.
    can_draft: [V] whether the target's token is one of those shared.
    spelled: mean number of pieces of the target's tokens.
  """

  shared: int
  target: int
  can_draft: np.ndarray = dataclasses.field(repr=False, compare=False)
  spelled: float

  @property
  def share(self) -> float:
    """The share of the target's tokens that both have."""
    return self.shared / self.target

  def of_tokens(self, texts) -> float:
    """Returns the share of the tokens of texts that the draft can propose."""
    ids = np.concatenate([np.asarray(text, int) for text in texts])
    return float(self.can_draft[ids].mean())


def _match_ends(target: Tokens, draft: Tokens) -> dict[int, int]:
  """Pairs the tokens that end texts, equal names first."""
  free = list(draft.ends)
  names = {draft.special.get(i, draft.texts.get(i)): i for i in free}
  matched = {}
  for i in target.ends:
    name = target.special.get(i, target.texts.get(i))
    if name is not None and names.get(name) in free:
      matched[i] = names[name]
      free.remove(names[name])
  for i in target.ends:
    if i not in matched and free:
      matched[i] = free.pop(0)
  return matched


def match(target: Tokens, draft: Tokens) -> dict[int, int]:
  """The draft's token of each of the target's that both have; one to one.

  Ends of text and what begins one are told by what they do, other special
  tokens by their names, and ordinary ones by their bytes. Of several tokens
  of equal bytes those that are the first are the same: a byte that is there
  for want of another token comes last.

  Raises:
    ValueError: a special token ends texts of one, and begins those of the
      other.
  """
  matched = _match_ends(target, draft)
  names = {name: i for i, name in draft.special.items()}
  for one, other in ((target, draft), (draft, target)):
    name = one.special.get(one.begin) if one.begin is not None else None
    ends = {other.special.get(i) for i in other.ends}
    one_role = one.begin not in one.ends and other.begin not in other.ends
    if name and name in ends and one_role:
      raise ValueError(
        f'the special token {name!r} begins texts of '
        f'{"the target" if one is target else "the draft"} and ends those of '
        'the other: they clash, give one of them another name'
      )
  taken = set(matched.values()) | set(draft.ends)

  def add(i: int, j: int) -> None:
    if i not in matched and i not in target.ends and j not in taken:
      matched[i] = j
      taken.add(j)

  if target.begin is not None and draft.begin is not None:
    add(target.begin, draft.begin)
  for i, name in target.special.items():
    if name in names:
      add(i, names[name])

  for text, ids in target.by_bytes.items():
    others = draft.by_bytes.get(text, [])
    # Like goes to like at first: a byte to a byte, where both have one.
    for alike in (True, False):
      for i in ids:
        byte = i in target.fallback
        for j in others:
          fits = not alike or (j in draft.fallback) == byte
          if fits and j not in taken:
            add(i, j)
            break
  return matched


def _pieces(target: Tokens, draft: Tokens, token: int) -> list[int]:
  """Spells a token that the draft lacks in the draft's tokens."""
  text = target.texts.get(token)
  if text is None:
    text = target.special.get(token, '').encode()
  made = draft.cut(text)
  if not made:  # Padding, or bytes that the draft cannot write.
    other = (draft.unknown, *draft.ends, draft.begin, 0)
    made = [next(i for i in other if i is not None)]
  return made[-LONGEST:]


def build(target: Tokens, draft: Tokens) -> tuple[Tables, Overlap]:
  """The tables of two vocabularies, on the host.

  Args:
    target: V tokens.
    draft: V_d tokens.

  Raises:
    ValueError: as `match`, or they have no ordinary token in common.
  """
  matched = match(target, draft)
  shared = [i for i in matched if i in target.texts]
  if not shared:
    raise ValueError(
      'the draft and the target have no token in common, so that nothing could '
      'be drafted: use another draft'
    )
  spelled = [
    [matched[i]] if i in matched else _pieces(target, draft, i)
    for i in range(target.size)
  ]
  ids = np.full(draft.size, -1)
  for i, j in matched.items():
    ids[j] = i
  known = np.flatnonzero(ids >= 0)
  # Places among all logits of the draft: those of its own tokens alone.
  among = reduced_vocab_head.places(ids[known], target.size)
  places = np.append(known, draft.size)[among].astype(np.int32)
  counts = [len(pieces) for pieces in spelled]
  made = Tables(
    jnp.asarray(places),
    jnp.asarray(np.concatenate(spelled), jnp.int32),
    jnp.asarray(np.cumsum([0, *counts]), jnp.int32),
  )
  ordinary = [counts[i] for i in target.texts]
  overlap = Overlap(
    len(matched),
    len({*target.texts, *target.special}),
    places < draft.size,
    float(np.mean(ordinary)),
  )
  return made, overlap
