"""Embeddings and output layers of a head's own, and reduced vocabularies."""

from collections.abc import Collection
from typing import Any

import numpy as np

from specjax.checkpoints.families.table import KEEP, LINEAR, Tensors
from specjax.checkpoints.files import CheckpointError
from specjax.drafters.heads.published.formats import Files, Made
from specjax.models import reduced_vocab_head


def options(files: Files, vocab: int) -> dict[str, Any]:
  """Which tokens a head has logits of, as options of its sizes."""
  tensors = files.tensors
  if 'lm_head.weight' not in tensors:
    return {'own_unembedding': False}
  count = files.shape('lm_head.weight', 2)[0]
  if count == vocab:
    return {'own_unembedding': True}
  if 'd2t' not in tensors:
    raise CheckpointError(
      f'{files.directory}: lm_head has {count} of {vocab} tokens, and d2t, '
      'which says of which, is missing'
    )
  for name, size in (('d2t', count), ('t2d', vocab)):
    if name in tensors and tensors[name].shape != (size,):
      raise CheckpointError(
        f'{files.directory}: {name} has shape {tensors[name].shape}, and '
        f'lm_head {count} of {vocab} tokens: they are of different heads'
      )
  return {'own_unembedding': True, 'draft_vocab': count}


def _places(d2t: np.ndarray, t2d: np.ndarray | None, vocab: int) -> np.ndarray:
  """Places of the target's tokens, from offsets of the head's."""
  ids = np.arange(len(d2t)) + d2t.astype(np.int64)
  where = reduced_vocab_head.places(ids, vocab)
  if t2d is not None and not np.array_equal(where < len(d2t), t2d.astype(bool)):
    raise ValueError(
      'd2t and t2d disagree: they name different tokens of the target, so that '
      'one of them is damaged or of another head'
    )
  return where


def sources(
  names: Collection[str], sizes: Any, vocab: int
) -> dict[str, Tensors | Made]:
  """Of the parameters that sizes say a head has of its own.

  Args:
    names: of all tensors.
    sizes: of the head, of either kind.
    vocab: tokens of the target.
  """
  made: dict[str, Tensors | Made] = {}
  if sizes.own_embedding:
    made['embedding'] = Tensors(KEEP, ('embed_tokens.weight',))
  if sizes.own_unembedding:
    made['unembedding'] = Tensors(LINEAR, ('lm_head.weight',))
  if sizes.draft_vocab:
    made['places'] = Made(
      lambda d2t, t2d=None: _places(d2t, t2d, vocab),
      tuple(name for name in ('d2t', 't2d') if name in names),
    )
  return made
