"""Readings of a trained head, compared on the same prompts.

A published head can be read in several ways. The right reading is the one
whose drafts agree with the target most often.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy import special

from specjax.stats import metrics

CONFIGURED = 'as configured'
CHANCE = 0.05  # that any alternative which is no better is called better
CLEAR = 0.05  # share of the accepted tokens that a clear difference has
LEAST = 0.02  # accepted tokens a draft that it has at least


class Look(NamedTuple):
  """Drafts of one reading of a head, along texts of the target."""

  places: np.ndarray  # [N] of each prompt
  accepted: np.ndarray  # [N, K] of them where the first k + 1 tokens agree

  def cut(self, depth: int) -> 'Look':
    """Returns the look at drafts of at most so many tokens."""
    return Look(self.places, self.accepted[:, :depth])

  @property
  def tokens(self) -> np.ndarray:
    """Accepted tokens [N] of all drafts of a prompt."""
    return self.accepted.sum(1)

  @property
  def mean(self) -> float:
    """Accepted tokens a draft."""
    return float(self.tokens.sum() / self.places.sum())

  @property
  def alphas(self) -> list[float]:
    """Chance [K] that a token agrees where those before it do."""
    reached = np.concatenate([[self.places.sum()], self.accepted.sum(0)])
    pairs = zip(reached[1:], reached, strict=False)
    return [float(a / b) if b else math.nan for a, b in pairs]


class Difference(NamedTuple):
  """Accepted tokens of an alternative a draft, less those as configured."""

  value: float
  low: float  # of the interval that holds for all alternatives together
  high: float
  better: bool  # clearly


def compare(configured: Look, other: Look, alternatives: int) -> Difference:
  """Compares an alternative with what is configured, paired on prompts.

  Drafts of both are cut to as many tokens as either has.

  Args:
    configured: of the same prompts.
    other: of the alternative.
    alternatives: that are compared; intervals hold for all of them together.
  """
  depth = min(x.accepted.shape[1] for x in (configured, other))
  configured, other = configured.cut(depth), other.cut(depth)
  found = metrics.estimate(
    lambda a, n, b, m: a / n - b / m,
    other.tokens,
    other.places,
    configured.tokens,
    configured.places,
  )
  reach = 0.0  # Every prompt says the same.
  if found.error != 0:  # NaN of few prompts.
    chance = 1 - CHANCE / max(alternatives, 1) / 2
    reach = float(special.stdtrit(found.freedom, chance)) * found.error
  clear = max(CLEAR * configured.mean, LEAST)
  low = found.value - reach
  return Difference(
    float(found.value),
    float(low),
    float(found.value + reach),
    bool(low > 0 and found.value >= clear),
  )


def best_of(differences: Mapping[str, Difference]) -> str:
  """Returns the alternative that is clearly best, or `CONFIGURED`."""
  better = {name: d.value for name, d in differences.items() if d.better}
  return max(better, key=better.__getitem__, default=CONFIGURED)
