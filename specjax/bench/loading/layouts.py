"""Which layout of weights each part of an experiment takes.

Plain decoding races with the very loop, on whole texts; passes of a draft and
of a target that scores race alone, see `specjax.models.layouts`.

A loop is timed only long after its prompt was prefilled: the first steps behind
a prefill take longer, and would favour what takes fewer of them.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from specjax.bench import costs, measure
from specjax.bench.loading import drafter_loading
from specjax.bench.loading.loaded import Loaded
from specjax.models import layouts
from specjax.models.layouts import Arranged, LayoutChoice
from specjax.types import Drafter, LoadedDrafter


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
    in_blocks = layouts.tried()[0]
    return LayoutChoice(in_blocks if in_blocks in names else layouts.WHOLE)


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
    encodes = arranged[names[0]].model.encode is not None
    begun = 1 if encodes else max(map(len, job.prompts))
    buffer = layouts.Buffer(
      len(job.prompts),
      job.slots,
      begun + int(np.max(job.new_tokens)) // 2,
      job.source_slots,
    )
    return layouts.race(arranged, buffer, count, self.turns)


class Layouts:
  """The choices for the parts of methods, each made once."""

  def __init__(self, loaded: Loaded, choose: Chooser):
    self.loaded, self.choose = loaded, choose
    self.batch = loaded.plan.batch
    self.forms = {
      name: loaded.forms[name]
      for name in layouts.allowed(loaded.forms, self.batch)
      if loaded.over_cores in (None, name == layouts.CORES)
    }
    self._scoring: dict[int, LayoutChoice] = {}
    self._drafting: dict[str, LayoutChoice] = {}

  def scoring(self, drafter: Drafter) -> LayoutChoice:
    """Of the target that scores what a drafter proposes."""
    rows = drafter.nodes + 1
    if rows not in self._scoring:
      names = layouts.allowed(self.forms, self.batch * rows)
      made = self.choose.tokens(names, self.forms.__getitem__, rows)
      self._scoring[rows] = made
    return self._scoring[rows]

  def watching(self) -> str:
    """Of the target while drafters look on, in one batch of all prompts."""
    there = layouts.NATIVE in self.forms
    return layouts.NATIVE if there else layouts.WHOLE

  def draft(self, name: str, layout: str) -> LoadedDrafter:
    """A drafter for the target in a layout, which its weights take, too."""
    loaded = self.loaded
    if layout == layouts.WHOLE:
      return loaded.drafts[name]
    if (name, layout) not in loaded.others:
      target = dataclasses.replace(
        loaded.target, model=self.forms[layout].model
      )
      read = drafter_loading.load(loaded.plan.drafters[name], target)
      loaded.others[name, layout] = read
    return loaded.others[name, layout]

  def pair(
    self, name: str, drafter: Drafter
  ) -> tuple[LayoutChoice, LayoutChoice | None] | None:
    """Of the target and of a draft: together they make the shortest step.

    One program runs on one device or on the devices of one mesh, so both lie
    over the cores, or neither does. None: no layout is for so many tokens.
    """
    if not layouts.allowed(self.forms, self.batch * (drafter.nodes + 1)):
      return None
    scoring, drafting = self.scoring(drafter), self.drafting(name)
    if drafting is None:
      return scoring, None
    target, draft = scoring.measured, drafting.measured

    def seconds(pair: tuple[str, str]) -> float:
      return target[pair[0]] + drafter.depth * draft[pair[1]]

    pairs = [
      (one, other)
      for one, other in itertools.product(target, draft)
      if (one == layouts.CORES) == (other == layouts.CORES)
    ]
    best, fitting = min(pairs, key=seconds)
    return (
      dataclasses.replace(scoring, layout=best),
      dataclasses.replace(drafting, layout=fitting),
    )

  def drafting(self, name: str) -> LayoutChoice | None:
    """Of a draft that is a model of its own, which reads token by token."""
    if self.loaded.drafts[name].draft is None:
      return None

    def make(layout: str) -> Arranged:
      draft = self.draft(name, layout).draft
      assert draft is not None
      return Arranged(*draft)

    if name not in self._drafting:
      names = layouts.allowed(self.forms, self.batch)
      self._drafting[name] = self.choose.tokens(names, make, 1)
    return self._drafting[name]
