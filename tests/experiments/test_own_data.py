"""Drafters that are trained on conversations of one's own."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import specjax
from specjax import checkpoints
from specjax.bench.config import Prompts
from specjax.drafters import lm, medusa
from specjax.errors import UserError
from specjax.training import (
  generated,
  optimize,
  schedules,
  train_heads,
)
from specjax.training.recipes import Examples, Heads, HeldOut, Optimization
from tests.support import heads_in_numpy, models, processes, tiny
from tests.support.resumed import Killed, lines


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  folder = tmp_path_factory.mktemp('own')
  tiny.write_pair(folder)
  records = [
    {'question': f'What is {i} and {j}?', 'answer': f'It is {i + j}.'}
    for i in range(6)
    for j in range(6)
  ]
  (folder / 'math.jsonl').write_text('\n'.join(map(json.dumps, records)))
  return folder


def recipe(root, name, trainable='medusa', options=None, **changes):
  o = {'schedule': ((2, 1e-2), (6, 0.0)), 'batch': 4, 'length': 16}
  o |= {'checkpoint_every': 2} | changes.pop('o', {})
  x = Heads(
    folder=str(root / name),
    target=str(root / 'target'),
    trainable=trainable,
    optimization=Optimization(**o),
    options={'count': 2} if options is None else options,
    examples=Examples(Prompts(str(root / 'math.jsonl')), held_out=0.3),
    held_out=HeldOut(3, 16, 8, depth=2),
  )
  for field, value in changes.items():
    setattr(x, field, value)
  return x


def parts_of(x):
  """The head of a recipe, its material, and its loss on a batch."""
  train_heads.check(x)
  m = generated.gather(x)
  head = train_heads.make(x, m.target)
  return head, m, train_heads.batches(m)


@pytest.mark.slow
def test_a_head_is_trained_on_answers(root, capsys):
  train_heads.main(recipe(root, 'whole'))
  said = json.loads(capsys.readouterr().out.splitlines()[0])
  assert said['learned']['examples'] + said['held out']['examples'] == 36
  *_, last = lines(root / 'whole/head.jsonl')
  assert set(last['T=0']) == {'alpha', 'tau', 'examples'}
  target = specjax.load(str(root / 'target'))
  drafter = medusa.load(target, str(root / 'whole/weights'))
  prompts = ['What is 1']
  found = specjax.decode(target, drafter, prompts, new_tokens=8, gamma=2)
  plain = specjax.decode(target, None, prompts, new_tokens=8)
  assert found.tokens == plain.tokens


def test_what_is_asked_is_not_learned(root):
  """The mean runs over places of answers; the target sees the questions."""
  head, m, batch = parts_of(recipe(root, 'none'))
  first = batch(0, None)
  params = jax.jit(head.init)(jax.random.key(0), m.weights)
  loss = jax.jit(train_heads.loss_of(head, m.target, 0))
  logits = np.asarray(models.score(m.target, m.weights, first['tokens']))
  logs = np.log(heads_in_numpy.softmax(logits))

  def by_hand(k):
    """Head k is judged where the token k + 1 places on is of an answer."""
    goal, said = logs[:, k:], logs[:, :-k]  # Fresh heads say what p says.
    nats, counts = -(np.exp(goal) * said).sum(-1), first['counts'][:, k:]
    return 0.8**k * (nats * counts).sum() / counts.sum()

  found = loss(params, m.weights, first)
  for k in (1, 2):
    assert found[f'head{k}'] == pytest.approx(float(by_hand(k)), rel=1e-4)


def test_a_recipe_names_what_is_minimised(root):
  path = {'path': str(root / 'draft')}
  x = recipe(root, 'none', 'lm', path, divergence='total_variation')
  head, m, batch = parts_of(x)
  one = batch(0, None)
  params = jax.jit(head.init)(jax.random.key(0), m.weights)
  made = train_heads.resolve('', x.divergence, train_heads.DIVERGENCE)
  loss = jax.jit(train_heads.loss_of(head, m.target, 0, made))
  found = loss(params, m.weights, one)
  draft = checkpoints.load(root / 'draft')[0]
  p, q = (
    heads_in_numpy.softmax(np.asarray(models.score(*which, one['tokens'])))
    for which in ((m.target, m.weights), (draft, params))
  )
  counts = np.asarray(one['counts'])
  mean = ((1 - np.minimum(p, q).sum(-1)) * counts).sum() / counts.sum()
  assert found['token'] == pytest.approx(float(mean), rel=1e-4)


def test_a_draft_goes_on_from_a_checkpoint_and_is_one_again(root):
  x = recipe(root, 'lm', 'lm', {'path': str(root / 'draft')})
  train_heads.main(x)
  before = lines(root / 'lm/head.jsonl')
  model, params = checkpoints.load(root / 'lm/weights')
  start = checkpoints.load(root / 'draft')[1]
  moved = jax.tree.map(
    lambda a, b: float(abs(a - b).max()), *jax.device_get((params, start))
  )
  assert max(jax.tree.leaves(moved)) > 1e-3
  facts = json.loads((root / 'lm/weights' / lm.TRAINING).read_text())
  assert facts['steps'] == 6
  assert facts['seconds'] > 0
  assert before[-1]['loss']['token'] < before[0]['loss']['token'] + 1
  target = specjax.load(str(root / 'target'))
  drafter = lm.load(target, str(root / 'lm/weights'))
  assert drafter.draft[0].config == model.config


SIZES = dict(
  width=16, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=16, mlp_width=32
)


def test_a_new_draft_has_the_sizes_that_are_given(root):
  head, m, batch = parts_of(recipe(root, 'none', 'lm', SIZES))
  params = jax.jit(head.init)(jax.random.key(0), m.weights)
  assert params['embedding'].shape == (2048, 16)
  loss = jax.jit(train_heads.loss_of(head, m.target, 0))
  found = loss(params, m.weights, batch(0, 0))
  assert 0 < found['token'] < 2 * np.log(2048)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({}, 'give path'),
    ({'path': 'x', 'width': 3}, 'give path'),
    ({'path': '{}/none'}, 'none'),
    ({'width': 16}, 'options'),
  ],
)
def test_drafts_that_cannot_be_trained_are_refused(root, options, message):
  options = {
    k: v.format(root) if isinstance(v, str) else v for k, v in options.items()
  }
  with pytest.raises(ValueError, match=message):
    parts_of(recipe(root, 'none', 'lm', options))


def test_accumulating_is_a_larger_batch(tmp_path):
  """Gradients of equal batches average: two of two windows are one of four."""
  weights = {'w': np.array([[1.0, -2.0], [0.5, 3.0]])}
  data = np.random.default_rng(0).normal(size=(8, 4, 2))

  def run(batch, accumulate, draw):
    o = Optimization(((1, 1e-2), (4, 0.0)), batch, clip=0.1)
    o.accumulate, o.checkpoint_every = accumulate, 2

    def loss(params, frozen, x):
      return ((x @ params['w']) ** 2).mean()

    folder = tmp_path / str(accumulate)
    return optimize.train('x', folder, o, weights, loss, None, draw)

  whole = run(4, 1, lambda i, params: data[i])
  parts = run(2, 2, lambda i, params: data[i // 2, 2 * (i % 2) :][:2])
  np.testing.assert_allclose(parts['w'], whole['w'], rtol=1e-5)
  assert abs(parts['w'] - weights['w']).max() > 1e-3


@pytest.mark.parametrize('cut', [0, 3])
def test_patience_ends_a_training_with_its_best_weights(
  tmp_path, cut, monkeypatch
):
  """Scores 1 3 2 2 ...: after two worse checkpoints it ends with the second."""
  scores = dict(enumerate([1, 3, 2, 2, 9, 9], 1))
  o = Optimization(((1, 1e-2),), 1, patience=2, checkpoint_every=1)
  o.schedule = ((1, 1e-2), (6, 1e-2))
  seen = []

  def batch(i, params):
    assert i < 5  # Nothing is drawn behind the end.
    if cut and i == cut and 'cut' not in seen:
      seen.append('cut')
      raise Killed
    return np.float32(i)

  def report(params):
    step = round(float(params['n'][0]))
    seen.append(step)
    return {'score': scores[step]}

  def update(grads, state, params):
    return jax.tree.map(jnp.ones_like, grads), state

  count = optax.GradientTransformation(lambda params: (), update)
  monkeypatch.setattr(optimize, 'make_optimizer', lambda o: count)

  def run():
    return optimize.train(
      'x', tmp_path, o, {'n': np.zeros(1)},
      lambda params, frozen, x: (params['n'] * x).sum(), None, batch, report,
    )  # fmt: skip

  if cut:
    with pytest.raises(Killed):
      run()
  best = run()
  assert best['n'].tolist() == [2]
  assert 5 not in seen
  assert run()['n'].tolist() == [2]  # Nothing is trained again.
  assert seen.count(4) == 1
  if not cut:
    with pytest.raises(UserError, match=r'x\.patience is 2, but nothing is'):
      o.check('x')


@pytest.mark.parametrize(
  ('curve', 'expected'),
  [
    ('linear', [0, 5, 10, 7.5, 5, 2.5, 0, 2, 4]),
    ('cosine', [0, 5, 10, 5 + 5 * 0.5**0.5, 5, 5 - 5 * 0.5**0.5, 0, 2, 4]),
    ('hold', [0, 5, 10, 10, 10, 10, 0, 0, 0]),
  ],
)
def test_rates_go_from_corner_to_corner(curve, expected):
  schedule = getattr(schedules, curve)(((2, 10.0), (6, 0.0), (8, 4.0)))
  found = jax.jit(jax.vmap(schedule))(np.arange(9))
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_losses_in_bfloat16_train_float32_weights(root, tmp_path):
  o, seen = Optimization(((1, 1e-2), (3, 0.0)), 2, dtype='bfloat16'), set()

  def loss(params, frozen, x):
    seen.add(params['w'].dtype.name)
    return ((x @ params['w']) ** 2).mean()

  weights, draw = {'w': np.ones((2, 2), np.float32)}, np.ones((3, 2, 2))
  trained = optimize.train(
    'x', tmp_path, o, weights, loss, None, lambda i, params: draw[i]
  )
  assert (seen, trained['w'].dtype) == ({'bfloat16'}, np.float32)
  assert abs(trained['w'] - 1).max() > 1e-3
  # And so a head is asked for its loss.
  x = recipe(root, 'none', 'lm', {'path': str(root / 'draft')})
  head, m, batch = parts_of(x)
  params = jax.eval_shape(head.init, jax.random.key(0), m.weights)
  params = jax.eval_shape(lambda p: optimize.in_dtype(p, o.dtype), params)
  loss = train_heads.loss_of(head, m.target, 0, dtype=o.dtype)
  program = jax.jit(loss).lower(params, m.weights, batch(0, 0)).as_text()
  products = [x for x in program.splitlines() if 'dot_general' in x]
  assert any('bf16' in line for line in products)


def test_a_training_that_goes_on_has_the_examples_that_it_began_with(
  root, tmp_path
):
  file = tmp_path / 'math.jsonl'
  file.write_text((root / 'math.jsonl').read_text())
  x = recipe(root, tmp_path / 'a', examples=Examples(Prompts(str(file))))
  train_heads.held_out.begin(x)
  train_heads.held_out.begin(x)
  file.write_text(file.read_text().replace('It is 3', 'It is not 4'))
  with pytest.raises(UserError, match='began with other examples'):
    train_heads.held_out.begin(x)


def test_windows_are_no_longer_than_a_draft_reads(root):
  short = recipe(root, 'short', 'lm', SIZES | {'max_positions': 20})
  short.optimization.length = 24
  with pytest.raises(UserError, match='24 positions, but the drafter has 20'):
    train_heads.main(short)


@pytest.mark.slow
def test_windows_are_split_over_devices(root):
  """By a training that is stopped and goes on."""
  flags = '--xla_force_host_platform_device_count=4'
  done = processes.run(
    'tests.support.train_on_devices', root, XLA_FLAGS=flags, JAX_PLATFORMS='cpu'
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout.splitlines()[-1])
  assert found['rows'] == [1, 1, 1, 1]
  whole, rest = found['steps']
  assert 0 < len(rest) < len(whole)
  assert rest == whole[-len(rest) :]
  assert found['moved'] > 1e-2
  assert found['apart'] < 0.01 * found['moved']
