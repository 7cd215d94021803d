"""Training of drafters that say all places of a draft in one pass, by masks.

A text and the masks of drafts behind many of its rows are read in one pass, and
see what they see while drafting, see `parallel.Masked`.

Conditional drop (COD; An et al., arXiv:2504.18583): only a share of keep^d of
the rows has d masks behind it, a fifth at least. A row with d masks is one of
those with d - 1, so that no mask lacks one that it sees while drafting. Far
places cost less, and weigh less.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from specjax.arguments import check_number
from specjax.drafters.heads.trainable import Seen
from specjax.drafters.shapes.parallel import Masked

_LEAST = 0.2


@dataclasses.dataclass(frozen=True)
class Masks:
  """The masks that are learned.

  Attributes:
    token: of all of them.
    places: of a whole draft, K.
    keep: share of the drafts of a place that have the next one, too, while a
      fifth of the rows or more has it.
  """

  token: int
  places: int = 8
  keep: float = 0.7

  def draw(self, key: jax.Array, weights: jax.Array) -> Masked:
    """Drafts along texts.

    Args:
      key: consumed.
      weights: [B, R] of the rows; rows that count come first.

    Raises:
      ValueError: no row has a whole draft.
    """
    rows = weights.shape[1]
    if rows < self.places:
      raise ValueError(
        f'places is {self.places}, but windows have {rows} rows: make '
        'optimization.length larger, or places smaller'
      )
    shares = [max(self.keep**d, _LEAST) for d in range(self.places)]
    counts = [max(round(share * rows), 1) for share in shares]
    order = jnp.argsort(jax.random.uniform(key, weights.shape) - weights)
    own = jnp.broadcast_to(jnp.arange(rows), weights.shape)
    begin = [own, *(order[:, :count] for count in counts[1:])]
    depth = jnp.asarray(np.repeat(np.arange(self.places), counts))
    return Masked(jnp.concatenate(begin, 1), depth)


def masks_of(
  token: int | None, vocab: int, places: int | None, keep: float | None
) -> Masks | None:
  """The masks that options of a recipe ask for; None: the drafter has none.

  Args:
    token: the token of all masks; None: the drafter has no masks.
    vocab: tokens of the target.
    places: see `Masks`; None: the default of `Masks`.
    keep: see `Masks`; None: the default of `Masks`.

  Raises:
    ValueError: names the option and the remedy.
  """
  if token is None:
    for name, given in {'places': places, 'keep': keep}.items():
      if given is not None:
        raise ValueError(
          f'{name} is of drafters with masks: give mask_token, too'
        )
    return None
  places = Masks.places if places is None else places
  keep = Masks.keep if keep is None else keep
  check_number('mask_token', token, 0, vocab)
  check_number('places', places, 2)
  if not isinstance(keep, int | float) or not 0 < keep <= 1:
    raise ValueError(f'keep must be above 0 and at most 1, got {keep!r}')
  return Masks(token, places, keep)


def judge(drafts: Masked, seen: Seen, logits: jax.Array) -> jax.Array:
  """The mean loss of all places, those beyond the text left out.

  Args:
    drafts: along the text.
    seen: the R rows, with the target's logits for the first place behind each.
    logits: [B, R + M, V] of the drafter.
  """
  rows = seen.tokens.shape[1]
  at = jnp.minimum(drafts.at, rows - 1)
  goal = jnp.take_along_axis(seen.logits, at[..., None], 1)
  counts = jnp.take_along_axis(seen.weights, at, 1)
  return seen.judge(goal, logits, jnp.where(drafts.at < rows, counts, 0.0))
