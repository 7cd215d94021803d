"""Tests of whether samples have a distribution, and their power.

Plain numpy. A distribution and the counts of a sample are arrays over the same
outcomes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Fit(NamedTuple):
  """A G-test (likelihood ratio), summed over independent samples."""

  statistic: float = 0.0
  freedom: int = 0

  @property
  def p_value(self) -> float:
    if np.isinf(self.statistic):
      return 0.0
    if not self.freedom:
      return 1.0
    return float(stats.chi2.sf(self.statistic, self.freedom))


def together(fits) -> Fit:
  """One test of several independent samples, each with its own distribution."""
  fits = list(fits)
  return Fit(sum(x.statistic for x in fits), sum(x.freedom for x in fits))


def groups(probs: np.ndarray, samples: int, least: float = 10.0) -> np.ndarray:
  """Group of every outcome, so that each is expected at least `least` times.

  Rare outcomes share a group; what never happens is in group -1.
  """
  group = np.full(probs.size, -1)
  number, expected = 0, 0.0
  possible = np.flatnonzero(probs)
  order = possible[np.argsort(probs[possible], kind='stable')]
  for outcome in order:
    group[outcome] = number
    expected += samples * probs[outcome]
    if expected >= least:
      number, expected = number + 1, 0.0
  # What is left over is too little for a group of its own.
  return np.minimum(group, max(number - 1, 0))


def _grouped(group, values):
  return np.bincount(group[group >= 0], values[group >= 0])


def fit(counts: np.ndarray, probs: np.ndarray) -> Fit:
  """Tests counts of outcomes against their probabilities.

  An outcome that cannot happen makes the statistic infinite.
  """
  counts, probs = np.ravel(counts), np.ravel(probs)
  if counts[probs == 0].any():
    return Fit(np.inf, 1)
  group = groups(probs, counts.sum())
  seen = _grouped(group, counts)
  expected = counts.sum() * _grouped(group, probs)
  terms = seen * np.log(np.maximum(seen, 1) / expected)
  return Fit(float(2 * terms.sum()), len(expected) - 1)


def fit_drawn(drawn: np.ndarray, probs: np.ndarray) -> Fit:
  """Tests draws [n] that were each made from their own row of probs [n, V].

  The sum of one-hot draws minus probabilities has mean 0 and the covariance of
  a sum of multinomials. A draw that cannot happen makes the statistic infinite.
  """
  width = probs.shape[1]
  if not (np.take_along_axis(probs, drawn[:, None], 1) > 0).all():
    return Fit(np.inf, 1)
  excess = np.bincount(drawn, minlength=width) - probs.sum(0)
  spread = np.diag(probs.sum(0)) - probs.T @ probs
  # The excess sums to 0: one of the tokens adds nothing.
  possible = np.flatnonzero(np.diag(spread) > 1)[:-1]
  excess, spread = excess[possible], spread[np.ix_(possible, possible)]
  statistic = excess @ np.linalg.solve(spread, excess)
  return Fit(float(statistic), len(possible))


def power(samples: int, pairs, level: float) -> float:
  """Chance that `fit` at a level sees that samples have another distribution.

  Args:
    samples: how many are compared with each distribution.
    pairs: of the distribution that is tested and that of the samples.
    level: false-alarm rate of the test of all pairs together.
  """
  freedom, apart = 0, 0.0
  for probs, other in pairs:
    probs, other = np.ravel(probs), np.ravel(other)
    if other[probs == 0].sum() * samples > 50:
      return 1.0  # The impossible is as good as certain to happen.
    group = groups(probs, samples)
    p, a = _grouped(group, probs), _grouped(group, other)
    freedom += len(p) - 1
    apart += samples * float(((a - p) ** 2 / p).sum())
  if not freedom or not apart:
    return level
  bound = stats.chi2.isf(level, freedom)
  return float(stats.ncx2.sf(bound, freedom, apart))


def holm(chances: Sequence[float], level: float) -> list[bool]:
  """Says which of several tests reject, by the method of Holm.

  Args:
    chances: p-value of each, in any dependence; NaN of one that says nothing.
    level: chance that any of the true hypotheses is rejected (Holm 1979,
      Scandinavian Journal of Statistics 6).
  """
  rejected = [False] * len(chances)
  known = [i for i, chance in enumerate(chances) if not np.isnan(chance)]
  known.sort(key=lambda i: chances[i])
  for done, i in enumerate(known):
    if chances[i] > level / (len(known) - done):
      break
    rejected[i] = True
  return rejected
