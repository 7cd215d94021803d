"""Checks that token ids mean the same to tokenizer, target and drafts.

Heads are often padded to a round size: what counts is which entries have
tokens. JAX reads beyond the end of an embedding without a word, so every
mismatch is refused here. Language models draft with a vocabulary of their own:
it is compared here, too.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from specjax import checkpoints
from specjax.bench.plan import PlannedDrafter
from specjax.checkpoints import Description, vocabularies
from specjax.checkpoints.vocabularies import reading
from specjax.cli import hosts
from specjax.drafters import lm, quantized
from specjax.drafters.heads.frequencies import Reduction
from specjax.errors import UserError, blame, need
from specjax.types import Target

# Loaders of drafts that may have a vocabulary of their own.
TRANSLATING = (lm.load, quantized.load)
_LEAST, _USEFUL = 0.01, 0.5  # of the prompts' tokens, that a draft can draft


def read(field: str, path: str, known: Any = None):
  """Reads the tokenizer of a checkpoint, see `checkpoints.load_tokenizer`.

  Raises:
    UserError: there is none, or it is damaged; names the field.
  """
  with blame(f'{field}: '):
    return checkpoints.load_tokenizer(path, known)


def check_tokenizer(field: str, tokenizer, size: int) -> None:
  """Raises a UserError unless a vocabulary fits into `size` embedding rows.

  Tokens that were added later may lie beyond it, as padding tokens often do:
  they matter where a prompt has them.
  """
  added = tokenizer.get_added_vocab()
  ids = [i for token, i in tokenizer.get_vocab().items() if token not in added]
  largest = max(ids, default=0)
  need(
    largest < size,
    f'{field}: the tokenizer has token ids up to {largest} and the embedding '
    f'{size} rows: they are of different models, copy the right tokenizer '
    'there',
  )


def check_prompt(ids: Iterable[int], size: int) -> None:
  """Raises a UserError unless every token has one of `size` embedding rows."""
  largest = max(ids, default=0)
  need(
    largest < size,
    f'target.path: a prompt has the token id {largest} and the embedding '
    f'{size} rows: the tokenizer is of another model, or the token was added '
    'to it without a row of its own',
  )


def check_draft(tokenizer, size: int, path: str, draft_size: int) -> bool:
  """Checks that a draft's tokens are the target's.

  Every id that the draft can propose must be the same token to the target.
  It may have fewer; where its head is larger, the rest must be padding.

  Args:
    tokenizer: of the target.
    size: entries of the target's head.
    path: of the draft.
    draft_size: entries of its head.

  Returns:
    Whether the tokens were compared: False where the draft has no tokenizer
    and a head of the same size, which may be of another vocabulary.

  Raises:
    UserError: says how they differ.
  """
  sizes = f'draft {path} has {draft_size} logits and the target {size}'
  if not checkpoints.has_tokenizer(path):
    need(
      size == draft_size,
      f'{sizes}, and no tokenizer shows that the difference is padding: copy '
      'its tokenizer there',
    )
    return False
  other = checkpoints.load_tokenizer(path, tokenizer)
  check_tokenizer(f'draft {path}', other, draft_size)
  theirs = {t: i for t, i in other.get_vocab().items() if i < draft_size}
  beyond = [token for token, i in theirs.items() if i >= size]
  if beyond:
    raise UserError(
      f'{sizes}; {len(beyond)} of those beyond are tokens, such as '
      f'{beyond[0]!r}, not padding: they must share one vocabulary'
    )
  mine = tokenizer.get_vocab()
  different = [token for token, i in theirs.items() if mine.get(token) != i]
  if different:
    token = different[0]
    raise UserError(
      f'draft {path} and target have different vocabularies: {len(different)} '
      f'of {len(theirs)} tokens differ, such as {token!r}, {theirs[token]} '
      f'there and {mine.get(token, "nothing")} here: they must share one'
    )
  return True


def check_reduced(one: PlannedDrafter, target: Target) -> None:
  """Raises a UserError unless a target has the tokens that a draft keeps."""
  if one.read in TRANSLATING:
    names = [field.name for field in dataclasses.fields(Reduction)]
    given = {x: one.options[x] for x in names if x in one.options}
    with blame(f'{one.field}: '):
      Reduction(**given).choose(target)


def compare(
  one: PlannedDrafter,
  tokenizer: Any,
  size: int,
  eos: tuple[int, ...],
  draft: Description | None,
) -> tuple[bool, vocabularies.Other | None]:
  """Compares a draft's vocabulary with the target's.

  Args:
    one: the drafter, which has a path.
    tokenizer: of the target.
    size: entries of the target's head.
    eos: ids that end a text of the target.
    draft: its model; None where it has the target's head.

  Returns:
    Whether the tokens were compared, see `check_draft`, and the draft's
    vocabulary, where it is another one.

  Raises:
    UserError: they differ, and the drafter needs the target's or is to have
      fewer tokens; or there is nothing that it could draft.
  """
  own = size if draft is None else draft.model.config.vocab_size
  translates = draft is not None and one.read in TRANSLATING
  if not translates or not checkpoints.has_tokenizer(one.path):
    return check_draft(tokenizer, size, one.path, own), None
  theirs = read(f'draft {one.path}', one.path, tokenizer)
  if theirs is not tokenizer or own != size:  # Else it was checked above.
    check_tokenizer(f'draft {one.path}', theirs, own)
  with blame(f'{one.path_field}: '):
    other = vocabularies.compare(
      tokenizer, theirs, size, own, eos, checkpoints.eos_ids(one.path)
    )
  need(
    other is None or not one.options.get('vocabulary'),
    f'{one.field}: {one.path} has a tokenizer of its own, and proposes the '
    'tokens of both alone: leave vocabulary out',
  )
  return True, other


# Prompts by domain.
Texts = Mapping[str, Sequence[Sequence[int]]]


def overlaps(
  described: Mapping[str, Description], texts: Texts
) -> dict[str, dict[str, float]]:
  """Returns the share of the prompts' tokens that each draft can draft.

  For drafts that have another vocabulary, by domain. The share is about the
  target's probability mass there, and so about the most that alpha can be.
  """
  return {
    who: {n: one.other.overlap.of_tokens(ids) for n, ids in texts.items()}
    for who, one in described.items()
    if one.other is not None
  }


def check_overlaps(described: Mapping[str, Description], texts: Texts) -> None:
  """Refuses drafts that have no use for these prompts.

  Raises:
    UserError: a draft can draft nearly nothing.
  """
  for who, shares in overlaps(described, texts).items():
    best = max(shares.values())
    need(
      best >= _LEAST,
      f"{who} can draft {best:.1%} of the prompts' tokens, and nothing else: "
      'their vocabularies hardly overlap, use another draft',
    )


def size_of_prompts(
  described: Mapping[str, Description], room: int, new_tokens: int
) -> Callable[[Sequence[int]], int]:
  """Returns a function: how much of the room a prompt takes.

  The prompt fits every model where that is at most the room. A draft with
  another vocabulary counts the prompt, and its share of new tokens, in its own
  tokens.

  Args:
    described: the models by name.
    room: tokens of the target that a prompt may have.
    new_tokens: of the target, behind the prompt.
  """
  spaces = []
  for one in described.values():
    if one.other is not None:
      ratio = reading.sizes_of(one.other.tables).ratio
      left = one.model.config.max_positions - int(ratio * new_tokens)
      spaces.append((one.other.tables, left))

  def size(ids: Sequence[int]) -> int:
    taken = (reading.length_of(t, ids) - left for t, left in spaces)
    return max([len(ids), *(room + more for more in taken)])

  return size


def tell(described: Mapping[str, Description], texts: Texts) -> None:
  """Prints what drafts of another vocabulary can draft, and whether it pays."""
  for who, shares in overlaps(described, texts).items():
    hosts.tell(f'{who}: {sentence(described[who].other, shares)}')
    low = min(shares, key=lambda name: shares[name])
    if shares[low] < _USEFUL:
      hosts.tell(
        f'warning: {who} cannot draft {1 - shares[low]:.0%} of the tokens of '
        f'{low}: so many drafts are rejected; a draft with '
        "the target's tokenizer would not have that bound"
      )


def sentence(other: vocabularies.Other, shares: Mapping[str, float]) -> str:
  """Says what a draft has in common with its target."""
  overlap = other.overlap
  parts = ', '.join(f'{share:.0%} of {name}' for name, share in shares.items())
  return (
    f"another vocabulary: it can draft {overlap.shared:,} of the target's "
    f'{overlap.target:,} tokens ({overlap.share:.0%}), by occurrence '
    f'{parts or "not known"}'
  )
