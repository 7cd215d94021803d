"""Heads on a target's features: what they say, and what is refused."""

import dataclasses
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors

from specjax import sampling, trees
from specjax.bench import drafter_facts
from specjax.checkpoints import parameters
from specjax.checkpoints.parameters import WeightForm
from specjax.drafters import dflash, eagle, early_exit, lm, medusa
from specjax.drafters.eagle.module import Head, Sizes
from specjax.drafters.heads import files
from specjax.drafters.heads.trainable import Seen
from specjax.drafters.medusa import module
from specjax.models import linear, low_bits, variants
from specjax.types import Params, Target
from tests.library import test_drafter_promises as promises
from tests.support import models

TARGET, DEPTH = models.TARGET, 3
HOST = Target(TARGET)


def read(drafter, params, tokens, length, target=TARGET):
  """A context of texts and the drafter's memory of them."""
  values = sampling.make(len(tokens), np.resize([0, 0.7, 1.2], len(tokens)))
  return promises.fresh(drafter, params, tokens, length, values, target=target)


@functools.partial(jax.jit, static_argnums=(0, 4))
def propose(drafter, params, tokens, length, target=TARGET):
  ctx, memory = read(drafter, params, tokens, length, target)
  key = jax.random.split(jax.random.key(0), len(tokens))
  return drafter.propose(params, memory, ctx, key)[0]


def texts(rows=6, vocab=models.VOCAB):
  random = np.random.default_rng(0)
  tokens = random.integers(0, vocab, (rows, 128)).astype(np.int32)
  return tokens, np.arange(1, rows + 1, dtype=np.int32) * 3 - 2


def test_an_exit_is_the_model_of_its_layers(float64):
  """The usual draft is the first layer of the target."""
  target = models.double(models.target_weights())
  draft = models.double(models.draft_weights())
  rows = texts()
  ours = propose(
    early_exit.load(HOST, layers=1).make(DEPTH), Params(target, None), *rows
  )
  theirs = propose(lm.make(models.DRAFT, DEPTH), Params(target, draft), *rows)
  np.testing.assert_array_equal(ours.tokens, theirs.tokens)
  np.testing.assert_allclose(ours.probs, theirs.probs, atol=1e-12)


def seen_by(target, tokens, taps):
  out = models.see(TARGET, target, tokens, taps)
  return Seen(tokens, out.taps, TARGET.head(target, out.hidden))


@pytest.mark.parametrize(
  'join', models.slow_unless(['pair'], ['linear', 'pair'])
)
def test_training_sees_what_drafting_sees(join, float64):
  """Step j of the training-time test is the j-th token of a draft."""
  options = models.SMALL | {'mlp_width': 16, 'join': join}
  trained = eagle.trainable(TARGET, **options)
  head = Head(TARGET, Sizes(3, (0, 1), **options))
  walker = eagle.walk(head)
  target = models.double(models.target_weights())
  own = models.double(models.head_of(trained, 0.3)())
  params = Params(target, own)
  tokens, begin = texts(2)[0][:, :9], 6  # Known when drafting begins.
  seen = seen_by(target, tokens, head.sizes.taps)
  unroll = jax.jit(head.unroll, static_argnums=3)
  steps = unroll(params, tokens, seen.hidden, 3)
  padded = np.pad(tokens, ((0, 0), (0, 119)))
  length = np.full(2, begin, np.int32)
  ctx, _ = read(models.DRAFTERS['plain'][0], params, padded, length)
  hidden = np.pad(
    seen.hidden[:, : begin - 1], ((0, 0), (0, 123), (0, 0), (0, 0))
  )
  kept, block = jax.jit(walker.init, static_argnums=3)(params, ctx, hidden, 3)
  step = jax.jit(walker.start)(params, kept, block, ctx)
  feed = jax.jit(walker.feed)
  for j in range(3):
    # The pair of this step ends in the token at begin - 1 + j.
    expected = steps[j][:, begin - 2 + j]
    np.testing.assert_allclose(step.features[:, 0], expected, atol=1e-12)
    sees = np.tile(np.arange(3) <= j + 1, (2, 1, 1))
    row = np.int32(j + 1)
    step = feed(
      params, kept, step.block, ctx, row, row, tokens[:, begin + j, None],
      step.features, sees,
    )  # fmt: skip


@pytest.mark.parametrize(
  ('layers', 'taps'), [(2, (0, 1)), (3, (0, 1, 2)), (4, (0, 2, 3))]
)
def test_heads_read_the_first_the_middle_and_the_last_layer(layers, taps):
  target = models.tiny(models.VOCAB, layers)
  made = (
    eagle.trainable(target, **models.SMALL, mlp_width=16),
    dflash.trainable(target, **models.DFLASH_SIZES),
  )
  assert [one.taps for one in made] == [taps, taps]
  first = eagle.trainable(target, 1, **models.SMALL, mlp_width=16)
  assert first.taps == (layers - 1,)


def test_fresh_heads_say_the_targets_next_token_distribution():
  trained = models.MEDUSA
  target = models.target_weights()
  own = trained.init(jax.random.key(0), target)
  seen = seen_by(target, texts(3)[0][:, :10], trained.taps)
  found = trained.measure(Params(target, own), seen, 2)
  greedy = np.asarray(seen.logits.argmax(-1))
  for k, (hits, counted) in enumerate(zip(*found.values(), strict=True), 1):
    assert counted == 3 * (8 - k)
    assert hits[0] == (greedy[:, 2:-k] == greedy[:, 2 + k :]).sum()
    assert (hits >= 0).all()
    assert hits.sum() <= counted


@pytest.mark.parametrize('nodes', [1, 2, 5])
def test_the_most_accepted_tree_is_that_of_brute_force(nodes):
  accuracies = ((0.5, 0.3, 0.1), (0.4, 0.35, 0.05))
  paths = [(i,) for i in range(3)] + list(itertools.product(range(3), repeat=2))

  def worth(path):
    return np.prod([accuracies[k][i] for k, i in enumerate(path)])

  def closed(tree):
    return all(
      (len(p) == 1 or p[:-1] in tree)
      and (p[-1] == 0 or (*p[:-1], p[-1] - 1) in tree)
      for p in tree
    )

  trees_of = (set(t) for t in itertools.combinations(paths, nodes))
  best = max(sum(map(worth, t)) for t in trees_of if closed(t))
  parents = trees.most_accepted(accuracies, nodes)
  depth, rank = [0], trees.rank(jnp.array(parents))
  found = [1.0]
  for parent, i in zip(parents, rank.tolist(), strict=True):
    found.append(found[parent] * accuracies[depth[parent]][i])
    depth.append(depth[parent] + 1)
  assert sum(found[1:]) == pytest.approx(best)
  assert depth[1:] == sorted(depth[1:])
  # Guesses keep their order where a later one was better.
  assert trees.most_accepted([(0.5, 0.1, 0.3), (0.2, 0.1)], 4) == (0, 0, 0, 1)


OPTIONS = {'bias': True, 'unembedding': True}
MEDUSA = medusa.trainable(TARGET, DEPTH, **OPTIONS)
say = jax.jit(module.apply, static_argnums=(0, 3))


@pytest.mark.parametrize('tied', [False, True])
def test_fresh_output_layers_are_the_targets(tied):
  target = models.tiny(models.VOCAB, 1, tied_embeddings=tied)
  weights = target.init(jax.random.key(0))
  features = jax.random.normal(jax.random.key(1), (2, TARGET.config.width))
  trained = medusa.trainable(target, 1, **OPTIONS)
  own = trained.init(None, weights)
  said = say(target, Params(weights, own), features, module.USUAL)
  wanted = target.head(weights, target.norm(weights, features))
  np.testing.assert_allclose(said[:, 0], wanted, atol=1e-5)
  assert medusa.trainable(target).config['count'] == 4
  with pytest.raises(ValueError, match='deeper than the 1 heads'):
    trained.drafter(2)
  # Heads without options have no further weights.
  assert models.MEDUSA.config == {'kind': 'medusa', 'count': 3}
  assert {*models.MEDUSA.init(None, weights)} == {'residual'}


TRAINED = {
  'medusa': MEDUSA, 'eagle': models.EAGLE_3, 'exit': models.EXIT,
  'dflash': models.DFLASH,
}  # fmt: skip


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Heads for the usual target, whose fingerprint is 'right'."""
  place = tmp_path_factory.mktemp('heads')
  # By chance the third guess of the second head was right more often.
  guesses = {'hits': [[6, 3, 1], [4, 2, 3], [2, 1, 1]], 'counted': [10] * 3}
  for name, trained in TRAINED.items():
    config = trained.config | {'target': 'right'}
    config |= guesses if name == 'medusa' else {}
    weights = models.head_of(trained, 0.1)()
    files.save(place / name, config, weights)
  return place


LOADS = {
  'medusa': medusa.load, 'eagle': eagle.load, 'exit': early_exit.load,
  'dflash': dflash.load,
}  # fmt: skip


@pytest.mark.parametrize('name', LOADS)
def test_a_head_is_read_as_it_was_saved(folder, name):
  trained = TRAINED[name]
  target = Target(TARGET, fingerprint=lambda: 'right')
  loaded = LOADS[name](target, folder / name)
  ours = models.head_of(trained, 0.1)()
  close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-6)
  jax.tree.map(close, loaded.params, ours)
  drafter = loaded.make(2)
  assert (drafter.depth, drafter.nodes) == (2, 2)
  assert loaded.make(2) == drafter  # Equal drafters share their programs.


def test_a_tree_follows_the_measured_accuracies(folder):
  loaded = medusa.load(HOST, folder / 'medusa', tree=4)
  # Of 0.6, 0.3, 0.6 x 0.4, 0.6 x 0.2, ... the best four.
  assert loaded.make(3).nodes == 4
  assert loaded.make(3).depth == 2
  assert loaded.make(1).nodes == 3


@pytest.mark.parametrize('name', LOADS)
@pytest.mark.parametrize(
  ('path', 'options', 'message'),
  [
    ('{name}', {'fingerprint': lambda: 'wrong'}, 'was trained for another tar'),
    ('nothing', {}, 'is missing: give the directory of a trained'),
    ('{other}', {}, 'holds no '),
    ('{name}', {'width': 3}, "'width' is no option of this drafter"),
    ('{name}', {'widths': (2,), 'beam': 2, 'nodes': 4}, 'choose one of'),
  ],
)
def test_misfits_are_refused(folder, name, path, options, message):
  other = 'exit' if name == 'eagle' else 'eagle'
  path = folder / path.format(name=name, other=other)
  options = dict(options)
  target = Target(TARGET, fingerprint=options.pop('fingerprint', None))
  with pytest.raises(ValueError, match=message):
    LOADS[name](target, path, **options)


def test_medusas_heads_can_be_read_one_place_further(folder):
  path = folder / 'medusa'
  usual = medusa.load(HOST, path)
  later = medusa.load(HOST, path, read_as={'skip': 1})
  feature = jax.random.normal(jax.random.key(1), (2, TARGET.config.width))
  params = Params(models.target_weights(), usual.params)
  places = say(TARGET, params, feature, module.USUAL)
  shifted = say(TARGET, params, feature, module.Reading(skip=1))
  np.testing.assert_array_equal(shifted, places[:, 1:])
  assert later.make(2).depth == 2
  with pytest.raises(ValueError, match='deeper than the 2 heads'):
    later.make(3)
  found = medusa.alternatives(HOST, path, read_as={'skip': 1})
  assert {'read_as': {'skip': 0}} in found.values()
  # Of a single head none can be left out.
  raw, normed = {'final_norm': False}, {'final_norm': True}
  for reading, count, others in (
    (module.USUAL, 1, [raw]), (module.USUAL, 2, [raw, {'skip': 1}]),
    (module.Reading(1, False), 3, [normed, {'skip': 0}]),
  ):  # fmt: skip
    assert [*module.near(reading, count).values()] == others
  norm = jax.jit(TARGET.norm)(params.target, feature)
  raw = say(TARGET, params, norm, module.Reading(final_norm=False))
  np.testing.assert_allclose(raw, places, atol=1e-6)
  with pytest.raises(ValueError, match="'taps' is none of a head"):
    medusa.load(HOST, path, read_as={'taps': (1,)})


def test_what_a_saved_head_does_not_allow_is_refused(folder, tmp_path):
  for kind, changes, message in (
    ('eagle', {'taps': [0, 5]}, 'layers that do not exist'),
    ('eagle', {'mlp_width': 24}, r'do not fit its config\.json'),
    ('medusa', {'bias': False}, r'do not fit its config\.json'),
  ):
    config, weights = files.read(folder / kind, kind)
    path = tmp_path / '-'.join([kind, *changes])
    files.save(path, config | changes, weights)
    with pytest.raises(ValueError, match=message):
      LOADS[kind](HOST, path)
  with pytest.raises(ValueError, match='exit after 1'):
    early_exit.load(HOST, folder / 'exit', layers=2)


def test_a_head_is_written_whole_or_not_at_all(tmp_path):
  path, params = tmp_path / 'a/b/head', {'fuse': {'w': np.ones((1, 2))}}
  with pytest.raises(TypeError):
    files.save(path, {'kind': object()}, params)
  assert not [*path.parent.iterdir()]
  files.save(path, {'kind': 'eagle'}, params)
  assert (path / 'config.json').read_text() == '{\n "kind": "eagle"\n}\n'
  with safetensors.safe_open(path / 'model.safetensors', 'numpy') as file:
    assert file.metadata() == {'format': 'pt'}  # Other loaders ask for it.
  assert files.describe(path, HOST)[:4] == ('eagle', 'specjax', 2, 'float16')


def test_a_broken_config_is_refused(tmp_path):
  for text, message in (('{', 'is no valid JSON'), ('[]', 'a JSON object')):
    (tmp_path / 'config.json').write_text(text)
    with pytest.raises(ValueError, match=message):
      files.read_config(tmp_path, 'eagle')
  (tmp_path / 'config.json').write_text(json.dumps({'kind': 'eagle'}))
  with pytest.raises(ValueError, match='the head has no weights'):
    files.read(tmp_path, 'eagle')


WIDE = models.tiny(128, 2, width=64, num_heads=2, head_dim=32, mlp_width=64)
WIDE_HEADS = {
  'medusa': functools.partial(
    medusa.trainable, WIDE, DEPTH, bias=True, unembedding=True
  ),
  'eagle': functools.partial(
    eagle.trainable, WIDE, width=64, num_heads=2, num_kv_heads=1, mlp_width=64
  ),
  'dflash': functools.partial(
    dflash.trainable, WIDE, block=5, num_heads=4, num_kv_heads=1, head_dim=16,
    mlp_width=64,
  ),
}  # fmt: skip


@pytest.fixture
def saved(tmp_path, name):
  """The weights of a target, and a head for it in a directory."""
  weights = jax.jit(WIDE.init)(jax.random.key(0))
  trained = WIDE_HEADS[name]()
  own = trained.init(jax.random.key(1), weights)
  own = jax.tree.map(lambda x: x + 0.1, own)
  files.save(tmp_path / name, trained.config, own)
  return weights, tmp_path / name


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize('name', models.slow_unless(['medusa'], WIDE_HEADS))
def test_blocks_change_nothing(name, saved):
  weights, path = saved
  drafts = []
  for target, params in (WIDE, weights), variants.to_native(WIDE, weights):
    head = LOADS[name](Target(target), path)
    both = Params(params, head.params)
    drafts.append(propose(head.make(DEPTH), both, *texts(4, 128), target))
  leaves = jax.tree.leaves(head.params, is_leaf=linear.is_native)
  assert any(map(linear.is_native, leaves))
  np.testing.assert_array_equal(drafts[0].tokens, drafts[1].tokens)
  np.testing.assert_allclose(drafts[0].probs, drafts[1].probs, atol=1e-5)


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize('name', models.slow_unless(['medusa'], WIDE_HEADS))
def test_heads_have_few_bits_where_their_targets_have(name, saved):
  """A draft is that of the weights which few bits stand for."""
  weights, path = saved
  model, params = variants.to_native(WIDE, weights)
  for form, given, bits in (
    (WeightForm('stored', blocks=True), {}, 8),
    (WeightForm('int8', rounds=True, blocks=True), {}, 8),
    (WeightForm('stored', blocks=True), {'bits': 0}, 0),
    (parameters.FLOATS, {}, 0),
    (None, {'bits': 4}, 4),
  ):
    head = LOADS[name](Target(model, form=form), path, **given)
    leaves = jax.tree.leaves(head.params, is_leaf=linear.is_weight)
    few = [x for x in leaves if low_bits.is_low_bits(x)]
    rounds = form is not None and form.rounds
    assert {(x.bits, x.rounds, x.blocked) for x in few} == (
      {(bits, rounds, True)} if bits else set()
    )
  assert drafter_facts.dtype_of(head) == 'float32'  # As what is no matrix.
  whole = LOADS[name](Target(WIDE), path)
  floats = models.dequantize(head.params)
  floats = jax.tree.map(lambda x, y: x.reshape(y.shape), floats, whole.params)
  whole = dataclasses.replace(whole, params=floats)
  ours, theirs = (
    propose(x.make(DEPTH), Params(y, x.params), *texts(4, 128), target)
    for x, y, target in ((head, params, model), (whole, weights, WIDE))
  )
  np.testing.assert_array_equal(ours.tokens, theirs.tokens)
  np.testing.assert_allclose(ours.probs, theirs.probs, atol=1e-5)
  for bits in (3, 16, -1):
    with pytest.raises(ValueError, match='bits'):
      LOADS[name](HOST, path, bits=bits)
