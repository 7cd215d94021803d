"""Drafts that speak another vocabulary than their target.

Token-level intersection (Timor et al., arXiv:2502.05202): the draft proposes
the tokens that both vocabularies have, told by their bytes, and reads the rest
of the text in tokens of its own.

  tokens     what tokens of a tokenizer stand for, in bytes
  tables     which tokens of two vocabularies are the same, and how the draft
             spells the others
  reading    how a walker reads a text through these tables
"""

import dataclasses
from typing import Any

from specjax.checkpoints.vocabularies import tables, tokens
from specjax.checkpoints.vocabularies.tables import Overlap as Overlap
from specjax.checkpoints.vocabularies.tables import Tables as Tables


@dataclasses.dataclass(frozen=True, eq=False)
class Other:
  """A draft's vocabulary beside its target's.

  Attributes:
    tables: see `tables.Tables`.
    overlap: what the draft can propose.
  """

  tables: Tables
  overlap: Overlap


def same(target: Any, draft: Any, size: int, draft_size: int) -> bool:
  """Returns true if the ids of a draft's tokenizer are the target's.

  The draft may lack tokens that were added later, and what is beyond the other
  embedding must be padding.

  Args:
    target: its tokenizer.
    draft: its tokenizer.
    size: entries of the target's head.
    draft_size: entries of the draft's.
  """
  if draft is target and draft_size == size:
    return True  # Large ones take a tenth of a second to look at.
  mine = target.get_vocab()
  theirs = mine if draft is target else draft.get_vocab()
  if theirs == mine and max(mine.values(), default=0) < min(size, draft_size):
    return True  # The usual case, without a look at every token.
  own = {t: i for t, i in theirs.items() if i < draft_size}
  if any(i >= size or mine.get(t) != i for t, i in own.items()):
    return False
  added = target.get_added_vocab()
  return all(t in own or t in added or i >= size for t, i in mine.items())


def compare(
  target: Any,
  draft: Any,
  size: int,
  draft_size: int,
  eos: tuple[int, ...] = (),
  draft_eos: tuple[int, ...] = (),
) -> Other | None:
  """The tables of two tokenizers; None where ids mean the same already.

  Args:
    target: its tokenizer.
    draft: its tokenizer.
    size: V, entries of the target's head.
    draft_size: entries of the draft's.
    eos: ids that end a text of the target; its tokenizer's where empty.
    draft_eos: ids that end a text of the draft.

  Raises:
    ValueError: a tokenizer has no byte representation, their special tokens
      clash, or they have no token in common.
  """
  if same(target, draft, size, draft_size):
    return None
  mine = tokens.read_tokens('the target', target, size, eos)
  theirs = tokens.read_tokens('the draft', draft, draft_size, draft_eos)
  return Other(*tables.build(mine, theirs))
