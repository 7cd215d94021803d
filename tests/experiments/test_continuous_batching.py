"""Many prompts through few rows; committed rows look at its tables."""

import dataclasses
import types

import pytest

from experiments import continuous_batching as study
from specjax.bench.config import Prompts
from tests.support import tiny
from tests.support.resumed import run_twice

BY_LOAD = 'draft, by load'


def test_the_quick_version_has_prompts_for_all_rows():
  x = study.get_config()
  x.shrink()
  assert 1 < x.batch <= x.prompts.count


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
