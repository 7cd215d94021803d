"""Weights in eight bits: what rounding does, files, and the drafter."""

import functools
import json

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import checkpoints
from specjax.bench import load
from specjax.bench.config import Candidate
from specjax.bench.plan import plan_drafter
from specjax.drafters import lm, quantized
from specjax.models import linear, quantize, transformer, variants
from specjax.models.config import Experts
from specjax.types import Target
from tests.support import models

few = hypothesis.settings(deadline=None, max_examples=60)
# Some weights come in blocks of columns, and the queries' do not.
EVEN = dict(vocab_size=64, num_heads=8, head_dim=8, width=64, mlp_width=64)


@few
@hypothesis.given(
  hnp.arrays(
    np.float32,
    (3, 4),
    elements=st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False),
  ),
  st.integers(0, 1),
)
def test_rounding_is_off_by_half_a_scale_at_most(w, axis):
  values, scale = jax.jit(quantize.quantize_matrix, static_argnums=1)(w, axis)
  assert values.dtype == jnp.int8
  assert scale.shape == ((1, 4), (3, 1))[axis]
  wide = np.float64(values) * np.float64(scale)
  # A scale is rounded itself, and may be too small to be a normal number.
  bound = np.float64(scale) * (0.5 + 1e-4) + 1e-36
  assert (np.abs(wide - w) <= bound).all()
  assert (np.abs(values).max(axis) <= quantize.LARGEST).all()
  np.testing.assert_array_equal(np.sign(wide) * np.sign(w) >= 0, True)


def test_the_largest_weight_of_an_output_is_kept():
  w = np.array([[1.0, -4.0, 0.0], [-0.5, 2.0, 0.0]], np.float32)
  values, scale = quantize.quantize_matrix(jnp.array(w), 0)
  assert values.tolist() == [[127, -127, 0], [-64, 64, 0]]
  np.testing.assert_allclose(scale, [[1 / 127, 4 / 127, 0]], rtol=1e-6)


@functools.cache
def even(**options):
  model = models.tiny(64, 1, **EVEN | options)
  return model, jax.jit(model.init)(jax.random.key(0))


def logits_of(model, params):
  tokens = jnp.arange(5)[None] % model.config.vocab_size
  return models.score(model, params, tokens)


def matrices(params):
  """Names of what was quantised, and of what was not."""
  leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=quantize.is_int8)
  names = {True: set(), False: set()}
  for path, x in leaves:
    names[quantize.is_int8(x)].add(path[-1].key)
  return names[True], names[False]


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize(
  ('options', 'narrow', 'whole'),
  [
    ({}, {'w', 'unembedding'}, {'embedding', 'scale'}),
    (
      {'tied_embeddings': True, 'experts': Experts(4, 2, 64)},
      {'w', 'embedding', 'up', 'down'},
      {'scale', 'router'},
    ),
  ],
  ids=['dense', 'tied, experts'],
)
def test_a_model_in_eight_bits_is_that_of_the_rounded_weights(
  options, narrow, whole
):
  model, params = even(**options)
  eight, rounded = quantize.quantize(model, params)
  assert matrices(rounded) == (narrow, whole)
  expected = logits_of(model, quantize.dequantize(rounded))
  np.testing.assert_allclose(logits_of(eight, rounded), expected, atol=1e-5)
  in_blocks = quantize.quantize(*variants.to_native(model, params))
  assert linear.is_native(in_blocks[1]['layer0']['out']['w'].values)
  np.testing.assert_allclose(logits_of(*in_blocks), expected, atol=1e-5)
  # These differ from the weights, or nothing was tested.
  assert np.abs(logits_of(model, params) - expected).max() > 1e-3
  assert quantize.quantize(model, params)[0] is eight


def test_a_target_in_eight_bits_is_nearly_always_accepted():
  """Its chance of acceptance is sum(min(p, q))."""
  params = models.target_weights()
  eight, rounded = quantize.quantize(models.TARGET, params)
  tokens = np.random.default_rng(0).integers(0, models.VOCAB, (32, 16))
  p = jax.nn.softmax(models.score(models.TARGET, params, tokens))
  q = jax.nn.softmax(models.score(eight, rounded, tokens))
  overlap = np.minimum(p, q).sum(-1)
  assert 0.99 < overlap.mean() < 0.9999
  assert overlap.min() > 0.95


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
  """As they would be, made once for all turns of a loop."""
  blocked, params = variants.to_native(*even(mlp_width=512))
  eight, rounded = quantize.quantize(blocked, params)
  matrix = params['layer0']['up']['w'].blocks.nbytes
  assert temporaries(eight, rounded) < matrix / 2
  wrong = eight._replace(
    forward=lambda p, *args, **named: blocked.forward(
      quantize.dequantize(p), *args, **named
    )
  )
  assert temporaries(wrong, rounded) > matrix


# Files


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A model in float32, and in eight bits."""
  path = tmp_path_factory.mktemp('models')
  checkpoints.save(path / 'target', *even(), dtype=jnp.float32)
  eight = quantize.quantize(*even())
  checkpoints.save(path / 'eight', *eight, dtype=jnp.float32)
  return path


def same(ours, theirs):
  """The same integers, and scales to the last digit."""
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    if a.dtype == jnp.int8:
      np.testing.assert_array_equal(a, b)
    else:
      np.testing.assert_allclose(a, b, rtol=1e-6)


def test_files_in_eight_bits_hold_what_was_quantised(folder):
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
  config = json.loads((folder / 'eight/config.json').read_text())
  assert config['quantization_config'] == {
    'quant_method': 'specjax-int8',
    'bits': 8,
  }


def test_files_in_eight_bits_are_not_read_as_floats(folder):
  for read in (checkpoints.load, checkpoints.describe):
    with pytest.raises(
      checkpoints.CheckpointError, match=r'specjax\.drafters\.quantized\.load'
    ):
      read(folder / 'eight')
  target = Target(checkpoints.describe(folder / 'target').model)
  with pytest.raises(ValueError, match='eight bits'):
    lm.load(target, str(folder / 'eight'))
  method = {'quant_method': 'other'}
  config = json.loads((folder / 'eight/config.json').read_text())
  other = folder / 'other'
  other.mkdir()
  (other / 'config.json').write_text(
    json.dumps(config | {'quantization_config': method})
  )
  with pytest.raises(ValueError, match=r'unsupported .* quantization_config'):
    checkpoints.load(other, quantized=True)


def test_the_target_drafts_for_itself_where_no_path_is_given(folder):
  model = checkpoints.describe(folder / 'target').model
  name = 'specjax.drafters.quantized.load'
  target = Target(model, path=str(folder / 'target'), max_length=64)
  own = plan_drafter('own', Candidate(name, 2))
  loaded = load.load_drafter(own, target)
  same(loaded.params, quantized.load(target, str(folder / 'target')).params)
  assert loaded.make(2).positions == 512
  with pytest.raises(ValueError, match='path is empty, and the target has'):
    quantized.load(Target(model))
  with pytest.raises(ValueError, match="'width' is no option"):
    quantized.load(target, str(folder / 'target'), width=3)
  other = plan_drafter('other', Candidate(name, 2, str(folder / 'eight')))
  assert load.describe_draft(other).model == model
  assert load.describe_draft(own) is None
