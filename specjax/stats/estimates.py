"""Estimates with 95% intervals that cover 95%.

Sums over few units (prompts, batches) are skewed, and the middle 95% of
resampled values holds the truth in 0.73 to 0.92 of the cases only. Here the
standard error is that of the jackknife (Efron and Stein 1981), quantiles are
Student's, and the skewness of the units moves the ends apart by the cubic
transformation of Hall (1992, J. R. Statist. Soc. B 54): the end that he moves
outwards is his, the other lies midway, because few units do not show their
skewness well. Positive ratios are treated on the log scale.
`python -m experiments.coverage results` shows what this covers.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

LEVEL = 0.95
RESAMPLES = 2000  # of medians
FEWEST = 5  # units that an interval is made from
_ROUNDING = 1e-9  # that a value may lie beyond what is possible
_FARTHEST = 2.0  # times Student's: no end of Hall's lies beyond


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A value and its 95% interval; NaN where none can be given.

  Attributes:
    value: of the statistic.
    low: end of the interval.
    high: the other.
    error: standard error.
    freedom: its degrees of freedom.
    influences: for each sample of units what they add to the value, [n]; the
      sum of their squares is its part of the squared error.
  """

  value: float
  low: float = np.nan
  high: float = np.nan
  error: float = np.nan
  freedom: float = np.nan
  influences: tuple[np.ndarray, ...] = dataclasses.field(
    default=(), compare=False, repr=False
  )

  @property
  def interval(self) -> list[float] | None:
    ends = [self.low, self.high]
    return ends if np.isfinite(ends).all() else None

  def scaled(self, factor: float, shift: float = 0.0) -> 'Estimate':
    """Returns the estimate times a positive `factor`, plus `shift`."""
    return Estimate(
      factor * self.value + shift,
      factor * self.low + shift,
      factor * self.high + shift,
      factor * self.error,
      self.freedom,
      tuple(factor * i for i in self.influences),
    )

  def clipped(self, least: float, most: float) -> 'Estimate':
    """Returns the estimate with its value and ends kept within a range.

    A value beyond stays what it is, with ends that reach as far: of rounding,
    or of counts that are wrong.
    """
    within = min(least, self.value), max(most, self.value)
    low, high = np.clip([self.low, self.high], *within)
    return dataclasses.replace(self, low=float(low), high=float(high))


def fields(**estimates: Estimate | None) -> dict[str, Any]:
  """Returns estimates as a row has them: intervals have _ci behind the name."""
  found: dict[str, Any] = {}
  for name, one in estimates.items():
    found[name], found[f'{name}_ci'] = one and one.value, one and one.interval
  return found


def enough(units: float, fewest: int = FEWEST) -> bool:
  """Returns whether so many units allow an interval."""
  return units >= fewest


class Spread(NamedTuple):
  """The part of one sample in the uncertainty of a statistic."""

  down: float  # standard error as seen below the value
  up: float
  variance: float
  third: float  # third central moment
  freedom: float
  influence: np.ndarray


class Sample(Protocol):
  """Numbers that a statistic takes, and how they might have come out."""

  values: Sequence[Any]  # one of each argument
  variants: Sequence[np.ndarray]  # [m] of each argument
  size: float  # units

  def spread(self, value: float, variants: np.ndarray) -> Spread:
    """Returns the statistic and the statistic of each variant, [m]."""


class Sums:
  """Sums over units; the variants leave one unit out each."""

  def __init__(self, *columns):
    """Takes columns [n], a value per unit.

    Units that add to no sum, such as a prompt without a step of the kind, are
    left out.
    """
    if len({np.shape(c) for c in columns}) != 1 or not np.size(columns[0]):
      raise ValueError('columns must be vectors of one length of at least 1')
    table = np.array(columns, float)
    self.used = table.any(0)
    table = table[:, self.used]
    self.size = table.shape[1]
    self.values = table.sum(1)
    self.variants = self.values[:, None] - table

  def spread(self, value: float, variants: np.ndarray) -> Spread:
    del value  # Unused.
    n = len(variants)
    away = (n - 1) * (variants.mean() - variants)
    influence = np.zeros(len(self.used))
    influence[self.used] = away / np.sqrt(n * (n - 1))
    variance = float((influence**2).sum())
    error = float(np.sqrt(variance))
    third = float((away**3).sum() / (n * (n - 1) * (n - 2)))
    return Spread(error, error, variance, third, n - 1, influence)


class Draws:
  """Numbers that were drawn anew many times, such as medians of turns."""

  def __init__(self, values, variants, freedom: float = np.inf):
    """Takes the numbers, draws [m] of each, and degrees of freedom."""
    self.values, self.variants, self.size = values, variants, freedom + 1

  def spread(self, value: float, variants: np.ndarray) -> Spread:
    # The middle of the draws ends where normally distributed errors reach.
    low, high = np.percentile(variants, [50 - 50 * LEVEL, 50 + 50 * LEVEL])
    down, up = (max(x, 0.0) / student() for x in (value - low, high - value))
    return Spread(down, up, variants.var(), 0.0, self.size - 1, np.empty(0))


def medians(*columns) -> Draws:
  """Medians over a few units, such as turns; see `Sums` for the columns."""
  table = np.array(columns, float)  # [columns, n]
  n = table.shape[1]
  rows = np.random.default_rng(1).integers(n, size=(RESAMPLES, n))
  return Draws(np.median(table, 1), np.median(table[:, rows], 2), n - 1)


def student(freedom: float = np.inf) -> float:
  """Returns the reach of an interval without skewness, in errors."""
  from scipy import special  # Takes a tenth of a second, of every start.

  chance = (1 + LEVEL) / 2
  if np.isinf(freedom):
    return float(special.ndtri(chance))
  return float(special.stdtrit(freedom, chance))


def _hall(quantile: float, skewness: float) -> float:
  """Quantile of a studentised statistic, from that of a symmetric one."""
  if abs(skewness) < 1e-6:
    return quantile
  cube = 1 + skewness * (quantile - skewness / 6)
  return 3 * (np.cbrt(cube) - 1) / skewness


def quantiles(skewness: float, freedom: float) -> tuple[float, float]:
  """Between what a studentised statistic lies with probability `LEVEL`.

  Args:
    skewness: of the statistic, not of its units.
    freedom: degrees of freedom of its error.
  """
  top = student(freedom)

  def end(skewed):
    return min(max(skewed, (skewed + top) / 2), _FARTHEST * top)

  return -end(-_hall(-top, skewness)), end(_hall(top, skewness))


def _variants(statistic, samples: Sequence[Sample], place: int) -> np.ndarray:
  """Returns the statistic of each variant of one sample."""
  arguments = [
    x
    for i, sample in enumerate(samples)
    for x in (sample.variants if i == place else sample.values)
  ]
  values = np.asarray(statistic(*arguments), float)
  return np.broadcast_to(values, (len(samples[place].variants[0]),))


def _possible(value: float, least: float, most: float) -> float:
  """Removes the rounding by which a value leaves its range."""
  inside = min(max(value, least), most)
  if abs(value - inside) > _ROUNDING * max(1.0, abs(inside)):
    raise ValueError(
      f'the value is {value:g}, which must be from {least:g} to {most:g}: '
      'check the numbers that it is made of'
    )
  return inside


def combine(
  statistic: Callable[..., Any],
  *samples: Sample,
  positive: bool = False,
  within: tuple[float, float] = (-np.inf, np.inf),
  fewest: int = FEWEST,
) -> Estimate:
  """Estimates a function of samples that are independent of each other.

  Squared errors of the samples add up on either side of the value (Donner and
  Zou 2012, the method of variance estimates recovery), and so do their third
  moments; degrees of freedom are those of Welch (1947).

  Args:
    statistic: takes the numbers of all samples, in order; each may be an
      array of variants.
    *samples: `Sums` or `Draws`.
    positive: of a statistic that is: it is treated on the log scale.
    within: values that are possible, but for rounding.
    fewest: units of each sample that an interval is made from.

  Returns:
    The estimate; NaN where the statistic is not defined, and no interval
    where the units of a sample are not `enough` for one, or all say the same:
    units without spread do not tell how large it is.

  Raises:
    ValueError: the value is not possible.
  """
  with np.errstate(divide='ignore', invalid='ignore'):
    value = float(statistic(*(x for s in samples for x in s.values)))
    if not np.isfinite(value):
      return Estimate(np.nan)
    value = _possible(value, *within)
    if not all(enough(s.size, fewest) for s in samples):
      return Estimate(value)
    variants = [_variants(statistic, samples, i) for i in range(len(samples))]
  if not all(np.isfinite(f).all() for f in variants):
    return Estimate(value)
  middle, unit = value, 1.0
  back: Callable[[Any], Any] = float
  if positive and value > 0 and all((f > 0).all() for f in variants):
    middle, unit, back = np.log(value), value, np.exp
    variants = [np.log(f) for f in variants]
  parts = [s.spread(middle, f) for s, f in zip(samples, variants, strict=True)]
  variance = sum(p.variance for p in parts)
  if variance <= (1e-12 * middle) ** 2:
    return Estimate(value, error=0.0)
  shares = sum(p.variance**2 / p.freedom for p in parts)
  freedom = float(variance**2 / shares) if shares else np.inf
  skewness = sum(p.third for p in parts) / variance**1.5
  least, most = quantiles(skewness, freedom)
  down = most * float(np.linalg.norm([p.down for p in parts]))
  up = least * float(np.linalg.norm([p.up for p in parts]))
  low, high = np.clip([back(middle - down), back(middle - up)], *within)
  return Estimate(
    value,
    float(low),
    float(high),
    float(unit * np.sqrt(variance)),
    freedom,
    tuple(unit * p.influence for p in parts),
  )


def estimate(statistic: Callable[..., Any], *columns, **more) -> Estimate:
  """Estimates a function of sums over units.

  Args:
    statistic: takes one sum per column (numbers, or arrays of them).
    *columns: [n] each, a value per unit (a prompt, or a batch of prompts).
      The values of a unit belong together, so a comparison of two methods on
      the same prompts is paired.
    **more: of `combine`.
  """
  return combine(statistic, Sums(*columns), **more)


def ratio(numerator, denominator, most: float = np.inf) -> Estimate:
  """Ratio of sums over units of what is not negative; at most `most`.

  Raises:
    ValueError: it is more, or negative.
  """
  return estimate(
    lambda a, b: a / b,
    numerator,
    denominator,
    positive=True,
    within=(0.0, most),
  )
