"""Many prompts through few rows: what is said of draft lengths by load."""

import dataclasses
import json
import types

import pytest

from experiments import continuous_batching as benchmark
from experiments import continuous_batching_report, lengths
from specjax import verify
from specjax.bench.config import ManyPrompts, Prompts
from specjax.bench.measure import Decoding
from specjax.drafters import ngram, plain
from specjax.types import Params, Spec
from tests.support import tiny

BY_LOAD = 'draft, by load'


def row(drafter, gamma, seconds, way='continuous', chunk=4, tokens=()):
  return {
    'drafter': drafter,
    'gamma': gamma,
    'way': way,
    'chunk': chunk,
    'seconds_by_pass': seconds,
    'tokens_by_pass': tokens or [100] * len(seconds),
  }


def test_lengths_by_load_are_compared_pass_by_pass():
  """A machine that is half as fast for a pass is so for every side."""
  rows = [
    row('plain', 0, [3.0, 6.0, 3.0, 3.0, 3.0]),
    row('draft', 1, [2.0, 4.0, 2.0, 2.0, 2.0]),
    row('draft', 2, [2.2, 4.4, 2.2, 2.2, 2.2]),
    # Sampled texts may end earlier: what counts are tokens.
    row(
      'draft, by load',
      2,
      [2.5, 5.0, 2.5, 1.25, 2.6],
      tokens=[100] * 3 + [50, 100],
    ),
    row('draft', 1, [0.1, 0.1, 0.1], 'static', None),
  ]
  (line,) = continuous_batching_report._by_load(rows)
  assert line == (
    'draft, by load, chunks of 4: 0.79 [0.76, 0.81] times as fast as the best '
    'constant length (1), 1.19 [1.15, 1.21] times as fast as plain decoding, '
    'of 5 passes that took turns'
  )


def test_passes_that_took_no_turns_are_not_compared():
  rows = [
    {k: v for k, v in row(*one).items() if k != 'tokens_by_pass'}
    for one in (
      ('plain', 0, []),
      ('draft', 1, []),
      ('draft, by load', 1, []),
    )
  ]
  assert continuous_batching_report._by_load(rows) == []


def built_with(lengths, place):
  """Methods of a drafter and plain decoding, all in one place."""
  target = types.SimpleNamespace(placement=place)

  def way(gamma):
    drafter = ngram.make(gamma) if gamma else plain.make()
    return Decoding(Spec(target, drafter, verify.token), Params(place, None))

  def method(gamma):
    made = way(gamma)
    return types.SimpleNamespace(
      drafter='draft', gamma=gamma, spec=made.spec, way=made
    )

  return types.SimpleNamespace(
    base=way(0), methods=tuple(method(n) for n in lengths)
  )


def test_plain_steps_are_no_length_of_a_drafter_of_features():
  built = built_with((1, 2), 'one')
  spec = types.SimpleNamespace(drafter=types.SimpleNamespace(taps=(1,)))
  built.methods[-1].spec = spec
  assert [*lengths.of(built, 'draft').ways] == [1, 2]


def own(spec):
  """A spec like another, but not equal to it."""
  propose = spec.drafter.propose
  drafter = spec.drafter._replace(propose=lambda *args: propose(*args))
  return dataclasses.replace(spec, drafter=drafter)


def of_their_own(lengths_of):
  """As `lengths.of`, with programs that no other side compiles.

  So it is where lengths that take turns are the fastest in another layout.
  """

  def wrapped(*args):
    found = lengths_of(*args)
    ways = {
      n: way._replace(spec=own(way.spec)) for n, way in found.ways.items()
    }
    longest = found.longest
    spec = ways[longest.gamma].spec
    return lengths.Lengths(ways, dataclasses.replace(longest, spec=spec))

  return wrapped


@pytest.mark.slow
def test_every_way_decodes_every_prompt(tmp_path, monkeypatch):
  """The program on tiny models: rows of all ways, and of lengths by load."""
  monkeypatch.setattr(lengths, 'of', of_their_own(lengths.of))
  tiny.write_pair(tmp_path)
  given = vars(tiny.experiment(tmp_path, quick=True))
  given['candidates'].pop('ngram')
  given |= {'prompts': Prompts(domains=('code',), count=6, length=16)}
  x = ManyPrompts(
    **given
    | {
      'name': 'many',
      'batch': 2,
      'gammas': (1, 2),
      'by_load': True,
      'temperatures': (1.0,),
      'results': str(tmp_path / 'results'),
    }
  )
  benchmark.main(x)
  text = (tmp_path / 'results' / 'rows.jsonl').read_text()
  rows = [json.loads(line) for line in text.splitlines()]
  sides = {(r['drafter'], r['gamma']) for r in rows}
  assert sides == {('plain', 0), ('draft', 1), ('draft', 2), (BY_LOAD, 2)}
  assert len(rows) == 3 * (len(sides) - 1) + 1
  limits = rows[0]['new_tokens']
  for row in rows:
    assert row['prompts'] == 6
    assert 6 * limits[0] <= row['tokens'] <= 6 * limits[1]
    assert row['tokens_by_pass'] == [row['tokens']] * row['passes']
    assert len(row['seconds_by_pass']) == row['passes']
    assert 1 <= row['tau'] <= row['gamma'] + 1
    if row['drafter'] != BY_LOAD:
      assert row['same_text_as_alone'] == 1
    else:
      assert row['same_text_as_alone'] is None
    if row['way'] == 'continuous':
      assert row['efficiency'] > 0
      (shares,) = row['shares']
      assert 0 < shares['occupancy'] <= 1
      product = shares['occupancy'] * shares['full_step_over_step']
      product *= shares['share_of_steps']
      assert product == pytest.approx(row['efficiency'])
  (chosen,) = [r['lengths'] for r in rows if r.get('lengths')]
  (of_load,) = chosen
  assert {*of_load} <= {'0', '1', '2'}
  calls = next(r['target_calls'] for r in rows if r.get('lengths'))
  assert sum(of_load.values()) == calls
