"""Draft lengths that may take turns on one state."""

from typing import NamedTuple

from specjax.bench.measure import Decoding
from specjax.bench.methods import Loaded, Method


class Lengths(NamedTuple):
  """What takes turns: plain decoding under 0, and the longest as a method."""

  ways: dict[int, Decoding]
  longest: Method


def of(built: Loaded, drafter: str) -> Lengths:
  """Returns the lengths of a drafter."""
  own = {m.gamma: m for m in built.methods if m.drafter == drafter}
  longest = own[max(own)]
  ways = {gamma: own[gamma].way for gamma in sorted(own)}
  # Plain steps would lose what a drafter of features reads.
  plain = {} if longest.spec.drafter.taps else {0: built.base}
  return Lengths(plain | ways, longest)
