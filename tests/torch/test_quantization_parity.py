"""Quantised weights against the packages that write them."""

import importlib.util
import pathlib

import numpy as np
import pytest

from specjax.checkpoints import files, quantization
from tests.library import test_quantization as by_hand

torch = pytest.importorskip('torch')
safetensors = pytest.importorskip('safetensors.torch')

pytestmark = pytest.mark.parity
SHAPE = 64, 96


def read(folder, tensors, config):
  """The weight of a module, as we read it from a file of its tensors."""
  file = folder / 'model.safetensors'
  content = {f'm.{name}': x.contiguous() for name, x in tensors.items()}
  safetensors.save_file(content, file)
  _, join = quantization.split(folder, {'quantization_config': config})
  weight = join(files.open_tensors(folder))['m.weight']
  assert weight.shape == SHAPE
  return torch.tensor(weight.read((slice(None),) * 2))


def as_torch(name):
  """Tensors that are packed by hand."""
  config, make = by_hand.FORMATS[name]
  _, made = make(SHAPE, 0)
  eight = torch.float8_e4m3fn
  return config, {
    key: torch.tensor(x.view(np.uint8)).view(eight)
    if x.dtype.name == 'float8_e4m3fn'
    else torch.tensor(x)
    for key, x in made.items()
  }


@pytest.mark.parametrize(
  ('form', 'weights'),
  [
    ('pack-quantized', dict(num_bits=4, group_size=16)),
    ('pack-quantized', dict(num_bits=4, group_size=16, symmetric=False)),
    ('pack-quantized', dict(num_bits=8, strategy='channel')),
    ('pack-quantized', dict(num_bits=8, strategy='channel', symmetric=False)),
    ('pack-quantized', dict(num_bits=2, group_size=32)),
    ('int-quantized', dict(num_bits=8, strategy='channel')),
    ('int-quantized', dict(num_bits=8, strategy='tensor', symmetric=False)),
    ('float-quantized', dict(type='float', strategy='tensor')),
    ('float-quantized', dict(type='float', strategy='channel')),
    (
      'float-quantized',
      dict(type='float', strategy='block', block_structure=[32, 40]),
    ),
  ],
)
@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_compressed_tensors(form, weights, dtype, tmp_path):
  compressed = pytest.importorskip('compressed_tensors')
  from compressed_tensors.quantization import QuantizationArgs, utils

  args = QuantizationArgs(**weights)
  torch.manual_seed(0)
  weight = torch.randn(SHAPE).to(getattr(torch, dtype))
  each = {
    'group': (1, args.group_size),
    'channel': (1, SHAPE[1]),
    'tensor': SHAPE,
    'block': args.block_structure,
  }[args.strategy]
  rows, columns = (-(-n // size) for n, size in zip(SHAPE, each, strict=True))
  low, high = (
    torch.tensor(
      [
        [
          float(f(weight[i * each[0] :, j * each[1] :][: each[0], : each[1]]))
          for j in range(columns)
        ]
        for i in range(rows)
      ]
    )
    for f in (torch.min, torch.max)
  )
  scale, zero = utils.calculate_qparams(low, high, args)
  scale = scale.to(weight.dtype)
  scheme = compressed.quantization.QuantizationScheme(
    targets=['Linear'], weights=args
  )
  compressor = compressed.compressors.BaseCompressor.get_value_from_registry(
    form
  )
  state = {'weight': weight, 'weight_scale': scale, 'weight_zero_point': zero}
  state = compressor.compress(state, scheme)
  expected = compressor.decompress(dict(state), scheme)['weight']
  config = by_hand.compressed(form, **args.model_dump(mode='json'))
  found = read(tmp_path, state, config)
  # They multiply in the type of the scales, and we round to it.
  assert torch.equal(found.to(scale.dtype), expected)


def test_awq(tmp_path):
  pytest.importorskip('compressed_tensors')
  from compressed_tensors.entrypoints.convert import converters

  config, tensors = as_torch('awq')
  made = converters.AutoAWQConverter(group_size=by_hand.GROUP)
  weight, scale, zero = made._convert_gemm_module(
    tensors['qweight'], tensors['scales'], tensors['qzeros']
  )
  group = torch.arange(SHAPE[1]) // by_hand.GROUP
  expected = (weight - zero[:, group]) * scale.float()[:, group]
  assert torch.equal(read(tmp_path, tensors, config), expected)


def test_blocks_of_fp8(tmp_path):
  pytest.importorskip('compressed_tensors')
  from compressed_tensors.entrypoints.convert import converters

  config, tensors = as_torch('fp8')
  made = converters.FP8BlockDequantizer(
    weight_block_size=config['weight_block_size'], dtype=torch.float32
  )
  expected = made._create_dequantized_weight(
    tensors['weight'], tensors['weight_scale_inv']
  )
  assert torch.equal(read(tmp_path, tensors, config), expected)


@pytest.mark.parametrize('bits', [2, 4, 8])
@pytest.mark.parametrize('ordered', [False, True])
def test_gptq(bits, ordered, tmp_path):
  """Zeros of 0 are left out: packages read them in different ways."""
  found = importlib.util.find_spec('auto_gptq')
  if found is None:
    pytest.skip('auto_gptq is not installed')
  # The package itself needs an older transformers.
  file = (
    pathlib.Path(found.origin).parent / 'nn_modules/qlinear/qlinear_cuda.py'
  )
  spec = importlib.util.spec_from_file_location('qlinear', file)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  layer = module.QuantLinear(bits, by_hand.GROUP, *SHAPE[::-1], bias=False)
  _, made = by_hand.gptq(SHAPE, 0, bits, ordered=ordered, least=1)
  tensors = {name: torch.tensor(x) for name, x in made.items()}
  layer.load_state_dict(tensors)
  layer.scales = layer.scales.float()
  expected = layer(torch.eye(SHAPE[1])).T
  config = by_hand.GPTQ | {'bits': bits}
  assert torch.equal(read(tmp_path, tensors, config), expected)
