"""The study of rollouts: what a policy learns from speculative texts."""

import pytest

from experiments import rollouts as study
from specjax import reports
from tests.support.resumed import run_twice


@pytest.fixture
def run(tmp_path, capsys):
  def run(**changes):
    given = {'results': str(tmp_path / 'rows'), 'texts': 800, 'tests': 1}
    x = study.RolloutStudy(seeds=2, updates=8, **given | changes)
    return run_twice(study, x, capsys)

  return run


@pytest.mark.slow
def test_gradients_agree_and_those_of_a_lossy_rule_do_not(run):
  exact, lossy = rows = run(parts=('gradients',))
  assert exact['p_value'] > 0.01
  assert lossy['p_value'] < 1e-5
  assert exact['detectable'] < 0.35
  assert 0.7 < exact['length'] < 1.3
  assert f' | {exact["length"]:.3f} ' in reports.summary(rows)


@pytest.mark.slow
def test_a_draft_that_learns_from_the_texts_follows_the_policy(run):
  rows = run(parts=('learning',))
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
  assert '| 7      |' in reports.summary(rows)


@pytest.mark.slow
def test_ways_are_timed_by_rows(folder, monkeypatch, run):
  monkeypatch.setattr(
    study.pair, 'path', lambda name: str(folder / name.split('-')[0])
  )
  monkeypatch.setattr(study.layouts, 'has_kernel', lambda: False)
  sizes = {'rows': (2,), 'samples': 2, 'new_tokens': 4, 'repeats': 5}
  rows = run(parts=('speed',), **sizes)
  (plain, own), (n, m) = rows[0]['seconds'], rows[0]['tokens']
  expected = sum(plain) / sum(n) / (sum(own) / sum(m))
  assert rows[0]['speedup'] == pytest.approx(expected)
  assert rows[0]['per_second'][0] == pytest.approx(32 * 5 / sum(plain))
  assert 'Of 2 rows it pays' in reports.summary(rows)
