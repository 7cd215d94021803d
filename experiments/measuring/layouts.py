"""Which layout of weights each part of an experiment takes.

Plain decoding races with the very loop, on whole texts; passes of a draft and
of a target that scores race alone, see `specjax.layouts`.

A loop is timed only long after its prompt was prefilled: the first steps behind
a prefill take longer, and would favour what takes fewer of them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from experiments.measuring import costs, measure
from specjax import layouts
from specjax.layouts import Arranged, LayoutChoice


class Chooser(Protocol):
  """Decides which layout something takes."""

  def plain(self, ways: Mapping[str, measure.Decoding]) -> LayoutChoice:
    """Of plain decoding, which there is in each of these layouts."""

  def tokens(
    self, names: Sequence[str], make: Callable[[str], Arranged], count: int
  ) -> LayoutChoice:
    """Of passes over so many tokens of every text; `make` takes a layout."""


class Guess:
  """Blocks wherever there are any: for whom time does not matter."""

  def plain(self, ways):
    return self.tokens(ways, None, 1)

  def tokens(self, names, make, count):
    del make, count  # Unused.
    blocked = layouts.BLOCKED in names
    return LayoutChoice(layouts.BLOCKED if blocked else layouts.WHOLE)


class Race:
  """The layout of the least median time, of turns that take turns."""

  def __init__(
    self,
    job: measure.Job,
    turns: int = layouts.TURNS,
    done: Callable[[str], Any] = lambda what: None,
  ):
    """Takes a greedy job, the number of turns, and what is told of a race."""
    self.job, self.turns, self.done = job, turns, done

  def plain(self, ways):
    if len(ways) == 1:
      return LayoutChoice(*ways)
    self.done('plain decoding')
    for way in ways.values():
      measure.decode(way, self.job, 1, timed=False)
    return layouts.fastest(
      {
        name: functools.partial(costs.seconds_per_step, way, self.job)
        for name, way in ways.items()
      },
      self.turns,
    )

  def tokens(self, names, make, count):
    if len(names) == 1:
      return LayoutChoice(*names)
    self.done(f'passes over {count} tokens')
    arranged, job = {name: make(name) for name in names}, self.job
    encodes = arranged[layouts.WHOLE].model.encode is not None
    begun = 1 if encodes else max(map(len, job.prompts))
    buffer = layouts.Buffer(
      len(job.prompts),
      job.slots,
      begun + int(np.max(job.new_tokens)) // 2,
      job.source_slots,
    )
    return layouts.race(arranged, buffer, count, self.turns)
