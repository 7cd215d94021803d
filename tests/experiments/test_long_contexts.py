"""Steps at long contexts: bytes, crossings and tables from made-up times."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from experiments import long_contexts as study
from experiments import step_timing
from specjax import reports
from specjax.bench.memory import bytes_per_token
from specjax.drafters import early_exit, windowed
from specjax.models import linear, variants
from specjax.types import Target
from tests.support import models, own_models
from tests.support.resumed import run_twice


def quick(**changes):
  x = study.get_config()
  x.shrink()
  return dataclasses.replace(x, **changes)


def test_bytes_of_the_cache_are_those_of_what_is_seen():
  """A slot of one layer: keys and values of 4 entries, 4 bytes each."""
  model = models.tiny(models.VOCAB, 2, windows=(20, None))
  params = models.weights(model, 0)

  def slots(window=0, sinks=0, used=100):
    narrow = variants.narrow(model, window, sinks)
    return bytes_per_token(narrow, params, used)[1] / (2 * 4 * 4)

  # The token that is fed is seen, too, and in no cache.
  assert slots() == 19 + 100
  assert slots(10, 3) == 9 + (9 + 3)
  assert slots(40, 3) == 19 + (39 + 3)
  assert slots(40, 3, used=30) == 19 + 30


@pytest.mark.parametrize('tied', [False, True])
def test_bytes_of_weights_are_all_but_a_table_that_is_no_head(tied):
  model = models.tiny(models.VOCAB, 2, tied_embeddings=tied, rope_theta=None)
  whole = jax.jit(model.init)(jax.random.key(0))
  for params in (whole, linear.quantize(whole, tied)):
    weights, cache = bytes_per_token(model, params, 10)
    every = sum(x.nbytes for x in jax.tree.leaves(params))
    # Positions are a table, too, of 512 rows.
    table = (512 + (0 if tied else models.VOCAB)) * 8 * 4
    # Keys and values of two layers, 4 bytes each whatever the weights have.
    assert (weights, cache) == (every - table, 2 * 2 * 4 * 10 * 4)
    # Nor does a step read its second embedding as a whole, or an encoder.
    more = np.zeros((3, 5), np.float32)
    read = {'inputs': {'table': more, 'scale': more}, 'encoder': {'up': more}}
    found = bytes_per_token(model, params | read, 10)
    assert found == (weights + more.nbytes, cache)


def test_a_latent_is_in_the_cache_once():
  model = models.tiny(models.VOCAB, 2, **models.CHOICES['latents'])
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  latent = model.config.latent
  entries = latent.rank + latent.turned
  few, more = (bytes_per_token(model, shapes, used)[1] for used in (10, 11))
  # Its other layer only convolves.
  assert more - few == entries * 4
  assert few - 10 * entries * 4 == 2 * model.config.width * 4


def test_bytes_of_a_draft_are_those_of_its_layers_and_its_window():
  model, params = models.TARGET, models.target_weights()
  host = Target(model, params)
  whole, cache = bytes_per_token(model, params, 100)
  one = windowed.load(host, window=10, sinks=3).passes
  assert bytes_per_token(one, params, 100) == (whole, cache * 12 / 100)
  early = early_exit.load(host, layers=1, window=10).passes
  less, window = bytes_per_token(early, params, 100)
  layer = sum(x.nbytes for x in jax.tree.leaves(params['layer1']))
  assert (less, window) == (whole - layer, cache / 2 * 9 / 100)


def test_a_model_of_other_code_reads_all_it_has():
  """Two layers of keys and values of 32 entries, 4 bytes each."""
  model = own_models.adapted()
  params = jax.eval_shape(own_models.weights)
  every = sum(x.size * 4 for x in jax.tree.leaves(params))
  assert bytes_per_token(model, params, 10) == (every, 2 * 2 * 32 * 10 * 4)


@pytest.fixture
def rows(monkeypatch):
  """Plain steps take 1 and 3, scoring as much, drafts 1.5 and 0.5 more."""

  def loops(bench, context, batch):
    del bench  # Unused.
    one = batch * (1.0 if context == 256 else 3.0)
    costs = {'plain': one, 'idle': one, 'windowed': one + 1.5, 'lm': one + 0.5}

    def loop(cost):
      return types.SimpleNamespace(run=lambda: step_timing.Timed(cost, 1.0))

    return {name: loop(cost) for name, cost in costs.items()}

  x = quick(gamma=2, rates=(0.5, 0.9))
  monkeypatch.setattr(study, 'loops', loops)
  reader = types.SimpleNamespace(read=lambda: np.array([1e9, 2e9]))
  bench = step_timing.Bench(x)
  return [
    row | x.facts('long_contexts', 'window', 'sinks')
    for batch in x.batches
    for context in x.contexts
    for row in study.measure(bench, context, batch, reader)
  ]


def test_rows_have_what_bytes_and_times_say(rows):
  by_place = {(r['batch'], r['context'], r['drafter']): r for r in rows}
  assert len(by_place) == 12
  plain, draft = (by_place[1, 256, name] for name in ('plain', 'windowed'))
  # One layer of two heads of one kv head with 8 entries.
  assert plain['cache_bytes'] == 2 * 8 * 256 * 4
  assert by_place[2, 256, 'plain']['cache_bytes'] == 2 * plain['cache_bytes']
  window = 2 * 2 * 8 * (128 - 1 + 4) * 4
  assert draft['cache_bytes'] == plain['cache_bytes'] + window
  assert draft['weight_bytes'] == 3 * plain['weight_bytes']
  assert draft['draft_bytes'] == window + 2 * plain['weight_bytes']
  read = plain['cache_bytes'] + plain['weight_bytes']
  assert plain['predicted_ms'] == pytest.approx(1e3 * read / 2e9)
  assert (draft['c'], draft['v']) == (0.75, 1.0)
  # tau at 0.9 is 2.71, a step costs 2.5.
  assert dict(draft['speedups'])[0.9] == pytest.approx(2.71 / 2.5)
  assert draft['break_even_alpha'] == pytest.approx((7**0.5 - 1) / 2, abs=1e-2)
  assert {*map(reports.fault, rows)} == {''}


@pytest.mark.parametrize(
  ('values', 'found'),
  [
    ((3, 2, 1), 100.0),  # already below at the first
    ((5, 3, 1), 1000 * 10**0.5),
    ((5, 3, 6), None),
    ((3, 6, 2), 1000 * 10**0.5),
  ],
)
def test_a_crossing_is_where_a_curve_stays_below(values, found):
  points = list(zip((100, 1000, 10_000), values, strict=True))
  level = {100.0: 3.5}.get(found, 2.0 if values[1] == 3 else 4.0)
  crossed = study.crossing(points[::-1], level)
  assert crossed == (None if found is None else pytest.approx(found))


@pytest.mark.slow
def test_the_program_runs_and_measures_nothing_twice(tmp_path, capsys):
  x = quick(batches=(2,), contexts=(256,), results=str(tmp_path / 'rows'))
  assert len(run_twice(study, x, capsys)) == 3
