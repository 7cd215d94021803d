"""Training resumes after a kill as if nothing had happened."""

import json
import pathlib
import signal
import time

import jax
import numpy as np
import pytest
from optax.contrib import MuonDimensionNumbers

from specjax.programs import train as program
from specjax.training.optimize import make_optimizer, name_matrices
from specjax.training.recipes import Heads, Optimization, Recipe
from specjax.training.train_pair import window_shape
from tests.support import processes, tiny

SCRIPT = """
import pathlib, sys, time
import jax, jax.numpy as jnp, numpy as np
from specjax.training.optimize import train
from specjax.training.recipes import Optimization

folder, pause = pathlib.Path(sys.argv[1]), float(sys.argv[2])
o = Optimization(
  schedule=((4, 1e-2), (30, 0.0)), batch=4, length=8, checkpoint_every=5,
  muon=True,
)

def batch(step, params):
  time.sleep(pause)
  return np.random.default_rng(step).normal(size=(4, 8)).astype(np.float32)

def loss(params, frozen, x):
  return jnp.mean((jnp.tanh(x @ params['w']) @ params['v'] - x) ** 2)

keys = jax.random.split(jax.random.key(0))
params = {'w': jax.random.normal(keys[0], (8, 8)),
          'v': jax.random.normal(keys[1], (8, 8))}
params = train('toy', folder, o, params, loss, None, batch)
np.savez(folder / 'params.npz', **params)
"""


def train(folder: pathlib.Path, monkeypatch) -> dict:
  """Runs the script here; returns the weights."""
  folder.mkdir(exist_ok=True)
  monkeypatch.setattr('sys.argv', ['', str(folder), '0.0'])
  exec(SCRIPT, {})
  return dict(np.load(folder / 'params.npz'))


@pytest.mark.slow
def test_resume_after_a_kill_is_bit_identical(tmp_path, monkeypatch):
  """With Muon; `test_train_heads` resumes with Adam."""
  expected = train(tmp_path / 'whole', monkeypatch)
  (tmp_path / 'cut').mkdir()
  cut = processes.start('-c', SCRIPT, tmp_path / 'cut', 0.1)
  deadline = time.monotonic() + 200
  while not (tmp_path / 'cut' / 'toy' / '10').exists():
    assert cut.poll() is None, 'training ended before it was killed'
    assert time.monotonic() < deadline
    time.sleep(0.02)
  cut.send_signal(signal.SIGKILL)
  cut.wait()
  assert not (tmp_path / 'cut' / 'params.npz').exists()
  found = train(tmp_path / 'cut', monkeypatch)
  for name in expected:
    np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize(
  ('kind', 'made', 'flags'),
  [
    (Heads, {'head': 'a/weights'}, '--target.path=t --draft.path=a/weights'),
    (
      Recipe,
      {'target': 'a/target', 'draft': 'a/draft-32'},
      '--target.path=a/target --draft.path=a/draft-32',
    ),
    (Recipe, {'target': 'a/target'}, '--target.path=a/target'),
  ],
)
def test_what_was_made_and_how_to_measure_it_is_printed_last(
  kind, made, flags, monkeypatch, capsys
):
  monkeypatch.setitem(program.PROGRAMS, kind, lambda recipe: made)
  recipe = object.__new__(kind)
  recipe.target = 't'
  program.main(recipe)
  *_, step, last = capsys.readouterr().out.splitlines()
  assert step.endswith(f'run pair {flags}')
  assert json.loads(last) == made


def test_every_fourth_batch_is_long():
  o = Optimization(schedule=((8, 1.0),), batch=6, length=32)
  shapes = [window_shape(o, i) for i in range(4)]
  assert shapes == [(6, 32)] * 3 + [(3, 64)]


def test_muon_turns_each_output_of_a_layer_by_itself():
  params = jax.eval_shape(tiny.model(32, 1).init, jax.random.key(0))
  found = name_matrices(params)
  layer = found['layer0']
  assert found['embedding'] is found['unembedding'] is None
  assert layer['norm1']['scale'] is None
  assert layer['qkv']['w'] == MuonDimensionNumbers(0, (1, 3))
  assert layer['up']['w'] == MuonDimensionNumbers(0, (2,))
  assert layer['down']['w'] == MuonDimensionNumbers(0, (1,))
  assert params['layer0']['qkv']['w'].ndim == 4
  assert params['layer0']['up']['w'].ndim == 3


def test_muon_steps_as_far_as_adam_in_every_direction():
  o = Optimization(
    schedule=((1, 0.5), (9, 0.5)), batch=1, weight_decay=0.0, muon=True
  )
  optimizer = make_optimizer(o)
  w = np.random.default_rng(0).normal(size=(64, 2, 32)).astype(np.float32)
  params, update = {'layer0': {'w': w}}, jax.jit(optimizer.update)
  state = jax.jit(optimizer.init)(params)
  for _ in range(2):  # The first rate is 0.
    updates, state = update(params, state, params)
  for part in np.moveaxis(np.asarray(updates['layer0']['w']), 1, 0):
    values = np.linalg.svd(part, compute_uv=False) / (0.5 * 0.2 * 8)
    # Newton-Schulz brings the singular values near 1, not to it.
    assert ((values > 0.6) & (values < 1.3)).all()
