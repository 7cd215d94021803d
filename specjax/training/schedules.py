"""How a learning rate goes from one corner to the next.

Each is a function of the corners, (step, rate) after (0, 0), that returns an
`optax` schedule. From (0, 0) to the first corner all rise linearly.
"""

import itertools
from collections.abc import Callable, Sequence

import optax

Corners = Sequence[tuple[int, float]]
# (rate at its begin, rate at its end, steps) -> the schedule of a stretch.
Stretch = Callable[[float, float, int], optax.Schedule]


def _join(corners: Corners, stretch: Stretch) -> optax.Schedule:
  pieces = [optax.linear_schedule(0.0, corners[0][1], corners[0][0])]
  pieces += [
    stretch(low, high, end - begin)
    for (begin, low), (end, high) in itertools.pairwise(corners)
  ]
  return optax.join_schedules(pieces, [end for end, _ in corners[:-1]])


def linear(corners: Corners) -> optax.Schedule:
  """A straight line from corner to corner."""
  return _join(corners, optax.linear_schedule)


def cosine(corners: Corners) -> optax.Schedule:
  """Half a wave from corner to corner (Loshchilov and Hutter, 1608.03983)."""

  def stretch(low, high, steps):
    wave = optax.cosine_decay_schedule(1.0, steps)
    return lambda step: high + (low - high) * wave(step)

  return _join(corners, stretch)


def hold(corners: Corners) -> optax.Schedule:
  """The rate of a corner up to the next one, then that one's."""
  return _join(corners, lambda low, high, steps: lambda step: low)
