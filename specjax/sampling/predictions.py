"""Predicted texts, one a row: drafts are copied from them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.arguments import check_tokens, named
from specjax.types import Prediction

BEFORE = 6  # tokens of the prompt that stand before what is predicted
_FEWEST = 128  # tokens that there is room for


class Predicted(NamedTuple):
  """The predicted tokens of one text, on the host; by default none."""

  tokens: Sequence[int] = ()
  start: int = 0  # of these in the text, if nothing of them is changed


NOTHING = Predicted()


def behind(prompt: Sequence[int], tokens: Sequence[int]) -> Predicted:
  """The prediction of what follows a prompt.

  The prompt's end stands before it, so that its begin is found like any other
  place of it. Of an encoder-decoder the text has no prompt: give an empty one.
  """
  if not len(tokens):
    return NOTHING
  end = prompt[-BEFORE:]
  return Predicted([*end, *tokens], len(prompt) - len(end))


def of_rows(
  batch: int,
  rows: Sequence[Predicted],
  vocab_size: int | None,
  most: int | None = None,
) -> Prediction:
  """The predictions of rows, on the host.

  Args:
    batch: B.
    rows: of each.
    vocab_size: V.
    most: R, that all rows have room for; by default the next power of two.

  Raises:
    ValueError: there are not B, or they are no predictions; a token is not of
      the vocabulary, or one has no room.
  """
  if not isinstance(rows, list | tuple) or not all(
    isinstance(row, Predicted) for row in rows
  ):
    raise ValueError(
      f'prediction must be a list of what specjax.sampling.behind returns, one '
      f'a row, got {named(rows)}'
    )
  if len(rows) != batch:
    raise ValueError(f'prediction has {len(rows)} rows instead of {batch}')
  lengths = np.array([len(row.tokens) for row in rows], np.int32)
  longest = int(lengths.max())
  if most is None:
    most = max(_FEWEST, 1 << max(longest - 1, 0).bit_length())
  if longest > most:
    raise ValueError(
      f'prediction has {longest} tokens, but there is room for {most}: shorten '
      'it'
    )
  tokens = np.zeros((batch, most), np.int32)
  for place, row in zip(tokens, rows, strict=True):
    check_tokens('prediction', row.tokens, vocab_size)
    place[: len(row.tokens)] = row.tokens
  starts = np.array([row.start for row in rows], np.int32)
  made: Any = tokens, lengths, starts
  return Prediction(*made)
