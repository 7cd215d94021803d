"""The predictor on a tiny pair, and its board on rows made up by hand."""

import dataclasses
import json
import pathlib
import types

import numpy as np
import pytest

from specjax.bench import costs, measure, memory, methods, replay
from specjax.bench.config import OnDevice
from specjax.programs import predict
from specjax.reports import predict as predict_report
from specjax.stats import sanity_checks
from tests.support import rows as rows_by_hand
from tests.support import tiny


def experiment(folder, **changes):
  settings = {'gammas': (2,), 'drafters': ('draft',), 'quick': False}
  return tiny.experiment(folder, **(settings | changes))


@pytest.fixture(scope='module')
def results(folder, tmp_path_factory):
  return str(tmp_path_factory.mktemp('rows') / 'a')


@pytest.fixture(scope='module')
def rows(folder, results):
  predictor = predict.Predictor(
    predict.prepare(experiment(folder, results=results))
  )
  with pytest.MonkeyPatch.context() as patch:  # What is fastest costs time.
    patch.setattr(methods, 'Race', tiny.NoRace)
    # Times of so tiny a pair may be anything.
    patch.setattr(sanity_checks, 'find', lambda row: [])
    predictor.run()
  return predictor.folder.rows


def part(rows, name):
  return [r for r in rows if r['part'] == name]


def test_parts_of_the_prompts_give_what_all_at_once_give(
  folder, rows, tmp_path, monkeypatch
):
  """Three texts in parts of two: the last row of the last part is empty."""
  monkeypatch.setattr(memory, '_WATCHED', 2)
  x = experiment(folder, results=str(tmp_path), timed=False)
  x.prompts = dataclasses.replace(x.prompts, count=3)
  predictor = predict.Predictor(predict.prepare(x))
  seen = []
  watch = replay.watch_turns
  monkeypatch.setattr(
    replay,
    'watch_turns',
    lambda methods, job, *more: (
      seen.append((len(job.prompts), job.live)) or watch(methods, job, *more)
    ),
  )
  predictor.run()
  assert sorted(seen) == [(2, 1), (2, 1), (2, 2), (2, 2)]
  found = predictor.folder.rows  # Without times, texts are only looked on at.
  for row, whole in zip(found, part(rows, 'replay'), strict=True):
    assert row['prompts'] == len(row['digests']) == 3
    # Two of them were written at once for `rows`.
    for name in ('unit_tokens', 'digests'):
      assert row[name][:2] == whole[name]


def test_a_prediction_stands_beside_the_loop(rows):
  (cost,) = part(rows, 'cost')
  replayed, checked = part(rows, 'replay'), part(rows, 'check')
  assert [r['temperature'] for r in replayed] == [0, 1]
  assert [r['temperature'] for r in checked] == [0, 1]
  step = cost['v'] + 2 * cost['c']
  for row in checked:
    assert row['predicted_speedup'] == pytest.approx(
      row['predicted_tau'] / step
    )
  greedy = checked[0]
  assert greedy['same_text'] == greedy['equal_calls'] == greedy['prompts'] == 2
  assert greedy['difference'] == 0
  assert greedy['predicted_tau'] == greedy['tau']


def test_a_complete_prediction_is_only_printed(folder, results, rows, capsys):
  file = pathlib.Path(results) / 'rows.jsonl'
  head, wrong = file.read_text().rsplit('"impossible": []', 1)
  before = f'{head}"impossible": ["v is 0.46"]{wrong}'
  file.write_text(before)
  predict.main(OnDevice(**vars(experiment(folder, results=results))))
  assert file.read_text() == before
  out, said = capsys.readouterr()
  place = 'domain code, temperature 1.0, drafter draft, verifier token, gamma 2'
  assert f'warning: {place}: v is 0.46\n' in said
  found = json.loads(out.strip().splitlines()[-1])
  assert found['impossible'] == 1
  assert {'predicted_tau', 'tau', 'predicted_speedup', 'speedup'} <= set(found)
  assert found['alpha_ci'] is None  # Two prompts are too few.
  assert found['recommendation'].startswith('temperature 0, use ')


def test_what_cannot_be_replayed_is_refused(monkeypatch):
  """Six whole steps at gamma 2 draft twelve tokens, unless one ended early.

  And drafts that depend on where they begin.
  """
  counts = types.SimpleNamespace(histogram=np.array([[3, 2, 1]]))
  run = measure.Run([], counts, 0.0, 0.0, 0)
  monkeypatch.setattr(measure, 'decode', lambda *_, timed: run)
  planned = types.SimpleNamespace(field='candidates')
  plan = types.SimpleNamespace(drafters={'a': planned})
  method = types.SimpleNamespace(way=0, gamma=2, drafter='a')
  counts.drafted = np.array([12])
  replay.refuse_stops(plan, method, None)
  counts.drafted = np.array([11])
  with pytest.raises(ValueError, match="candidates: drafts of 'a' end early"):
    replay.refuse_stops(plan, method, None)
  built = types.SimpleNamespace(plan=plan, methods=(method,))
  for taps, why in (
    ((0,), 'reads features of the target'),
    ((), 'drafts in one pass'),
  ):
    drafter = types.SimpleNamespace(taps=taps, at_once=True)
    method.spec = types.SimpleNamespace(drafter=drafter)
    with pytest.raises(ValueError, match=f"'a' {why}, so"):
      replay.refuse_features(built)


def test_only_laws_make_a_draft_a_drawn_one(folder, tmp_path):
  x = experiment(folder, drafters=('draft', 'ngram'), results=str(tmp_path))
  predictor = predict.Predictor(predict.prepare(x))
  job = predictor.units('code', 0.0)[0]
  found = {
    m.drafter: costs.is_drawn(m.way, job) for m in predictor.built.methods
  }
  assert found == {'draft': True, 'ngram': False}


# The board.


def test_what_cannot_be_is_not_recommended():
  """A cost that cannot be, then a check; and then there is nothing left."""
  rows = rows_by_hand.predicted({'a': (60, 58), 'b': (70, 40)})

  def cost(drafter, gamma):
    return next(
      r for r in rows if (r['drafter'], r.get('gamma')) == (drafter, gamma)
    )

  cost('b', 2)['impossible'] = ['v is 0.46']
  board = predict_report.Board(rows)
  assert board.best('b', ['code'], 0.0) == 1
  assert board.winner(0.0)[:2] == ('a', 1)
  # Nobody has measured this one.
  assert board.recommend(0.0) == ['0', 'a', '1', '1.39', '-']
  for cell in (('a', 1), ('a', 2), ('b', 1)):
    cost(*cell)['impossible'] = ['c is -1']
  board = predict_report.Board(rows)
  assert board.winner(0.0) is None
  assert board.last_line()['drafter'] is None
  assert board.recommend(0.0)[2:] == ['-'] * 3
