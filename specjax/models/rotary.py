"""Rotary positions, and the ways in which they were stretched to longer texts.

A scaling is a function of (base, turned entries, longest sequence of the run)
that returns the frequencies [dim / 2] and what sine and cosine are multiplied
by. It is computed once, in double precision, when a model is traced.

Two of them depend on the length of the text. Recomputing them as a text grows
would make the keys in the cache those of another model, so they are fixed by
the longest sequence of the run; `generate.start` refuses longer ones.
"""

import dataclasses
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

Scaling = Callable[[float, int, int], tuple[np.ndarray, float]]


def frequencies(theta: float, dim: int) -> np.ndarray:
  """Unscaled frequencies [dim / 2], radians per token."""
  return theta ** (-np.arange(0, dim, 2) / dim)


def turns(positions, frequency, amplitude=1.0):
  """Sine and cosine [B, T, F] of positions [B, T].

  Args:
    positions: [B, T].
    frequency: [F] radians per token.
    amplitude: of both.
  """
  angle = positions[..., None] * jnp.asarray(frequency, positions.dtype)
  sin, cos = jnp.sin(angle), jnp.cos(angle)
  return (sin, cos) if amplitude == 1 else (sin * amplitude, cos * amplitude)


def rotate(x, positions, frequency, amplitude=1.0, by_product=False):
  """Rotary positions (Su et al., arXiv:2104.09864), halves as in Llama.

  Args:
    x: [B, T, ..., D]; the first 2 F entries of D are turned.
    positions: [B, T].
    frequency: [F] radians per token.
    amplitude: of sine and cosine.
    by_product: exchange the halves by a product with ones and zeros, see
      `devices.DeviceForm`. Finite numbers are the same.
  """
  half = len(frequency)
  dtype = jnp.promote_types(x.dtype, jnp.float32)
  shape = *positions.shape, *(1,) * (x.ndim - 3), half
  sin, cos = (
    turn.reshape(shape)
    for turn in turns(positions.astype(dtype), frequency, amplitude)
  )
  if by_product:
    rest = x.shape[-1] - 2 * half
    swap = np.pad(np.roll(np.eye(2 * half), half, 1), (0, rest))
    swapped = jnp.matmul(x, swap.astype(x.dtype), precision='highest')
    unturned = jnp.ones((*shape[:-1], rest), dtype)
    cos = jnp.concatenate([cos, cos, unturned], -1)
    sin = jnp.concatenate([-sin, sin, jnp.zeros_like(unturned)], -1)
    return (x * cos + swapped * sin).astype(x.dtype)
  a, b, rest = jnp.split(x, (half, 2 * half), -1)
  a, b = a.astype(dtype), b.astype(dtype)
  turned = [a * cos - b * sin, b * cos + a * sin]
  parts = [part.astype(x.dtype) for part in turned]
  return jnp.concatenate([*parts, rest] if rest.shape[-1] else parts, -1)


@dataclasses.dataclass(frozen=True)
class Linear:
  """All frequencies divided by a factor (Chen et al., arXiv:2306.15595)."""

  factor: float

  def __call__(self, theta, dim, longest):
    return frequencies(theta, dim) / self.factor, 1.0


@dataclasses.dataclass(frozen=True)
class Proportional:
  """The highest frequencies alone; other entries stay (Gemma 4).

  Attributes:
    part: of the frequencies.
    factor: that they are divided by.
  """

  part: float
  factor: float = 1.0

  def __call__(self, theta, dim, longest):
    kept = np.arange(dim // 2) < int(self.part * dim // 2)
    return np.where(kept, frequencies(theta, dim) / self.factor, 0), 1.0


@dataclasses.dataclass(frozen=True)
class Dynamic:
  """A base that grows with the text once it is longer than in training.

  The text's length is taken to be the longest of the run from its first token
  on. Up to `trained` tokens nothing is scaled.

  Attributes:
    factor: of the growth.
    trained: longest sequence in training.
  """

  factor: float
  trained: int

  def __call__(self, theta, dim, longest):
    ratio = max(longest, self.trained) / self.trained
    growth = self.factor * ratio - (self.factor - 1)
    return frequencies(theta * growth ** (dim / (dim - 2)), dim), 1.0


@dataclasses.dataclass(frozen=True)
class Llama3:
  """Low frequencies divided by a factor, high ones kept, blended between.

  Attributes:
    factor: of the division.
    low: turns in `original` tokens below which a frequency is low.
    high: turns from which it is high.
    original: longest sequence before the change.
  """

  factor: float
  low: float
  high: float
  original: int

  def __call__(self, theta, dim, longest):
    plain = frequencies(theta, dim)
    turns = self.original * plain / (2 * math.pi)
    share = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
    return plain * (share + (1 - share) / self.factor), 1.0


@dataclasses.dataclass(frozen=True)
class Yarn:
  """YaRN (Peng et al., arXiv:2309.00071).

  Attributes:
    factor: by which low frequencies are divided.
    original: longest sequence before the change.
    fast: turns in `original` tokens from which a frequency is kept.
    slow: turns up to which it is divided.
    amplitude: of sine and cosine.
    truncate: whether the bounds are rounded to whole frequencies.
  """

  factor: float
  original: int
  fast: float = 32.0
  slow: float = 1.0
  amplitude: float = 1.0
  truncate: bool = True

  def __call__(self, theta, dim, longest):

    def index_of(turns):
      """Returns the index, not whole, of the frequency that turns so often."""
      wave = self.original / (turns * 2 * math.pi)
      return dim * math.log(wave) / (2 * math.log(theta))

    low, high = index_of(self.fast), index_of(self.slow)
    if self.truncate:
      low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low or 0.001
    divided = np.clip((np.arange(dim // 2) - low) / width, 0, 1)
    plain = frequencies(theta, dim)
    return plain * (1 - divided + divided / self.factor), self.amplitude


@dataclasses.dataclass(frozen=True)
class LongRope:
  """LongRoPE (Ding et al., arXiv:2402.13753): one factor for each frequency.

  Whether the factors for short or for long texts are used is decided by the
  longest sequence of the run, not by the text so far. A run within `original`
  tokens is the one that a reader with a growing text would give.

  Attributes:
    short: divisors [dim / 2] of a run of at most `original` tokens.
    long: divisors of a longer one.
    original: longest sequence before the change.
    trained: longest sequence after it.
    amplitude: of sine and cosine, in either case.
  """

  short: tuple[float, ...]
  long: tuple[float, ...]
  original: int
  trained: int
  amplitude: float = 1.0

  def __call__(self, theta, dim, longest):
    divisors = self.long if longest > self.original else self.short
    if len(divisors) != dim // 2:
      raise ValueError(
        f'{len(divisors)} factors for {dim // 2} rotary frequencies; there '
        'must be one for each'
      )
    return frequencies(theta, dim) / np.array(divisors), self.amplitude
