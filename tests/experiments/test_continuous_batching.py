"""Many prompts through few rows: what is said of draft lengths by load."""

import types

import pytest

from benchmarks import continuous_batching as benchmark
from experiments.measuring.measure import Decoding
from experiments.reports import continuous_batching
from specjax import layouts, verify
from specjax.drafters import ngram, plain
from specjax.layouts import LayoutChoice
from specjax.types import Params, Spec


def row(drafter, gamma, seconds, way='continuous', chunk=4):
  return {
    'drafter': drafter,
    'gamma': gamma,
    'way': way,
    'chunk': chunk,
    'seconds_by_pass': seconds,
  }


def test_lengths_by_load_are_compared_pass_by_pass():
  """A machine that is half as fast for a pass is so for every side."""
  rows = [
    row('plain', 0, [3.0, 6.0, 3.0, 3.0, 3.0]),
    row('draft', 1, [2.0, 4.0, 2.0, 2.0, 2.0]),
    row('draft', 2, [2.2, 4.4, 2.2, 2.2, 2.2]),
    row('draft, by load', 2, [2.5, 5.0, 2.5, 2.5, 2.6]),
    row('draft', 1, [0.1, 0.1, 0.1], 'static', None),
  ]
  (line,) = continuous_batching._by_load(rows)
  assert line == (
    'draft, by load, chunks of 4: 0.79 [0.76, 0.81] times as fast as the best '
    'constant length (1), 1.19 [1.15, 1.21] times as fast as plain decoding, '
    'of 5 passes that took turns'
  )


def test_passes_that_took_no_turns_are_not_compared():
  rows = [
    {k: v for k, v in row(*one).items() if k != 'seconds_by_pass'}
    for one in (
      ('plain', 0, []),
      ('draft', 1, []),
      ('draft, by load', 1, []),
    )
  ]
  assert continuous_batching._by_load(rows) == []


@pytest.mark.parametrize('longest', ['one', 'cores'])
@pytest.mark.parametrize('base', ['one', 'cores'])
def test_lengths_that_take_turns_lie_on_the_same_devices(longest, base):
  """A state lies on one device or over all cores, and so do its steps."""
  places = {'one': None, 'cores': 'a mesh'}

  def way(gamma, place):
    target = types.SimpleNamespace(placement=places[place])
    drafter = ngram.make(gamma) if gamma else plain.make()
    return Decoding(Spec(target, drafter, verify.token), Params(place, None))

  def method(gamma, place):
    made = way(gamma, place)
    return types.SimpleNamespace(gamma=gamma, spec=made.spec, way=made)

  forms = {
    layouts.WHOLE: ('one', 3.0),
    layouts.BLOCKED: ('one', 2.0),
    layouts.CORES: ('cores', 1.0),
  }
  many = types.SimpleNamespace(
    base=way(0, base),
    baseline=LayoutChoice('', {name: s for name, (_, s) in forms.items()}),
  )
  before = types.SimpleNamespace(
    loaded=types.SimpleNamespace(
      forms={n: (way(0, p).spec.target, n) for n, (p, _) in forms.items()}
    )
  )
  other = 'one' if longest == 'cores' else 'cores'
  own = [method(1, other), method(2, longest), method(4, longest)]
  ways = benchmark._together(own, own[-1], many, before)
  assert [*ways] == [0, 2, 4]
  for one in ways.values():
    assert one.spec.target.placement == places[longest]
  if base == longest:
    assert ways[0] is many.base
  else:  # The fastest that lies there.
    fastest = {'one': layouts.BLOCKED, 'cores': layouts.CORES}[longest]
    assert ways[0].params.target == fastest
