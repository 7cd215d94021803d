"""Draft lengths that may take turns on one state, each in its layout.

A state lies on one device or over the cores of a mesh, and so must every step
of it: lengths on one device take turns among themselves, and so do those over
the cores. Some layouts are for few tokens at once, so there may be fewer
lengths over the cores. Whichever side has the fastest of its lengths is taken.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from specjax.bench import costs, measure
from specjax.bench.loading.methods import Built, Method
from specjax.bench.measure import Decoding
from specjax.models import layouts
from specjax.stats import theory

# Of a drafted token. It decides between sides, whose steps differ by much more
# than what a length is worth does within a side.
_ACCEPTED = 0.7
_TURNS = 3


class Lengths(NamedTuple):
  """What takes turns: plain decoding under 0, and the longest as a method."""

  ways: dict[int, Decoding]
  longest: Method


def of(built: Built, drafter: str) -> Lengths | None:
  """The lengths of a drafter; None where it has none in these layouts."""
  own = {m.gamma: m for m in built.methods if m.drafter == drafter}
  if not own:
    return None
  longest = own[max(own)]
  ways = {gamma: own[gamma].way for gamma in sorted(own)}
  # Plain steps would lose what a drafter of features reads.
  plain = {} if longest.spec.drafter.taps else {0: built.base}
  return Lengths(plain | ways, longest)


def seconds(lengths: Lengths, job: measure.Job) -> dict[int, float]:
  """The least of a step of each length, of turns that take turns."""
  for way in lengths.ways.values():
    measure.decode(way, job, 1, timed=False)
  turns = [
    {n: costs.seconds_per_step(way, job) for n, way in lengths.ways.items()}
    for _ in range(_TURNS)
  ]
  return {n: min(turn[n] for turn in turns) for n in lengths.ways}


def worth(seconds_of: dict[int, float]) -> float:
  """Tokens a second of the best length, at an acceptance of every day."""
  return max(
    theory.tokens_per_call(_ACCEPTED, n) / s for n, s in seconds_of.items()
  )


def together(
  before: Built,
  drafter: str,
  job: measure.Job,
  take: Callable[[Lengths, measure.Job], dict[int, float]] = seconds,
) -> Lengths:
  """Lengths of a drafter that take turns, where they are the fastest.

  Args:
    before: what was built, before its layouts were measured.
    drafter: its name.
    job: a batch that steps are timed with.
    take: times a step of each length.
  """
  assert before.loaded is not None
  sides: Sequence[bool] = (False,)
  if layouts.CORES in layouts.allowed(before.loaded.forms, len(job.prompts)):
    sides = False, True
  found = [of(before.race(over_cores=side), drafter) for side in sides]
  there = [one for one in found if one is not None]
  if len(there) == 1:
    return there[0]
  return max(there, key=lambda one: worth(take(one, job)))
