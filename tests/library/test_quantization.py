"""Weights that others quantised, packed here by hand, and damaged files."""

import functools
import pathlib
import re

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import specjax
from specjax import checkpoints
from specjax.bench import meshes
from specjax.bench.config import Mesh
from specjax.checkpoints import files, quantization
from specjax.checkpoints.parameters import FLOATS
from specjax.programs import inspect
from tests.support import directories
from tests.support.directories import refused

CONFIG = {
  'model_type': 'llama',
  'architectures': ['LlamaForCausalLM'],
  'vocab_size': 40,
  'hidden_size': 32,
  'num_hidden_layers': 1,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'intermediate_size': 48,
  'max_position_embeddings': 64,
  'tie_word_embeddings': False,
}
MODULES = {
  'self_attn.q_proj': (32, 32),
  'self_attn.k_proj': (16, 32),
  'self_attn.v_proj': (16, 32),
  'self_attn.o_proj': (32, 32),
  'mlp.gate_proj': (48, 32),
  'mlp.up_proj': (48, 32),
  'mlp.down_proj': (32, 48),
}
FLOAT_SHAPES = {
  'model.embed_tokens.weight': (40, 32),
  'lm_head.weight': (40, 32),
  'model.norm.weight': (32,),
  'model.layers.0.input_layernorm.weight': (32,),
  'model.layers.0.post_attention_layernorm.weight': (32,),
}
GROUP = 16
AWQ = 0, 2, 4, 6, 1, 3, 5, 7
OF_ACTIVATIONS = (  # one beside the weight of each module
  'input_scale', 'output_scale', 'activation_scale', 'kv_scale', 'q_scale_ub',
  'k_zero_point', 'v_scale',
)  # fmt: skip


def e4m3(byte: int) -> float:
  """A float of eight bits, by its sign, exponent and mantissa."""
  exponent, mantissa = byte >> 3 & 15, byte & 7
  size = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa / 512
  return -size if byte >> 7 else size


def pack(x, bits, order=range(32), less=0):
  """Integers in words of 32 bits along the last axis, the lowest first."""
  each = 32 // bits
  made = np.zeros((*x.shape[:-1], x.shape[-1] // each), np.int64)
  for place in np.ndindex(made.shape):
    values = x[place[:-1]][place[-1] * each :]
    word = sum(int(values[order[k]]) << bits * k for k in range(each)) - less
    made[place] = (word + 2**31) % 2**32 - 2**31
  return made.astype(np.int32)


class Random:
  """What a weight is made of: out x in values, and groups of its inputs."""

  def __init__(self, shape, seed, low, high):
    self.random, (self.out, self.inputs) = np.random.default_rng(seed), shape
    self.q = self.random.integers(low, high, shape)

  def scales(self, shape, dtype):
    return (self.random.uniform(0.5, 1, shape) / 64).astype(dtype)

  def zeros(self, low, high, shape):
    return self.random.integers(low, high, shape)


def weigh(q, zeros, scales, group):
  """Each weight by itself; `group` [in] names the group of an input."""
  return ((q - zeros[:, group]).astype(np.float32)) * scales[:, group].astype(
    np.float32
  )


def fp8(shape, seed, ending='scale_inv', form='block', scale_dtype=np.float32):
  x = Random(shape, seed, 0, 127)  # without NaN
  q = x.q | x.random.integers(0, 2, shape) << 7
  rows, columns = {
    'block': (-(-shape[0] // 32), -(-shape[1] // 20)),
    'channel': (shape[0], 1),
    'tensor': (1, 1),
  }[form]
  scales = x.scales((rows, columns), np.float32).astype(scale_dtype)
  if scale_dtype == np.uint8:  # powers of two
    scales = x.random.integers(118, 125, scales.shape).astype(np.uint8)
  weight = np.vectorize(e4m3)(q).astype(np.float32)
  for i, j in np.ndindex(shape):
    at = {'block': (i // 32, j // 20), 'channel': (i, 0), 'tensor': (0, 0)}
    scale = float(scales[at[form]])
    weight[i, j] *= 2.0 ** (scale - 127) if scale_dtype == np.uint8 else scale
  return weight, {
    'weight': q.astype(np.uint8).view(ml_dtypes.float8_e4m3fn),
    f'weight_{ending}': scales if form != 'tensor' else scales.reshape(()),
    OF_ACTIVATIONS[seed]: np.ones((1,), np.float32),
  }


def int8(shape, seed, rows=None):
  x = Random(shape, seed, -128, 128)
  one = rows or x.out, 1
  scales, zeros = x.scales(one, np.float16), x.zeros(-9, 9, one)
  weight = weigh(x.q, zeros, scales, np.zeros(x.inputs, int))
  return weight, {
    'weight': x.q.astype(np.int8),
    'weight_scale': scales[0] if rows else scales,
    'weight_zero_point': (zeros[0] if rows else zeros).astype(np.int8),
  }


def packed(
  shape, seed, bits, zero=False, ordered=False, group=GROUP, apart=False
):
  half = 1 << bits - 1
  x = Random(shape, seed, -half, half)
  count = x.inputs // group if group else 1
  of = np.arange(x.inputs) // (group or x.inputs)
  scales = x.scales((x.out, count), ml_dtypes.bfloat16)
  zeros = x.zeros(-half, half, scales.shape) * zero
  made = {}
  if ordered:
    of = x.random.permutation(of)
    made['weight_g_idx'] = of.astype(np.int32)
  if zero:
    made['weight_zero_point'] = np.ascontiguousarray(
      zeros.astype(np.int8) if apart else pack((zeros + half).T, bits).T
    )
  return weigh(x.q, zeros, scales, of), made | {
    'weight_packed': pack(x.q + half, bits),
    'weight_scale': scales,
    'weight_shape': np.array(shape),
  }


def awq(shape, seed):
  x = Random(shape, seed, 0, 16)
  of = np.arange(x.inputs) // GROUP
  scales = x.scales((x.out, x.inputs // GROUP), np.float16)
  zeros = x.zeros(0, 16, scales.shape)
  return weigh(x.q, zeros, scales, of), {
    'qweight': pack(x.q.T, 4, AWQ),
    'qzeros': pack(zeros.T, 4, AWQ),
    'scales': np.ascontiguousarray(scales.T),
  }


def gptq(shape, seed, bits=4, version=1, ordered=False, least=0):
  x = Random(shape, seed, 0, 1 << bits)
  of = np.arange(x.inputs) // GROUP
  of = x.random.permutation(of) if ordered else of
  scales = x.scales((x.out, x.inputs // GROUP), np.float16)
  zeros = x.zeros(least, 1 << bits, scales.shape)
  ones = sum(1 << i for i in range(0, 32, bits)) if version == 1 else 0
  return weigh(x.q, zeros, scales, of), {
    'qweight': np.ascontiguousarray(pack(x.q, bits).T),
    'qzeros': pack(zeros.T, bits, less=ones),
    'scales': np.ascontiguousarray(scales.T),
    'g_idx': of.astype(np.int32),
  }


def compressed(form, **weights):
  return {
    'quant_method': 'compressed-tensors',
    'format': form,
    'ignore': ['lm_head', 're:.*embed.*'],
    'config_groups': {'group_0': {'targets': ['Linear'], 'weights': weights}},
  }


part = functools.partial
BLOCK = {'quant_method': 'fp8', 'weight_block_size': [32, 20]}
GPTQ = {'quant_method': 'gptq', 'bits': 4, 'group_size': GROUP}
FLOAT = {'num_bits': 8, 'type': 'float'}
NARROW = part(fp8, ending='scale', scale_dtype=ml_dtypes.bfloat16)
FOUR = {'num_bits': 4, 'type': 'int', 'group_size': GROUP}
FORMATS = {
  'fp8': (BLOCK, fp8),
  'fp8-exponents': (
    BLOCK | {'scale_fmt': 'ue8m0'},
    part(fp8, scale_dtype=np.uint8),
  ),
  'fp8-bytes': (BLOCK, part(fp8, scale_dtype=ml_dtypes.float8_e8m0fnu)),
  'fp8-tensor': (
    BLOCK | {'activation_scheme': 'static'},  # One block, whatever is said.
    part(fp8, ending='scale', form='tensor'),
  ),
  'fbgemm': (
    {'quant_method': 'fbgemm_fp8'},
    part(fp8, ending='scale', form='channel'),
  ),
  'float-quantized': (
    compressed('float-quantized', **FLOAT),
    part(NARROW, form='channel'),
  ),
  'float-blocks': (
    compressed('float-quantized', **FLOAT, block_structure=[32, 20]),
    NARROW,
  ),
  'int-quantized': (
    compressed('int-quantized', num_bits=8, type='int', symmetric=False),
    int8,
  ),
  'int-tensor': (
    compressed('naive-quantized', num_bits=8, symmetric=False),
    part(int8, rows=1),
  ),
  'pack': (compressed('pack-quantized', **FOUR), part(packed, bits=4)),
  'pack-zeros': (
    compressed('pack-quantized', **FOUR, symmetric=False),
    part(packed, bits=4, zero=True, ordered=True),
  ),
  'pack-apart': (  # Zeros that are entries themselves, with a sign.
    compressed('pack-quantized', **FOUR, symmetric=False),
    part(packed, bits=4, zero=True, apart=True),
  ),
  'pack-8': (
    compressed('pack-quantized', type='int'),  # Of the bits that are usual.
    part(packed, bits=8, group=0),
  ),
  'pack-2': (
    compressed('pack-quantized', **FOUR | {'num_bits': 2}),
    part(packed, bits=2),
  ),
  'awq': ({'quant_method': 'awq', 'version': 'GEMM', 'group_size': GROUP}, awq),
  'gptq': (GPTQ, gptq),
  'gptq-order': (
    GPTQ | {'checkpoint_format': 'gptq_v2', 'desc_act': True, 'bits': None},
    part(gptq, version=2, ordered=True),
  ),
  'gptq-8': (
    GPTQ | {'bits': 8, 'group_size': -1},  # Scales say how many there are.
    part(gptq, bits=8, ordered=True),
  ),
  'gptq-2': (
    GPTQ | {'bits': 2, 'format': 'gptq_v2'},
    part(gptq, bits=2, version=2),
  ),
}
TITLES = {
  'fp8': ('fp8, a scale for 32 x 20 values', 'bfloat16'),
  'int-quantized': ('int8, a scale for 1 x 32 values', 'float16'),
  'pack': ('int4, a scale for 1 x 16 values', 'bfloat16'),
  'awq': ('awq int4, a scale for 1 x 16 values', 'float16'),
}


def write(folder, tensors, config=None):
  """Writes a checkpoint that is quantised, or one of floats."""
  quantized = {'quantization_config': config} if config else {}
  return directories.write(folder, CONFIG | quantized, tensors)


@functools.cache
def made(name):
  """Tensors of a checkpoint in a format, and the floats that they stand for."""
  random = np.random.default_rng(0)
  floats = {
    key: random.normal(size=shape).astype(np.float32)
    for key, shape in FLOAT_SHAPES.items()
  }
  stored = dict(floats)
  for seed, (module, shape) in enumerate(MODULES.items()):
    prefix = f'model.layers.0.{module}.'
    weight, tensors = FORMATS[name][1](shape, seed)
    floats[f'{prefix}weight'] = weight
    stored |= {prefix + end: x for end, x in tensors.items()}
  return stored, floats


@pytest.fixture
def pair(request, tmp_path):
  """A checkpoint in a format, and that of its floats."""
  stored, floats = made(request.param)
  few = write(tmp_path / 'few', stored, FORMATS[request.param][0])
  return few, write(tmp_path / 'floats', floats)


every = pytest.mark.parametrize('pair', FORMATS, indirect=True)


def load_equal(pair, dtype='float32'):
  """Asserts that both checkpoints are read as the same weights."""
  directories.assert_same(*(checkpoints.load(x, dtype)[1] for x in pair))


def test_words_have_the_lowest_bits_first():
  assert e4m3(0b0_1000_100) == 3.0
  assert e4m3(0b1_0000_001) == -(2.0**-9)
  assert pack(np.arange(8), 4)[0] == 0x76543210
  assert pack(np.arange(8), 4, AWQ)[0] == 0x75316420
  # Zeros of 8, as every symmetric file of GPTQ has them.
  assert pack(np.full(8, 8), 4, less=0x11111111)[0] == 0x77777777


@every
def test_weights_are_the_floats_that_they_stand_for(pair, request, monkeypatch):
  """All of them, and a part, which is read a few values at once."""
  load_equal(pair)
  monkeypatch.setattr(quantization, '_VALUES', 96)
  name = request.node.callspec.params['pair']
  config = {'quantization_config': FORMATS[name][0]}
  _, join = quantization.split(pair[0], config)
  tensors = join(files.open_tensors(pair[0]))
  for key, expected in made(name)[1].items():
    cut = tuple(slice(3, n - 2) for n in expected.shape)
    assert tensors[key].shape == expected.shape
    np.testing.assert_array_equal(tensors[key].read(cut), expected[cut])


@pytest.mark.parametrize('pair', ['fp8', 'pack-zeros', 'awq'], indirect=True)
def test_a_fingerprint_is_that_of_the_floats(pair):
  load_equal(pair, 'bfloat16')
  few, floats = map(checkpoints.fingerprint, pair)
  assert few == floats
  name = 'model.layers.0.self_attn.q_proj.weight'
  directories.edit_tensors(pair[1], lambda x: x | {name: 2 * x[name]})
  assert checkpoints.fingerprint(pair[1]) != few


@pytest.mark.parametrize('name', ['fp8', 'awq'])
def test_arrays_at_hand_are_read_as_files_are(name):
  config = CONFIG | {'quantization_config': FORMATS[name][0]}
  few = specjax.from_pytree(config, made(name)[0])
  floats = specjax.from_pytree(CONFIG, made(name)[1])
  directories.assert_same(few.params, floats.params)


def test_biases_of_zeros_need_no_place(tmp_path):
  stored, _ = made('gptq')
  name = 'model.layers.0.self_attn.o_proj.bias'
  biased = stored | {name: np.zeros(32, np.float16)}
  few, plain = tmp_path / 'few', tmp_path / 'plain'
  load_equal([write(few, biased, GPTQ), write(plain, stored, GPTQ)])
  biased[name][3] = 1
  refused(name, checkpoints.describe, write(few, biased, GPTQ))


@pytest.mark.parametrize('pair', TITLES, indirect=True)
def test_inspect_says_how_weights_are_stored(pair, request):
  title, dtype = TITLES[request.node.callspec.params['pair']]
  few, floats = map(checkpoints.describe, pair)
  assert (few.quantized, floats.quantized) == (title, None)
  assert (few.dtype, floats.dtype) == (dtype, 'float32')
  placement = meshes.plan_placement(Mesh())
  facts, plain = (
    inspect.facts(x, placement, 'float32', FLOATS) for x in (few, floats)
  )
  assert facts.pop('stored_as') == title
  assert facts.pop('stored_bytes') < plain.pop('stored_bytes')
  differ = {'stored_dtype'}
  assert {k for k in plain if facts[k] != plain[k]} == differ


@every
def test_a_missing_tensor_is_named_with_its_file(pair, request):
  stored = made(request.node.callspec.params['pair'])[0]
  prefix = 'model.layers.0.mlp.up_proj.'
  spare = r'.*(_shape|g_idx|k_zero_point|weight|qweight|weight_packed)'
  needed = [
    x for x in stored if x.startswith(prefix) and not re.fullmatch(spare, x)
  ]
  assert needed
  file = pair[0] / 'model.safetensors'
  for name in needed:
    rest = {x: t for x, t in stored.items() if x != name}
    if name.endswith('scale'):
      name = name.removesuffix('scale')
    safetensors.numpy.save_file(rest, file)
    refused(rf'{file}.*{name}', checkpoints.describe, pair[0])


@pytest.mark.parametrize(
  ('name', 'ending', 'change'),
  [
    ('fp8', 'weight_scale_inv', lambda x: x[:, 1:]),
    ('fbgemm', 'weight_scale', lambda x: x[:, 0]),
    ('fbgemm', 'weight_scale', lambda x: x[1:]),
    ('pack', 'weight_scale', lambda x: x[:, :0]),
    ('awq', 'scales', lambda x: x.astype(np.int32)),
    ('awq', 'qzeros', lambda x: x[:, 1:]),
    ('gptq', 'qzeros', lambda x: x.astype(np.float32)),
    ('gptq', 'g_idx', lambda x: x[1:]),
    ('gptq', 'g_idx', lambda x: x + 1),
    ('gptq', 'g_idx', lambda x: x - 1),
    ('int-quantized', 'weight_zero_point', lambda x: x[1:]),
    ('int-quantized', 'weight_zero_point', lambda x: x.astype(np.float32)),
    ('gptq', 'qweight', lambda x: x[1:]),
  ],
)
def test_tensors_that_do_not_fit_are_named(name, ending, change, tmp_path):
  stored, _ = made(name)
  key = f'model.layers.0.mlp.down_proj.{ending}'
  tensors = stored | {key: np.ascontiguousarray(change(stored[key]))}
  path = write(tmp_path / 'few', tensors, FORMATS[name][0])
  named = key if ending != 'qweight' else 'down_proj'
  refused(rf'model\.safetensors.*{named}', checkpoints.load, path)


@pytest.mark.parametrize(
  ('config', 'field'),
  [
    *(({'quant_method': x}, x) for x in ('bitsandbytes', 'auto-round')),
    ({'bits': 4}, 'quant_method'),
    ({'quant_method': ['fp8']}, 'quant_method'),
    *((BLOCK | {'ignore': x}, 'ignore') for x in (['re:('], [3], 'lm_head')),
    ('fp8', 'quantization_config'),
    *(
      (BLOCK | {'weight_block_size': x}, 'weight_block_size')
      for x in ([128], [128, 0], [128, 1.5], [128] * 3, 128)
    ),
    (BLOCK | {'expert_dtype': 'fp4'}, 'expert_dtype'),
    (BLOCK | {'modules_to_not_convert': 'lm_head'}, 'modules_to_not_convert'),
    (GPTQ | {'bits': 3}, 'bits'),
    (GPTQ | {'checkpoint_format': 'marlin'}, 'checkpoint_format'),
    (GPTQ | {'is_marlin_format': True}, 'is_marlin_format'),
    *((GPTQ | {'group_size': x}, 'group_size') for x in (0, -2, 16.0)),
    ({'quant_method': 'awq', 'version': 'gemv'}, 'version'),
    ({'quant_method': 'awq', 'format': 'gemv'}, 'format'),
    ({'quant_method': 'awq', 'checkpoint_format': 'v'}, 'checkpoint_format'),
    ({'quant_method': 'awq', 'backend': 'llm-awq'}, 'backend'),
    ({'quant_method': 'awq', 'zero_point': False}, 'zero_point'),
    ({'quant_method': 'awq', 'bits': 8}, 'bits'),
    (compressed('nvfp4-pack-quantized', num_bits=4), 'format'),
    (compressed('mixed-precision', num_bits=4), 'format'),
    (compressed(None, num_bits=4), 'format'),
    (compressed('pack-quantized', num_bits=3), 'num_bits'),
    (compressed('pack-quantized') | {'config_groups': {}}, 'config_groups'),
    (
      compressed('pack-quantized')
      | {'config_groups': {x: {'weights': {'num_bits': x}} for x in (4, 8)}},
      'config_groups with num_bits of .4, 8.',
    ),
    (compressed('pack-quantized') | {'config_groups': [4]}, 'config_groups'),
    (
      compressed('int-quantized', num_bits=8)
      | {'sparsity_config': {'format': 'sparse-24-bitmask'}},
      'sparsity_config',
    ),
    (
      compressed('pack-quantized', num_bits=4)
      | {'transform_config': {'config_groups': {'u': {}}}},
      'transform_config',
    ),
  ],
)
def test_what_is_not_read_is_refused_by_name(config, field):
  attributes = {'quantization_config': config}
  told, place = f'{field}.*checkpoint of floats', pathlib.Path('folder')
  # A model that sees images may have it beside its text.
  other = {'compression_config': config}
  for given in (attributes, other, {'text_config': attributes}):
    said = refused(told, quantization.split, place, given)
    assert not re.search('remove|delete|leave out', said)


def test_listed_modules_stay_floats(tmp_path):
  """Two are stored as floats; one of them has a scale that nobody asks for."""
  stored, floats = made('fp8')
  names = {f'model.layers.0.self_attn.{x}_proj' for x in 'qk'}
  tensors = {
    key: x for key, x in stored.items() if key.rpartition('.')[0] not in names
  }
  tensors |= {f'{name}.weight': floats[f'{name}.weight'] for name in names}
  # Neither a part of a name, nor a pattern of its end, lists a module.
  unlike = ['q_proj', 're:.*k_proj$', 'proj', 're:_proj']
  lists = 'ignore', 'ignored_layers', 'modules_to_not_convert'
  for field, listed in zip(lists, ([*names], unlike, []), strict=True):
    config = BLOCK | {field: listed}
    path = write(tmp_path / 'few', tensors, config)
    load_equal([path, write(tmp_path / 'floats', floats)])
  # What is listed and quantised all the same is no weight of the file.
  for field in lists:
    path = write(tmp_path / 'few', stored, BLOCK | {field: ['mlp.down_proj']})
    for read in (checkpoints.describe, checkpoints.load):
      refused(r'down_proj\.weight', read, path)


def test_floats_may_have_five_bits_of_exponent(tmp_path):
  x = np.array([[1.25, -0.375, 2.0**-16], [57344, 0, -1]], np.float32)
  stored = {'a': np.ones(3), 'w': x.astype(ml_dtypes.float8_e5m2)}
  stored['w_scale'] = np.full((2, 1), 0.5, np.float16)
  found = files.open_tensors(directories.write(tmp_path / 'few', {}, stored))
  weight = quantization.join(quantization.Layout('fp8'), found)['w']
  np.testing.assert_array_equal(weight.read((slice(None),) * 2), x / 2)


@pytest.mark.parametrize(
  ('blocks', 'scales'),
  [
    (('U8', (2, 3, 1, 15)), ('U8', (2, 3, 1))),
    (('U8', (2, 3, 16)), ('U8', (2, 3))),
    (('U8', (2, 3, 1, 16)), ('U8', (2, 3, 2))),
    (('U8', (2, 3, 1, 16)), ('BF16', (2, 3, 1))),
  ],
)
def test_blocks_that_do_not_fit_their_scales_are_named(blocks, scales):
  tensors = {
    name: files.Tensor(None, pathlib.Path('x'), name, shape, dtype)
    for name, (dtype, shape) in (('w_blocks', blocks), ('w_scales', scales))
  }
  layout = quantization.METHODS['mxfp4']({})
  refused('w_blocks', quantization.join, layout, tensors)


def test_weights_in_mxfp4_are_eighths_of_powers_of_two(tmp_path, monkeypatch):
  """Two values in a byte, 32 with a scale; inputs lie behind outputs."""
  random, table = np.random.default_rng(0), [0, 0.5, 1, 1.5, 2, 3, 4, 6]
  table += [-x for x in table]
  packed = random.integers(0, 256, (2, 3, 2, 16), np.uint8)
  scales = random.integers(120, 130, (2, 3, 2), np.uint8)
  expected = np.zeros((2, 64, 3))
  for x, out, at in np.ndindex(2, 3, 64):
    byte = packed[x, out, at // 32, at % 32 // 2]
    value = table[byte >> 4 if at % 2 else byte & 15]
    expected[x, at, out] = value * 2.0 ** (int(scales[x, out, at // 32]) - 127)
  stored = {'w_blocks': packed, 'w_scales': scales}
  folder = directories.write(tmp_path / 'few', {}, stored)
  method = {'quantization_config': {'quant_method': 'mxfp4'}}
  _, join = quantization.split(folder, method)
  monkeypatch.setattr(quantization, '_VALUES', 40)
  weight = join(files.open_tensors(folder))['w']
  assert weight.title == 'mxfp4, a scale for 1 x 32 values'
  for cut in ((slice(None),) * 3, (slice(1, 2), slice(5, 62), slice(1, 3))):
    np.testing.assert_array_equal(weight.read(cut), expected[cut])
