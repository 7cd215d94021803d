"""Many prompts through few rows: its tables, and a run of it."""

import dataclasses
import types

import numpy as np
import pytest

from experiments import continuous_batching as study
from specjax import reports
from specjax.bench import study as parts
from specjax.bench.config import Checkpoint, Prompts
from specjax.bench.study import Refilled
from specjax.errors import UserError
from tests.support import rows as made
from tests.support import tiny
from tests.support.resumed import run_twice

BY_LOAD = 'draft, by load'


def row(drafter, gamma, seconds, way='continuous', **changes):
  made_up = {
    'program': 'continuous_batching', 'drafter': drafter, 'gamma': gamma,
    'way': way, 'chunk': 4, 'batch': 4, 'prompts': 20, 'temperature': 1.0,
    'tau': 2.0, 'tokens_per_second': 9.0, 'new_tokens': [8, 16],
    'tokens_per_second_with_reading': 8.0, 'times_alone': 0.5,
    'times_static': 0.9, 'same_text_as_alone': 1.0, 'efficiency': 0.8,
    'efficiency_ci': [0.7, 0.9], 'seconds_by_pass': seconds,
    'tokens_by_pass': [100] * len(seconds),
  }  # fmt: skip
  return made_up | changes


def cells(text, heading):
  """The lines of the table below a heading, as lists."""
  return made.cells(text.partition(f'### {heading}\n')[2])[1:]


def test_lengths_by_load_are_compared_pass_by_pass():
  """A machine that is half as fast for a pass is so for every side."""
  rows = [
    row('plain', 0, [3.0, 6.0, 3.0, 3.0, 3.0]),
    row('draft', 1, [2.0, 4.0, 2.0, 2.0, 2.0]),
    row('draft', 2, [2.2, 4.4, 2.2, 2.2, 2.2]),
    # Sampled texts may end earlier: what counts are tokens.
    row(
      BY_LOAD,
      2,
      [2.5, 5.0, 2.5, 1.25, 2.6],
      tokens_by_pass=[100] * 3 + [50, 100],
      efficiency=None,
    ),
    row('draft', 1, [0.1, 0.1, 0.1], 'static', chunk=None),
    row('draft', 1, [1.0] * 5, batch=1),
  ]
  assert {*map(reports.fault, rows)} == {''}
  text = reports.summary(rows)
  (line,) = cells(text, 'Draft lengths by load')
  assert line == [
    '4', BY_LOAD, '4', '1', '0.79 [0.76, 0.81]', '1.19 [1.15, 1.21]', '5',
  ]  # fmt: skip
  assert len(cells(text, 'Batch of 4')) == 5
  (only,) = cells(text, 'Batch of 1')
  assert only[4:] == [
    '9', '8', '0.50', '0.90', '0.80 [0.70, 0.90]', '2.00', '100.0%',
  ]  # fmt: skip


def test_the_quick_version_is_small():
  x, few = (Refilled('a', Checkpoint('b'), {}) for _ in range(2))
  few.batch, few.max_new_tokens, few.shortest, few.prompts.count = 2, 8, 3, 1
  draws = x.draw_lengths(np.random.default_rng(0), 2000)
  assert (len(draws), draws.min(), draws.max()) == (2000, 16, 128)
  for one, sizes in ((x, (4, 16, 4, 4)), (few, (2, 8, 3, 1))):
    one.shrink()
    found = one.batch, one.max_new_tokens, one.shortest, one.prompts.count
    assert (*found, one.repeats) == (*sizes, 1)
  few.shortest = 8
  few.check_lengths()
  few.shortest = 9
  with pytest.raises(UserError, match=r'^shortest is 9'):
    few.check_lengths()


def test_a_field_is_shown_with_its_interval():
  row = {'a': 1.25, 'b': 2.0, 'b_ci': [1, 3], 'c': 4.0, 'c_ci': [None, 5]}
  table = parts.columns(
    ('a', 'a'), ('b', 'b', '.1f'), ('c', 'c'), ('n', len), ('d', 'd'),
    ('whole', 'a', ''), ('none', 'zero', ''),
  )  # fmt: skip
  assert [show(row | {'zero': 0}) for _, show in table] == [
    *('1.25', '2.0 [1.0, 3.0]', '4.00', 6, '-', '1.25', '-'),
  ]
  kinds = parts.alike(text='a', maybe='b c', maybe_count='d', ends='e')({})
  assert kinds == {
    'a': str, 'b': float | None, 'c': float | None, 'd': int | None,
    'e': tuple[float | None, ...] | None,
  }  # fmt: skip


def test_plain_steps_are_no_length_of_a_drafter_of_features():
  def built(*taps):
    drafter = types.SimpleNamespace(taps=taps)
    way = types.SimpleNamespace(spec=types.SimpleNamespace(drafter=drafter))
    methods = [
      types.SimpleNamespace(drafter='draft', gamma=n, way=way) for n in (2, 1)
    ]
    return types.SimpleNamespace(base='plain', methods=methods)

  assert [*study.lengths(built(), 'draft')] == [0, 1, 2]
  assert [*study.lengths(built(1), 'draft')] == [1, 2]


def own(spec):
  """A spec like another, but not equal to it."""
  propose = spec.drafter.propose
  drafter = spec.drafter._replace(propose=lambda *args: propose(*args))
  return dataclasses.replace(spec, drafter=drafter)


def of_their_own(lengths):
  """As `study.lengths`, with programs that no other side compiles.

  So it is where lengths that take turns are the fastest in another layout.
  """

  def wrapped(*args):
    found = lengths(*args).items()
    return {n: way._replace(spec=own(way.spec)) for n, way in found}

  return wrapped


@pytest.mark.slow
def test_every_way_decodes_every_prompt(folder, tmp_path, monkeypatch, capsys):
  """The program on tiny models: rows of all ways, and of lengths by load."""
  monkeypatch.setattr(study, 'lengths', of_their_own(study.lengths))
  given = vars(tiny.experiment(folder, quick=True))
  given['candidates'].pop('ngram')
  given |= {'prompts': Prompts(domains=('code',), count=6, length=16)}
  x = study.ManyPrompts(
    **given | {
      'name': 'many', 'loads': ((2, 6),), 'gammas': (2,), 'by_load': True,
      'temperatures': (1.0,), 'results': str(tmp_path / 'results'),
    },
  )  # fmt: skip
  x.shrink()
  rows = run_twice(study, x, capsys)
  sides = {(r['drafter'], r['gamma']) for r in rows}
  assert sides == {('plain', 0), ('draft', 2), (BY_LOAD, 2)}
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
      (step,) = row['step_seconds']
      ideal = row['target_calls'] * step / 2
      assert row['efficiency'] == pytest.approx(ideal / row['seconds'])
  (chosen,) = [r['lengths'] for r in rows if r.get('lengths')]
  (of_load,) = chosen
  assert {*of_load} <= {'0', '2'}
  calls = next(r['target_calls'] for r in rows if r.get('lengths'))
  assert sum(of_load.values()) == calls
