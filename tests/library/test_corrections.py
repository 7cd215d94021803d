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

from specjax import sampling
from specjax.drafters import dflash
from specjax.drafters.dflash import corrections, training
from specjax.drafters.dflash.corrections import Places
from specjax.drafters.dflash.module import BlockConv, Head, sizes_of
from specjax.drafters.heads import published
from specjax.drafters.heads.trainable import Seen
from specjax.loop import generate
from specjax.types import Params, Target
from tests.library import test_dflash
from tests.library import test_drafter_promises as promises
from tests.library import test_published_blocks as blocks
from tests.library.test_published_blocks import authors
from tests.support import heads_in_numpy, models
from tests.support.directories import refused

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


PLAIN, CANDIDATES, WINDOW = 1, 4, 6


def domino():
  names = 'weight_ih_l0', 'weight_hh_l0'
  found = zip(names, drawn((6, E), (6, 2)), strict=True)
  found = {f'prefix_gru.{name}': x for name, x in found}
  down, up = drawn((RANK, E + 2), (V, RANK), seed=6)
  return found | {'embed_proj.0.weight': down, 'embed_proj.2.weight': up}


def dflash2(group=4, taps=2):
  before, after, read = drawn((V, RANK), (V, RANK), (RANK, E))
  found = {
    'candidate_selector.predecessor_codebook': before,
    'candidate_selector.successor_codebook': after,
    'candidate_selector.hidden_projection.weight': read,
  }
  rows = 2 * taps * E // group
  for i in range(blocks.LAYERS):
    for j, part in enumerate(('attention_conv', 'mlp_conv')):
      base, own = drawn((2, taps, E), (rows, E), seed=7 + 2 * i + j)
      base, own = 0.5 * base, 0.2 * own
      found |= {
        f'layers.{i}.{part}.base_kernel': base,
        f'layers.{i}.{part}.kernel_projection.weight': own,
      }
  return found


SPARK = {'projector_type': 'dspark', 'markov_rank': RANK}
SECOND = authors(conv_group_size=4, selector_rank=RANK) | {
  'architectures': ['DFlash2DraftModel'],
  'selector_top_k': CANDIDATES,
  'is_causal': False,
  'layer_types': ['sliding_attention'] * blocks.LAYERS,
  'sliding_window': WINDOW,
}


def embedded(tokens):
  table = models.target_weights()['embedding']
  return np.asarray(table, np.float64)[np.asarray(tokens)]


def say_domino(own, logits, hidden, tokens):
  rows = embedded(tokens)
  return heads_in_numpy.domino(own, logits, hidden, rows, PLAIN), None


def say_dflash2(own, logits, hidden, tokens):
  said = heads_in_numpy.dflash2(own, logits, hidden, tokens, CANDIDATES)
  return said, None


# Layout, config.json, more tensors, the restatement, and whether the last token
# says the first place.
FORMATS = {
  'vanilla': (
    'z-lab', authors(**SPARK, markov_head_type='vanilla'), dspark('vanilla'),
    heads_in_numpy.dspark, True,
  ),
  'gated': (
    'z-lab',
    authors(**SPARK, markov_head_type='gated', sample_from_anchor=False),
    dspark('gated', E), heads_in_numpy.dspark, False,
  ),
  'rnn, some tokens': (
    'speculators',
    blocks.SPECULATORS
    | {'speculators_model_type': 'dspark', 'markov_head_type': 'rnn'},
    dspark('rnn', E + RANK, len(blocks.IDS)), heads_in_numpy.dspark, True,
  ),
  'domino': (
    'z-lab',
    authors(
      projector_type='domino', emb_dim=RANK, gru_hidden_dim=2,
      pure_draft_prefix_len=PLAIN, shift_label=True,
    ),
    domino(), say_domino, True,
  ),
  'domino, from the first mask': (
    'z-lab', authors(projector_type='domino', pure_draft_prefix_len=PLAIN),
    domino(), say_domino, False,
  ),
  'dflash2': ('z-lab', SECOND, dflash2(), say_dflash2, False),
}  # fmt: skip


FAST = 'rnn, some tokens', 'domino', 'dflash2'


def write(path, name):
  layout, config, more, *_ = FORMATS[name]
  return blocks.write(path, config, blocks.tensors_of(layout) | more)


def expected(name, text, drafted):
  """Logits [3, V] behind a text and drafted tokens [2], by numpy."""
  layout, _, more, correct, anchored = FORMATS[name]
  tensors = blocks.tensors_of(layout) | more
  own = {key: np.asarray(x, np.float64) for key, x in tensors.items()}
  window = {'window': WINDOW} if name == 'dflash2' else {}
  hidden = blocks.body(layout, own, text, 4 - anchored, **window)[-3:]
  logits = blocks.unembed(own, hidden)
  said, sure = correct(own, logits, hidden, [text[-1], *drafted])
  return blocks.in_vocabulary(said), sure


@functools.partial(jax.jit, static_argnums=0)
def run(walker, params, state, block, ctx, drafted):
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


def steps_of(walker, own, tokens, length, drafted):
  """Each place's logits [B, 2, V] and confidence after two drafts [B, 2, 2]."""
  params, ctx, (state, block) = test_dflash.read(walker, tokens, length, own)
  return jax.device_get(run(walker, params, state, block, ctx, drafted))


@pytest.mark.parametrize('name', models.slow_unless(FAST, FORMATS))
def test_places_are_those_of_the_published_module(name, tmp_path):
  path = write(tmp_path / 'head', name)
  loaded = dflash.load(HOST, path)
  found = published.find(path, TARGET)
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
      # A wrong token would be seen.
      assert not np.allclose(late[1:], said[1:], atol=1e-2)
      for place, (logits, confidence) in enumerate(steps):
        np.testing.assert_allclose(logits[row, path], said[place], atol=1e-5)
        if sure is not None:
          # That of a place alone is the same on every path.
          given = np.broadcast_to(confidence, logits.shape[:2])[row, path]
          assert given == pytest.approx(sure[place], abs=1e-5)
      assert (sure is None) == (steps[0][1] is None)


# Drafts and their laws


def test_q_of_candidates_is_their_law_behind_temperature_and_cuts(tmp_path):
  """Of a published head, beside numpy; every other token has q = 0."""
  loaded = dflash.load(HOST, write(tmp_path / 'head', 'dflash2'))
  tokens, length = promises.texts(8)
  drafter, params = loaded.make(3), Params(models.target_weights(), None)
  params = params._replace(drafter=loaded.params)
  values = sampling.make(8, 0.7, top_p=0.8)
  ctx, memory = promises.fresh(drafter, params, tokens, length, values)
  draft, _ = jax.jit(drafter.propose)(
    params, memory, ctx, generate.row_keys(0, range(8))
  )
  draft = jax.device_get(draft)
  for row, text in enumerate(tokens):
    said, _ = expected('dflash2', text[: length[row]], draft.tokens[row, :2])
    for q, logits in zip(draft.probs[row], said, strict=True):
      p = heads_in_numpy.softmax(logits / 0.7)
      order = np.argsort(-p)
      kept = order[: np.searchsorted(np.cumsum(p[order]), 0.8) + 1]
      p = np.where(np.isin(np.arange(V), kept), p, 0)
      np.testing.assert_allclose(q, p / p.sum(), atol=1e-5)
      assert (np.asarray(q) > 0).sum() == len(kept) <= CANDIDATES


# Training


HEADS = {
  'dflash': (models.DFLASH, models.DFLASH_HEAD, models.DFLASH_SIZES),
  'dspark': (models.SPARK, models.SPARK_HEAD, models.SPARK_SIZES),
  'domino': (models.DOMINO, models.DOMINO_HEAD, models.DOMINO_SIZES),
  'dflash2': (models.DFLASH2, models.DFLASH2_HEAD, models.DFLASH2_SIZES),
}


def seen_of(rows, length):
  tokens = np.random.default_rng(2).integers(0, V, (rows, length))
  hidden = np.stack([test_dflash.features_of(row) for row in tokens])
  logits = models.score(TARGET, models.target_weights(), tokens)
  return Seen(*jax.device_put((tokens, hidden)), logits)


@pytest.mark.parametrize(
  'name', models.slow_unless(['dflash', 'dspark'], HEADS)
)
def test_training_sees_what_drafting_sees(name):
  """A place of a packed block says what a draft of the text says there."""
  trained, head, _ = HEADS[name]
  own, seen = models.head_of(trained, 0.3)(), seen_of(2, 16)
  params = Params(models.target_weights(), own)
  judge = functools.partial(training._judge, head)
  first = np.array([[3, 8], [5, 9]], np.int32)
  places = jax.jit(lambda *x: [*judge(*x)])(params, seen, first)
  places = jax.device_get(places)
  assert len(places) == head.sizes.depth
  walker = dflash.walk(head, 5)
  tokens = np.pad(np.asarray(seen.tokens), ((0, 0), (0, 112)))
  for block in range(2):
    at = first[:, block]
    after = at[:, None] + 1 + np.arange(2)
    drafted = np.take_along_axis(tokens, after, 1)[:, None].repeat(2, 1)
    steps = steps_of(walker, own, tokens, at + 1, drafted)
    for (logits, sure), place in zip(steps, places, strict=False):
      np.testing.assert_allclose(logits[:, 0], place.said[:, block], atol=1e-5)
      if name == 'dspark':
        odds = nn.sigmoid(place.sure[:, block])
        np.testing.assert_allclose(sure[:, 0], odds, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'more'), [('dspark', 'sure'), ('dflash2', 'choice')]
)
def test_a_fresh_correction_adds_nothing_and_learns(name, more):
  """Training begins with the places of the body, and learns what is added."""
  seen, key = seen_of(1, 8), jax.random.key(1)
  weights = models.target_weights()
  trained, head, sizes = HEADS[name]
  plain = dflash.trainable(
    TARGET, **sizes | {'correction': '', 'confidence': ''}
  )
  own = trained.init(key, weights)

  @jax.jit
  def found(own):
    body = {k: x for k, x in own.items() if k in plain.init(key, weights)}
    return plain.loss(Params(weights, body), seen, key)

  @jax.jit
  @functools.partial(jax.value_and_grad, has_aux=True)
  def learned(own):
    terms = trained.loss(Params(weights, own), seen, key)
    return sum(terms.values()), terms

  (before, terms), slope = learned(own)
  places = range(1, head.sizes.depth + 1)
  assert {*terms} == {f'{kind}{k}' for kind in ('place', more) for k in places}
  for term, loss in found(own).items():
    assert float(terms[term]) == pytest.approx(float(loss), abs=1e-6)
  (after, _), _ = learned(jax.tree.map(lambda x, d: x - 0.02 * d, own, slope))
  assert after < before


def test_a_fresh_correction_is_none(monkeypatch):
  """Training begins with the places of the body."""

  @jax.jit
  def begin(key):
    given = Places(jnp.zeros((1, 1, V)), jnp.zeros((1, 1, E)))
    heads = models.SPARK_HEAD, models.DOMINO_HEAD, models.DFLASH2_HEAD
    every = [corrections.of_kind(x.sizes, x.config) for x in heads]
    made = [x.init(key, given, method='prepare') for x in every]
    conv = BlockConv(heads[2].sizes, heads[2].config).init(key, given.hidden)
    return [nn.meta.unbox(x['params']) for x in (*made, conv)]

  spark, domino, second, conv = jax.device_get(begin(jax.random.key(1)))
  for zeros in spark['unembedding'], domino['unembedding'], second['after']:
    assert not zeros.any()
  assert (conv['base'] == [[1] * E, [0] * E]).all()
  own = conv['own']['w'] / (0.1 * E**-0.5)
  for x in second['before'], spark['embedding'], own:
    assert 0.7 < x.std() < 1.4
  # A scale to which a norm adds one is written out.
  monkeypatch.setattr(Head, 'init', lambda *_: {})
  norms = {'norm': {'scale': np.full(2, 0.5)}}
  for plus in (False, True):
    host = models.tiny(V, 2, norm_plus_one=plus)
    made = dflash.trainable(host).init(None, norms)
    assert made['norm']['scale'].tolist() == [0.5 + plus] * 2


LEFT_OUT = 'max_position_embeddings', 'rope_theta', 'rms_norm_eps'
SLIDES = authors() | {
  'layer_types': ['sliding_attention', 'full_attention'], 'sliding_window': 6,
}  # fmt: skip


@pytest.mark.parametrize(
  ('config', 'more', 'expected'),
  [
    (SLIDES, {}, {'windows': (6, None), 'causal': True}),
    (SLIDES | {'sliding_window_non_causal': True}, {}, {'causal': False}),
    (
      SECOND | {'is_causal': True, 'selector_top_k': 1}, dflash2(),
      {'causal': True, 'candidates': 1, 'conv_group': 4, 'windows': (6, 6)},
    ),
    (authors(projector_type='domino'), domino(), {'plain': 0, 'rank': RANK}),
    (
      {k: x for k, x in authors().items() if k not in LEFT_OUT}, {},
      {'max_positions': 32768, 'rope_theta': 1e4, 'norm_eps': 1e-6},
    ),
  ],
)  # fmt: skip
def test_config_json_says_how_a_block_is_read(config, more, expected, tmp_path):
  tensors = blocks.tensors_of('z-lab') | more
  found = published.find(blocks.write(tmp_path, config, tensors), TARGET).config
  assert {name: found.get(name) for name in expected} == expected


# What is refused


VANILLA = dspark('vanilla')
CODEBOOK = 'candidate_selector.predecessor_codebook'


@pytest.mark.parametrize(
  ('config', 'more', 'message'),
  [
    (
      authors(**SPARK, markov_head_type='gated'), VANILLA,
      "markov_head_type = 'gated', but its tensors are those of vanilla",
    ),
    (
      authors(**SPARK | {'markov_rank': 4}), VANILLA,
      r'markov_w1.weight has shape \(11, 3\), and config.json markov_rank = 4',
    ),
    (
      authors(**SPARK),
      VANILLA | {'markov_head.markov_w2.weight': drawn((9, RANK))[0]},
      r'markov_w2.weight has shape \(9, 3\) where config.json makes it \(11, 3',
    ),
    (authors(), VANILLA, 'is of DSpark: add projector_type'),
    (
      SECOND, dflash2() | {CODEBOOK: drawn((V, 5))[0]},
      r'predecessor_codebook has shape \(11, 5\), and config.json selector_ran',
    ),
    (SECOND, dflash2(group=2), 'attention_conv.kernel_projection.weight has 1'),
    (authors(), domino(), 'projector_type, and its tensor prefix_gru.* is of'),
    (
      authors(projector_type='domino', gru_hidden_dim=3), domino(),
      r'weight_hh_l0 has shape \(6, 2\), and config.json gru_hidden_dim = 3',
    ),
    (
      authors(projector_type='domino'), VANILLA,
      "projector_type = 'domino', but its tensors are those of DSpark",
    ),
    (
      authors(**SPARK), {},
      "projector_type = 'dspark', but its tensors are those of DFlash",
    ),
  ],
)  # fmt: skip
def test_what_is_no_such_head_is_refused(config, more, message, tmp_path):
  path = tmp_path / 'head'
  blocks.write(path, config, blocks.tensors_of('z-lab') | more)
  refused(message, dflash.load, HOST, path)
