"""One forward pass for reading, drafting and scoring, cached or not.

The reference is `score`: a whole sequence at once and no cache. In float64
every other way to the same logits agrees with it to 1e-10.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import trees
from specjax.models import (
  attention,
  cache_attention,
  devices,
  experts,
  linear,
  prefill,
  rotary,
  transformer,
  variants,
)
from specjax.models import cache as caches
from specjax.models.check import check_model
from specjax.models.config import (
  Experts,
  GatedDelta,
  LayerInputs,
  Narrowed,
  Relative,
  Sharing,
  Wide,
)
from specjax.types import KV
from tests.support import models

pytestmark = pytest.mark.usefixtures('float64')
close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-10)
VOCAB = models.VOCAB
LLAMA = models.TARGET
GPT = models.tiny(
  VOCAB, 2, num_kv_heads=2, activation=nn.gelu, gated=False, layer_norm=True,
  rope_theta=None, qkv_bias=True, out_bias=True, mlp_bias=True,
  tied_embeddings=True,
)  # fmt: skip
# A window in one layer, and what else comes with it.
GEMMA = models.tiny(
  VOCAB, 2, windows=(4, None), local_rope_theta=50.0, norm_plus_one=True,
  post_norms=True, qk_norm=True, embedding_scale=3.0, query_scale=0.3,
  attention_cap=3.0, logit_cap=9.0,
)  # fmt: skip
EXPERTS = models.tiny(
  VOCAB, 2, parallel=True, rotary_dim=2,
  experts=Experts(count=5, chosen=2, width=12, dense=(0,)),
)  # fmt: skip
WHOLE = 512  # slots of the large blocks that are walked
CHOICES = {
  name: models.tiny(VOCAB, 2, **options)
  for name, options in models.CHOICES.items()
}
MODELS = CHOICES | {
  'llama': LLAMA, 'gpt': GPT, 'gemma': GEMMA, 'experts': EXPERTS
}  # fmt: skip


@functools.cache
def weights(model):
  """Random float64 weights; biases and scales are random too."""
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  random = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: (
      random.normal(size=x.shape) * (0.6 if x.ndim > 1 else 0.3) + (x.ndim == 1)
    ),
    shapes,
  )


def words(rows, length, seed=0):
  random = np.random.default_rng(seed)
  return random.integers(0, VOCAB, (rows, length)).astype(np.int32)


@functools.partial(jax.jit, static_argnums=0)
def in_pieces(model, params, tokens, length):
  """Logits after the last six tokens, most of the text having been read.

  prefill   all before position length - 1
  3 tokens  positions length - 1, ... and then commit
  3 tokens  the next three
  """
  rows, slots = tokens.shape
  cache = caches.empty(model.config, rows, slots, jnp.float64)
  cache, features = prefill.prefill(
    model, params, tokens, length, cache, taps=(0, 1)
  )
  mask, chain = transformer.causal(rows, 3)

  def step(carry, _):
    cache, used = carry
    place = used[:, None] + chain
    fed = jnp.take_along_axis(tokens, place, 1)
    out = model.forward(params, fed, place, cache, used, mask)
    cache = caches.commit(cache, out.flight, chain, used, jnp.full(rows, 3))
    return (cache, used + 3), model.head(params, out.hidden)

  _, logits = jax.lax.scan(step, (cache, length - 1), None, 2)
  return jnp.concatenate(logits, 1), features


@functools.partial(jax.jit, static_argnums=0)
def at_once(model, params, tokens):
  """Logits, and the features and hidden states that they come from."""
  mask, positions = transformer.causal(*tokens.shape)
  given = params, tokens, positions, None, None, mask
  out = model.forward(*given, taps=(0, 1))
  return model.head(params, out.hidden), out.taps, out.hidden


def assert_pieces_agree(model, tokens, length):
  params = weights(model)
  pieces, features = in_pieces(model, params, tokens, length)
  whole, taps, _ = at_once(model, params, tokens[:, : max(length) + 5])
  assert whole.dtype == np.float64
  assert whole.std() > 0.1
  for row, first in enumerate(length - 1):
    close(pieces[row], whole[row, first : first + 6])
    close(features[row, :first], taps[row, :first])
  return features


@pytest.mark.parametrize('name', MODELS)
def test_reading_and_stepping_is_the_full_pass(name):
  length = np.array([1, 2, 60, 123], np.int32)
  features = assert_pieces_agree(MODELS[name], words(4, 128), length)
  # One token has none before it whose features there could be.
  fed = np.arange(128) < length[:, None] - 1
  assert not features[~fed].any()
  assert features[fed].all()


@pytest.mark.parametrize(
  ('options', 'length'),
  [
    # No row sees the first block in the first layer, and the last row sees two.
    # The second layer has no window, and walks over all of them.
    ({'windows': (90, None)}, (700, 1020, 1026, 1100)),
    # The first tokens are seen besides, in the block that is read at first and
    # in later ones from the cache.
    ({'narrowed': Narrowed(600, sinks=3)}, (3, 95, 520, 1100)),
  ],
)
def test_a_window_skips_blocks_of_the_cache(options, length):
  model = models.tiny(VOCAB, 2, max_positions=1536, **options)
  assert_pieces_agree(model, words(4, 1536), np.array(length, np.int32))


def seen(model, place):
  """Places whose logits change with a token."""
  tokens = words(1, 24)
  changed = tokens.copy()
  changed[0, place] = (tokens[0, place] + 1) % VOCAB
  both = np.concatenate([tokens, changed])
  a, b = np.asarray(models.score(model, weights(model), both))
  return np.flatnonzero(np.abs(a - b).max(-1) > 1e-9).tolist()


def test_a_query_sees_its_window_the_end_and_the_first_tokens():
  """Where it is narrowed no more than its own window, where it has one."""
  narrowed = Narrowed(window=5, sinks=2)
  model = models.tiny(VOCAB, 1, narrowed=narrowed)
  own = models.tiny(VOCAB, 1, narrowed=narrowed, windows=(3,))
  wide = models.tiny(VOCAB, 1, narrowed=narrowed, windows=(9,))
  five = models.tiny(VOCAB, 1, windows=(5,))
  assert seen(model, 7) == seen(five, 7) == [7, 8, 9, 10, 11]
  assert seen(model, 1) == list(range(1, 24))
  assert seen(own, 1) == [1, 2, 3]
  assert seen(wide, 1) == [1, 2, 3, 4, 5]


def test_a_window_that_no_text_fills_is_not_looked_at():
  """It costs nothing, but the layer keeps the base of those with a window."""
  near, far = (
    models.tiny(VOCAB, 1, windows=(size,), local_rope_theta=50.0)
    for size in (511, 512)
  )
  assert (near.config.reach(0), far.config.reach(0)) == (511, None)
  tokens = words(1, 24)
  close(*(models.score(x, weights(near), tokens) for x in (far, near)))


def test_a_window_is_one_of_depth_not_of_rows():
  #   0 -- 1 -- 3      four rows apart, but two tokens
  #    \\- 2    \\- 4
  _, mask = trees.ancestors(np.array([0, 0, 1, 3]))
  narrow = attention.narrow(mask[None], 2)[0].astype(int)
  wanted = ['10000', '11000', '10100', '01010', '00011']
  assert [''.join(map(str, row)) for row in narrow.tolist()] == wanted
  assert attention.narrow(mask, 5) is mask


def test_every_expert_that_was_chosen_counts():
  """As the sum over the choices of each token, written out."""
  random = np.random.default_rng(0)
  config = EXPERTS.config
  params = {
    name: random.normal(size=shape)
    for name, shape in {
      'router': (8, 5),
      'up': (5, 8, 2, 12),
      'down': (5, 12, 8),
    }.items()
  }
  module = jax.jit(experts.Experts(config).apply)
  # Four choices are walked one by one; of six, the five experts are.
  for count in (2, 3):
    x = random.normal(size=(count, 8))
    found = module({'params': params}, x)
    for row, y in zip(x, found, strict=True):
      odds = np.exp(row @ params['router'])
      chosen = np.argsort(-odds)[:2]
      expected = 0
      for i in chosen:
        gate, up = np.moveaxis(row @ params['up'][i].transpose(1, 0, 2), 0, 0)
        hidden = gate / (1 + np.exp(-gate)) * up
        expected += odds[i] / odds[chosen].sum() * hidden @ params['down'][i]
      np.testing.assert_allclose(y, expected, rtol=1e-10)


def test_logits_depend_on_the_chosen_experts_alone():
  params, token = weights(EXPERTS), np.array([[3]])
  ((((*chosen,),),),) = transformer.choose_experts(EXPERTS, params, token)
  assert len({*map(int, chosen)}) == 2
  expected = models.score(EXPERTS, params, token)
  layer = params['layer1']
  for spoilt in range(5):
    up = layer['experts']['up'].copy()
    up[spoilt] = np.nan
    mixture = {'experts': layer['experts'] | {'up': up}}
    changed = params | {'layer1': layer | mixture}
    found = models.score(EXPERTS, changed, token)
    if spoilt in chosen:
      assert np.isnan(found).all()
    else:
      np.testing.assert_array_equal(found, expected)


def test_hidden_states_are_the_last_features_after_one_more_norm():
  params = weights(LLAMA)
  _, taps, hidden = at_once(LLAMA, params, words(4, 128))
  last = np.asarray(taps)[:, :, 1]
  size = np.sqrt((last**2).mean(-1, keepdims=True) + 1e-5)
  scaled = last / size * params['norm']['scale']
  close(hidden, scaled)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'platform'),
  [(x, 'cpu') for x in MODELS]
  + [(x, 'tpu') for x in ('gemma', 'gpt', 'latents')],
)
def test_the_check_of_other_code_finds_nothing(name, platform):
  """Trees, ragged texts, slots beyond them, and blocks fed token by token."""
  form = devices.FORMS[platform]
  check_model(variants.for_device(MODELS[name], form), weights(MODELS[name]))


def test_rotary_positions_are_relative():
  random = np.random.default_rng(0)
  q, k = random.normal(size=(2, 1, 6, 1, 8))
  rotate = jax.jit(
    lambda x, place: rotary.rotate(x, place, rotary.frequencies(1e4, 8))
  )
  place = np.arange(6)[None]

  def scores(shift):
    turned = [rotate(x, place + shift) for x in (q, k)]
    return np.einsum('bthd,bshd->bts', *turned)

  close(scores(0), scores(900))
  # Position 0 turns nothing, and one step turns the first pair by one radian.
  np.testing.assert_allclose(rotate(q, 0 * place), q)
  unit = np.zeros_like(q)
  unit[..., 0] = 1
  one = rotate(unit, place)[:, 1:]
  expected = np.zeros(8)
  expected[[0, 4]] = np.cos(1), np.sin(1)
  close(one[0, 0, 0], expected, atol=1e-12)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float32'])
@pytest.mark.parametrize('turned', [4, 8])
def test_halves_exchanged_by_a_product_are_turned_alike(dtype, turned):
  """To the bit, also where some entries are not turned."""
  x = np.random.default_rng(0).normal(size=(2, 3, 2, 8))
  x = jnp.asarray(x, dtype)
  place, turn = np.arange(6).reshape(2, 3), rotary.frequencies(1e4, turned)
  plain, by_product = (
    rotary.rotate(x, place, turn, 1.5, by_product=given)
    for given in (False, True)
  )
  assert plain.dtype == by_product.dtype == x.dtype
  np.testing.assert_array_equal(plain, by_product)
  assert (plain != x).any()


def test_a_query_that_sees_nothing_gets_zero():
  flight = KV(np.ones((1, 1, 4, 2)), np.ones((1, 1, 2, 4)))
  cache = KV(np.ones((1, 1, 4, 8)), np.ones((1, 1, 8, 4)))
  attend = functools.partial(
    attention.attend, over_cache=cache_attention.padded
  )
  out = jax.jit(attend)(
    np.ones((1, 1, 1, 1, 4)), cache, np.array([0]), flight,
    np.zeros((1, 1, 2), bool),
  )  # fmt: skip
  assert not np.asarray(out).any()


def test_positions_beyond_the_last_give_numbers():
  """Drafts may reach beyond the limit; they are cut, but must be numbers."""

  @jax.jit
  def read(params, tokens):
    mask, positions = transformer.causal(1, 4)
    place = positions + GPT.config.max_positions - 2
    return GPT.forward(params, tokens, place, None, None, mask).hidden

  assert np.isfinite(read(weights(GPT), words(1, 4))).all()


@pytest.mark.parametrize(
  'name',
  models.slow_unless(
    ['gemma'], ['gemma', 'experts', 'latents', 'normed behind', 'a state']
  ),
)
def test_the_form_of_a_tpu_changes_no_logits(name):
  params, tokens = weights(MODELS[name]), words(2, 128)
  length = np.array([2, 60])
  changed = variants.for_device(MODELS[name], devices.FORMS['tpu'])
  pieces = [
    in_pieces(model, params, tokens, length)[0]
    for model in (MODELS[name], changed)
  ]
  assert changed.config.device.rows == 8
  close(*pieces)


@pytest.mark.parametrize(
  'options',
  [
    {'rope_theta': None, 'relative': Relative(8, 6)},
    {'layer_inputs': LayerInputs(16, 2, VOCAB), 'without_attention': (0,)},
    {'sharing': Sharing(1, 40), 'windows': (2, None)},
    {'latent': models.CHOICES['latents']['latent'], 'rotary_dim': 2},
    models.CHOICES['one norm'],
    {'attention_gate': True, 'qk_norm': True},
  ],
)
def test_a_pass_of_more_rows_than_tokens_says_nothing_of_them(options):
  model = models.tiny(VOCAB, 2, **options)
  tokens = words(1, 3)
  mask, positions = transformer.causal(1, 3)
  given = weights(model), tokens, positions, None, None, mask
  plain, padded = (
    jax.jit(x.forward, static_argnames='taps')(*given, taps=(0,))
    for x in (model, variants.for_device(model, devices.FORMS['tpu']))
  )
  for found, expected in zip(
    *map(jax.tree.leaves, (padded, plain)), strict=True
  ):
    assert found.shape == expected.shape
    close(found, expected)


@pytest.mark.parametrize(
  ('shape', 'rows'), [((1, 1, 4), 8), ((3, 1, 4), 9), ((2, 5, 4), 10)]
)
def test_a_product_has_a_number_of_rows_at_least(shape, rows):
  x, w = np.ones(shape), np.ones((4, 2, 3))
  product = functools.partial(linear.multiply, rows=8)
  made = jax.make_jaxpr(product)(x, w).eqns
  (dot,) = [eqn for eqn in made if eqn.primitive.name == 'dot_general']
  assert dot.outvars[0].aval.size == rows * 6
  assert product(x, w).shape == (*shape[:-1], 2, 3)
  np.testing.assert_array_equal(product(x, w), linear.multiply(x, w))


LAYERS = {  # Each differs from layer to layer in one respect.
  'alike': {},
  'windows': {'windows': (3, None, 3, 5)},
  'unturned': {'unturned': (1, 3)},
  'sharing': {'sharing': Sharing(2, 40)},
  'wide': {'wide': Wide((1,), 1, 16, keys_as_values=True)},
  'experts': {'experts': Experts(count=3, chosen=2, width=12, dense=(0, 2))},
  'state': {'recurrent': GatedDelta((0, 3), 2, 4, 4, 6, kernel=4)},
  'skipped': {'without_attention': (1,), 'without_mlp': (2,)},
}


@pytest.mark.parametrize('name', LAYERS)
def test_layers_that_are_traced_once_differ_in_weights_alone(name):
  model = models.tiny(VOCAB, 4, **LAYERS[name])

  @jax.jit
  def both(params, tokens):
    mask, positions = transformer.causal(1, 9)
    given = params, tokens, positions, None, jnp.zeros(1, int), mask
    return [model.forward(*given, apart=x).hidden for x in (False, True)]

  close(*both(weights(model), words(1, 9)))
  alike = [model.config.like(i) for i in range(4)] == [0] * 4
  assert alike == (name == 'alike')
