"""One effect of many cells: its mean, and the spread between cells.

Cells are taken as a sample of those that a claim speaks of (random effects),
each with the same weight. The interval is that of Hartung and Knapp (2001,
Statistics in Medicine 20) for equal weights, Student's of the mean of cells,
and never narrower than if the cells did not differ (Roever, Knapp and Friede
2015, BMC Medical Research Methodology 15). Cells on common prompts err
together, which a spread between them does not show: their mean covariance,
from what each prompt adds to each cell, is added.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from experiments.papers.claims import Finding
from specjax.stats import fit_tests, metrics

_ONE_SIDE = (1 - metrics.LEVEL) / 2


class Pooled(NamedTuple):
  """What the cells of a claim amount to."""

  estimate: metrics.Estimate
  spread: float  # standard deviation between cells, beyond chance
  cells: int  # whose error is known


def _shared(one: Finding, other: Finding) -> float:
  """Covariance of two cells: what they have in common are prompts."""
  pairs = itertools.product(
    zip(one.prompts, one.estimate.influences, strict=False),
    zip(other.prompts, other.estimate.influences, strict=False),
  )
  return sum(
    float(a @ b)
    for (name, a), (other_name, b) in pairs
    if name == other_name and len(a) == len(b)
  )


def pool(findings: Sequence[Finding]) -> Pooled:
  """The mean of the effects of some cells, those whose error is known.

  It is 0 where all prompts say the same: they have no interval, but an effect.
  """
  known = [one for one in findings if np.isfinite(one.estimate.error)]
  count = len(known)
  if not count:
    mean = float(np.mean([one.estimate.value for one in findings]))
    return Pooled(metrics.Estimate(mean), np.nan, 0)
  if count == 1:
    return Pooled(known[0].estimate, np.nan, 1)
  estimates = [one.estimate for one in known]
  values = np.array([estimate.value for estimate in estimates])
  own = float(np.mean([estimate.error**2 for estimate in estimates]))
  pairs = itertools.combinations(known, 2)
  common = max(float(np.mean([_shared(a, b) for a, b in pairs])), 0.0)
  apart = max(float(values.var(ddof=1)), own - common)
  parts = np.array([apart / count, common])
  freedom = min((e.freedom for e in estimates if e.error), default=np.inf)
  shares = parts**2 / (count - 1, freedom)
  variance, middle = parts.sum(), float(values.mean())
  error = float(np.sqrt(variance))
  freedom = variance**2 / shares.sum() if variance else np.inf
  reach = error * metrics.student(freedom)
  pooled = metrics.Estimate(
    middle, middle - reach, middle + reach, error, freedom
  )
  spread = np.sqrt(max(values.var(ddof=1) - (own - common), 0.0))
  return Pooled(pooled, float(spread), count)


def _chance(finding: Finding) -> float:
  """The chance of so much against a claim in a cell where it just holds."""
  estimate = finding.estimate
  far = -estimate.value
  if finding.within is not None:
    far = abs(far) - finding.within
  if not estimate.error:
    return float(far <= 0)
  return float(special.stdtr(estimate.freedom, -far / estimate.error))


def contradictions(findings: Sequence[Finding]) -> int:
  """Cells that speak against their claim beyond what chance explains.

  With so many cells one that does so by chance is likely. Here the chance that
  any does is that of one side of one interval (Holm 1979).
  """
  known = [one for one in findings if one.estimate.interval is not None]
  return sum(fit_tests.holm(list(map(_chance, known)), _ONE_SIDE))
