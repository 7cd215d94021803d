"""Windows of examples, with the places that are learned from.

tokens   Q  :  how  many  ?  A  :  | four  .  <end>
counts   0  0  0    0     0  0  1    1     1  0       what follows is learned
"""

import functools
from collections.abc import Sequence

import numpy as np

from specjax.training.examples import Example


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> np.ndarray:
  return np.random.default_rng((seed, epoch)).permutation(count)


def draw(
  examples: Sequence[Example], count: int, length: int, seed: int, number: int
) -> tuple[np.ndarray, np.ndarray]:
  """A batch: tokens and what counts, [count, length] each.

  Examples come in an order that is drawn anew for each time that all were
  seen; a batch depends on the seed and its number alone. One that is longer
  than the window loses its begin or its end, and keeps some of its answer.
  """
  tokens = np.zeros((count, length), np.int32)
  counts = np.zeros((count, length), np.float32)
  for row in range(count):
    epoch, place = divmod(number * count + row, len(examples))
    one = examples[_order(seed, epoch, len(examples))[place]]
    first = 0
    if len(one.tokens) > length:
      # At least one place of the answer is in it, with what it follows.
      rng = np.random.default_rng((seed, epoch, place))
      low = max(0, one.begin - length + 1)
      first = int(rng.integers(low, len(one.tokens) - length + 1))
    ids = one.tokens[first : first + length]
    tokens[row, : len(ids)] = ids
    # Place t is judged by what follows it: token t + 1.
    answer = max(one.begin - first - 1, 0)
    counts[row, answer : len(ids) - 1] = 1
  return tokens, counts


def prompts_of(
  examples: Sequence[Example], count: int, length: int, seed: int
) -> list[list[int]]:
  """Prompts of examples, each once, the last `length` tokens of each.

  A text is its own prompt up to its half at most: the rest is the answer.
  """
  different = list({one.key: one for one in examples}.values())
  order = np.random.default_rng(seed).permutation(len(different))
  chosen = [different[i] for i in order[:count]]
  return [
    (
      one.tokens[: one.begin][-length:]
      if one.begin
      else one.tokens[: min(length, max(1, len(one.tokens) // 2))]
    )
    for one in chosen
  ]
