"""Where a predicted text goes on: whoever edits a text has most of it already.

A place of the prediction is better where more of the last tokens agree, up to
`LONGEST`, and among equals where it is nearer to the one that the text would be
at had nothing been changed.

  prediction  f ( a ) ; g ( a ) ; f ( a ) ;
  text        f ( b ) ; g (                       ->    a ) ; f

In replays of edited files (results/tried.md) this was never far behind longer
runs, which in texts that repeat themselves stick to a place before a change.
"""

import jax.numpy as jnp

from specjax.drafters.ngram.copies import count_agreeing
from specjax.sampling.predictions import BEFORE
from specjax.types import Prediction

LONGEST = BEFORE


def look_up(prediction: Prediction, tokens, length, depth: int):
  """Copies what follows the best place of a prediction, of one sequence.

  Args:
    prediction: of the sequence.
    tokens: [S].
    length: committed tokens.
    depth: K, tokens to copy.

  Returns:
    tokens [K] and how many there are: none where the last one is not there.
  """
  there, size, start = prediction
  slots = there.shape[0]
  place = jnp.arange(slots)
  run = count_agreeing(there, tokens, length, LONGEST)
  run = jnp.where(place < size - 1, run, 0)
  # Nearer is less than one token more, however far it is.
  span = slots + tokens.shape[0]
  away = jnp.abs(place - (length - 1 - start))
  best = jnp.argmax(jnp.where(run > 0, run * span - away, -span))
  index = jnp.minimum(best + 1 + jnp.arange(depth), slots - 1)
  size = jnp.where(run[best] > 0, jnp.minimum(size - 1 - best, depth), 0)
  return there[index], size.astype(jnp.int32)
