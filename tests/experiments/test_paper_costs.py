"""Costs on paper: bytes, operations and exchange by hand; where it pays."""

import itertools

import pytest

from experiments import paper_costs
from experiments.paper_costs import MODELS, Calculation, Deployment, last
from specjax.models import sharding
from specjax.models.sharding import Placement
from specjax.stats import theory
from specjax.stats.roofline import Chip
from specjax.stats.row import pick
from tests.support import tiny
from tests.support.resumed import run_twice
from tests.support.rows import committed

COUNTS = Chip(1.0, 1e12, 1.0, 1.0)  # Seconds are bytes and operations.


def counted(one: Deployment, context: int, *passes: int) -> dict[str, float]:
  made = Calculation(one, '1B', context)
  made.device = COUNTS
  return made.limits(made.target, *passes)


def test_bytes_and_operations_are_those_of_the_sizes():
  """Llama 3 8B: 32 layers of attention and MLP, norms, and the output layer."""
  model, place = MODELS['8B'], Placement(sharding.plan_mesh(1, 1))
  layer = 4096 * (32 + 2 * 8) * 128 + 32 * 128 * 4096 + 3 * 4096 * 14_336
  read = 32 * (layer + 2 * 4096) + 4096 + 128_256 * 4096
  embedding = 128_256 * 4096
  key_values = 2 * 32 * 8 * 128
  whole, weights, cache = paper_costs.held(model, place)
  assert (whole, weights) == (2 * (read + embedding), 2 * read)
  assert cache == 2 * key_values
  # Tied embeddings are read as the output layer.
  whole, weights, _ = paper_costs.held(MODELS['1B'], place)
  assert whole == weights
  assert counted(Deployment('8B', 'H100'), 1000, 3, 5) == {
    'memory': 2 * read + 3 * 1000 * cache,
    'arithmetic': 2 * 15 * (read + 2 * 1000 * 32 * 32 * 128),
    'exchange': 0,
  }


@pytest.mark.slow
def test_what_is_split_is_divided():
  one, eight = (
    counted(Deployment('70B', 'H100', n), 4096, 2, 3) for n in (1, 8)
  )
  for name in ('arithmetic', 'memory'):
    assert eight[name] == pytest.approx(one[name] / 8, rel=1e-3)
  sums, logits = 161 * 6 * 8192 * 2, 6 * 128_256 * 2
  assert eight['exchange'] == 7 / 8 * (2 * sums + logits)


@pytest.mark.parametrize(('devices', 'sums'), [(8, 1 + 2), (4, 5)])
def test_the_exchange_is_that_of_a_compiled_step(devices, sums):
  """Gives what `test_many_devices` counts. Eight do not divide four heads."""
  sizes = {'num_heads': 8, 'num_kv_heads': 4, 'head_dim': 4}
  model = tiny.model(16, 2, 32, **sizes).config
  place = Placement(sharding.plan_mesh(1, devices))
  found = paper_costs.exchange(model, place, 8 * 3)
  assert found == (sums * 8 * 3 * 16, 8 * 3 * 32)


def test_the_longest_limit_decides(monkeypatch):
  made = Calculation(Deployment('8B', 'H100'), '1B', 512)
  limits = {'memory': 60.0, 'arithmetic': 50.0, 'exchange': 66.0}
  monkeypatch.setattr(made, 'limits', lambda *_: limits)
  assert made.seconds(made.target, 1, 1) == 66.0


def test_scoring_is_free_until_arithmetic_is_the_limit():
  made = Calculation(Deployment('8B', 'H100'), '1B', 512)
  assert made.v(1, 4) == 1
  made.device = Chip(1e30, 1e30, 1e12, 1)
  assert made.v(1, 4) == pytest.approx(5)
  draft, target = (
    made.limits(one, 7, 1)['arithmetic'] for one in (made.draft, made.target)
  )
  assert made.c(7) == pytest.approx(draft / target)
  speed = theory.speedup(0.9, 1, made.c(7), made.v(7, 1))
  assert made.best(7, 0.9, (1, 2, 4)) == (pytest.approx(speed), -1)
  assert made.pays_up_to(0.9, (1, 2, 4)) == 0


def test_a_batch_that_pays_is_followed_by_one_that_does_not():
  one, rest = Deployment('70B', 'H200', 8), (0.8, paper_costs.PaperCosts.gammas)
  made = Calculation(one, '1B', 512)
  pays = made.pays_up_to(*rest)
  assert 1 < pays < made.fits()
  assert made.best(pays, *rest)[0] > 1 >= made.best(pays + 1, *rest)[0]
  # The caches of a long context outweigh the weights: it pays at every batch.
  assert Calculation(one, '1B', 32_768).pays_up_to(*rest) is None


def test_the_last_number_is_found():
  for most in (1, 5, 8, 100):
    for until in (0, 1, 4, 7, 99, 100, 1000):
      expected = None if until >= most else until
      assert last(lambda n, until=until: n <= until, most) == expected


def test_where_nothing_fits_nothing_pays(monkeypatch):
  small = Chip(1.0, 1e9, 1.0, 1.0)
  monkeypatch.setitem(paper_costs.CHIPS, 'v5e', small)
  x = paper_costs.PaperCosts()
  row = paper_costs.row(x, Deployment('8B', 'v5e'), '1B', 512)
  assert (row['fits'], row['batches']) == (0, [])
  assert '| v5e ' in paper_costs.summary([row])
  assert paper_costs.figures([row]) == ()


def test_every_number_is_marked_as_calculated():
  x = paper_costs.PaperCosts()
  row = paper_costs.row(x, Deployment('8B', 'H100'), 'head', 512)
  assert row['calculated'] is True
  text = paper_costs.summary([row])
  assert text.startswith('*Calculated*, not measured')
  assert '### 8B with draft head (calculated)' in text
  figure = paper_costs.speedup_by_batch([row])
  assert 'Calculated' in figure.get_supxlabel()
  (axes, *_) = figure.axes
  assert axes.lines[1].get_ydata().tolist() == row['speedup']['0.8']


def test_the_committed_rows_are_what_is_calculated():
  rows = committed()['paper_costs']
  x, drafts = paper_costs.PaperCosts(), paper_costs.DRAFTS
  known = len(paper_costs.DEPLOYMENTS) * len(drafts) * len(x.contexts)
  assert len(rows) == known
  ones = Deployment('70B', 'v6e', 8), Deployment('8B', 'H100')
  for one, draft in itertools.product(ones, drafts):
    made = paper_costs.row(x, one, draft, 4096)
    names = 'target', 'accelerator', 'draft', 'context'
    (same,) = pick(rows, **{name: made[name] for name in names})
    assert same.keys() - {'schema'} == made.keys()
    assert same['device'] == made['device']
    for name in ('v', 'speedup'):
      for key, values in made[name].items():
        assert values == pytest.approx(same[name][key])
    assert made['pays_up_to'] == same['pays_up_to']


def test_the_quick_version_is_calculated(tmp_path, capsys):
  x = paper_costs.PaperCosts(results=str(tmp_path / 'a'), quick=True)
  x.shrink()
  assert len(run_twice(paper_costs, x, capsys)) == 2 * 2 * 2
  assert {file.name for file in (tmp_path / 'a').iterdir()} == {
    'config.json', 'rows.jsonl', 'summary.md', 'speedup_by_batch.png',
  }  # fmt: skip
