"""What is compiled before time is taken: as many methods as fit at once."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from specjax.bench import costs, measure
from specjax.bench.methods import Loaded, Method, singles
from specjax.types import Spec

_AT_ONCE = 4  # methods that are compiled before programs are counted

PLAIN = ('', None)

# Methods with their loops and the replays of them.
Timed = dict[Method, tuple[measure.Decoding, Spec]]


class Compiled(NamedTuple):
  """Methods that may be timed in turns."""

  timed: Timed
  average: float  # programs that one of their loops compiled


def loops(
  built: Loaded,
  job: measure.Job,
  wide: measure.Job,
  known: Callable[[tuple], bool],
  timed: Timed,
) -> dict:
  """Whatever some methods run, with its job, by what tells programs apart.

  Drafters that differ in their parameters alone share a program, but on a mesh
  it is remembered for each.

  Args:
    built: what they are of.
    job: one batch of prompts.
    wide: all prompts of a domain, on which alpha is measured.
    known: whether something needs no program: the alpha of a drafter and the
      parts of its step, or PLAIN.
    timed: the methods.
  """
  ways: dict = {}
  if not known(PLAIN):
    ways[PLAIN] = built.base, job
  for m, pair in timed.items():
    for way, its in costs.to_compile(*pair, job, ('whole', 'scored')):
      ways[way.spec, m.drafter] = way, its
  for (drafter, parts), m in singles(timed).items():
    if not known((drafter, parts)):
      single = m.single._replace(parts=parts)
      ways[(single.spec, parts), drafter] = single, wide
  return ways


def fill(
  methods: Sequence[Method],
  job: measure.Job,
  loops_of: Callable[[Timed], dict],
  bar,
) -> Compiled:
  """Compiles methods until there are no more, or programs crowd the process.

  Args:
    methods: to begin with the first.
    job: one batch of prompts.
    loops_of: what some of them run; see `loops`.
    bar: of progress.
  """
  programs, timed, done = 0, {}, {}
  while len(timed) < len(methods) and not (timed and measure.crowded()):
    some = methods[len(timed) : len(timed) + _AT_ONCE]
    begun = {m: (m.way, costs.replay(m.way, job)) for m in some}
    new = {n: way for n, way in loops_of(begun).items() if n not in done}
    bar.total += len(new)
    programs += measure.compile_all(list(new.values()), bar.update)
    timed |= begun
    done |= new
  return Compiled(timed, programs / len(done))
