"""The law of a function of uniform coins, found by calling it.

Samplers compare coins with thresholds, so the cube of their coins falls into
boxes on which the tokens are the same. Boxes are split where two points of one
differ, at a cut that is found by bisection. A race, the token with the largest
w / E for exponential E, has no boxes: its weights w are found pair by pair.

  accept coin   0 ------------ 2/3 ----- 1
  draw coin     0 -- 1/3 ----- 1 | 0 --- 1       three boxes, three tokens

Functions are generators that yield coins [k, C] and are sent what comes of
them, so that many laws share one call of a sampler.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np

_HALVES = 24  # of an interval
_MOST = 64  # boxes of a law
_FIRST, _LAST = 1e-5, 36.0  # exponentials that win and that lose any race
NEAR = 1e-5  # of a cut, which rounding moves

Ask = Generator[np.ndarray, np.ndarray, Any]


class Coins(NamedTuple):
  """Columns of coins: `single` thresholds, then `races` of V each."""

  single: int
  races: int
  vocab: int

  @property
  def width(self) -> int:
    return self.single + self.races * self.vocab


def exponentials(uniforms: np.ndarray) -> np.ndarray:
  """Exponential numbers from uniform ones, in float64."""
  uniforms = np.asarray(uniforms, np.float64)
  return -np.log1p(-np.minimum(uniforms, 1 - 2.0**-53))


class Cell(NamedTuple):
  """A box of the single coins: one text, or one for each winner of a race."""

  low: np.ndarray  # [single]
  high: np.ndarray
  outcomes: np.ndarray  # [1] or [V]
  race: int = -1
  weights: np.ndarray = np.ones(1)  # [1] or [V], that add up to 1

  @property
  def mass(self) -> float:
    return float(np.prod(self.high - self.low))


def _rows(space: Coins, points: np.ndarray, race, race_at: int = -1):
  """Coins [k, C] of points [k, single] and exponentials of one or all races."""
  usual = np.ones((space.races, space.vocab))
  usual[:, 0] = _FIRST
  usual[race_at if race_at >= 0 else slice(None)] = race
  tail = np.broadcast_to(-np.expm1(-usual.ravel()), (len(points), usual.size))
  return np.concatenate([points, tail], 1)


def _favour(space: Coins, token: int) -> np.ndarray:
  return np.where(np.arange(space.vocab) == token, _FIRST, 1.0)


def _signatures(space: Coins, points: np.ndarray) -> Ask:
  """Outcomes at points [k, single], with each token ahead in every race."""
  if not space.races:
    return (yield points)[:, None]
  tokens = range(space.vocab)
  rows = [_rows(space, points, _favour(space, token)) for token in tokens]
  return (yield np.concatenate(rows)).reshape(space.vocab, -1).T


def _bisect(make: Callable, low: float, high: float, same: int) -> Ask:
  """The place between two numbers where the outcome is `same` no more."""
  for _ in range(_HALVES):
    middle = (low + high) / 2
    seen = yield make(middle)
    low, high = (middle, high) if seen[0] == same else (low, middle)
  return (low + high) / 2


def _race(space: Coins, point: np.ndarray, at: int, won: np.ndarray) -> Ask:
  """Weights [V] of a race at a point, given what comes of each favourite."""

  def row(exponential):
    return _rows(space, point[None], exponential, at)

  vocab = np.arange(space.vocab)
  level = (yield row(np.ones(space.vocab)))[0]
  late = [row(np.where(vocab == token, _LAST, 1.0)) for token in vocab]
  best = int(np.flatnonzero((yield np.concatenate(late)) != level)[0])
  weights = np.zeros(space.vocab)
  weights[best] = 1
  for token in np.flatnonzero(won != level):

    def against(ratio, token=token):
      ahead = np.where(vocab == token, np.exp(ratio), _LAST)
      return row(np.where(vocab == best, 1.0, ahead))

    weights[token] = np.exp(
      (yield from _bisect(against, np.log(_FIRST), 3.0, won[token]))
    )
  return weights / weights.sum()


def _finish(space: Coins, low, high, point, seen: np.ndarray) -> Ask:
  """The cell of a box; None where it hangs on several races."""
  if (seen == seen[0]).all():
    return Cell(low, high, seen[:1])
  rows = [
    _rows(space, point[None], _favour(space, token), at)
    for at in range(space.races)
    for token in range(space.vocab)
  ]
  won = (yield np.concatenate(rows)).reshape(space.races, space.vocab)
  moved = np.flatnonzero((won != won[:, :1]).any(1))
  if len(moved) != 1:
    return None
  at = int(moved[0])
  weights = yield from _race(space, point, at, won[at])
  return Cell(low, high, won[at], at, weights)


def _cut(space: Coins, points: np.ndarray, seen: np.ndarray) -> Ask:
  """An axis and a place on it that part the first point from another one."""
  other = int(np.flatnonzero((seen != seen[0]).any(1))[0])
  a, b = points[0], points[other]
  # From a to b, one coin after the other.
  turned = np.arange(space.single) < np.arange(space.single + 1)[:, None]
  path = np.where(turned, b, a)
  on = yield from _signatures(space, path)
  axis = int(np.flatnonzero((on[1:] != on[:-1]).any(1))[0])
  favourite = int(np.flatnonzero(on[axis] != on[axis + 1])[0])

  def make(value):
    point = path[[axis]]
    point[0, axis] = value
    race = _favour(space, favourite) if space.races else 0
    return _rows(space, point, race)

  same = on[axis, favourite]
  return axis, (yield from _bisect(make, a[axis], b[axis], same))


def find(space: Coins, random: np.random.Generator, tries: int) -> Ask:
  """Returns the cells of a function; None where it has too many, or none.

  Args:
    space: the coins.
    random: chooses where the function is tried.
    tries: points of a box that must agree. A slice of 2 / tries of a box is
      always seen.
  """
  boxes = [(np.zeros(space.single), np.ones(space.single))]
  cells: list[Cell] = []
  while boxes:
    low, high = boxes.pop()
    place = random.permuted(
      np.tile(np.arange(tries)[:, None], space.single), axis=0
    )
    place = (place + random.random(place.shape)) / tries
    points = low + (high - low) * place
    seen = yield from _signatures(space, points)
    if (seen == seen[0]).all():
      cell = yield from _finish(space, low, high, points[0], seen[0])
      if cell is None:
        return None
      cells.append(cell)
      continue
    axis, at = yield from _cut(space, points, seen)
    for side in (0, 1):
      box = low.copy(), high.copy()
      box[side][axis] = at
      boxes.append(box)
    if len(boxes) + len(cells) > _MOST:
      return None
  return cells


def run(tasks: list[Ask], call: Callable) -> list:
  """Runs generators side by side.

  Args:
    tasks: that yield coins.
    call: (task [k], coins [k, C]) -> outcomes [k].

  Returns:
    What each of them returns.
  """
  results: list = [None] * len(tasks)
  waiting = {i: next(task) for i, task in enumerate(tasks)}
  while waiting:
    sizes = [len(coins) for coins in waiting.values()]
    which = np.repeat(list(waiting), sizes)
    seen = call(which, np.concatenate(list(waiting.values())))
    parts = np.split(seen, np.cumsum(sizes)[:-1])
    for i, part in zip(list(waiting), parts, strict=True):
      try:
        waiting[i] = tasks[i].send(part)
      except StopIteration as end:
        results[i] = end.value
        del waiting[i]
  return results


def law(cells: list[Cell], size: int) -> np.ndarray:
  """The chance [size] of every outcome."""
  chance = np.zeros(size)
  for cell in cells:
    np.add.at(chance, cell.outcomes, cell.mass * cell.weights)
  return chance


def predict(space: Coins, cells: list[Cell], coins: np.ndarray) -> np.ndarray:
  """Outcomes [k] of coins [k, C]; -1 where rounding decides."""
  expected = np.full(len(coins), -1)
  single = coins[:, : space.single]
  races = exponentials(coins[:, space.single :])
  for cell in cells:
    inside = ((single > cell.low + NEAR) & (single < cell.high - NEAR)) | (
      # Nothing is cut at the ends of the coins.
      ((cell.low == 0) & (single <= NEAR))
      | ((cell.high == 1) & (single >= 1 - NEAR))
    )
    at = np.flatnonzero(inside.all(1))
    if cell.race < 0:
      expected[at] = cell.outcomes[0]
      continue
    each = races.reshape(len(coins), space.races, space.vocab)[at, cell.race]
    with np.errstate(divide='ignore'):
      finish = each / cell.weights
    order = np.sort(finish, 1)
    clear = order[:, 1] > order[:, 0] * (1 + NEAR)
    expected[at] = np.where(clear, cell.outcomes[finish.argmin(1)], -1)
  return expected
