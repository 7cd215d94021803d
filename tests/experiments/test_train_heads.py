"""Heads and drafts in training: resume, reports, and what is kept."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy

from specjax import checkpoints
from specjax.checkpoints import fingerprint
from specjax.drafters.heads import files
from specjax.drafters.heads.trainable import Seen
from specjax.errors import UserError
from specjax.training import features, generated, held_out, train_heads
from specjax.training.optimize import TrainingLog
from specjax.training.recipes import (
  Heads,
  HeldOut,
  Mixture,
  Optimization,
  Texts,
)
from specjax.types import Params
from tests.support import heads_in_numpy, models, tiny
from tests.support.resumed import Killed, assert_equal_weights, killed, lines

TEXTS = Texts(count=8, batch=8, length=32, prompt_length=8)
HELD_OUT = HeldOut(2, 16, 8, depth=2)
WEIGHTS = 'model.safetensors'


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  """A pair, data, and a head that was trained at one go, on kept features."""
  folder = tmp_path_factory.mktemp('training')
  tiny.write_pair(folder)
  tiny.write_data(folder / 'data')
  train_heads.main(recipe(folder, 'whole', features=str(folder / 'features')))
  assert [*(folder / 'features').glob('*.npy')]
  return folder


def optimization(**changes):
  usual = {'schedule': ((2, 1e-2), (8, 0.0)), 'batch': 4, 'length': 16}
  return Optimization(**usual | {'checkpoint_every': 3} | changes)


def recipe(root, name, **changes):
  fields = {
    'folder': str(root / name), 'target': str(root / 'target'),
    'trainable': 'tests.support.tiny.noisy_head',
    'optimization': optimization(), 'data': str(root / 'data'),
    'options': {'count': 2}, 'texts': TEXTS, 'held_out': HELD_OUT,
  }  # fmt: skip
  return Heads(**fields | changes)


@pytest.mark.slow
def test_a_head_resumes_bit_for_bit(root):
  x = recipe(root, 'cut', features=str(root / 'features'))
  with killed(train_heads, 'draw_windows', 5):
    train_heads.main(x)
  assert [line['step'] for line in lines(root / 'cut/head.jsonl')] == [3]
  train_heads.main(x)
  assert_equal_weights(root / 'whole', root / 'cut')
  whole, after = (lines(root / f'{n}/head.jsonl') for n in ('whole', 'cut'))
  for one, other in zip(whole, after, strict=True):
    assert one['loss'] == other['loss']
  assert after[-1]['seconds'] > after[0]['seconds'] > 0


def test_the_loss_of_a_head_falls(root):
  """On the same windows with the same noise, so it must."""
  x = recipe(root, 'whole')
  m = generated.gather(x)
  head = train_heads.make(x, m.target)
  trained = files.read(root / 'whole/weights', 'medusa')[1]
  batch = train_heads.batches(m)(0, None)

  parts = jax.jit(train_heads.loss_of(head, m.target, 0))

  def loss(params):
    return sum(parts(params, m.weights, batch).values())

  fresh = jax.jit(head.init)(jax.random.key(0), m.weights)
  assert loss(trained) < loss(fresh)


def test_kept_features_give_the_losses_of_the_target(root, tmp_path):
  x = recipe(root, 'whole', features=str(tmp_path / 'features'))
  m = generated.gather(x)
  head = train_heads.make(x, m.target)
  drawn = train_heads.batches(m)

  def kept(weights, **changes):
    changed = dataclasses.replace(x, **changes)
    return features.Store(changed, m.target, weights, head.taps).beside(drawn)

  made = kept(m.weights)(0, None)
  parts = jax.jit(train_heads.loss_of(head, m.target, 0))
  trained = files.read(root / 'whole/weights', 'medusa')[1]
  anew, read = (
    parts(trained, m.weights, batch) for batch in (drawn(0, None), made)
  )
  for name, loss in anew.items():
    assert float(read[name]) == pytest.approx(float(loss), rel=1e-3)
  # From the files alone, without weights; each of 4 windows has two layers.
  assert np.array_equal(kept(None)(0, None)['features'], made['features'])
  every = sorted((tmp_path / 'features').glob('*.npy'))
  assert len(every) == 8
  # A full folder takes nothing more, and what is beyond is read anew.
  beyond = kept(m.weights, features_gib=0.0)(1, None)
  assert beyond['features'].shape == made['features'].shape
  assert sorted((tmp_path / 'features').glob('*.npy')) == every
  for file in every:
    file.write_bytes(b'x')
  with pytest.raises(UserError, match=r'features: .*\.npy is damaged'):
    kept(None)(0, None)
  with pytest.raises(UserError, match='features'):
    kept(m.weights, target=str(root / 'draft'))
  # The same weights, read otherwise.
  file = tmp_path / 'features/features.json'
  known = json.loads(file.read_text())
  file.write_text(json.dumps(known | {'config': {'rope_theta': 7.0}}))
  with pytest.raises(UserError, match='features'):
    kept(m.weights)


def test_config_of_a_head_says_what_it_is_worth_and_cost(root):
  config = files.read_config(root / 'whole/weights', 'medusa')
  assert config['training']['steps'] == 8
  assert config['training']['tokens'] == 8 * 4 * 16
  last = lines(root / 'whole/head.jsonl')[-1]
  assert config['training']['seconds'] == pytest.approx(
    last['seconds'], abs=0.1
  )
  # Head k is judged k places before the end of 8 tokens, in 6 texts.
  assert config['counted'] == [6 * 7, 6 * 6]
  assert np.shape(config['hits']) == (2, 10)
  parts = config['domains'].values()
  assert np.array_equal(sum(np.array(p['hits']) for p in parts), config['hits'])


@pytest.mark.parametrize(
  ('field', 'changes'),
  [
    ('target', {'target': 'draft'}),
    ('every', {'every': 2}),
    ('seed', {'seed': 1}),
    ('mixture.code', {'mixture': Mixture(code=1.0)}),
    ('texts.length', {'texts': dataclasses.replace(TEXTS, length=64)}),
  ],
)
def test_data_is_of_one_target_and_its_settings(root, tmp_path, field, changes):
  if 'target' in changes:
    changes = {'target': str(root / changes['target'])}
  generated.check(recipe(root, 'new', data=str(tmp_path), seed=2))
  x = recipe(root, 'new', data=str(tmp_path))
  generated.check(x)  # Nothing was made for the other one.
  (tmp_path / 'tokens.npz').touch()
  generated.check(x)
  with pytest.raises(UserError, match=rf'\({field} differs\); name another f'):
    generated.check(dataclasses.replace(x, **changes))
  more = dataclasses.replace(TEXTS, count=2 * TEXTS.count)
  generated.check(dataclasses.replace(x, texts=more))
  (tmp_path / 'data.json').write_text('{')
  with pytest.raises(UserError, match=r'data\.json is damaged'):
    generated.check(x)
  # Data without the name of a target are taken.
  generated.check(recipe(root, 'new', seed=3))
  assert not (root / 'data/data.json').exists()


@pytest.mark.parametrize(
  ('name', 'changes', 'says'),
  [
    ('whole', {'share': 0.25}, 'another recipe'),
    ('a', {'options': {'color': 1}}, r'options.*color'),
    # A head writes no text of its own.
    ('b', {'share': 0.0, 'own_share': 1.0, 'own_texts': TEXTS}, 'own_share'),
    ('c', {'mixture': Mixture(packages=0.1)}, r'packages is 0\.1, but .* no '),
  ],
)
def test_heads_that_cannot_be_trained_are_refused(root, name, changes, says):
  with pytest.raises(UserError, match=says):
    train_heads.main(recipe(root, name, **changes))
  # What is drawn on the host is of one device.
  with pytest.raises(UserError, match=r'^own_share .* devices at 1'):
    draft(root, 'split', devices=2).check()


def test_fingerprints_tell_targets_apart(root, tmp_path):
  target = fingerprint(root / 'target')
  assert fingerprint(root / 'draft') != target
  path = root / 'whole/weights'
  files.read(path, 'medusa', lambda: target)
  with pytest.raises(ValueError, match='another target'):
    files.read(path, 'medusa', lambda: fingerprint(root / 'draft'))
  # One weight in the middle of a matrix.
  shutil.copytree(root / 'target', tmp_path / 'changed')
  file = tmp_path / 'changed' / WEIGHTS
  tensors = safetensors.numpy.load_file(file)
  name = max(tensors, key=lambda n: tensors[n].size)
  tensors[name] = tensors[name].copy()
  tensors[name].reshape(-1)[-1] += 1
  safetensors.numpy.save_file(tensors, file)
  assert fingerprint(tmp_path / 'changed') != target
  # They are of the weights, not of the files.
  model, params = checkpoints.load(root / 'target')
  checkpoints.save(tmp_path / 'wide', model, params, dtype=np.float32)
  assert fingerprint(tmp_path / 'wide') == target
  split = tmp_path / 'split'
  split.mkdir()
  shutil.copy(root / 'target/config.json', split)
  tensors = safetensors.numpy.load_file(root / 'target' / WEIGHTS)
  places = {name: f'part{i}.safetensors' for i, name in enumerate(tensors)}
  for name, x in tensors.items():
    safetensors.numpy.save_file({name: x}, split / places[name])
  index = split / f'{WEIGHTS}.index.json'
  index.write_text(json.dumps({'weight_map': places}))
  assert fingerprint(split) == target


def test_reports_are_the_counts_of_the_loop(root):
  m = generated.gather(recipe(root, 'whole'))
  head = train_heads.make(m.recipe, m.target)
  drafter = head.drafter(HELD_OUT.depth)
  params = files.read(root / 'whole/weights', 'medusa')[1]
  trial = held_out.prepare(HELD_OUT, m.target, m.weights, m.tokenizer)
  found = trial.report(drafter, params)
  state = jax.device_get(trial.decode(drafter, params))
  counts = state.counts
  for i, t in enumerate(('T=0', 'T=1')):
    for j, (domain, texts) in enumerate(trial.texts.items()):
      rows = [6 * i + 2 * j, 6 * i + 2 * j + 1]
      assert (state.sampling.temperature[rows] == i).all()
      for row, text in zip(rows, texts, strict=True):
        assert state.tokens[row, :16].tolist() == text
      new = (state.length - state.start)[rows].sum()
      calls = counts.target_calls[rows].sum()
      assert found[t][domain] == pytest.approx(new / calls, abs=1e-4)
    rows = range(6 * i, 6 * i + 6)
    beta = sum(counts.overlap[r] for r in rows)
    steps = sum(counts.histogram[r].sum() for r in rows)
    assert found[t]['alpha'] == pytest.approx(beta / steps, abs=1e-4)
    assert found[t]['tau'] == pytest.approx(
      6 * 8 / sum(counts.target_calls[r] for r in rows), abs=1e-4
    )


def draft(root, name, **changes):
  """A recipe of a draft that learns from its own text."""
  fields = {
    'trainable': 'lm', 'options': {'path': str(root / 'draft')},
    'optimization': optimization(schedule=((2, 1e-2), (6, 0.0))),
    'divergence': 'total_variation', 'share': 0.0, 'own_share': 1.0,
    'own_texts': TEXTS, 'refresh': 2,
  }  # fmt: skip
  return recipe(root, name, **fields | changes)


@pytest.mark.slow
def test_a_draft_that_learns_from_its_own_text_resumes(root):
  train_heads.main(draft(root, 'one'))
  with killed(train_heads, 'draw_texts', 5):
    train_heads.main(draft(root, 'two'))
  # It goes on at step 3, between the texts of steps 2 and 4.
  texts = root / 'two/own_texts'
  steps = ['000000', '000002', '000004']
  assert sorted(p.name for p in texts.iterdir()) == steps
  train_heads.main(draft(root, 'two'))
  assert_equal_weights(root / 'one', root / 'two')
  first, second, _ = (np.load(texts / s / '000000.npy') for s in steps)
  assert (first != second).any()
  # Halves of three windows are rounded to two and one.
  x = draft(root, 'two', share=0.5, own_share=0.5)
  x.optimization.batch = 3
  train_heads.check(x)
  m = generated.gather(x)
  model = train_heads.make(x, m.target).model
  assert train_heads.batches(m, model)(4, None)['tokens'].shape == (3, 16)
  shutil.rmtree(texts / '000002')
  with pytest.raises(UserError, match='000002 is missing'):
    train_heads.own_texts(m, tiny.model(32, 1))(3, None)


def test_next_tokens_are_learned_as_they_stand(root):
  """The mean of their nats, whatever the target gives."""
  options = {'path': str(root / 'draft'), 'next_token': True}
  x = draft(root, 'new', options=options)
  train_heads.check(x)
  m = generated.read_target(x)
  head = train_heads.make(x, m.target)
  weights = head.init(None, None)
  tokens = np.random.default_rng(0).integers(64, size=(2, 9))
  logits = np.asarray(models.score(head.model, weights, tokens))[:, :-1]
  chances = heads_in_numpy.softmax(logits)
  expected = -np.log(np.take_along_axis(chances, tokens[:, 1:, None], -1))
  loss = jax.jit(lambda *x: head.loss(Params(None, x[0]), x[1], None)['token'])
  found = loss(weights, Seen(tokens, None, None))
  assert found == pytest.approx(float(expected.mean()), rel=1e-5)


def test_a_record_forgets_what_is_done_again(tmp_path):
  record = TrainingLog(tmp_path / 'x.jsonl', 0)
  for step, seconds in ((3, 5.0), (6, 9.0)):
    record.seconds = seconds
    record.write(step, 1.0, {'tau': step})
  again = TrainingLog(tmp_path / 'x.jsonl', 3)
  assert again.seconds == 5
  again.write(6, 2.0, {})
  found = [(line['step'], line['loss']) for line in lines(tmp_path / 'x.jsonl')]
  assert found == [(3, 1.0), (6, 2.0)]


def test_a_target_in_16_bits_teaches_a_head_in_32(root, monkeypatch):
  """What is frozen has the type, what is learned and its losses have not."""
  seen = {}

  def watched(name, folder, o, learned, loss, frozen, batch, *_, **__):
    seen.update(frozen=frozen, learned=learned)
    seen['losses'] = jax.eval_shape(loss, learned, frozen, batch(0, None))
    raise Killed

  monkeypatch.setattr(train_heads, 'train', watched)
  x = recipe(root, 'narrow', dtype='bfloat16', trainable='medusa')
  with pytest.raises(Killed):
    train_heads.main(x)
  for name, tree in seen.items():
    types = {leaf.dtype.name for leaf in jax.tree.leaves(tree)}
    assert types == {'bfloat16' if name == 'frozen' else 'float32'}
