"""Rows of a scoring pass have the bits of plain decoding.

On the kernel, and in uniform passes of whole weights.

Whatever the number of rows, the tree they are in, the texts beside them, and
what of a text is still in the block: greedy texts are equal then, not equal up
to ties.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import trees, verify
from specjax.bench import ties
from specjax.bench.load import load_experiment
from specjax.bench.plan import plan
from specjax.models import cache as caches
from specjax.models import (
  layouts,
  linear,
  prefill,
  transformer,
  uniform,
)
from specjax.models.config import LayerInputs, Sharing, Wide
from tests.support import models, tiny

pytestmark = pytest.mark.usefixtures('kernel')
SIZES = {'width': 48, 'head_dim': 16, 'mlp_width': 80}
VOCAB = 64
# The last two continue beyond a chunk of slots that attention takes at once.
LENGTHS = 5, 40, 117, 127
DEPTHS = 1, 3, 5, 16
CASES = {
  'float32': ({'sharing': Sharing(1, 96)}, 'float32', 0),
  'bfloat16 and windows': (
    dict(
      windows=(6, None),
      attention_cap=4.0,
      post_norms=True,
      qk_norm=True,
      norm_plus_one=True,
      tied_embeddings=True,
      wide=Wide((1,), 1, 32, keys_as_values=True),
      value_norm=True,
      layer_inputs=LayerInputs(16, 2, VOCAB),
      layer_scale=True,
    ),
    'bfloat16',
    0,
  ),
  'four bits and layer norms': (
    models.CHOICES['one norm'] | {'rotary_dim': 8},
    'float32',
    4,
  ),
}


FORMS = {
  'kernel': layouts.to_native,
  'uniform': lambda model, params: (uniform.uniform(model), params),
  'whole': lambda model, params: (model, params),
}


@functools.cache
def made(name, form='kernel'):
  """A model and its weights, as they are computed with."""
  options, dtype, bits = CASES[name]
  model = models.tiny(VOCAB, 2, **SIZES, **options)
  draw = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: jnp.asarray(draw.normal(x.ndim == 1, 0.3, x.shape), dtype),
    jax.jit(model.init)(jax.random.key(0)),
  )
  if bits:
    params = linear.quantize(
      params, model.config.tied_embeddings, bits, rounds=True
    )
  return FORMS[form](model, params)


def texts_of():
  draw = np.random.default_rng(1)
  shape = 2, len(LENGTHS), max(LENGTHS) + max(DEPTHS) + 1
  texts = draw.integers(1, VOCAB, shape).astype(np.int32)
  for row, length in enumerate(LENGTHS):  # The same until they are drafted.
    texts[1, row, :length] = texts[0, row, :length]
  return texts


@functools.partial(jax.jit, static_argnums=0)
def read(model, params, tokens, length):
  cache = transformer.open_cache(model, params, len(tokens), 256)
  return prefill.prefill(model, params, tokens, length, cache)[0]


@functools.partial(jax.jit, static_argnums=0)
def score(model, params, tokens, depth, mask, cache, used):
  out = model.forward(params, tokens, used[:, None] + depth, cache, used, mask)
  return out.flight, model.head(params, out.hidden)


def plain(form, text, length):
  """Logits of plain decoding of a text, from its last known token on."""
  used = np.array([length - 1], np.int32)
  cache, rows = read(*form, text[None], used + 1), []
  commit, zero = jax.jit(caches.commit), np.zeros((1, 1), np.int32)
  for _ in range(max(DEPTHS) + 1):
    one, token = np.ones((1, 1, 1), bool), text[None, used[0] : used[0] + 1]
    block, logits = score(*form, token, zero, one, cache, used)
    cache = commit(cache, block, zero, used, np.ones(1, np.int32))
    used = used + 1
    rows.append(np.asarray(logits[0, 0], np.float64))
  return np.stack(rows)


def together(form, cache, depth):
  """The same, up to a depth: both ways in one tree, all texts in a batch."""
  texts, batch = texts_of(), len(LENGTHS)
  used = np.array(LENGTHS, np.int32) - 1
  # The root, then a node of each way in turns.
  parents = np.maximum(np.arange(2 * depth) - 1, 0)
  parents = jnp.broadcast_to(parents, (batch, 2 * depth))
  rows, mask = trees.each(trees.ancestors, parents)
  at = (used[:, None] + np.arange(depth + 1))[None]
  path = np.take_along_axis(texts, at, 2)  # [2, B, depth + 1]
  nodes = path[..., 1:].transpose(1, 2, 0).reshape(batch, -1)
  tokens = np.concatenate([path[0, :, :1], nodes], 1)
  _, logits = score(*form, tokens, rows, mask, cache, used)
  logits = np.asarray(logits, np.float64)
  root = logits[:, :1]
  return np.stack(
    [np.concatenate([root, logits[:, 1 + i :: 2]], 1) for i in range(2)]
  )


# 33 rows of each of four texts do not fit into a uniform pass, and are in two.
@pytest.mark.parametrize(
  ('name', 'form'),
  [
    ('float32', 'kernel'),
    *(
      pytest.param(name, form, marks=pytest.mark.slow)
      for name in CASES
      for form in ('kernel', 'uniform')
      if (name, form) != ('float32', 'kernel')
    ),
  ],
)
def test_rows_have_the_bits_of_plain_decoding(name, form):
  form, texts = made(name, form), texts_of()
  want = np.array(
    [
      [plain(form, *x) for x in zip(some, LENGTHS, strict=True)]
      for some in texts
    ]
  )
  assert want.std() > 0.3
  cache = read(*form, texts[0], np.array(LENGTHS, np.int32))
  for depth in DEPTHS:
    found = together(form, cache, depth)
    np.testing.assert_array_equal(found, want[:, :, : depth + 1])


@pytest.mark.parametrize(
  ('options', 'dtype', 'reason'),
  [
    ({}, 'float32', ''),
    ({}, 'float16', 'layer0/'),
    ({'mlp_width': 20}, 'float32', 'layer0/up'),
    ({'tied_embeddings': True}, 'float32', ''),
    ({'tied_embeddings': True, 'vocab_size': 63}, 'float32', 'embedding'),
    ({'vocab_size': 63}, 'float32', 'unembedding'),
    ({'head_dim': 4}, 'float32', 'heads of 4'),
    ({'head_dim': 272}, 'float32', 'heads of 272'),
    ({'sink_logits': True}, 'float32', 'sinks'),
    (models.CHOICES['a state'], 'float32', 'state'),
  ],
)
def test_what_gives_a_row_other_bits_is_named(options, dtype, reason):
  options = dict(options)
  vocab = options.pop('vocab_size', VOCAB)
  model = models.tiny(vocab, 2, **SIZES | options)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), shapes)
  found = layouts.parting(model, shapes)
  assert (reason in found) if reason else not found
  layout, none = layouts.for_bits(model, shapes)
  needs = uniform.refuses(model)
  assert (reason in none) if needs else not none
  assert layout == ('' if needs else 'uniform' if reason else 'native')


def test_the_kernel_does_not_attend_in_float16():
  """Its products take any type where weights have few bits."""
  model = models.tiny(VOCAB, 2, **SIZES)
  params = jax.jit(model.init)(jax.random.key(0))
  params = jax.tree.map(lambda x: x.astype('float16'), params)
  few = layouts.to_native(model, linear.quantize(params, False, 8))
  assert 'float16' in layouts.parting(*few)
  assert layouts.for_bits(*few) == ('', layouts.parting(*few))


def test_more_rows_than_a_uniform_pass_has_are_refused():
  model, params = made('float32', 'uniform')
  with pytest.raises(ValueError, match='129 rows of a text'):
    score(
      model,
      params,
      *(np.zeros((1, 129), np.int32),) * 2,
      np.ones((1, 129, 129), bool),
      transformer.open_cache(model, params, 1, 256),
      np.ones(1, np.int32),
    )


def test_a_target_is_loaded_with_them(folder):
  target = specjax.load(folder / 'target', exact='bits')
  assert target.layout == layouts.NATIVE
  assert not layouts.parting(target.model, target.params)
  for field, options in {
    'exact': {'exact': 'bit'},
    'layout': {'exact': 'bits', 'layout': 'whole'},
    'kernel': {'exact': 'bits', 'layout': 'native', 'dtype': 'float16'},
  }.items():
    with pytest.raises(ValueError, match=field):
      specjax.load(folder / 'target', **options)
  halves = specjax.load(folder / 'target', exact='bits', dtype='float16')
  assert halves.layout == layouts.UNIFORM
  assert uniform.is_uniform(halves.model)


def test_programs_compute_with_them(folder):
  x = tiny.experiment(folder, drafters=('ngram',), exact='bits')
  built = load_experiment(plan(x))
  assert [*built.forms] == [layouts.NATIVE]
  x.dtype = 'float16'
  built = load_experiment(plan(x))
  assert [*built.forms] == [layouts.UNIFORM]
  assert ties.same_bits(
    [ties.way(way, 1, 128) for way in (built.base, built.methods[0].way)]
  )


def test_texts_that_part_then_have_met_a_bug():
  native, same = made('float32'), functools.partial(ties.Scoring, rows=5)
  model = models.tiny(VOCAB, 2, **SIZES)
  other = jax.tree.map(jnp.copy, native.params)

  def told(*forms):
    return ties.same_bits([same(*form, batch=2, slots=128) for form in forms])

  assert told(native, native)
  assert not told(native, (native.model, other))
  assert not told((model, other), (model, other))


@pytest.mark.slow
def test_sampled_texts_are_those_of_plain_decoding_by_a_placed_rule(folder):
  target = specjax.load(folder / 'target', exact='bits')
  prompts = [[5, 6, 7], [8, 9, 10, 11, 5], [3]]

  def decode(drafter, gamma, rule, prompts=prompts, seed=0):
    options = {'gamma': gamma, 'rule': rule, 'seed': seed}
    options |= {'new_tokens': 24, 'temperature': 0.4, 'top_k': 8}
    return specjax.decode(target, drafter, prompts, **options)

  plain = decode(None, 1, verify.naive)
  itself = functools.partial(specjax.drafters.lm.load, target, target.path)
  for drafter, gamma in ((itself(), 3), (itself(widths=(3, 2)), 2)):
    out = decode(drafter, gamma, verify.naive)
    assert out.tau > 1.3
    assert out.tokens == plain.tokens
    few = decode(drafter, gamma, verify.naive, prompts[:1])
    assert few.tokens == plain.tokens[:1]
  assert decode(itself(), 3, verify.token).tokens != plain.tokens
  assert decode(None, 1, verify.naive, seed=1).tokens != plain.tokens
