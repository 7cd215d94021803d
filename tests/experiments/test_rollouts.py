"""The study of rollouts: what a policy learns from speculative texts."""

import json

import pytest

from experiments import rollouts as study
from specjax import reports
from specjax.errors import UserError


def run(tmp_path, **changes):
  given = {'results': str(tmp_path / 'rows'), 'texts': 800, 'tests': 1}
  study.run(study.RolloutStudy(seeds=2, updates=8, **given | changes))
  return [json.loads(s) for s in (tmp_path / 'rows/rows.jsonl').open()]


@pytest.mark.slow
def test_gradients_agree_and_those_of_a_lossy_rule_do_not(tmp_path, capsys):
  rows = run(tmp_path, parts=('gradients',))
  exact, lossy = rows
  assert exact['p_value'] > 0.01
  assert lossy['p_value'] < 1e-5
  assert exact['detectable'] < 0.35
  assert 0.7 < exact['length'] < 1.3
  assert {*map(reports.fault, rows)} == {''}
  assert f' | {exact["length"]:.3f} ' in capsys.readouterr().out


@pytest.mark.slow
def test_a_draft_that_learns_from_the_texts_follows_the_policy(
  tmp_path, capsys
):
  rows = run(tmp_path, parts=('learning',))
  assert {*map(reports.fault, rows)} == {''}
  curves = {(r['way'], r['policy']): r for r in rows}
  assert len(curves) == 6
  for policy in range(2):
    frozen, online = (
      curves[way, policy] for way in (study.FROZEN, study.ONLINE)
    )
    assert curves[study.PLAIN, policy]['alphas'] == []
    assert frozen['alphas'][-1] < frozen['alphas'][0] < online['alphas'][-1]
    for way in (study.PLAIN, study.FROZEN, study.ONLINE):
      assert curves[way, policy]['rewards'][-1] > 0.6
  assert '| 7      |' in capsys.readouterr().out


@pytest.mark.slow
def test_ways_are_timed_by_rows(folder, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(
    study.pair, 'path', lambda name: str(folder / name.split('-')[0])
  )
  monkeypatch.setattr(study.layouts, 'has_kernel', lambda: False)
  sizes = {'rows': (2,), 'samples': 2, 'new_tokens': 4, 'repeats': 5}
  rows = run(tmp_path, parts=('speed',), **sizes)
  assert reports.fault(rows[0]) == ''
  (plain, own), (n, m) = rows[0]['seconds'], rows[0]['tokens']
  expected = sum(plain) / sum(n) / (sum(own) / sum(m))
  assert rows[0]['speedup'] == pytest.approx(expected)
  assert rows[0]['per_second'][0] == pytest.approx(32 * 5 / sum(plain))
  assert 'Of 2 rows it pays' in capsys.readouterr().out
  # Rows that are there are kept.
  assert run(tmp_path, parts=('speed',), **sizes) == rows


def test_parts_that_are_none_are_named(tmp_path):
  with pytest.raises(UserError, match='parts'):
    run(tmp_path, parts=('gradient',))
