"""Heads that correct a DFlash block: published ones beside numpy, and training.

Each format is written with random weights, and every place is compared after
several drafted tokens, which are siblings as in a tree.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from specjax.certify import laws
from specjax.checkpoints.files import CheckpointError
from specjax.drafters import dflash
from specjax.drafters.dflash import training
from specjax.drafters.dflash.module import Head, sizes_of
from specjax.drafters.heads import published
from specjax.drafters.heads.trainable import Seen
from specjax.types import Params, Target
from tests.library import test_dflash
from tests.library import test_drafter_promises as promises
from tests.library import test_generate as loops
from tests.library import test_published_blocks as blocks
from tests.support import heads_in_numpy, models

TARGET, V, E = models.TARGET, models.VOCAB, blocks.E
HOST, RANK = Target(TARGET), 3


def drawn(*shapes, seed=5):
  random = np.random.default_rng(seed)
  return [random.normal(size=s).astype(np.float32) for s in shapes]


def dspark(kind, inputs=0, vocab=V):
  """Tensors of a kind of Markov head, with a confidence of so many inputs."""
  w1, w2 = drawn((V, RANK), (vocab, RANK))
  found = {'markov_w1.weight': w1, 'markov_w2.weight': w2}
  shape = {'gated': (RANK, E + RANK), 'rnn': (3 * RANK, 2 * RANK + E)}
  name = {'gated': 'gate_proj', 'rnn': 'joint_proj'}
  if kind in shape:
    weight, bias = drawn(shape[kind], shape[kind][0])
    found |= {f'{name[kind]}.weight': weight, f'{name[kind]}.bias': bias}
  found = {f'markov_head.{key}': x for key, x in found.items()}
  if inputs:
    weight, bias = drawn((1, inputs), 1, seed=6)
    found |= {
      'confidence_head.proj.weight': weight,
      'confidence_head.proj.bias': bias,
    }
  return found


def authors(**more):
  config = blocks.AUTHORS['dflash_config'] | more
  return blocks.AUTHORS | {'dflash_config': config}


SPARK = {'projector_type': 'dspark', 'markov_rank': RANK}
# Layout, config.json, more tensors, the restatement, and whether the last token
# says the first place.
FORMATS = {
  'vanilla': (
    'z-lab',
    authors(**SPARK, markov_head_type='vanilla'),
    dspark('vanilla'),
    heads_in_numpy.dspark,
    True,
  ),
  'gated': (
    'z-lab',
    authors(**SPARK, markov_head_type='gated', sample_from_anchor=False),
    dspark('gated', E),
    heads_in_numpy.dspark,
    False,
  ),
  'rnn, some tokens': (
    'speculators',
    blocks.SPECULATORS
    | {'speculators_model_type': 'dspark', 'markov_head_type': 'rnn'},
    dspark('rnn', E + RANK, len(blocks.IDS)),
    heads_in_numpy.dspark,
    True,
  ),
}


def write(path, name):
  layout, config, more, *_ = FORMATS[name]
  return blocks.write(path, config, blocks.tensors_of(layout) | more)


def expected(name, text, drafted):
  """Logits [3, V] behind a text and drafted tokens [2], by numpy."""
  layout, _, more, correct, anchored = FORMATS[name]
  tensors = blocks.tensors_of(layout) | more
  own = {key: np.asarray(x, np.float64) for key, x in tensors.items()}
  hidden = blocks.body(layout, own, text, 4 - anchored)[-3:]
  logits = blocks.unembed(own, hidden)
  said, sure = correct(own, logits, hidden, [text[-1], *drafted])
  return blocks.in_vocabulary(said), sure


def steps_of(walker, own, tokens, length, drafted):
  """Each place's logits [B, 2, V] and confidence after two drafts [B, 2, 2]."""
  params, ctx, (state, block) = test_dflash.read(walker, tokens, length, own)

  @jax.jit
  def run(params, state, block, ctx, drafted):
    step = walker.start(params, state, block, ctx)
    found = [jax.tree.map(lambda x: jnp.repeat(x, 2, 1), step)]
    features = found[0].features
    for depth in (1, 2):
      fed = drafted[:, :, depth - 1]
      step = walker.feed(
        params, state, step.block, ctx, 0, depth, fed, features, None
      )
      features = step.features
      found.append(step)
    return [(step.logits, step.confidence) for step in found]

  return run(params, state, block, ctx, drafted)


@pytest.mark.parametrize(
  'name', models.slow_unless(['rnn, some tokens'], FORMATS)
)
def test_places_are_those_of_the_published_module(name, tmp_path):
  path = write(tmp_path / 'head', name)
  loaded = dflash.load(HOST, path)
  found = published.find(path, TARGET.config)
  head = Head(TARGET, sizes_of(found.config))
  assert head.sizes.anchored == FORMATS[name][-1]
  random = np.random.default_rng(0)
  tokens = random.integers(0, V, (3, 128)).astype(np.int32)
  drafted = random.integers(0, V, (3, 2, 2)).astype(np.int32)
  length = np.array([1, 9, 30], np.int32)
  walker = dflash.walk(head, 4 - head.sizes.anchored)
  steps = steps_of(walker, loaded.params, tokens, length, drafted)
  for row, text in enumerate(tokens):
    for path, tail in enumerate(drafted[row]):
      before = text[: length[row]]
      said, sure = expected(name, before, tail)
      late, _ = expected(name, before, [before[-1], tail[0]])
      late, right = (x[1:, blocks.IDS] for x in (late, said))
      assert np.abs(late - right).max() > 1e-2  # A wrong token would be seen.
      for place, (logits, confidence) in enumerate(steps):
        np.testing.assert_allclose(logits[row, path], said[place], atol=1e-5)
        if sure is not None:
          assert confidence[row, path] == pytest.approx(sure[place], abs=1e-5)
      assert (sure is None) == (steps[0][1] is None)


# Drafts and their laws


CORRECTED = 'dspark', 'dspark, dynamic tree'


@pytest.mark.slow
@pytest.mark.parametrize('name', CORRECTED)
def test_greedy_text_is_that_of_plain_decoding(name):
  assert loops.greedy(name) == loops.greedy('plain')


@pytest.mark.slow
def test_a_place_is_drawn_given_the_token_before():
  """And drafts end where the head's own confidence says so."""
  draft = promises.drafts('dspark')
  assert laws.fits(draft).least > promises.LEVEL
  assert laws.no_distribution(draft) == ''
  sizes = np.bincount(draft.size, minlength=5)
  assert sizes[0] == 0 < sizes[1:].min()


# Training


def seen_of(rows, length):
  tokens = np.random.default_rng(2).integers(0, V, (rows, length))
  hidden = np.stack([test_dflash.features_of(row) for row in tokens])
  logits = models.score(TARGET, models.target_weights(), tokens)
  return Seen(jnp.asarray(tokens), jnp.asarray(hidden), logits)


def test_training_sees_what_drafting_sees():
  """A place of a packed block says what a draft of the text says there."""
  own, seen = models.head_of(models.SPARK, 0.3)(), seen_of(2, 16)
  params = Params(models.target_weights(), own)
  judge = functools.partial(training._judge, models.SPARK_HEAD)
  first = jnp.array([[3, 8], [5, 9]])
  places = jax.jit(lambda *x: [*judge(*x)])(params, seen, first)
  assert len(places) == 5
  walker = dflash.walk(models.SPARK_HEAD, 5)
  for block in range(2):
    at = first[:, block]
    tokens = jnp.pad(seen.tokens, ((0, 0), (0, 112)))
    after = at[:, None] + 1 + jnp.arange(2)
    drafted = jnp.take_along_axis(tokens, after, 1)[:, None].repeat(2, 1)
    steps = steps_of(walker, own, tokens, at + 1, drafted)
    for (logits, sure), place in zip(steps, places, strict=False):
      said, *_, odds = (None if x is None else x[:, block] for x in place)
      np.testing.assert_allclose(logits[:, 0], said, atol=1e-5)
      np.testing.assert_allclose(sure[:, 0], nn.sigmoid(odds), atol=1e-5)


@pytest.mark.slow
def test_a_fresh_correction_is_none():
  """Training begins with the places of the body, and learns the confidence."""
  seen, key = seen_of(1, 8), jax.random.key(1)
  weights = models.target_weights()
  sizes = models.SPARK_SIZES | {'correction': '', 'confidence': ''}
  plain = dflash.trainable(TARGET, **sizes)
  own = models.SPARK.init(key, weights)

  @jax.jit
  def found(own):
    body = {k: x for k, x in own.items() if k in plain.init(key, weights)}
    return plain.loss(Params(weights, body), seen, key)

  @jax.jit
  @functools.partial(jax.value_and_grad, has_aux=True)
  def learned(own):
    terms = models.SPARK.loss(Params(weights, own), seen, key)
    return sum(x for name, x in terms.items() if 'sure' in name), terms

  (before, terms), slope = learned(own)
  assert {*terms} == {f'{x}{k}' for x in ('place', 'sure') for k in range(1, 6)}
  for name, loss in found(own).items():
    assert float(terms[name]) == pytest.approx(float(loss), abs=1e-6)
  (after, _), _ = learned(jax.tree.map(lambda x, d: x - 0.1 * d, own, slope))
  assert after < before


# What is refused


WRONG = {
  'another kind of correction': (
    authors(**SPARK, markov_head_type='gated'),
    dspark('vanilla'),
    "markov_head_type = 'gated', but its tensors are those of vanilla",
  ),
  'another rank': (
    authors(**SPARK | {'markov_rank': 4}),
    dspark('vanilla'),
    'markov_w1.weight has rank 3, and config.json markov_rank 4',
  ),
  'another vocabulary': (
    authors(**SPARK),
    dspark('vanilla') | {'markov_head.markov_w2.weight': drawn((9, RANK))[0]},
    r'markov_w2.weight has shape \(9, 3\) where config.json makes it \(11, 3\)',
  ),
  'no name': (
    authors(),
    dspark('vanilla'),
    'has no projector_type, and its tensor .* is of DSpark: add projector_type',
  ),
  'another name': (
    authors(projector_type='domino'),
    dspark('vanilla'),
    "projector_type = 'domino', but its tensors are those of DSpark",
  ),
  'a name alone': (
    authors(**SPARK),
    {},
    "projector_type = 'dspark', but its tensors are those of DFlash",
  ),
}


@pytest.mark.parametrize('name', WRONG)
def test_what_is_no_such_head_is_refused(name, tmp_path):
  config, more, message = WRONG[name]
  path = tmp_path / 'head'
  blocks.write(path, config, blocks.tensors_of('z-lab') | more)
  with pytest.raises(CheckpointError, match=message) as error:
    dflash.load(HOST, path)
  assert '\n' not in str(error.value)
