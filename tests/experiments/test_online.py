"""Drafters that learn while they draft."""

import jax
import numpy as np
import pytest

from specjax import checkpoints
from specjax.bench.config import Prompts
from specjax.errors import UserError
from specjax.stats import metrics
from specjax.training import generated, online
from specjax.training.recipes import Online, Optimization
from tests.support import tiny
from tests.support.resumed import assert_equal_weights, killed, lines


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  folder = tmp_path_factory.mktemp('online')
  tiny.write_pair(folder)
  online.main(recipe(folder, 'whole'))
  return folder


def recipe(root, name, **changes):
  fields = {
    'folder': str(root / name), 'target': str(root / 'target'),
    'trainable': 'lm', 'options': {'path': str(root / 'draft')},
    'optimization': Optimization(
      ((1, 1e-2), (6, 1e-2)), batch=4, length=16, checkpoint_every=2,
    ),
    'prompts': Prompts(domains=('code',), count=5, length=8), 'new_tokens': 8,
    'depth': 2, 'rounds': 3, 'updates': 2, 'memory': 2,
  }  # fmt: skip
  return Online(**fields | changes)


def rounds(root, name):
  return lines(root / name / 'rounds.jsonl')


def test_each_round_is_told_beside_the_drafter_that_never_learned(root):
  told = rounds(root, 'whole')
  assert [one['round'] for one in told] == [0, 1, 2]
  assert told[0]['alpha'] == told[0]['alpha_first']
  assert told[0]['alpha_gained'] == 0
  assert told[2]['alpha'] != told[2]['alpha_first']
  with np.load(root / 'whole/rounds/000002.npz') as file:
    found = dict(file)
  assert told[2]['alpha'] == pytest.approx(
    found['overlap'].sum() / found['steps'].sum()
  )
  expected = metrics.ratio(found['emitted'], found['calls'])
  assert told[2]['tau'] == pytest.approx(expected.value)
  assert told[2]['tau_ci'] == expected.interval
  assert (found['length'] - found['start'] == found['emitted']).all()
  # Training changes the draft.
  params = checkpoints.load(root / 'whole/weights')[1]
  start = checkpoints.load(root / 'draft')[1]
  moved = jax.tree.map(
    lambda a, b: float(abs(a - b).max()), *jax.device_get((params, start))
  )
  assert max(jax.tree.leaves(moved)) > 1e-3


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_for_bit(root):
  with killed(online.Rounds, 'batch', 3, 1):
    online.main(recipe(root, 'cut'))
  online.main(recipe(root, 'cut'))
  assert rounds(root, 'whole') == rounds(root, 'cut')
  assert_equal_weights(root / 'whole', root / 'cut')


def test_windows_hold_the_texts_of_the_last_rounds(root):
  x = recipe(root, 'whole')
  online.check(x)
  m = generated.read_target(x)
  head = online.train_heads.make(x, m.target)
  first = online.begin(x, head, m)
  made = online.Rounds(m, head.drafter(2), first, root / 'whole/rounds')
  texts = {}
  for number in range(3):
    with np.load(root / f'whole/rounds/{number:06d}.npz') as file:
      for row, end in zip(file['tokens'], file['length'], strict=True):
        texts[number, tuple(row[:end].tolist())] = 8  # The prompt's length.
  for step, known in ((0, {0}), (3, {0, 1}), (5, {1, 2})):
    batch = made.batch(step, first)
    for row, counts in zip(batch['tokens'], batch['counts'], strict=True):
      judged = np.flatnonzero(counts)
      length = judged[-1] + 2
      window = tuple(row[:length].tolist())
      places = [
        (number, i)
        for number, text in texts
        for i in range(len(text) - length + 1)
        if text[i : i + length] == window
      ]
      assert {number for number, _ in places} & known
      # Places from the prompt's last token on, and no others.
      assert any(judged[0] + i >= 7 for _, i in places)
      assert judged.tolist() == list(range(judged[0], length - 1))
  again = made.batch(5, first)
  np.testing.assert_array_equal(again['tokens'], made.batch(5, None)['tokens'])


@pytest.mark.slow
def test_a_draft_comes_to_agree_with_its_target(root):
  """On one round's prompts over and over, alpha must rise."""
  o = Optimization(((1, 1e-2), (60, 1e-2)), 8, 16)
  x = recipe(root, 'long', optimization=o, rounds=6, updates=10)
  online.main(x)
  told = rounds(root, 'long')
  assert told[-1]['alpha_gained'] > 0
  assert told[-1]['alpha_gained_ci'][0] > 0


def test_a_start_of_other_sizes_is_refused(root):
  sizes = {
    'width': 16, 'num_layers': 1, 'num_heads': 1, 'num_kv_heads': 1,
    'head_dim': 16, 'mlp_width': 32,
  }  # fmt: skip
  x = recipe(root, 'wrong', options=sizes, start=str(root / 'draft'))
  with pytest.raises(UserError, match=r'start: .* has other sizes'):
    online.main(x)


def test_a_damaged_round_is_named(tmp_path):
  made = object.__new__(online.Rounds)
  made.folder = tmp_path
  (tmp_path / '000000.npz').write_bytes(b'x')
  with pytest.raises(UserError, match=r'folder: .*000000\.npz is damaged'):
    made.get(0, None)
