"""Weights in few bits: rounding, the kernel, files, and the drafter."""

import functools

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import checkpoints, native
from specjax.bench import load
from specjax.bench.config import Candidate
from specjax.bench.plan import plan_drafter
from specjax.checkpoints import writing
from specjax.drafters import lm, quantized
from specjax.models import linear, low_bits, transformer, variants
from specjax.models.config import Experts
from specjax.types import Target
from tests.support import directories, models
from tests.support.directories import refused

few = hypothesis.settings(deadline=None, max_examples=60)
EVEN = dict(vocab_size=64, num_heads=8, head_dim=8, width=64, mlp_width=64)
INTEGERS = {8: (-128, 127), 6: (0, 63), 4: (0, 15)}
multiply, to_native = jax.jit(linear.multiply), jax.jit(linear.to_native)
embed = jax.jit(linear.embed)
widen, pack = jax.jit(low_bits.widen), jax.jit(low_bits.pack, static_argnums=1)
quantize = jax.jit(linear.quantize, static_argnums=(1, 2, 3))
unpack = jax.jit(low_bits.unpack, static_argnums=1)
values_of, factors_of = (
  jax.jit(low_bits.values_of),
  jax.jit(low_bits.factors_of),
)


@pytest.mark.parametrize('bits', INTEGERS)
def test_words_hold_every_value(bits):
  low, high = INTEGERS[bits]
  values = np.arange(low, high + 1).repeat(3).reshape(-1, 3)
  words = pack(jnp.array(values), bits)
  assert words.shape == (len(values) * bits // 32, 3)
  np.testing.assert_array_equal(unpack(words, bits), values)
  fours = values.astype(np.int8).T.copy().view(np.uint32).T
  np.testing.assert_array_equal(low_bits.pack_fours(fours, bits), words)


def test_the_places_of_values_in_a_word():
  (eight,) = pack(jnp.array([1, 2, 3, -1]), 8)
  assert np.uint32(eight) == 0xFF030201
  (four,) = pack(jnp.arange(8), 4)
  assert np.uint32(four) == 0x73625140
  values = jnp.arange(16) + 16 * (jnp.arange(16) // 4)
  low, other, high = pack(values, 6)
  assert np.uint32(low) == 0x73625140
  assert np.uint32(other) == 0xFBEAD9C8
  assert np.uint32(high) == 0xE4E4E4E4


@few
@hypothesis.given(
  hnp.arrays(
    np.float32,
    (32, 3),
    elements=st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False),
  ),
  st.sampled_from(low_bits.BITS),
)
def test_rounding_is_off_by_half_a_scale_at_most(w, bits):
  made = low_bits.quantize_matrix(w, bits, 8)
  assert (made.words.shape, made.size) == ((bits, 3), w.size)
  assert made.scale.shape == (4, 3)
  scale, offset = factors_of(made)
  scale = np.float64(scale).repeat(8, 0)
  wide = np.float64(values_of(made)) * scale
  if bits == 4:
    wide += np.float64(offset).repeat(8, 0)
  # A scale is rounded itself, and may be too small to be a normal number; so
  # are the difference of the largest and the least weight, and the part of its
  # output's unit.
  size = np.abs(np.float64(w))
  largest = size.reshape(4, 8, 3).max(1).repeat(8, 0)
  small = 1e-6 * largest + 2e-38 * size.max(0) + 1e-36
  assert (np.abs(wide - w) <= scale * (0.5 + 1e-4) + small).all()


def test_the_ends_of_a_group_are_kept():
  column = [1.0, -4.0, 0.0, 2.0, 3.0, 0.0, -1.0, 0.5]
  w = jnp.stack([jnp.array(column), jnp.zeros(8)], 1)
  eight, four = (low_bits.quantize_matrix(w, bits, 8) for bits in (8, 4))
  assert values_of(eight)[:, 0].tolist() == [
    *(32, -127, 0, 64),
    *(95, 0, -32, 16),
  ]
  np.testing.assert_allclose(eight.scale, [[4 / 127, 0]], rtol=1e-6)
  assert values_of(four)[:, 0].tolist() == [11, 0, 9, 13, 15, 9, 6, 10]
  scale, offset = factors_of(four)
  np.testing.assert_allclose(scale, [[7 / 15, 0]], rtol=1e-6)
  np.testing.assert_array_equal(offset, [[-4, 0]])
  np.testing.assert_array_equal(widen(four)[:, 1], 0)


@pytest.mark.parametrize(
  ('inputs', 'bits', 'group'),
  [(64, 8, 32), (48, 8, 16), (12, 8, 4), (12, 4, 0), (24, 4, 8), (6, 8, 0)],
)
def test_groups_divide_the_inputs(inputs, bits, group):
  assert low_bits.group_of(inputs, bits) == group


def weight(
  inputs, outputs, bits, group, with_offset, dtype='float32', units=0, seed=0
):
  """A weight of any values, scales and offsets, whole."""
  draw = np.random.default_rng(seed)
  low, high = INTEGERS[bits]
  values = draw.integers(low, high + 1, (inputs, outputs))
  values[:, 0], values[:, 1] = low, high

  def factors(n, dtype):
    if dtype == 'int8':
      return jnp.array(draw.integers(-128, 128, (n, outputs)), 'int8')
    # Some of them so small that float16 has no normal number for them.
    x = (
      draw.standard_normal((n, outputs))
      * 2.0 ** draw.integers(-20, 1, n)[:, None]
    )
    return jnp.array(x, dtype)

  n = inputs // group
  scale_unit, offset_unit = (
    factors(units, 'float16') if units else None for _ in range(2)
  )
  return low_bits.LowBits(
    pack(jnp.array(values), bits),
    factors(n, dtype),
    factors(n, dtype) if with_offset else None,
    bits,
    zero=0 if bits == 8 else 5,
    scale_unit=scale_unit,
    offset_unit=offset_unit if with_offset else None,
  )


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize(
  ('bits', 'group', 'dtype', 'units', 'with_offset'),
  [
    (8, 4, 'float32', 0, False),
    (8, 16, 'float16', 3, True),
    (8, 48, 'float32', 2, False),
    (8, 96, 'float32', 0, False),
    (4, 8, 'float16', 0, True),
    (4, 32, 'int8', 1, True),
    (4, 48, 'float32', 0, False),
    (4, 96, 'float16', 0, True),
    (6, 16, 'int8', 3, False),
    (6, 32, 'float32', 1, True),
  ],
)
def test_products_are_those_of_numpy(bits, group, dtype, units, with_offset):
  whole = weight(192, 48, bits, group, with_offset, dtype, units)
  blocked = to_native({'w': whole})['w']
  assert blocked.blocked
  np.testing.assert_array_equal(widen(blocked), widen(whole))

  def factors(x, unit):
    x = np.float64(x).repeat(group, 0)
    return x if unit is None else x * np.float64(unit).repeat(192 // units, 0)

  w = np.float64(values_of(whole)) - (0 if bits == 8 else 5)
  w *= factors(whole.scale, whole.scale_unit)
  if with_offset:
    w += factors(whole.offset, whole.offset_unit)
  draw = np.random.default_rng(1)
  x = draw.standard_normal((13, 192)).astype(np.float32)
  x[3, :group] = 0  # A group without a largest activation.
  x[4, :group] = [1e-37] + [0] * (group - 1)  # Its inverse would be infinite.
  x[5], x[6] = 3, -3  # The largest sums.
  size = np.abs(x).sum(1, keepdims=True, dtype=np.float64) * np.abs(w).max()
  found = np.asarray(multiply(jnp.array(x), blocked))
  assert (np.abs(found - x @ w) <= 1e-6 * size).all()
  # In eight bits, by hand.
  parts = x.reshape(13, -1, group)
  most = np.abs(parts).max(-1, keepdims=True)
  inverse = np.float32(127) / np.where(most > 1e-36, most, np.inf)
  rounded = np.rint(parts * inverse) * np.float64(most / np.float32(127))
  assert np.abs(rounded - parts).max() > 1e-3
  expected = rounded.reshape(13, -1) @ w
  for form in (blocked, whole):
    found = multiply(jnp.array(x), form.replace(rounds=True))
    assert (np.abs(found - expected) <= 1e-6 * size).all()


@pytest.mark.usefixtures('kernel')
def test_sums_of_floats_lose_nothing_to_the_zero():
  """Inputs of one sign would show a zero that is taken off their sum."""
  whole = weight(1024, 64, 4, 32, False)
  draw = np.random.default_rng(1)
  x = np.abs(draw.standard_normal((8, 1024))).astype(np.float32)
  right = np.float64(x) @ np.float64(widen(whole))
  found = np.asarray(multiply(jnp.array(x), to_native({'w': whole})['w']))
  off = np.sqrt(((found - right) ** 2).mean() / (right**2).mean())
  assert off < 2e-7


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize(
  ('bits', 'group', 'rounds'),
  [
    (8, 32, True),
    (6, 32, False),
    (6, 16, True),
    (4, 32, True),
    (4, 128, True),
    (4, 32, False),
  ],
)
def test_a_row_has_the_same_bits_beside_others(bits, group, rounds):
  w = weight(512, 1024, bits, group, True, 'int8', 2)
  w = to_native({'w': w})['w']
  w = w.replace(rounds=rounds)
  x = np.asarray(jax.random.normal(jax.random.key(0), (300, 512)))
  few = [1, 2, 3, 4, 5, 6, 7, 8, 13, 300]
  together = {n: np.asarray(multiply(x[:n], w)) for n in few}
  alone = np.concatenate([multiply(row[None], w) for row in x[:13]])
  for n, found in together.items():
    np.testing.assert_array_equal(found[:13], alone[:n])
  split = np.asarray(multiply(x[137:], w))
  np.testing.assert_array_equal(together[300][137:], split)


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize(
  ('x', 'words', 'scale', 'unit', 'offset'),
  [
    ((2, 8), (1, 3, 16), (1, 1, 16), (0,), (0,)),
    ((2, 8), (1, 2, 8), (1, 1, 16), (0,), (0,)),
    ((2, 24), (1, 6, 16), (1, 4, 16), (0,), (0,)),
    ((2, 32), (1, 6, 16), (1, 4, 16), (0,), (0,)),
    ((2, 32), (1, 8, 16), (1, 4, 16), (1, 3, 16), (0,)),
    ((2, 32), (1, 8, 16), (1, 4, 16), (0,), (1, 2, 16)),
    ((2, 32), (1, 8, 16), (0,), (0,), (0,)),
  ],
)
def test_what_it_does_not_multiply_is_refused(x, words, scale, unit, offset):
  with pytest.raises(jax.errors.JaxRuntimeError, match=r'x must be \[R, in\]'):
    jax.block_until_ready(
      native.grouped_product(
        jnp.zeros(x),
        jnp.zeros(words, jnp.int32),
        jnp.zeros(scale),
        jnp.zeros(unit),
        jnp.zeros(offset),
        jnp.zeros(0),
        jnp.zeros(2, jnp.int32),
      )
    )


@functools.cache
def even(**options):
  model = models.tiny(64, 1, **EVEN | options)
  return model, jax.jit(model.init)(jax.random.key(0))


def logits_of(model, params):
  tokens = jnp.arange(5)[None] % model.config.vocab_size
  return models.score(model, params, tokens)


def narrowed(params):
  leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=linear.is_weight)
  return {path[-1].key for path, x in leaves if linear.is_weight(x)}


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize(
  ('mixture', 'bits', 'rounds'), [(False, 4, True), (True, 8, False)]
)
def test_a_model_in_few_bits_is_that_of_the_rounded_weights(
  mixture, bits, rounds
):
  options, names = {}, {'w', 'unembedding'}
  if mixture:
    options = {'tied_embeddings': True, 'experts': Experts(4, 2, 64)}
    names = {'w', 'embedding', 'up', 'down'}
  model, params = even(**options)
  tied = model.config.tied_embeddings
  small = quantize(params, tied, bits, rounds)
  assert narrowed(small) == names
  floats = logits_of(model, models.dequantize(small))
  found = logits_of(model, small)
  kernel, blocks = variants.to_native(model, params)
  for other in (
    variants.to_native(model, small),
    (kernel, quantize(blocks, tied, bits, rounds)),
  ):
    assert other[1]['layer0']['out']['w'].blocked
    np.testing.assert_allclose(logits_of(*other), found, atol=1e-5)
  # These differ from the weights, and rounded activations from these, or
  # nothing was tested.
  assert np.abs(logits_of(model, params) - floats).max() > 1e-3
  if rounds:
    assert 1e-3 < np.abs(found - floats).max() < 0.2
  else:
    np.testing.assert_allclose(found, floats, atol=1e-5)


@pytest.mark.usefixtures('kernel')
def test_rows_of_a_tied_table():
  model, params = even(tied_embeddings=True)
  tokens = jnp.array([[0, 63], [17, 5]])
  table = params['embedding']
  _, blocks = variants.to_native(model, params)
  found = embed(blocks['embedding'], tokens)
  np.testing.assert_array_equal(found, table[tokens])
  small = quantize(params, True, 4)
  expected = models.dequantize(small)['embedding'][tokens]
  for form in (small, variants.to_native(model, small)[1]):
    found = embed(form['embedding'], tokens)
    np.testing.assert_array_equal(found, expected)


def temporaries(model, params):
  """Bytes that a loop over the model needs beside what it is given."""

  def loop(params, tokens, turns):
    mask, positions = transformer.causal(1, 1)

    def turn(_, tokens):
      out = model.forward(params, tokens, positions, None, None, mask)
      return jnp.argmax(model.head(params, out.hidden), -1).astype(jnp.int32)

    return jax.lax.fori_loop(0, turns, turn, tokens)

  made = jax.jit(loop).lower(params, jnp.zeros((1, 1), jnp.int32), 3).compile()
  return made.memory_analysis().temp_size_in_bytes


@pytest.mark.usefixtures('kernel')
def test_floats_are_not_kept_beside_the_integers():
  """Floats made once for all turns of a loop would be kept."""
  model, params = even(mlp_width=2048)
  matrix = params['layer0']['up']['w'].nbytes
  whole = linear.quantize(params, False)
  blocked = variants.to_native(model, whole)
  assert temporaries(*blocked) < matrix / 4
  assert temporaries(model, whole) > matrix  # Elsewhere they are.


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A model in float32, and in eight bits."""
  path = tmp_path_factory.mktemp('models')
  checkpoints.save(path / 'target', *even(), dtype=jnp.float32)
  model, params = even()
  eight = linear.quantize(params, False)
  checkpoints.save(path / 'eight', model, eight, dtype=jnp.float32)
  return path


def same(ours, theirs):
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    if a.dtype == jnp.int32:
      np.testing.assert_array_equal(a, b)
    else:
      np.testing.assert_allclose(a, b, rtol=1e-6)


def test_files_in_eight_bits_hold_what_was_quantised(folder, tmp_path):
  target = Target(checkpoints.describe(folder / 'target').model)
  now = quantized.load(target, str(folder / 'target'))
  before = quantized.load(target, str(folder / 'eight'))
  assert before.make(2).depth == 2
  same(before.params, now.params)
  small, large = (
    (folder / name / 'model.safetensors').stat().st_size
    for name in ('eight', 'target')
  )
  assert small < 0.5 * large  # The table stays.
  config = directories.read_config(folder / 'eight')
  said = {'quant_method': 'specjax-int8', 'bits': 8}
  assert config['quantization_config'] == said
  model, params = even()
  four = linear.quantize(params, False, 4)
  refused('eight bits', checkpoints.save, tmp_path / 'four', model, four)


@pytest.mark.parametrize(
  ('key', 'shape'),
  [('w', (8, 12)), ('up', (3, 8, 12)), ('embedding', (12, 8))],
)
def test_eight_bits_are_saved_beside_their_scales(key, shape):
  """Inputs of a matrix and of experts come first, those of a table last."""
  x = np.random.default_rng(0).standard_normal(shape)
  small = linear.quantize({key: jnp.array(x)}, True)[key]
  values, scale = writing._parts('folder', key, small, None).values()
  assert values.dtype == np.int8
  assert (np.abs(values).max(shape.index(8)) == 127).all()
  assert (np.abs(values * scale - x) <= 0.501 * scale).all()


def test_files_in_eight_bits_are_not_read_as_floats(folder):
  for read in (checkpoints.load, checkpoints.describe):
    refused(r'specjax\.drafters\.quantized\.load', read, folder / 'eight')
  target = Target(checkpoints.describe(folder / 'target').model)
  with pytest.raises(ValueError, match='eight bits'):
    lm.load(target, str(folder / 'eight'))
  method = {'quantization_config': {'quant_method': 'other'}}
  config = directories.read_config(folder / 'eight') | method
  other = directories.write(folder / 'other', config, {})
  with pytest.raises(ValueError, match="quant_method 'other'"):
    checkpoints.load(other, quantized=True)


def test_the_target_drafts_for_itself_where_no_path_is_given(folder):
  model = checkpoints.describe(folder / 'target').model
  name = 'specjax.drafters.quantized.load'
  target = Target(model, path=str(folder / 'target'), max_length=64)
  own = plan_drafter('own', Candidate(name, 2))
  loaded = load.load_drafter(own, target)
  same(loaded.params, quantized.load(target, str(folder / 'target')).params)
  assert loaded.make(2).positions == 512
  for target_of, options, message in (
    (Target(model), {}, 'path is empty, and the target has'),
    (target, {'width': 3}, "'width' is no option"),
    (target, {'bits': 5}, 'bits is 5: choose 8 or 4'),
  ):
    with pytest.raises(ValueError, match=message):
      quantized.load(target_of, **options)
  few = quantized.load(target, str(folder / 'target'), bits=4, rounds=True)
  found = (x.params['layer0']['out']['w'] for x in (few, loaded))
  assert [(w.bits, w.rounds) for w in found] == [(4, True), (8, False)]
  other = plan_drafter('other', Candidate(name, 2, str(folder / 'eight')))
  assert load.describe_draft(other).model == model
  assert load.describe_draft(own) is None
