"""Whether token ids mean the same to tokenizer, target and drafts.

Heads are often padded to a round size: what counts is which entries have
tokens. JAX reads beyond the end of an embedding without a word, so every
mismatch is refused here.
"""

from collections.abc import Iterable

from experiments.errors import UserError, blame, need
from specjax import checkpoints


def read(field: str, path: str):
  """The tokenizer of a checkpoint.

  Raises:
    UserError: there is none, or it is damaged; names the field.
  """
  with blame(f'{field}: '):
    return checkpoints.load_tokenizer(path)


def check_tokenizer(field: str, tokenizer, size: int) -> None:
  """Whether the vocabulary fits into an embedding.

  Tokens that were added later may lie beyond it, as padding tokens often do:
  they matter where a prompt has them, see `check_prompt`.

  Args:
    field: of the config, for the message.
    tokenizer: of the checkpoint.
    size: rows of the embedding.

  Raises:
    UserError: it does not; names both sizes.
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
  """Whether every token of a prompt has a row of the embedding.

  Raises:
    UserError: one has none; names both sizes.
  """
  largest = max(ids, default=0)
  need(
    largest < size,
    f'target.path: a prompt has the token id {largest} and the embedding '
    f'{size} rows: the tokenizer is of another model, or the token was added '
    'to it without a row of its own',
  )


def check_draft(tokenizer, size: int, path: str, draft_size: int) -> bool:
  """Whether a draft's tokens are the target's.

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
  if not checkpoints.has_tokenizer(path):
    if size == draft_size:
      return False
    raise UserError(
      f'draft {path} has {draft_size} logits and the target {size}, and no '
      'tokenizer shows that the difference is padding: copy its tokenizer '
      'there'
    )
  other = checkpoints.load_tokenizer(path)
  check_tokenizer(f'draft {path}', other, draft_size)
  theirs = {t: i for t, i in other.get_vocab().items() if i < draft_size}
  beyond = [token for token, i in theirs.items() if i >= size]
  if beyond:
    raise UserError(
      f'draft {path} has {draft_size} logits and the target {size}; '
      f'{len(beyond)} of those beyond are tokens, such as {beyond[0]!r}, not '
      'padding: they must share one vocabulary'
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
