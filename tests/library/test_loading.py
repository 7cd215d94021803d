"""Where checkpoints come from, what is wrong with them, what loading costs."""

import dataclasses
import json
import sys
import tracemalloc

import flax.traverse_util
import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy

import specjax
from experiments import loading_memory
from specjax import checkpoints, sampling, verify
from specjax.checkpoints import files, parameters
from specjax.checkpoints.families import conversion
from specjax.drafters import plain
from specjax.models import rotary
from specjax.types import Params, Spec
from tests.support import family_outputs, models, processes, tiny_families
from tests.support.directories import (
  assert_same,
  edit_config,
  edit_tensors,
  refused,
)

INDEX = 'model.safetensors.index.json'


@pytest.fixture
def directory(tmp_path):
  """A complete checkpoint, to be damaged by a test."""
  return family_outputs.load('llama').write(tmp_path / 'model')


def shard(path):
  """Cuts the weights of a checkpoint into three shards with an index."""
  file = path / 'model.safetensors'
  tensors = sorted(safetensors.numpy.load_file(file).items())
  file.unlink()
  places = {}
  for i in range(3):
    name = f'model-{i}.safetensors'
    safetensors.numpy.save_file(dict(tensors[i::3]), path / name)
    places |= {key: name for key, _ in tensors[i::3]}
  (path / INDEX).write_text(json.dumps({'weight_map': places}))
  return places


def test_shards_are_the_whole(directory):
  model, whole = checkpoints.load(directory)
  shard(directory)
  again, parts = checkpoints.load(directory)
  assert again is model
  assert_same(parts, whole)
  (directory / 'model-1.safetensors').unlink()
  refused(r'model-1\.safetensors of .* missing', checkpoints.load, directory)


def test_a_description_is_that_of_what_is_loaded(directory):
  """And needs the headers alone: the weights themselves may be anything."""
  shard(directory)
  model, _ = checkpoints.load(directory)
  files = list(directory.glob('*.safetensors'))
  for file in files:
    content = file.read_bytes()
    header = 8 + int.from_bytes(content[:8], 'little')
    file.write_bytes(content[:header] + b'\xff' * (len(content) - header))
  found = checkpoints.describe(directory)
  assert (found.family, found.model) == ('llama', model)
  assert found.stored_bytes == sum(file.stat().st_size for file in files)
  files[0].unlink()
  refused('missing', checkpoints.describe, directory)
  assert not checkpoints.has_tokenizer(directory)
  for name in ('tokenizer.json', 'tokenizer.model', 'vocab.json', 'vocab.txt'):
    (directory / name).write_text('{}')
    assert checkpoints.has_tokenizer(directory)
    (directory / name).unlink()


NORM = 'model.norm.weight'


@pytest.mark.parametrize(
  ('lie', 'message'),
  [
    *((nothing, 'has no weight_map; copy') for nothing in (None, {})),
    (
      {f'{NORM}s': 'model-0.safetensors'},
      rf'model-0.safetensors lacks tensors .*: {NORM}s; copy',
    ),
    # An index stays in its folder.
    *(
      ({NORM: name}, f'puts {NORM} into')
      for name in ('../model.safetensors', 3, '')
    ),
  ],
)
def test_an_index_that_lies_is_refused(lie, message, directory):
  places = shard(directory)
  index = {'weight_map': lie and places | lie}
  (directory / INDEX).write_text(json.dumps(index))
  refused(message, checkpoints.load, directory)


@pytest.mark.parametrize(
  'damage',
  [
    lambda content: b'',
    lambda content: content[:5],
    lambda content: content[:100],
    lambda content: content[:-10],
    lambda content: b'\xff' * 8 + content[8:],
    lambda content: content[:8] + b'[' + content[9:],
    lambda content: content + b'more',
  ],
)
def test_a_damaged_shard_is_named(damage, directory):
  shard(directory)
  file = directory / 'model-2.safetensors'
  file.write_bytes(damage(file.read_bytes()))
  refused(r'model-2\.safetensors is truncated or', checkpoints.load, directory)


@pytest.mark.parametrize(
  'name', ['pytorch_model.bin', 'consolidated.00.pth', 'model.pt']
)
def test_pickled_weights_are_never_read(name, directory):
  (directory / 'model.safetensors').unlink()
  for file in (name, 'q.bin'):  # Of several the first is named.
    (directory / file).write_bytes(b'cos\nsystem\n(S"false"\ntR.')
    refused(f'{name} is pickled.*save_pretrained', checkpoints.load, directory)
  (directory / name).unlink()
  (directory / 'q.bin').rename(directory / 'weights.h5')
  refused(f'and so is {INDEX}', checkpoints.load, directory)


def test_pickled_heads_need_torch(tmp_path, monkeypatch):
  (tmp_path / 'pytorch_model.bin').write_bytes(b'cos\nsystem\n(S"false"\ntR.')
  monkeypatch.setitem(sys.modules, 'torch', None)
  refused('is not installed: pip', files.open_tensors, tmp_path, True)


@pytest.mark.parametrize(
  'changes',
  [
    {'quantization_config': {'bits': 4}},
    {'sliding_window': 3, 'moe_layers': [1]},
    {'vocab_size': [48]},
    {'rope_parameters': {'rope_type': ['linear']}},
    {'layer_types': 'sliding'},
  ],
)
@pytest.mark.parametrize('name', tiny_families.OPTIONS)
def test_every_family_names_what_it_does_not_know(name, changes):
  config = tiny_families.attributes(name)
  inner = config.get('text_config', config)
  inner |= changes
  # The name in a message may be that of the attribute inside.
  names = '|'.join([*changes, 'rope_type'])
  with pytest.raises(ValueError, match=names) as caught:
    conversion.read_attributes(config)
  assert '\n' not in str(caught.value)


_LINEAR = {'type': 'linear', 'factor': 2.0}
_YARN = {'rope_type': 'yarn', 'factor': 2.0, 'rope_theta': 1.0}
_LONG = {'rope_type': 'longrope', 'short_factor': [1.0], 'long_factor': [1.0]}


@pytest.mark.parametrize(
  ('name', 'changes', 'message'),
  [
    ('llama', {'model_type': 'mamba'}, "'mamba' is unknown; known are llama"),
    ('llama', {'sliding_window': 64}, 'unsupported .* attribute sliding_windo'),
    ('llama', {'head_dim': 7}, 'head_dim = 7 must be even'),
    ('llama', {'hidden_size': '8'}, "hidden_size = '8'; expected a"),
    ('llama', {'rms_norm_eps': True}, 'eps = True; expected a positive'),
    ('llama', {'mlp_bias': 1}, 'mlp_bias = 1; expected true or false'),
    ('llama', {'hidden_act': 'mish'}, "'mish'; expected one of silu"),
    ('llama', {'num_key_value_heads': 3}, r'heads \(4\) must be a multiple'),
    ('llama', {'pretraining_tp': 2}, 'pretraining_tp = 2; only 1 is'),
    ('llama', {'rope_scaling': 2}, 'rope_scaling = 2 must be an object'),
    ('llama', {'rope_parameters': {'type': 'ntk'}}, "= 'ntk'; expected one"),
    # Beside rope_parameters that say otherwise.
    ('llama', {'rope_scaling': {'type': 'su'}}, "'llama3' and 'su'; expected"),
    ('llama', {'rope_theta': 7.0}, '7.0 but rope_parameters.rope_theta = 500'),
    ('llama', {'rope_parameters': {'type': 'llama3'}}, 'factor is missing'),
    ('llama', {'rope_parameters': _LINEAR | {'a': 1}}, 'parameters: a = 1'),
    ('llama', {'partial_rotary_factor': 0.5}, 'factor = 0.5; expected 1'),
    ('llama', {'architectures': ['X']}, r"= \['X'\]; only \['LlamaForCausalLM"),
    ('llama', {'is_encoder_decoder': True}, 'is_encoder_decoder = True'),
    ('deepseek_v3', {'n_group': 4}, 'n_group'),
    ('deepseek_v3', {'n_group': 6}, 'n_group'),
    ('deepseek_v3', {'topk_group': 1}, 'num_experts_per_tok'),
    ('gpt2', {'scale_attn_by_inverse_layer_idx': True}, 'only False is'),
    ('opt', {'do_layer_norm_before': False}, 'do_layer_norm_before = False'),
    ('opt', {'word_embed_proj_dim': 7}, 'word_embed_proj_dim = 7'),
    ('gpt_neo', {'attention_types': [[['wide'], 2]]}, 'attention_types'),
    ('gpt_neo', {'attention_types': [[[['local']], 2]]}, 'attention_types'),
    ('gpt_neo', {'attention_types': [[['local'], 10**18]]}, 'attention_types'),
    ('gpt_neo', {'num_layers': 3, 'attention_types': None}, 'attention_types'),
    ('qwen2', {'layer_types': [[], {}]}, 'layer_types'),
    ('llama', {'rope_parameters': _YARN}, "'yarn': .*division by zero"),
    ('llama', {'rope_parameters': _LONG}, "'longrope': 1 factors for 5"),
    ('llama', {'rope_parameters': {'mrope_section': [1]}}, 'mrope_section'),
    ('gpt_neo', {'attention_layers': ['local'] * 2}, 'attention_layers'),
    ('gemma2', {'layer_types': ['full_attention']}, 'layer_types'),
    ('gemma2', {'sliding_window': None}, 'there is no sliding_window'),
    ('gemma3_text', {'attn_logit_softcapping': 5.0}, 'only None is'),
    ('gemma3_text', {'rope_local_base_freq': 7.0}, 'rope_theta = 7.0 but'),
    ('phi3', {'rope_scaling': {'type': 'yarn'}}, "'longrope' and 'yarn'"),
    ('phi3', {'partial_rotary_factor': 0.4}, 'partial_rotary_factor'),
    ('mixtral', {'num_experts_per_tok': 9}, '9 of 5 experts'),
    ('qwen3_moe', {'num_experts': 7}, 'num_local_experts'),
    ('qwen3_moe', {'mlp_only_layers': [True]}, 'mlp_only_layers'),
    ('gpt_neox', {'rotary_pct': 2.0}, 'partial_rotary_factor'),
    ('t5', {'is_encoder_decoder': False}, 'is_encoder_decoder = False'),
    ('t5', {'feed_forward_proj': 'gated-sin'}, 'feed_forward_proj = .*silu'),
    ('t5', {'is_gated_act': True}, 'is_gated_act = True'),
    ('t5', {'dense_act_fn': 'silu'}, "makes it 'relu'"),
    ('t5', {'relative_attention_num_buckets': 6}, 'attention_num_buckets = 6'),
    ('t5', {'relative_attention_max_distance': 4}, 'max_distance = 4'),
    ('t5', {'decoder_start_token_id': -1}, 'decoder_start_token_id = -1'),
  ],
)
def test_unsupported_values_are_named(name, changes, message, tmp_path):
  """No weights are needed for it."""
  file = tmp_path / 'config.json'
  file.write_text(json.dumps(family_outputs.load(name).config))
  edit_config(tmp_path, **changes)
  assert refused(message, checkpoints.load, tmp_path).startswith(str(file))


@pytest.mark.parametrize(
  ('name', 'rename', 'more'),
  [
    # As files of the model without its head, the first GPT-2 among them; masks
    # are stored with it, which are no parameters.
    (
      'gpt2',
      lambda name: name.removeprefix('transformer.'),
      {'h.0.attn.bias': np.ones((1, 1, 64, 64), np.uint8)},
    ),
    # Tied weights have the name of the head.
    ('qwen2', lambda name: name.replace('model.embed_tokens', 'lm_head'), {}),
  ],
)
def test_tensors_may_have_other_names(name, rename, more, tmp_path):
  path = family_outputs.load(name).write(tmp_path / 'model')
  _, expected = checkpoints.load(path)
  edit_tensors(path, lambda x: {rename(n): w for n, w in x.items()} | more)
  assert_same(checkpoints.load(path)[1], expected)


@pytest.mark.parametrize('tied', [False, True])
@pytest.mark.parametrize(
  'prefix', ['model.language_model.', 'language_model.model.']
)
def test_of_a_model_that_sees_images_the_text_is_read(prefix, tied, tmp_path):
  """By names of either version; the head is tied where a file has none."""
  reference = family_outputs.load('gemma3_text')
  path = reference.write(tmp_path / 'text')
  text, expected = checkpoints.load(path)
  config = {
    'model_type': 'gemma3',
    'architectures': ['Gemma3ForConditionalGeneration'],
    'text_config': reference.config | {'eos_token_id': [1, 2]},
    'vision_config': {},
    'image_token_index': 7,
  }
  (path / 'config.json').write_text(json.dumps(config))

  def change(tensors):
    head = tensors.pop('lm_head.weight')
    named = {
      name.replace('model.', prefix, 1): x for name, x in tensors.items()
    }
    before = 'language_model.' if prefix.startswith('language') else ''
    # A tensor of images may have any shape.
    named['vision_tower.embeddings.weight'] = np.ones(3, np.float32)
    return named if tied else named | {f'{before}lm_head.weight': head}

  edit_tensors(path, change)
  model, params = checkpoints.load(path)
  if tied:
    del expected['unembedding']
  assert model.config == dataclasses.replace(text.config, tied_embeddings=tied)
  assert_same(params, expected)
  assert checkpoints.eos_ids(path) == (1, 2)
  edit_tensors(
    path, lambda x: x | {'speech_tower.weight': np.ones(3, np.float32)}
  )
  refused('speech_tower', checkpoints.load, path)
  edit_config(path, speech_config={})
  refused('speech_config', checkpoints.load, path)


@pytest.mark.parametrize('name', ['deepseek_v2', 'deepseek_v3'])
def test_a_layer_that_drafts_is_left_out(name, tmp_path):
  reference = family_outputs.load(name)
  more = reference.tensors | {
    f'model.layers.2.{key}.weight': np.zeros((3, 3), np.float16)
    for key in ('eh_proj', 'mlp.down_proj', 'shared_head.head')
  }
  path = reference._replace(tensors=more).write(tmp_path / 'one')
  made = checkpoints.describe(path)
  _, params = checkpoints.load(path)
  shapes = made.shapes('float32', parameters.FLOATS)
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
  more['model.layers.3.eh_proj.weight'] = np.zeros((3, 3), np.float16)
  path = reference._replace(tensors=more).write(tmp_path / 'two')
  refused(r'model\.layers\.3\.eh_proj', checkpoints.describe, path)


@pytest.mark.parametrize('way', ['flat', 'nested', 'restored'])
def test_a_tree_is_the_target_of_its_directory(way, directory, tmp_path):
  reference = family_outputs.load('llama')
  tree = reference.tensors
  if way != 'flat':
    names = {tuple(name.split('.')): x for name, x in tree.items()}
    tree = flax.traverse_util.unflatten_dict(names)
  if way == 'restored':
    with ocp.StandardCheckpointer() as checkpointer:
      checkpointer.save(tmp_path / 'orbax', tree)
      checkpointer.wait_until_finished()
      tree = checkpointer.restore(tmp_path / 'orbax')
  made = specjax.from_pytree(reference.config, tree)
  loaded = specjax.load(directory, layout='whole')
  assert made.model == loaded.model
  assert_same(made.params, loaded.params)


@pytest.mark.parametrize(
  ('name', 'given'),
  [
    ('model.norm.bias', np.zeros(24)),
    *((NORM, x) for x in (None, np.zeros(23), np.zeros(24, int), 'zeros')),
  ],
)
def test_a_tree_of_another_model_is_refused(name, given):
  config, tree, *_ = family_outputs.load('llama')
  refused(name, specjax.from_pytree, config, tree | {name: given})


@pytest.mark.parametrize('stored', ['float64', 'float32', 'bfloat16'])
@pytest.mark.parametrize('wanted', ['float32', 'float16', 'bfloat16'])
def test_any_stored_type_becomes_the_wanted_one(stored, wanted, directory):
  _, expected = checkpoints.load(directory)
  stored, wanted = jnp.dtype(stored), jnp.dtype(wanted)
  edit_tensors(
    directory,
    lambda tensors: {name: x.astype(stored) for name, x in tensors.items()},
  )
  _, params = checkpoints.load(directory, wanted)
  for key, x in flax.traverse_util.flatten_dict(params).items():
    assert x.dtype == wanted
    original = np.asarray(flax.traverse_util.flatten_dict(expected)[key])
    np.testing.assert_array_equal(x, original.astype(stored).astype(wanted))


def test_the_run_fixes_scalings_that_depend_on_the_length(tmp_path):
  path = family_outputs.load('phi3').write(tmp_path / 'phi3')
  for limit, factor in ((None, 1), (65, 1), (64, 0), (9, 0)):
    model, _ = checkpoints.load(path, max_length=limit)
    assert model.config.max_positions == (limit or 128)
    scaling = model.config.rope_scaling
    assert isinstance(scaling, rotary.LongRope)
    frequency, _ = scaling(500.0, 4, model.config.max_positions)
    unscaled = rotary.frequencies(500.0, 4)
    divisors = ((1.0, 1.5), (2.0, 4.0))[factor]
    np.testing.assert_allclose(frequency, unscaled / divisors)
  spec = Spec(model, plain.make(), verify.token)
  with pytest.raises(ValueError, match='the target has 9 positions'):
    models.run(spec, Params(None, None), [[1] * 9], sampling.make(1))
  refused('max_length = 129', checkpoints.load, path, max_length=129)
  path = family_outputs.load('gpt_neox').write(tmp_path / 'gpt_neox')
  model, _ = checkpoints.load(path, max_length=256)
  assert model.config.max_positions == 256
  # Saved as it was made.
  llama = family_outputs.load('llama').config
  llama['rope_parameters'] = {'rope_type': 'dynamic', 'factor': 2.0}
  _, config = conversion.read_attributes(llama, 256)
  _, attributes = conversion.write_attributes(config, {})
  assert (config.max_positions, attributes['max_position_embeddings']) == (
    256,
    64,
  )


@pytest.mark.parametrize('name', ['qwen2', 'qwen3', 'mistral'])
def test_a_window_of_any_size_is_written_back(name):
  windowed = {'sliding_window': 1000}
  if name == 'qwen3':
    windowed |= {'use_sliding_window': True, 'layer_types': None}
    windowed['max_window_layers'] = 1
  attributes = family_outputs.load(name).config | windowed
  family, config = conversion.read_attributes(attributes)
  assert 1000 in config.windows
  assert conversion.write_attributes(config, {})[0] is family


def test_other_models_have_the_length_they_have(directory):
  model, _ = checkpoints.load(directory, max_length=10)
  assert model.config.max_positions == 64
  refused('more than the 64', checkpoints.load, directory, max_length=65)
  refused('at least 1', checkpoints.load, directory, max_length=0)


@pytest.mark.parametrize('name', ['nothing', './a/b', '../a', 'a/b/c', ''])
def test_a_path_is_no_name(name, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)

  def fetch(*_, **__):
    raise AssertionError('looked up')

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', fetch)
  with pytest.raises(ValueError, match=r'no directory|config|must be a dir'):
    checkpoints.load(name)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_loading_allocates_one_tensor_beside_the_parameters(dtype, tmp_path):
  large, small = tmp_path / 'large', tmp_path / 'small'
  loading_memory.write({large: 20, small: 0})
  checkpoints.load(small, dtype)  # What is imported is none of the weights'.
  tracemalloc.start()
  try:
    _, params = checkpoints.load(large, dtype)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  total = sum(x.nbytes for x in jax.tree.leaves(params))
  assert {x.dtype.name for x in jax.tree.leaves(params)} == {dtype}
  largest = loading_memory.largest_tensor(large)
  assert total + 0.9 * largest < peak < total + 1.1 * largest


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_loading_holds_one_tensor_beside_the_parameters():
  out = processes.run('experiments.loading_memory', '--megabytes', 40)
  sizes = json.loads(out.stdout.splitlines()[-1])
  # Less would mean that something else was measured.
  assert 0.95 * sizes['parameters'] < sizes['growth'] < sizes['bound']
