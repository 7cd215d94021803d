"""Drafts that propose some of the target's tokens."""

import contextlib
import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import pair
from specjax.drafters import dflash, eagle, lm, quantized
from specjax.drafters.dflash import module
from specjax.drafters.eagle.module import Head, Sizes
from specjax.drafters.heads import files, frequencies, modules
from specjax.models import linear, reduced_vocab_head, transformer, variants
from specjax.training import optimize
from specjax.training.recipes import Heads, Optimization
from specjax.training.train_heads import make, see
from specjax.types import Params
from tests.support.models import (
  SMALL,
  TARGET,
  VOCAB,
  random_of,
  target_weights,
  tiny,
)

KEPT = np.array([1, 2, 5, 8])
COUNTS = pair.path('unigram')
REFUSED = pytest.raises(ValueError, match='caps, scales or shifts its logits')


@pytest.fixture(scope='module')
def target():
  return specjax.load(pair.path('target'))


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize('tied', [False, True])
@pytest.mark.parametrize('in_blocks', [False, True])
def test_kept_tokens_have_the_logits_they_had(tied, in_blocks):
  model = tiny(VOCAB, 1, tied_embeddings=tied, logit_cap=3.0)
  params = random_of(model.init, jax.random.key(1))
  hidden = np.random.default_rng(2).normal(size=(2, 3, 8)).astype(np.float32)
  whole = np.asarray(jax.jit(model.head)(params, hidden))
  if in_blocks:
    model, params = variants.to_native(model, params)
  smaller, small = variants.keep_tokens(model, params, KEPT)
  logits = np.asarray(jax.jit(smaller.head)(small, hidden))
  assert logits.shape == whole.shape
  np.testing.assert_allclose(logits[..., KEPT], whole[..., KEPT], atol=1e-6)
  assert (np.delete(logits, KEPT, -1) == -np.inf).all()
  assert small['unembedding'].size == 8 * len(KEPT)


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize('count', [4, 32])
def test_eight_bits_and_blocks_keep_their_outputs(count):
  random = np.random.default_rng(0)
  w, x = (random.normal(size=s).astype('f') for s in ((8, 48), (3, 8)))
  multiply = jax.jit(linear.multiply)
  kept = np.arange(3, 3 + count)
  whole = {'w': w}
  for weight in (whole, linear.to_native(whole)):
    made = linear.keep_outputs(weight['w'], kept)
    assert linear.is_native(made) == (weight is not whole and count == 32)
    expected = (x @ w)[:, kept]
    np.testing.assert_allclose(multiply(x, made), expected, atol=1e-5)
    eight = linear.quantize(weight, False)['w']
    small = linear.keep_outputs(eight, kept)
    assert small.blocked == linear.is_native(made)
    np.testing.assert_allclose(multiply(x, small), expected, atol=0.1)


def test_the_most_frequent_tokens_are_kept_and_those_that_end_a_text(
  target, tmp_path
):
  share = np.asarray(frequencies.read(COUNTS).unigram)
  kept = frequencies.Reduction(100, COUNTS).choose(target)
  assert len(kept) == 100
  assert (np.diff(kept) > 0).all()
  assert set(target.eos) <= set(kept.tolist())
  others = np.setdiff1d(kept, target.eos)
  left = np.setdiff1d(np.arange(len(share)), kept)
  assert share[others].min() >= share[left].max()
  assert frequencies.Reduction().choose(target) is None
  ends = dataclasses.replace(target, eos=(9, 1))
  none = dataclasses.replace(target, eos=())
  for one, kept in ((ends, [0, 1, 9]), (ends, [1, 9]), (none, [0])):
    assert frequencies.Reduction(len(kept)).choose(one).tolist() == kept
  with pytest.raises(ValueError, match='must be from 2, the tokens that end'):
    frequencies.Reduction(1).choose(ends)
  # Of tokens that are as frequent the first ones.
  equal = str(tmp_path / 'a/b')
  frequencies.save(equal, frequencies.count([], 2048, 0))
  kept = frequencies.Reduction(100, equal).choose(none)
  assert kept.tolist() == [*range(100)]
  with pytest.raises(ValueError, match='2048 tokens, but the target has 11'):
    frequencies.Reduction(4, equal).choose(specjax.Target(TARGET))


@pytest.mark.slow
def test_alpha_of_the_target_itself_is_its_mass_on_what_is_kept(target):
  path = pair.path('target')
  texts = ['def fib(n):', 'import os\n', 'class Tree:\n  def ', 'The ']
  draft = lm.load(target, path, vocabulary=300, frequencies=COUNTS)
  kept = frequencies.Reduction(300, COUNTS).choose(target)
  mass = []
  for text in texts:
    ids = jnp.asarray([target.tokenizer.encode(text)])
    logits = transformer.score(target.model, target.params, ids)[0, -1]
    mass.append(np.asarray(jax.nn.softmax(logits))[kept].sum())
  # Of two tokens the first is drafted, and the second never.
  made = specjax.decode(
    target, draft, texts, gamma=1, new_tokens=2, temperature=1.0
  )
  np.testing.assert_allclose(made.counts.overlap, mass, atol=2e-5)
  assert min(mass) < 0.99


@pytest.fixture(scope='module')
def trained():
  """A head of some tokens to train, and a target whose text it sees."""
  params = target_weights()
  made = eagle.trainable(TARGET, vocabulary=4, mlp_width=16, **SMALL)
  ends = eagle.trainable(TARGET, vocabulary=4, eos=(VOCAB - 1,), **SMALL)
  fresh, ending = jax.jit(lambda *x: (made.init(*x), ends.init(*x)['places']))(
    jax.random.key(1), params
  )
  assert fresh['places'].tolist() == [0, 1, 2, 3, *[4] * (VOCAB - 4)]
  assert ending[VOCAB - 1] == 3
  fresh['places'] = reduced_vocab_head.places(KEPT, VOCAB)
  tokens = np.random.default_rng(2).integers(0, VOCAB, (2, 9), np.int32)
  seen = jax.jit(see, static_argnums=(0, 3))(TARGET, params, tokens, made.taps)
  return made, Params(params, fresh), seen


def test_a_head_learns_the_targets_distribution_over_its_tokens(trained):
  made, params, seen = trained
  sizes = {k: v for k, v in made.config.items() if k != 'kind'}
  head = Head(TARGET, Sizes(**sizes))
  p = np.asarray(jax.nn.softmax(seen.logits))[:, 1:, KEPT]
  counts = np.arange(18).reshape(2, 9) % 3 > 0
  p = p * counts[:, 1:, None].astype(np.float32)

  @jax.jit
  def said(params, seen):
    steps = head.unroll(params, seen.tokens, seen.hidden, 5)
    laws = [jax.nn.softmax(head.logits(params, x)) for x in steps]
    return made.loss(params, seen, None), laws

  found, laws = jax.device_get(said(params, seen.replace(counts=counts)))
  for j, q in enumerate(laws):
    np.testing.assert_allclose(q[..., KEPT].sum(-1), 1, rtol=1e-5)
    nats = -(p * np.log(q[..., KEPT]))[:, j:].sum() / p[:, j:].sum()
    assert found[f'step{j}'] == pytest.approx(0.8**j * nats, rel=1e-4)


@pytest.mark.parametrize('muon', [False, True])
def test_training_moves_all_weights_and_leaves_the_tokens(
  trained, muon, tmp_path
):
  made, params, seen = trained
  rule = optimize.make_optimizer(
    Optimization(((0, 0.1), (9, 0.1)), batch=2, muon=muon)
  )
  step = optimize.make_step(
    lambda own, target, seen: made.loss(Params(target, own), seen, None), rule
  )
  begun = jax.device_get(params.drafter)
  state = jax.jit(rule.init)(optimize.split(begun)[0])
  carry, before = (begun, state), None
  for _ in range(9):
    carry, losses = step(carry, params.target, seen)
    before = before or losses
  assert sum(losses.values()) < sum(before.values()) - 0.1
  after = jax.device_get(carry[0])
  moved = jax.tree.map(lambda x, y: (x != y).any(), after, begun)
  assert not moved.pop('places')
  assert all(jax.tree.leaves(moved))
  files.save(tmp_path / 'head', made.config | {'target': None}, after)
  host = specjax.Target(TARGET, params.target)
  drafter = eagle.load(host, str(tmp_path / 'head'))
  assert drafter.params['places'].tolist() == after['places'].tolist()
  with pytest.raises(ValueError, match='logits of 4 tokens already'):
    eagle.load(host, str(tmp_path / 'head'), vocabulary=3)


def test_a_head_may_be_read_before_the_weights_of_its_target(target):
  options = {'vocabulary': 256, 'frequencies': COUNTS}
  made, before = (
    eagle.load(one, pair.path('eagle1'), **options).params
    for one in (target, dataclasses.replace(target, params=None))
  )
  jax.tree.map(np.testing.assert_array_equal, made, before)


@pytest.mark.parametrize('own', [False, True])
def test_heads_get_the_rows_of_their_output_layer_or_the_targets(own):
  sizes = module.Sizes(
    (0, 1), 3, 1, num_heads=2, num_kv_heads=1, head_dim=4, mlp_width=16,
    correction='markov', rank=2, own_unembedding=own,
  )  # fmt: skip
  head = module.Head(TARGET, sizes)
  params = random_of(head.init, jax.random.key(0))
  params['correction']['unembedding'] += np.arange(VOCAB)
  target = specjax.types.Target(TARGET, target_weights(), eos=())
  stored = modules.Read({}, params, '', head, head)
  read = modules.keep_tokens(stored, target, KEPT)
  for wrong in ({'logit_cap': 3.0}, {'head_scale': 2.0}, {'head_bias': True}):
    other = specjax.Target(tiny(VOCAB, 2, **wrong), target_weights())
    with contextlib.nullcontext() if own else REFUSED:
      modules.keep_tokens(stored, other, KEPT)
  both = specjax.types.Params(target.params, read.params)
  made = np.random.default_rng(1).normal(size=(2, 8)).astype(np.float32)

  @functools.partial(jax.jit, static_argnums=0)
  def say(head, own):
    params = both._replace(drafter=own)
    place = head.prepare(params, head.places(params, made[None]))
    state = head.state((1,), float)
    return head.correct(params, place, np.array([[3]]), state)[0].logits[0]

  logits = np.asarray(say(read.head, read.params))
  whole = np.asarray(say(head, params))
  np.testing.assert_allclose(logits[:, KEPT], whole[:, KEPT], atol=1e-6)
  assert (np.delete(logits, KEPT, -1) == -np.inf).all()


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'frequencies': COUNTS}, 'vocabulary is 0'),
    ({'vocabulary': 99999}, 'to 2048, all of the'),
    ({'vocabulary': -1, 'frequencies': COUNTS}, 'vocabulary must be'),
    ({'vocabulary': 1.5, 'frequencies': COUNTS}, 'vocabulary must be'),
    ({'vocabulary': 9, 'frequencies': '/nowhere'}, 'tables.safetensors is mis'),
  ],
)
@pytest.mark.parametrize('kind', [lm, quantized, eagle, dflash])
def test_bad_vocabularies_are_refused_by_name(target, kind, options, message):
  with pytest.raises(ValueError, match=message):
    kind.load(target, pair.path('eagle3'), **options)


def test_the_published_head_is_read_for_a_model_of_its_targets_sizes():
  folder = pathlib.Path(__file__).parents[2] / 'results/own_head/smollm2_eagle3'
  model = tiny(49_152, 30, width=576)
  head = eagle.load(specjax.Target(model), str(folder))
  assert head.params['unembedding'].shape == (576, 8192)
  kept = reduced_vocab_head.ids(head.params['places'], 8192)
  assert (np.diff(kept) > 0).all()
  assert (head.params['places'] < 8192).sum() == 8192


def test_a_training_keeps_the_tokens_that_end_a_text(target):
  options = {'version': 3, 'vocabulary': 16, 'frequencies': COUNTS}
  recipe = Heads(
    folder='', data='', target=pair.path('target'),
    trainable='specjax.drafters.eagle.trainable', options=options,
    optimization=Optimization(((0, 0.1), (9, 0.1)), batch=2),
  )  # fmt: skip
  init = make(recipe, target.model).init
  places = jax.jit(lambda *x: init(*x)['places'])
  found = np.asarray(places(jax.random.key(0), target.params))
  assert (found[np.array(target.eos)] < 16).all()
