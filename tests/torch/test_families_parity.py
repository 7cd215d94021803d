"""Families against transformers itself: each option, and what we save."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from specjax import checkpoints
from specjax.checkpoints import files, quantization
from specjax.models import prefill, rotary, transformer
from specjax.types import Source

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

from tests.support import (  # noqa: E402 (they need torch)
  directories,
  models,
  store_family_outputs,
  tiny_families,
)

pytestmark = pytest.mark.parity
BEGIN, NEW = 12, 24  # tokens of a text that are given, and that are written
# Types that are written without the attributes that were read, and the texts
# that are written as these.
OURS = 'llama', 'mistral', 'qwen2', 'qwen3'
OURS = *OURS, 'qwen2_vl_text', 'qwen2_5_vl_text', 'qwen3_vl_text'


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, tokens, source):
  """Logits of texts that are written greedily from position BEGIN on."""

  def write(i, carry):
    tokens, _ = carry
    logits = transformer.score(model, params, tokens, source)
    return tokens.at[:, i].set(logits[:, i - 1].argmax(-1)), logits

  shape = *tokens.shape, model.config.vocab_size
  start = tokens, jnp.zeros(shape, jnp.float32)
  return jax.lax.fori_loop(BEGIN, tokens.shape[1], write, start)


CASES = [
  pytest.param(name, switch, id=f'{name} {switch}')
  for name, switches in tiny_families.SWITCHES.items()
  for switch in ({}, *switches)
]


@pytest.mark.parametrize(('name', 'switch'), CASES)
def test_logits_and_greedy_texts_are_those_of_transformers(
  name, switch, tmp_path
):
  """Of each type, each choice in turn; and what we save is loaded there."""
  peer = store_family_outputs.build(name, 0, **switch)
  # In shards, as large checkpoints are.
  peer.save_pretrained(tmp_path / 'theirs', max_shard_size='10KB')
  model, params = checkpoints.load(tmp_path / 'theirs', max_length=64)
  random = np.random.default_rng(0)
  tokens = random.integers(0, tiny_families.VOCAB, (2, BEGIN + NEW))
  sources = source = None
  auto = transformers.AutoModelForCausalLM
  if model.encode is not None:
    auto = transformers.AutoModelForSeq2SeqLM
    tokens[:, 0] = 0
    sources = [[3, 1, 2], [4, 5, 6, 7, 8]]
    source = Source(*prefill.pad(sources, 8))
  tokens, found = run(model, params, jnp.asarray(tokens), source)
  expected = store_family_outputs.score(peer, np.array(tokens), sources)
  expected = expected[:, :-1].numpy()
  # Logits that do not depend on the text would prove nothing.
  assert expected.std((0, 1)).mean() > 0.3
  np.testing.assert_allclose(found[:, :-1], expected, rtol=0, atol=1e-4)
  greedy = expected.argmax(-1)[:, BEGIN - 1 :]
  np.testing.assert_array_equal(tokens[:, BEGIN:], greedy)

  attributes = {}
  if peer.config.get_text_config().model_type not in OURS:
    attributes = directories.read_config(tmp_path / 'theirs')
  checkpoints.save(
    tmp_path / 'ours', model, params, None, jnp.float32, attributes=attributes
  )
  peer, report = auto.from_pretrained(
    tmp_path / 'ours', dtype=torch.float32, output_loading_info=True
  )
  assert not any(
    report[kind]
    for kind in ('missing_keys', 'unexpected_keys', 'mismatched_keys')
  )
  again = store_family_outputs.score(peer.eval(), np.array(tokens), sources)
  np.testing.assert_allclose(again[:, :-1], expected, rtol=1e-5, atol=1e-5)


def test_weights_in_mxfp4_are_the_floats_of_transformers(tmp_path):
  from transformers.integrations.mxfp4 import convert_moe_packed_tensors

  peer = store_family_outputs.build(
    'gpt_oss', 0, hidden_size=64, intermediate_size=32
  )
  peer.save_pretrained(tmp_path)
  file, random = tmp_path / 'model.safetensors', np.random.default_rng(0)
  tensors, floats = safetensors.numpy.load_file(file), {}
  for name in [name for name in tensors if name.endswith('_proj')]:
    count, inputs, outputs = tensors[name].shape
    groups = count, outputs, inputs // 32
    blocks = random.integers(0, 256, (*groups, 16), np.uint8)
    scales = random.integers(120, 130, groups, np.uint8)
    made = map(torch.tensor, (blocks, scales))
    floats[name] = convert_moe_packed_tensors(*made, dtype=torch.float32)
    floats[name] = np.ascontiguousarray(floats[name].numpy())
    tensors[f'{name}_blocks'], tensors[f'{name}_scales'] = blocks, scales
  assert len(floats) == 4
  packed = {
    k: x for k, x in tensors.items() if k[-7:] in ('_blocks', '_scales')
  }
  rest = {k: x for k, x in tensors.items() if k not in packed | floats}
  safetensors.numpy.save_file(rest | floats, file)
  model, expected = checkpoints.load(tmp_path)
  method = {'quantization_config': {'quant_method': 'mxfp4'}}
  config = directories.read_config(tmp_path) | method
  directories.write(tmp_path, config, rest | packed)
  again, found = checkpoints.load(tmp_path)
  assert again is model
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  # On a mesh a device reads its part alone.
  _, join = quantization.split(tmp_path, config)
  tensor = join(files.open_tensors(tmp_path))[name]
  part = slice(1, 3), slice(5, 30), slice(2, 9)
  np.testing.assert_array_equal(tensor.read(part), floats[name][part])


SHORT, LONG = [1.0, 1.1, 1.5, 2.0], [1.0, 2.0, 4.0, 9.0]
SCALINGS = {
  'linear': (rotary.Linear(3.0), {'factor': 3.0}),
  'dynamic': (rotary.Dynamic(2.0, 40), {'factor': 2.0}),
  'llama3': (
    rotary.Llama3(8.0, 1.0, 4.0, 32),
    {
      'factor': 8.0,
      'low_freq_factor': 1.0,
      'high_freq_factor': 4.0,
      'original_max_position_embeddings': 32,
    },
  ),
  'yarn': (None, {'factor': 5.0, 'original_max_position_embeddings': 16}),
  'longrope': (
    None,
    {
      'short_factor': SHORT,
      'long_factor': LONG,
      'original_max_position_embeddings': 20,
    },
  ),
}


@pytest.mark.parametrize('length', [20, 40, 70])
@pytest.mark.parametrize('kind', SCALINGS)
def test_frequencies_are_those_of_transformers(kind, length):
  from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

  from specjax.checkpoints.families import rope

  scaling, parameters = SCALINGS[kind]
  inner = {'rope_type': kind, 'rope_theta': 500.0} | parameters
  config = transformers.LlamaConfig(
    hidden_size=16,
    num_attention_heads=2,
    max_position_embeddings=40,
    rope_parameters=dict(inner),
  )
  expected, amplitude = ROPE_INIT_FUNCTIONS[kind](config, seq_len=length)
  inner.pop('rope_theta')
  read = rope.read_scaling(dict(inner), 40, tuple(rope.SCALINGS), 500.0, 8)
  assert scaling in (None, read)
  found, found_amplitude = read(500.0, 8, length)
  np.testing.assert_allclose(found, expected.numpy(), rtol=2e-6)
  assert found_amplitude == pytest.approx(amplitude, rel=1e-6)


def test_a_longer_run_scales_dynamically(tmp_path):
  """Beyond the checkpoint's maximum, for a text as long as the run."""
  peer = store_family_outputs.build('gpt_neox', 0)
  peer.save_pretrained(tmp_path / 'a')
  tokens = np.random.default_rng(0).integers(0, tiny_families.VOCAB, (1, 90))
  model, params = checkpoints.load(tmp_path / 'a', max_length=90)
  plain, _ = checkpoints.load(tmp_path / 'a')
  found, wrong = (models.score(x, params, tokens) for x in (model, plain))
  expected = np.asarray(store_family_outputs.score(peer, tokens))
  np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)
  assert np.abs(wrong - expected).max() > 0.01
