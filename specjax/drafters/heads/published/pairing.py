"""Whether a published head is for a target.

It carries no fingerprint of the weights it was trained with. A head of another
target drafts all the same: the text stays exact, and its drafts are rejected.
So what can be compared is: sizes, vocabulary, layers, and the name.
"""

from specjax import checkpoints
from specjax.checkpoints.files import CheckpointError
from specjax.drafters.heads.published.formats import Found
from specjax.types import Target

UNVERIFIED = 'unverified'


class PairingWarning(UserWarning):
  """What is doubtful about a published head for a target."""


def check(found: Found, target: Target) -> tuple[str, ...]:
  """What is doubtful about a head for a target, one sentence each.

  Raises:
    CheckpointError: it cannot be for this target.
  """
  config = target.model.config
  if found.width != config.width:
    raise CheckpointError(
      f'{found.directory} reads features of width {found.width}, and the '
      f'target has {config.width}: it is the head of another target'
    )
  if found.vocab_size != config.vocab_size:
    raise CheckpointError(
      f'{found.directory} is for a vocabulary of {found.vocab_size} tokens, '
      f'and the target has {config.vocab_size}: it is the head of another '
      'target'
    )
  notes = []
  named = checkpoints.title_of(found.verifier) if found.verifier else ''
  own = checkpoints.title_of(target.path) if target.path else ''
  if named and own and named.lower() != own.lower():
    notes.append(
      f'{found.directory} names {found.verifier} as its target, and this one '
      f'is called {own}: where they are not the same weights, drafts are '
      'rejected'
    )
  longest = target.max_length
  if found.positions and longest and longest > found.positions:
    notes.append(
      f'{found.directory} was trained on texts of at most {found.positions} '
      f'tokens, and this run has up to {longest}: acceptance may fall there'
    )
  return tuple(notes)
