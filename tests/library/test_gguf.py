"""GGUF files: the weights that they stand for, the tokenizer, damaged files."""

import functools
import mmap
import os
import pathlib
import re
import resource
import shutil
import struct
import sys
import tempfile
import time
import types
from typing import NamedTuple

import gguf
import huggingface_hub
import jax
import numpy as np
import pytest
import safetensors.numpy
import transformers

import specjax
from specjax import checkpoints
from specjax.checkpoints import (
  CheckpointError,
  gguf_blocks,
  gguf_files,
  gguf_header,
  hub,
  kept_weights,
  loading,
  parameters,
)
from specjax.checkpoints.families import conversion
from specjax.checkpoints.families.table import KEEP, WAYS, Tensors, TensorSplit
from specjax.checkpoints.files import Tensor, open_tensors
from specjax.checkpoints.parameters import WeightForm
from specjax.drafters import lm
from specjax.models import linear, low_bits, transformer
from tests.support import models
from tests.support.directories import refused

HEADS, KV_HEADS, WIDTH, VOCAB = 4, 2, 64, 48
COMMON = dict(
  vocab_size=VOCAB,
  hidden_size=WIDTH,
  num_hidden_layers=2,
  num_attention_heads=HEADS,
  num_key_value_heads=KV_HEADS,
  intermediate_size=96,
  max_position_embeddings=64,
  rms_norm_eps=1e-5,
  rope_theta=500.0,
)
GEMMA = dict(head_dim=32, query_pre_attn_scalar=32, sliding_window=5)
# Attributes of `config.json` of each architecture, and keys of its files beyond
# the usual ones.
ARCHITECTURES = {
  'llama': (dict(head_dim=16), {}),
  'qwen2': (dict(tie_word_embeddings=True), {}),
  'qwen3': (dict(head_dim=32), {'attention.key_length': 32}),
  'gemma2': (
    GEMMA | dict(attn_logit_softcapping=20.0, final_logit_softcapping=9.0),
    {
      'attention.key_length': 32,
      'attention.sliding_window': 5,
      'attn_logit_softcapping': 20.0,
      'final_logit_softcapping': 9.0,
    },
  ),
  'gemma3': (
    GEMMA | dict(rope_local_base_freq=10_000.0, num_hidden_layers=7),
    {'attention.key_length': 32, 'attention.sliding_window': 5},
  ),
  'phi3': (dict(sliding_window=9), {'attention.sliding_window': 9}),
}
TYPES = {'gemma3': 'gemma3_text'}
NAMES = {
  'input_layernorm': 'attn_norm',
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.qkv_proj': 'attn_qkv',
  'self_attn.o_proj': 'attn_output',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.gate_up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
  'pre_feedforward_layernorm': 'ffn_norm',
  'post_feedforward_layernorm': 'post_ffw_norm',
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


@functools.cache
def reference(name):
  """Attributes, model and parameters of a random model."""
  attributes = COMMON | ARCHITECTURES[name][0]
  attributes |= {'model_type': TYPES.get(name, name)}
  _, config = conversion.read_attributes(attributes)
  model = transformer.build(config)
  # Norms and biases that are not what they begin with.
  draw = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: x + draw.normal(0, 0.1, x.shape).astype(x.dtype),
    jax.device_get(jax.jit(model.init)(jax.random.key(0))),
  )
  return attributes, model, params


def name_in_file(name, four_norms):
  top = {
    'model.embed_tokens.weight': 'token_embd.weight',
    'model.norm.weight': 'output_norm.weight',
    'lm_head.weight': 'output.weight',
  }
  if name in top:
    return top[name]
  _, _, layer, *part, ending = name.split('.')
  part = '.'.join(part)
  if part == 'post_attention_layernorm':
    short = 'post_attention_norm' if four_norms else 'ffn_norm'
  else:
    short = NAMES[part]
  return f'blk.{layer}.{short}.{ending}'


def write(path, name, tensors, attributes, kind='F32', keys=(), change=None):
  """Writes a file as llama.cpp's converter does; returns what it stands for."""
  kinds = kind if callable(kind) else lambda name: kind
  writer = gguf.GGUFWriter(path, name)
  sizes = {
    'block_count': attributes['num_hidden_layers'],
    'context_length': attributes['max_position_embeddings'],
    'embedding_length': attributes['hidden_size'],
    'feed_forward_length': attributes['intermediate_size'],
    'attention.head_count': attributes['num_attention_heads'],
    'attention.head_count_kv': attributes['num_key_value_heads'],
    'attention.layer_norm_rms_epsilon': attributes['rms_norm_eps'],
    'rope.freq_base': attributes['rope_theta'],
  }
  for key, value in (sizes | ARCHITECTURES[name][1] | dict(keys)).items():
    add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
    if isinstance(value, str):
      add = writer.add_string
    add(f'{name}.{key}', value)
  writer.add_uint32(f'{name}.vocab_size', VOCAB)
  writer.add_uint32('tokenizer.ggml.eos_token_id', 7)
  stands = {}
  for full, x in tensors.items():
    short = name_in_file(full, name.startswith('gemma'))
    if name.startswith('gemma') and short.endswith('norm.weight'):
      x = x + 1
    stored_as = gguf.GGMLQuantizationType[kinds(short)]
    order = np.arange(len(x))
    if name == 'llama' and ('attn_q.' in short or 'attn_k.' in short):
      heads = HEADS if 'attn_q' in short else KV_HEADS
      order = order.reshape(heads, 2, -1).swapaxes(1, 2).ravel()
    if x.ndim == 1 or stored_as.name == 'F32':
      writer.add_tensor(short, x[order])
      stands[full] = x
    else:
      stored = gguf.quants.quantize(x[order], stored_as)
      writer.add_tensor(short, stored, raw_dtype=stored_as)
      stands[full] = np.empty_like(x)
      stands[full][order] = gguf.quants.dequantize(stored, stored_as)
    if name.startswith('gemma') and short.endswith('norm.weight'):
      stands[full] = stands[full] - 1
  if change is not None:
    change(writer)
  finish(writer)
  return stands


def finish(writer):
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def made(tmp_path, name, kind='F32', **options):
  """A file, and a directory of transformers with what it stands for."""
  attributes, model, params = reference(name)
  tmp_path.mkdir(exist_ok=True)
  label = kind if isinstance(kind, str) else 'mixed'
  directory = tmp_path / f'{name}-{label}'
  checkpoints.save(
    directory, model, params, dtype=np.float32, attributes=attributes
  )
  weights = directory / 'model.safetensors'
  path = tmp_path / f'{name}-{label}.gguf'
  tensors = safetensors.numpy.load_file(weights)
  stands = write(path, name, tensors, attributes, kind, **options)
  safetensors.numpy.save_file(stands, weights, metadata={'format': 'pt'})
  return path, directory


@pytest.mark.parametrize(
  ('turn', 'ends'), [(9, (7, 9)), (3, (3, 7)), (7, (7,))]
)
def test_the_end_of_a_turn_ends_a_text_too(turn, ends, tmp_path):
  key = 'tokenizer.ggml.eot_token_id'
  path, _ = made(tmp_path, 'llama', change=lambda x: x.add_uint32(key, turn))
  assert checkpoints.eos_ids(path) == ends


@pytest.mark.parametrize(
  ('name', 'kind'),
  [
    *((name, 'Q4_1') for name in ARCHITECTURES),
    *(('llama', kind) for kind in ('F32', 'F16', 'BF16', 'Q8_0')),
  ],
)
def test_a_file_is_the_checkpoint_that_it_was_made_from(name, kind, tmp_path):
  path, directory = made(tmp_path, name, kind)
  model, params = checkpoints.load(path)
  expected, stands = checkpoints.load(directory)
  assert model.config == expected.config
  jax.tree.map(np.testing.assert_array_equal, params, stands)
  assert checkpoints.eos_ids(path) == (7,)
  described = checkpoints.describe(path)
  assert described.model is model
  assert described.stored_bytes == path.stat().st_size
  assert described.dtype == {'F32': 'float32', 'F16': 'float16'}.get(
    kind, 'bfloat16'
  )
  assert checkpoints.fingerprint(path) == checkpoints.fingerprint(path)
  parts, whole = map(open_tensors, (checkpoints.locate(path), directory))
  for key, x in whole.items():
    cut = tuple(slice(3, n - 2) for n in x.shape)
    np.testing.assert_array_equal(parts[key].read(cut), x.read(cut), key)


def test_a_file_that_changed_is_read_anew(tmp_path, monkeypatch):
  """Its old folder is deleted, and so is the folder of a deleted file."""
  gone, other = (made(tmp_path / x, 'llama')[0] for x in 'ab')
  folders = {x: gguf_files.folder_of(x) for x in (gone, other)}
  gone.unlink()
  path, _ = made(tmp_path, 'qwen2')
  before = checkpoints.load(path)[1]['norm']['scale']
  attributes, *_ = reference('qwen2')
  tensors = safetensors.numpy.load_file(
    tmp_path / 'qwen2-F32/model.safetensors'
  )
  tensors['model.norm.weight'] = 2 * tensors['model.norm.weight']
  path.unlink()
  write(path, 'qwen2', tensors, attributes | {'rms_norm_eps': 1e-3})
  model, params = checkpoints.load(path)
  np.testing.assert_array_equal(params['norm']['scale'], 2 * before)
  assert model.config.norm_eps == pytest.approx(1e-3)
  kept = {x.parent for x in tmp_path.glob('cache/specjax/gguf/*/*/model.gguf')}
  assert kept == {folders[other], gguf_files.folder_of(path)}
  assert not folders[gone].parent.exists()
  # So is one of another size and the same time, and all by other code.
  folder, state = checkpoints.locate(path), path.stat()
  assert not folder.parent.stat().st_mode & 0o77  # Nobody else reads it.
  path.write_bytes(path.read_bytes() + bytes(32))
  os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
  longer = checkpoints.locate(path)
  monkeypatch.setattr(gguf_files, '_CODE', ())
  assert len({folder, longer, checkpoints.locate(path)}) == 3


def test_scaled_positions(tmp_path):
  """YaRN from its keys, Llama 3 from its divisors."""
  keys = {
    'rope.scaling.type': 'yarn',
    'rope.scaling.factor': 4.0,
    'rope.scaling.original_context_length': 16,
  }
  path, _ = made(tmp_path, 'qwen3', keys=keys)
  scaling = checkpoints.describe(path).model.config.rope_scaling
  assert (scaling.factor, scaling.original) == (4.0, 16)
  for theta, factor, width in ((5e5, 32.0, np.float32), (1e4, 8.0, np.float16)):
    plain = theta ** (-np.arange(8) / 8)
    turns = 8192 * plain / (2 * np.pi)
    share = np.clip((turns - 1) / 3, 0, 1)
    divisors = (1 / (share + (1 - share) / factor)).astype(width)
    path, _ = made(
      tmp_path / str(factor),
      'llama',
      keys={'rope.freq_base': theta},
      change=lambda w, x=divisors: w.add_tensor('rope_freqs.weight', x),
    )
    scaling = checkpoints.describe(path).model.config.rope_scaling
    assert tuple(vars(scaling).values()) == (factor, 1.0, 4.0, 8192)
  # At any place of a file, which need not say the usual base.
  m = metadata('llama', {})._replace(path=tmp_path / 'x')
  place = gguf_header.Place(6, 16, [8], 'F16')
  m.path.write_bytes(bytes(6) + divisors.tobytes())
  assert gguf_files._llama3(m, place)['rope_scaling']['factor'] == 8.0
  m.path.write_bytes(bytes(6) + (1.003 * divisors).astype(width).tobytes())
  refused('scaling of no Llama 3', gguf_files._llama3, m, place)


# The bits of a file


def blocks_of(kind, rows, count, seed=0):
  """Any bytes of a type, and the floats that they stand for."""
  size, _ = gguf_blocks.TYPES[kind]
  draw = np.random.default_rng(seed)
  data = draw.integers(0, 256, (rows, count, size), np.uint8)
  # Half-precision numbers lie at these places; keep them finite.
  for place in (-1,) if kind == 'Q6_K' else (1, 3):
    data[..., place] &= 0xBB
  data = data.reshape(rows, -1)
  return data, gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])


BITS = {  # of a weight, with its share of scales and offsets, as in the file
  'Q4_0': 4.5,
  'Q4_1': 5.0,
  'Q5_0': 6.5,  # 5.5
  'Q5_1': 7.0,  # 6.0
  'Q8_0': 8.5,
  'Q4_K': 4.625,  # 4.5: scales of six bits
  'Q5_K': 6.625,  # 5.5
  'Q6_K': 6.5625,
}


class Stored(NamedTuple):
  """A tensor of a file, and the file."""

  name: str
  data: np.ndarray
  shape: tuple[int, int]
  identity: tuple[str] = ('nowhere',)

  @property
  def file(self):
    return self

  def sample(self, name):
    return gguf_blocks.take_apart(self.data[:1], name)

  def take_apart(self, name, rows):
    return gguf_blocks.take_apart(self.data[rows], name)

  def let_go(self, name):
    pass


@pytest.mark.parametrize('kind', gguf_blocks.TYPES)
def test_parameters_of_several_types_are_held_without_loss(kind):
  """Any bytes, against the floats of the package."""
  for i, other in enumerate(gguf_blocks.TYPES):
    parts, expected = {}, []
    for j, name in enumerate((kind, other)):
      size, _ = gguf_blocks.TYPES[name]
      data, floats = blocks_of(name, 16, 2 if size > 100 else 16, i + 10 * j)
      parts[str(j)] = Stored(name, data, floats.shape)
      expected.append(floats.T)
    shape = expected[0].shape[0], 2, 16
    source = Tensors(WAYS, tuple(parts))
    form = WeightForm('stored')
    few = parameters._few_bits(source, parts, 'w', form)
    made = parameters.read_low_bits(source, shape, parts, few, form, False)
    np.testing.assert_array_equal(
      jax.jit(low_bits.widen)(made), np.stack(expected, 1), err_msg=other
    )
    assert_described(few.shapes(shape, form), made)
    if kind == other:
      held = sum(x.nbytes for x in jax.tree.leaves(made))
      assert 8 * held / made.words.size * made.bits / 32 == BITS[kind]


@pytest.mark.parametrize('rows', [32, 40])
def test_a_table_is_in_blocks_where_its_rows_come_out_even(rows):
  data, floats = blocks_of('Q4_K', rows, 2)
  table = {'0': Stored('Q4_K', data, floats.shape)}
  source = Tensors(TensorSplit(lambda x: (x,), 0), ('0',))
  form = WeightForm('stored', blocks=True)
  few = parameters._few_bits(source, table, 'embedding', form)
  made = parameters.read_low_bits(source, floats.shape, table, few, form, True)
  assert made.blocked == (rows % 16 == 0)
  np.testing.assert_array_equal(jax.jit(low_bits.widen)(made), floats.T)
  assert_described(few.shapes(floats.shape[::-1], form), made)


@pytest.mark.parametrize('untied', [(), ('unembedding',)])
def test_a_table_is_rounded_where_it_is_the_output_layer(untied):
  keys = 'embedding', *untied
  file = loading._Memory(dict.fromkeys(keys, np.ones((64, 64), np.float32)))
  tensors = {key: Tensor(file, None, key, (64, 64), 'F32') for key in keys}
  sources = {key: Tensors(KEEP, (key,)) for key in keys}
  shapes = {key: jax.ShapeDtypeStruct((64, 64), np.float32) for key in keys}
  given = sources, shapes, tensors, np.dtype(np.float32)
  made = parameters.read_parameters(*given, form=WeightForm('int8'))
  assert linear.is_weight(made['embedding']) != bool(untied)
  assert_described(
    parameters.shape_parameters(*given, WeightForm('int8')), made
  )


def mixed(name):
  """Other types side by side in one parameter of ours."""
  if 'attn_v' in name or 'output' in name:
    return 'Q8_0'
  return 'Q5_1' if 'ffn_up' in name or 'token_embd' in name else 'Q4_1'


def assert_stand_for(params, stands):
  """Asserts that the weights of few bits are the floats of a checkpoint."""
  floats = jax.tree.leaves(models.dequantize(params))
  for x, y in zip(floats, jax.tree.leaves(stands), strict=True):
    np.testing.assert_array_equal(np.reshape(x, y.shape), y)


def assert_described(shapes, params):
  """Asserts that shapes are those of the parameters, in types as well."""
  assert jax.tree.structure(shapes) == jax.tree.structure(params)
  for shape, x in zip(*map(jax.tree.leaves, (shapes, params)), strict=True):
    assert (shape.shape, shape.dtype) == (x.shape, x.dtype)


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize(
  ('name', 'kind', 'blocks'),
  [('llama', mixed, True), ('qwen2', 'Q8_0', True), ('phi3', mixed, False)],
)
def test_stored_bits_are_the_floats_that_they_stand_for(
  name, kind, blocks, tmp_path, monkeypatch
):
  monkeypatch.setattr(parameters, '_VALUES', 960)  # In several pieces.
  path, directory = made(tmp_path, name, kind)
  expected, stands = checkpoints.load(directory)
  form = WeightForm('stored', blocks=blocks)
  model, params = checkpoints.load(path, form=form)
  assert model.config.native == blocks
  # What is no matrix has the type that is asked for.
  _, halves = checkpoints.load(path, 'float16', form=form)
  assert halves['norm']['scale'].dtype == np.float16
  small = [x for x in jax.tree.leaves(params) if x.dtype == np.int32]
  # Four of each layer, the table and the output layer, unless they are one.
  assert len(small) == 10 - (name == 'qwen2')
  assert_stand_for(params, stands)
  tokens = np.arange(12)[None]
  np.testing.assert_allclose(
    models.score(model, params, tokens),
    models.score(expected, stands, tokens),
    atol=1e-4,
  )


@pytest.mark.usefixtures('kernel')
def test_blocks_are_kept_for_the_next_start(tmp_path, monkeypatch):
  monkeypatch.setattr(kept_weights, '_LEAST', 0)
  path, directory = made(tmp_path, 'llama', mixed)
  folder, computed = tmp_path / 'cache/specjax/weights', []
  arrays = parameters._FewBits.arrays

  def count(self, blocks):
    computed.append(blocks)
    return arrays(self, blocks)

  monkeypatch.setattr(parameters._FewBits, 'arrays', count)

  def load(**options):
    computed.clear()
    form = WeightForm('stored', blocks=True, **options)
    _, params = checkpoints.load(path, form=form)
    # One file for each of ten parameters, whatever was there before.
    return params, len(computed)

  def on_the_disk(params):
    """Arrays that are parts of the kept files, without a copy."""
    lines = pathlib.Path('/proc/self/maps').read_text().splitlines()
    ends = [line.split()[0] for line in lines if str(folder) in line]
    ranges = [[int(x, 16) for x in pair.split('-')] for pair in ends]
    leaves = jax.tree.leaves(params)
    places = [x.unsafe_buffer_pointer() for x in leaves]
    return sum(any(a <= x < b for a, b in ranges) for x in places)

  _, stands = checkpoints.load(directory)
  params, whole = load()
  assert_stand_for(params, stands)
  kept = sorted(folder.glob('*/*'))
  assert len(kept) == 10
  assert on_the_disk(params) >= len(kept)  # They were made where they lie.
  for options in ({}, {'rounds': True}):  # Which rounds no weight.
    params, count_again = load(**options)
    assert count_again == 0
    assert_stand_for(params, stands)
    assert on_the_disk(params) >= len(kept)
  # A file of another size is made again, and that alone.
  os.truncate(kept[0], kept[0].stat().st_size - 1)
  left = kept[0].with_name('tmp-of-a-process-that-was-killed')
  left.mkdir()
  os.utime(left, (1, 1))
  params, some = load()
  assert not left.exists()
  assert 0 < some < whole
  assert_stand_for(params, stands)
  # Everything is, once code has changed that blocks are made by.
  monkeypatch.setattr(kept_weights, '_code', lambda: b'other')
  params, anew = load()
  assert anew == whole
  assert_stand_for(params, stands)
  kept = sorted(folder.glob('*/*'))
  # So is all of a model that has changed, and nothing old stays.
  tensors = safetensors.numpy.load_file(directory / 'model.safetensors')
  tensors = {name: 2 * x for name, x in tensors.items()}
  stands = write(path, 'llama', tensors, reference('llama')[0], mixed)
  os.utime(path, (1, 1))
  safetensors.numpy.save_file(
    stands, directory / 'model.safetensors', metadata={'format': 'pt'}
  )
  _, stands = checkpoints.load(directory)
  lost = kept[0].with_name('lost')
  lost.symlink_to('nowhere')  # As a file that another process deletes.
  params, new = load()
  lost.unlink()
  assert new == whole
  assert_stand_for(params, stands)
  now = sorted(folder.glob('*/*'))
  assert len(now) == 10
  assert not {*now} & {*kept}
  # What was kept of a file that is gone goes when another one is read.
  # A list that is damaged stops nothing.
  (folder / '0.json').write_text('5')
  moved = path.rename(tmp_path / 'moved.gguf')
  params = checkpoints.load(moved, form=WeightForm('stored', blocks=True))[1]
  assert_stand_for(params, stands)
  left = {*folder.glob('*/*')}
  assert len(left) == 10
  assert not left & {*now}
  # One model, and a list of its files.
  assert len([*folder.iterdir()]) == 2


def copy(arrays, memory):
  for x, y in zip(arrays, memory, strict=True):
    y[...] = x


def test_arrays_are_mapped_where_a_device_takes_them(tmp_path, monkeypatch):
  monkeypatch.setattr(kept_weights, '_LEAST', 384)  # Of three arrays, padded.
  space = [384 + kept_weights._SPARE, 383 + kept_weights._SPARE]
  monkeypatch.setattr(
    shutil, 'disk_usage', lambda _: types.SimpleNamespace(free=space.pop())
  )
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
  kept_weights._allow_files.cache_clear()
  arrays = [
    np.arange(3, dtype=np.uint8),
    np.arange(35, dtype=np.float32).reshape(5, 7),
    np.arange(64, dtype=np.int16),
  ]
  made = []

  def fill(memory):
    made.append(0)
    copy(arrays, memory)

  for turn in range(3):  # There is no room at first.
    found = kept_weights.recall('x', [(str(tmp_path), 1)], '', arrays, fill)
    for x, y in zip(found, arrays, strict=True):
      np.testing.assert_array_equal(x, y)
      assert x.dtype == y.dtype
    (folder,) = (tmp_path / 'cache/specjax/weights').glob('*/')
    if not turn:  # Another process may still write, but not for an hour.
      for minutes in (59, 61):
        (folder / str(minutes)).mkdir()
        os.utime(folder / str(minutes), (time.time() - 60 * minutes,) * 2)
  assert len(made) == 2
  assert [x.name for x in folder.iterdir() if not x.suffix] == ['59']
  assert not folder.stat().st_mode & 0o77  # Nobody else reads it.
  arrays.pop()
  small = kept_weights.recall('x', [('', 1)], '', arrays, fill)
  assert all(map(np.array_equal, small, arrays))
  assert len(made) == 3
  assert len([*folder.parent.iterdir()]) == 2  # Nothing new.
  assert not any(x.ctypes.data % 64 for x in found)
  assert not any(x.flags.writeable for x in found)
  # Each map keeps a file open: as many may be as the system allows.
  allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
  most = kept_weights._FILES
  assert allowed == (
    most if hard == resource.RLIM_INFINITY else min(most, hard)
  )
  lies = [jax.device_put(x, may_alias=True) for x in found]
  assert [x.unsafe_buffer_pointer() for x in lies] == [
    x.ctypes.data for x in found
  ]


@pytest.mark.parametrize('whole', [True, False])
def test_pages_of_a_table_take_no_memory_until_they_are_read(
  tmp_path, monkeypatch, whole
):
  monkeypatch.setattr(kept_weights, '_SPARE', 0)
  try:
    mmap.mmap(-1, mmap.PAGESIZE).madvise(kept_weights._POPULATE_READ)
  except OSError:
    pytest.skip('the system maps no pages at once')
  arrays, page = [np.arange(1 << 20, dtype=np.int32)], mmap.PAGESIZE // 4
  source = [(str(tmp_path), 1)]
  for _ in range(2):  # They are made, and then mapped.
    (found,) = kept_weights.recall(
      'x', source, '', arrays, functools.partial(copy, arrays), whole=whole
    )

  def resident():
    """KiB of the map."""
    *_, own = pathlib.Path('/proc/self/smaps').read_text().split(str(tmp_path))
    return int(re.search(r'^Rss: *(\d+) kB', own, re.MULTILINE)[1])

  assert resident() == (found.nbytes / 1024 if whole else 0)
  assert found[5 * page] == 5 * page
  assert 0 < resident() <= (found.nbytes / 1024 if whole else 2048)


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize('name', ['llama', 'qwen2'])  # Tied in qwen2.
def test_only_a_table_is_read_by_rows(name, tmp_path, monkeypatch):
  path, _ = made(tmp_path, name, mixed)
  recall, told = kept_weights.recall, {}

  def spy(name, *args, whole):
    told[name] = whole
    return recall(name, *args, whole=whole)

  monkeypatch.setattr(kept_weights, 'recall', spy)
  checkpoints.load(path, form=WeightForm('stored', blocks=True))
  by_rows = {name for name, whole in told.items() if not whole}
  assert len(told) == 10 - (name == 'qwen2')
  assert by_rows == (
    {'model.embed_tokens.weight'} if name == 'llama' else set()
  )


@pytest.mark.usefixtures('kernel')
def test_pages_of_a_file_are_let_go(tmp_path, monkeypatch):
  path, _ = made(tmp_path, 'llama', mixed)
  let_go, told = gguf_files.Gguf.let_go, []

  def spy(file, name):
    whole, asked = file._map, []
    file._map = types.SimpleNamespace(madvise=lambda *x: asked.append(x))
    let_go(file, name)
    file._map = whole
    ((advice, begin, length),) = asked
    place = file._places[name]
    assert advice == mmap.MADV_DONTNEED
    assert begin % mmap.PAGESIZE == 0
    assert 0 <= place['begin'] - begin < mmap.PAGESIZE
    assert begin + length == place['begin'] + place['length']
    told.append(place['kind'])

  monkeypatch.setattr(gguf_files.Gguf, 'let_go', spy)
  monkeypatch.setattr(parameters, '_AT_ONCE', 1)
  checkpoints.load(path, form=WeightForm('stored', blocks=True))
  assert len(told) == 2 * 7 + 2  # Matrices of two layers, and two tables.
  assert not {'F32', 'F16'} & {*told}


def test_what_is_kept_depends_on_sources_facts_and_types(monkeypatch):
  monkeypatch.setattr(kept_weights, '_LEAST', 0)
  a, b, found = ('/', 1), ('/tmp', 1), []
  for i, (sources, facts, kind) in enumerate(
    [([a, b], 0, 'i2'), ([b, a], 0, 'i2'), ([a, b], 1, 'i2'), ([a, b], 1, 'u2')]
  ):
    x = [np.full(1, i, kind)]
    fill = functools.partial(copy, x)
    found += kept_weights.recall('x', sources, facts, x, fill)
  assert found == [0, 0, 2, 3]


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize('least', [0, kept_weights._LEAST])
def test_weights_are_read_where_nothing_can_be_kept(
  least, tmp_path, monkeypatch
):
  monkeypatch.setattr(kept_weights, '_LEAST', least)
  path, directory = made(tmp_path, 'llama', 'Q8_0')
  folder = tmp_path / 'cache/specjax/weights'
  form = WeightForm('stored', blocks=True)
  monkeypatch.setattr(kept_weights, '_SPARE', 1 << 60)
  checkpoints.load(path, form=form)
  assert not [*folder.glob('*/*')]
  monkeypatch.setattr(kept_weights, '_SPARE', 0)

  def full(*_):
    raise OSError('no space left')

  with monkeypatch.context() as m:  # A quota, say, which nobody told of.
    m.setattr(os, 'posix_fallocate', full)
    _, params = checkpoints.load(path, form=form)
  assert_stand_for(params, checkpoints.load(directory)[1])
  assert not [*folder.glob('*/*')]
  shutil.rmtree(folder, ignore_errors=True)
  folder.touch()  # No folder can be made there.
  _, params = checkpoints.load(path, form=form)
  assert_stand_for(params, checkpoints.load(directory)[1])


def test_blocks_depend_on_the_code_of_families_and_kernel(monkeypatch):
  read, names = pathlib.Path.read_bytes, set()

  def note(path):
    names.add('/'.join(path.parts[-2:]))
    return read(path)

  monkeypatch.setattr(pathlib.Path, 'read_bytes', note)
  kept_weights._code.__wrapped__()
  assert {
    'families/table.py', 'families/llama.py', 'checkpoints/gguf_blocks.py',
    'models/linear.py', 'native/groups.c', 'native/rows.h',
  } <= names  # fmt: skip


@pytest.mark.usefixtures('kernel')
def test_texts_of_stored_bits(tmp_path):
  """Plain and speculative, with a draft in its bits, too."""
  path, _ = made(tmp_path, 'llama', mixed)
  prompts = [list(range(3, 9)), [5], [40, 2, 17]]
  options = {'new_tokens': 24, 'temperature': 0.0}
  target = specjax.load(path, rounds=True)
  assert target.layout == 'native'
  shapes = checkpoints.describe(path).shapes('float32', target.form)
  assert_described(shapes, target.params)
  plain = specjax.decode(target, None, prompts, **options)
  draft = lm.load(target, str(made(tmp_path / 'x', 'llama', 'Q4_1')[0]))
  assert low_bits.is_low_bits(draft.params['unembedding'])
  drafted = specjax.decode(target, draft, prompts, gamma=3, **options)
  assert drafted.tokens == plain.tokens
  assert drafted.tau > 1.2


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize(('weights', 'bits'), [('int8', 8), ('int4', 4)])
def test_floats_are_rounded_when_they_are_read(weights, bits, tmp_path):
  _, directory = made(tmp_path, 'qwen2')
  model, params = checkpoints.load(directory)
  rounded = linear.quantize(params, True, bits)
  target = specjax.load(directory, weights=weights, layout='whole')
  jax.tree.map(np.testing.assert_array_equal, target.params, rounded)
  if bits == 8:
    return
  kernel = specjax.load(directory, weights=weights)
  np.testing.assert_allclose(
    models.score(kernel.model, kernel.params, np.arange(9)[None]),
    models.score(model, rounded, np.arange(9)[None]),
    atol=1e-4,
  )


def test_what_weights_may_be(tmp_path):
  _, directory = made(tmp_path, 'qwen2')
  with pytest.raises(ValueError, match="weights is 'int2': choose one of"):
    specjax.load(directory, weights='int2')
  on_mesh = {'placement': object(), 'form': WeightForm('int8')}
  refused('floats on a mesh', checkpoints.load, directory, **on_mesh)


# The tokenizer


CHAT = '{{ messages[0].content }}<end>'


def add_tokenizer(writer, template=CHAT, end='<end>'):
  """Bytes of text and a merge, as GPT-2 spells them."""
  from transformers.convert_slow_tokenizer import bytes_to_unicode

  letters = [bytes_to_unicode()[b] for b in range(32, 32 + VOCAB - 3)]
  writer.add_tokenizer_model('gpt2')
  writer.add_tokenizer_pre('qwen2')
  writer.add_token_list([*letters, 'AB', end, '<begin>'])
  writer.add_token_types([1] * (VOCAB - 2) + [3, 3])
  writer.add_token_merges([f'{letters[33]} {letters[34]}'])
  writer.add_bos_token_id(VOCAB - 1)
  writer.add_pad_token_id(1)
  writer.add_unk_token_id(2)
  writer.add_add_bos_token(True)
  writer.add_chat_template(template)


def test_the_tokenizer_and_the_chat_form_of_a_file(tmp_path):
  path, _ = made(tmp_path, 'qwen2', change=add_tokenizer)
  target = specjax.load(path)
  assert target.eos == (7,)
  # The class is that of the saved tokenizer, and not the family's.
  assert type(target.tokenizer) is transformers.PreTrainedTokenizerFast
  usual = type(target.tokenizer).from_pretrained(checkpoints.locate(path))
  for name in ('special_tokens_map', 'chat_template', 'model_max_length'):
    assert getattr(target.tokenizer, name) == getattr(usual, name)
  assert [*usual.special_tokens_map.values()] == ['<begin>', "'", '"', '!']
  tables = target.tokenizer.backend_tokenizer, usual.backend_tokenizer
  assert tables[0].to_str() == tables[1].to_str()
  encoded = target.tokenizer.encode('ABC3<end>')
  assert encoded == [VOCAB - 1, VOCAB - 3, 35, 19, VOCAB - 2]
  assert target.tokenizer.decode(encoded[1:4]) == 'ABC3'
  chat = target.tokenizer.apply_chat_template(
    [{'role': 'user', 'content': '42'}], tokenize=False
  )
  assert chat == '42<end>'
  decoded = specjax.decode(target, None, '123', new_tokens=3)
  assert len(decoded.tokens[0]) == 3


def test_files_of_a_family_have_one_tokenizer(tmp_path, monkeypatch):
  from transformers.integrations.gguf import gguf_tokenizer_mapping as mapping

  make, calls = mapping.convert_gguf_tokenizer, []
  monkeypatch.setattr(
    mapping,
    'convert_gguf_tokenizer',
    lambda *x: calls.append(x) or make(*x),
  )

  def read(name, template=CHAT, end='<end>'):
    path = tmp_path / name
    path.mkdir()
    change = functools.partial(add_tokenizer, template=template, end=end)
    folder = checkpoints.locate(made(path, 'qwen2', change=change)[0])
    assert checkpoints.load_tokenizer(folder).chat_template == template
    return {x.name: x.read_bytes() for x in folder.glob('tokenizer*')}

  first = read('first')
  assert len(first) == 3
  assert first == read('second', 'another template')
  assert len(calls) == 1
  assert first.keys() != read('third', end='<stop>').keys()
  assert len(calls) == 2


def test_only_files_that_can_be_read_are_prepared(tmp_path, monkeypatch):
  path, directory = made(tmp_path, 'qwen2')
  damaged = path.with_name('damaged.gguf')
  damaged.write_bytes(path.read_bytes()[:100])
  locate, looked_at = hub.locate, []
  monkeypatch.setattr(hub, 'locate', lambda x: looked_at.append(x) or locate(x))
  for other in (damaged, directory, tmp_path / 'none.gguf', 'owner/name', path):
    checkpoints.prepare(str(other))
  assert looked_at == [str(damaged), str(path)]
  folders = tmp_path / 'cache/specjax/gguf'
  assert [*folders.glob('*/*')] == [locate(path)]


@pytest.mark.parametrize('begins', [None, False])
@pytest.mark.parametrize('model', ['llama', 'gpt2'])
def test_texts_begin_as_the_tokenizers_of_a_file_do(model, begins, tmp_path):
  """SentencePiece does unless told otherwise, and so do both of two texts."""
  m = metadata({'gpt2': 'qwen2'}.get(model, model), {})
  keys = dict(model=model, tokens=['u', '<s>', '▁', 'a', 'b'], scores=[0] * 5)
  keys |= dict(token_type=[2, 3, 1, 1, 1], merges=[], bos_token_id=1)
  keys |= {} if begins is None else {'add_bos_token': begins}
  m.keys.update((f'tokenizer.ggml.{key}', x) for key, x in keys.items())
  gguf_files._save_tokenizer(m, tmp_path)
  usual = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
  space = [2] * (model == 'llama')
  begin = [1, *space] if space and begins is None else space
  assert usual.encode('a', 'b') == [*begin, 3, *begin, 4]


# A file of the Hub


def test_a_file_of_the_hub_is_fetched_by_its_name(tmp_path, monkeypatch):
  path, _ = made(tmp_path, 'qwen2')
  asked = []

  def fetch(name, file, *, revision, cache_dir):
    asked.append((name, file, revision, cache_dir))
    return str(path)

  monkeypatch.setattr(huggingface_hub, 'hf_hub_download', fetch)
  described = checkpoints.describe('owner/model@v2:parts/x.Q8_0.gguf')
  assert described[:-1] == checkpoints.describe(path)[:-1]
  assert asked == [('owner/model', 'parts/x.Q8_0.gguf', 'v2', None)]


# What is refused


def test_what_is_not_read_is_named(tmp_path):
  odd = tmp_path / 'odd.gguf'
  finish(gguf.GGUFWriter(odd, 'clip'))
  refused("architecture 'clip' is not read", checkpoints.describe, odd)
  part = tmp_path / 'model-00001-of-00002.gguf'
  part.write_bytes(odd.read_bytes())
  refused('one of 2 parts', checkpoints.describe, part)
  one = part.rename(tmp_path / 'model-00001-of-00001.gguf')
  refused("architecture 'clip' is not read", checkpoints.describe, one)


@pytest.mark.parametrize(
  ('name', 'keys', 'tensor', 'named'),
  [
    ('phi3', {}, 'rope_factors_long.weight', 'rope_factors_long'),
    ('phi3', {}, 'rope_factors_short.weight', 'short.weight (LongRoPE)'),
    ('llama', {'rope.freq_base': 5e5}, 'rope_freqs.weight', 'rope_freqs'),
    ('qwen2', {}, 'blk.0.ffn_gate_exps.weight', 'ffn_gate_exps'),
    ('qwen2', {}, 'blk.0.attn_q.scale', 'not read: blk.0.attn_q.scale'),
    ('qwen3', {'block_count': 10**6}, '', 'block_count is 1000000'),
    ('llama', {'attention.sliding_window': 9}, '',
     'llama.attention.sliding_window'),
    ('llama', {'logit_scale': 0.5}, '', 'llama.logit_scale'),
    ('llama', {'rope.dimension_count': 8}, '',
     'llama.rope.dimension_count is 8'),
    # What says nothing new is read.
    ('llama', {'rope.dimension_count': 16}, '', ''),
    ('llama', {'attention.value_length': 16}, '', ''),
    ('qwen3', {'attention.value_length': 32}, '', ''),
    ('llama', {'rope.scaling.finetuned': 1}, '', ''),
    ('llama', {'rope.scaling.original_context_length': 16}, '', ''),
  ],
)  # fmt: skip
def test_a_key_or_tensor_that_is_not_read_is_refused(
  name, keys, tensor, named, tmp_path
):
  def change(writer):
    if tensor:
      writer.add_tensor(tensor, np.ones(8, np.float32))

  path, _ = made(tmp_path, name, keys=keys, change=change)
  if not named:
    checkpoints.describe(path)
    return
  refused(re.escape(named), checkpoints.describe, path)


def test_another_process_may_be_faster(tmp_path, monkeypatch):
  path, _ = made(tmp_path, 'qwen2')
  folder = checkpoints.locate(path)
  theirs = folder.rename(folder.with_name('theirs'))
  monkeypatch.setattr(
    gguf_files, '_save_tokenizer', lambda *_: theirs.rename(folder)
  )
  assert checkpoints.locate(path) == folder
  assert [*folder.parent.iterdir()] == [folder]


def test_a_file_that_is_gone_is_named(tmp_path):
  path, _ = made(tmp_path, 'qwen2')
  folder = checkpoints.locate(path)
  moved = path.with_name('moved.gguf')
  path.rename(moved)
  refused('not there any more', checkpoints.load, folder)
  checkpoints.load(moved)
  refused('no GGUF file', checkpoints.load, path)


@pytest.mark.parametrize('read_before', [False, True])
def test_the_package_that_is_missing_is_named(
  read_before, tmp_path, monkeypatch
):
  path, _ = made(tmp_path, 'qwen2')
  if read_before:
    checkpoints.describe(path)
  monkeypatch.setitem(sys.modules, 'gguf', None)
  for call in (checkpoints.describe, checkpoints.load):
    refused(r'pip install .*\[gguf\]', call, path)


def _key(kind, *rest):
  return struct.pack('<QcI', 1, b'k', kind) + b''.join(rest)


def _tensor(kind, *shape):
  shape = struct.pack(f'<I{len(shape)}Q', len(shape), *shape)
  return struct.pack('<Qc', 1, b't') + shape + struct.pack('<IQ', kind, 0)


def _alignment(unit):
  name = b'general.alignment'
  form, kind = ('f', 6) if isinstance(unit, float) else ('I', 4)
  return struct.pack(f'<Q{len(name)}sI{form}', len(name), name, kind, unit)


@pytest.mark.parametrize(
  'begin', [b'GGML\3\0\0\0', b'GGUF\0\0\0\3', b'GGUF\1\0\0\0']
)
def test_other_forms_are_refused(begin, tmp_path):
  """A file of another program, of the other byte order, and of version 1."""
  path = tmp_path / 'x.gguf'
  path.write_bytes(begin + bytes(64))
  with pytest.raises(ValueError, match='it begins with'):
    gguf_header.read_header(path)


def test_a_file_that_cannot_be_opened_is_refused(tmp_path, monkeypatch):
  path, _ = made(tmp_path, 'llama')

  def fail(*_):
    raise PermissionError(13, 'Permission denied', str(path))

  monkeypatch.setattr(gguf_files, 'read_header', fail)
  refused('Permission denied', checkpoints.describe, path)


@pytest.mark.parametrize(
  ('tensors', 'keys', 'content', 'reason'),
  [
    (0, 1, _key(9, struct.pack('<IQ', 0, 2**62)), 'arrays of'),
    (0, 1, _key(9, struct.pack('<IQ', 6, 2**20)), 'reaches behind'),
    (0, 1, _key(9, struct.pack('<IQ', 8, 2**20)), 'reaches behind'),
    (0, 1, _key(9, struct.pack('<IQ', 9, 1) * 5000), 'type 9'),
    (0, 1, _key(8, struct.pack('<Q', 2**64 - 8)), 'reaches behind'),
    (0, 1, _key(77), 'type 77'),
    (0, 2**63, b'', 'keys'),
    (0, 10**6, _key(4, bytes(4)) * 10**6, '1000000 keys'),
    (2**63, 0, b'', 'tensors'),
    (1, 0, struct.pack('<QcI', 1, b't', 2**32 - 1), 'reaches behind'),
    (0, 2, _key(4, bytes(4)) * 2, 'k is there twice'),
    (2, 0, _tensor(0, 0) * 2, 't is there twice'),
    (1, 0, _tensor(8, 31), '31 values in Q8_0'),
    (1, 0, _tensor(0, 2**62), 't ends behind it'),
    (1, 0, _tensor(0), 't ends behind it'),  # A number, of four bytes.
    (1, 0, _tensor(99, 0), '99 is not a valid'),
    *((0, 1, _alignment(x), 'general.alignment is') for x in (0, 3, 48, 32.0)),
    (0, 1, _key(8, struct.pack('<Qc', 1, b'\xff')), 'utf-8'),
  ],
)
def test_a_header_that_lies_is_refused(
  tensors, keys, content, reason, tmp_path
):
  """Readers that believe it make gigabytes of objects from some of these."""
  path = tmp_path / 'lies.gguf'
  path.write_bytes(b'GGUF' + struct.pack('<IQQ', 3, tensors, keys) + content)
  assert str(path) in refused(reason, checkpoints.describe, path)


@pytest.mark.parametrize('seed', range(60))
def test_a_damaged_file_is_read_or_refused(seed, tmp_path):
  """Cut, flipped and overwritten bytes: one line, or a model."""
  original = _file()
  draw = np.random.default_rng(seed)
  content = bytearray(original)
  header = original.index(b'blk.1.ffn_up') + 200
  match seed % 4:
    case 0:
      del content[draw.integers(len(content)) :]
    case 1:
      for _ in range(8):
        content[draw.integers(header)] ^= 1 << draw.integers(8)
    case 2:
      begin = draw.integers(header - 8)
      content[begin : begin + 8] = draw.bytes(8)
    case 3:
      begin = draw.integers(header - 8)
      content[begin : begin + 8] = b'\xff' * 7 + b'\x7f'
  path = tmp_path / 'damaged.gguf'
  path.write_bytes(content)
  try:
    _, params = checkpoints.load(path)
  except CheckpointError as error:
    message = str(error)
  else:
    assert jax.tree.leaves(params)
    return
  assert '\n' not in message
  assert path.stem in message


@functools.cache
def _file() -> bytes:
  with tempfile.TemporaryDirectory() as folder:
    path, _ = made(
      pathlib.Path(folder),
      'qwen2',
      'Q8_0',
      # Arrays of numbers and of texts.
      change=lambda w: (
        w.add_token_list([f't{i}' for i in range(VOCAB)]),
        w.add_token_types([1] * VOCAB),
      ),
    )
    return path.read_bytes()


# Keys of a file, without a file


def metadata(architecture, values):
  keys = {f'{architecture}.{name}': x for name, x in values.items()}
  return gguf_files._Metadata(pathlib.Path('x'), keys, architecture, set())


@pytest.mark.parametrize(
  ('architecture', 'layers', 'width'),
  [
    *(('gemma2', n, 32) for n in (26, 45, 47, 62)),
    *(('gemma3', n, 32) for n in (46, 61, 63)),
    # Those of 27 billion parameters divide by the width of a query head.
    *(('gemma2', 46, 144), ('gemma3', 62, 144)),
  ],
)
def test_what_files_of_gemma_leave_out(architecture, layers, width):
  sizes = {'attention.key_length': 32, 'block_count': layers}
  sizes |= {'embedding_length': 4608, 'attention.head_count': 32}
  own = gguf_files.ARCHITECTURES[architecture].attributes
  found = own(metadata(architecture, sizes))
  usual = {'head_dim': 32, 'hidden_activation': 'gelu_pytorch_tanh'}
  usual |= {'query_pre_attn_scalar': width}
  more = {'sliding_window_pattern': 6, 'rope_local_base_freq': 1e4}
  if architecture == 'gemma2':
    more = {'attn_logit_softcapping': 50.0, 'final_logit_softcapping': 30.0}
  assert found == usual | more
  if architecture == 'gemma3':
    scaled = own(metadata(architecture, sizes | {'rope.scaling.factor': 8.0}))
    assert scaled['rope_scaling'] == {'rope_type': 'linear', 'factor': 8.0}


LEFT_OUT = {
  'llama': ({}, {'attention_bias': True, 'mlp_bias': False}),
  'phi3': (
    {'attention.key_length': 9, 'attention.sliding_window': 4},
    {'sliding_window': 4},
  ),
  'qwen3': (
    {'attention.key_length': 9, 'attention.head_count_kv': 1},
    {'head_dim': 9, 'num_key_value_heads': 1, 'attention_bias': False},
  ),
}


@pytest.mark.parametrize('name', LEFT_OUT)
def test_what_files_leave_out(name):
  needed = {
    'block_count': 2, 'attention.head_count': 2, 'embedding_length': 8,
    'feed_forward_length': 5, 'context_length': 7,
    'attention.layer_norm_rms_epsilon': 0.5,
  }  # fmt: skip
  more, made = LEFT_OUT[name]
  m = metadata(name, needed | more)
  m.keys['tokenizer.ggml.tokens'] = ['a', 'b']
  tensors = dict.fromkeys(('x', 'blk.0.attn_q.bias'))  # As few as layers.
  assert gguf_files._describe(m, tensors) == {
    'model_type': name, 'vocab_size': 2, 'hidden_size': 8,
    'num_hidden_layers': 2, 'num_attention_heads': 2, 'num_key_value_heads': 2,
    'intermediate_size': 5, 'max_position_embeddings': 7, 'rms_norm_eps': 0.5,
    'rope_theta': 1e4, 'tie_word_embeddings': True,
  } | made  # fmt: skip
  for key in needed:
    less = metadata(name, {k: x for k, x in needed.items() if k != key})
    refused(f'has no {name}.{key}', gguf_files._describe, less, tensors)


YARN = {'type': 'yarn', 'factor': 4.0, 'original_context_length': 16}
MADE = {'rope_type': 'yarn', 'factor': 4.0}


@pytest.mark.parametrize(
  ('architecture', 'given', 'made'),
  [
    *(('llama', {'type': 'yarn'}, {}), ('llama', {'factor': 4.0}, {})),
    ('llama', YARN | {'type': 'none'}, {}),
    ('gemma3', YARN, {}),  # Which layers are scaled it says itself.
    ('llama', YARN | {'type': 'linear'}, MADE | {'rope_type': 'linear'}),
    ('llama', {'type': 'yarn', 'factor': 4.0}, MADE),
    ('qwen3', YARN, MADE | {'original_max_position_embeddings': 16}),
  ],
)
def test_scalings_of_positions_from_keys(architecture, given, made):
  values = {f'rope.scaling.{name}': x for name, x in given.items()}
  found = gguf_files._scaling(metadata(architecture, values))
  assert found == ({'rope_scaling': made} if made else {})
  if made:
    other = metadata(architecture, values | {'rope.scaling.type': 'longrope'})
    refused("type 'longrope' is not", gguf_files._scaling, other)


@pytest.mark.parametrize('kind', [*gguf_header._FORMS, 8])
def test_a_header_may_end_with_its_file(kind, tmp_path, monkeypatch):
  """Values of every type alone and in an array, and a tensor."""
  monkeypatch.setattr(gguf_header, '_MOST_ENTRIES', 3)
  monkeypatch.setattr(gguf_header, '_MOST_VALUES', 4)
  form = gguf_header._FORMS.get(kind)

  def pack(form, *values):
    return struct.pack('<' + form, *values)

  number = 0.5 if form in ('f', 'd') else 1
  value = pack('Qc', 1, b'x') if kind == 8 else pack(form, number)
  one = pack('QcI', 1, b'a', kind) + value
  array = pack('QcIIQ', 1, b'b', 9, kind, 3) + 3 * value
  tensor = pack('QcIQQIQ', 1, b't', 2, 2, 0, 0, 0)
  header = pack('IQQ', 2 + kind % 2, 1, 2) + one + array + tensor
  content = header + bytes(-len(b'GGUF' + header) % 32)
  path = tmp_path / 'x.gguf'
  path.write_bytes(b'GGUF' + content)
  read = gguf_header.read_header(path)
  expected = 'x' if kind == 8 else number
  assert read.keys == {'a': expected, 'b': [expected] * 3}
  assert type(read.keys['a']) is (bool if form == '?' else type(expected))
  assert read.tensors == {'t': (4 + len(content), 0, [0, 2], 'F32')}
  for cut, reason in ((header[:-1], 'header reaches'), (header, 't ends')):
    path.write_bytes(b'GGUF' + cut)
    if cut != content:
      with pytest.raises(ValueError, match=f'{reason} behind it'):
        gguf_header.read_header(path)
  path.write_bytes(b'GGUF' + content)
  monkeypatch.setattr(gguf_header, '_MOST_VALUES', 3)
  with pytest.raises(ValueError, match='arrays of 4 values'):
    gguf_header.read_header(path)
  monkeypatch.setattr(gguf_header, '_MOST_ENTRIES', 2)
  with pytest.raises(ValueError, match='2 keys and 1 tensors'):
    gguf_header.read_header(path)


@pytest.mark.parametrize('alignment', [None, 1, 64])
@pytest.mark.parametrize('kind', ['F32', 'F16', 'BF16', 'Q4_1', 'Q8_0'])
def test_a_header_is_that_of_the_package(kind, alignment, tmp_path):
  """Compares all keys, and the places of all tensors."""

  def change(writer):
    if alignment:
      writer.add_custom_alignment(alignment)
    writer.add_token_list(['a', 'é', ''])
    writer.add_token_types([1, 2, 3])
    writer.add_token_scores([0.5, -1.0, 3e-5])
    writer.add_bool('flag', True)
    writer.add_int64('far', -(2**40))
    values = {'uint8': 200, 'int8': -3, 'uint16': 60000, 'int16': -300}
    for form, value in (values | {'uint64': 2**63, 'float64': 0.1}).items():
      getattr(writer, f'add_{form}')(form, value)

  path, _ = made(tmp_path, 'llama', kind, change=change)
  read, theirs = gguf_header.read_header(path), gguf.GGUFReader(path)
  fields = {k: x for k, x in theirs.fields.items() if k[:4] != 'GGUF'}
  assert read.keys == {name: x.contents() for name, x in fields.items()}
  assert read.tensors == {
    x.name: (
      *(x.data_offset, x.n_bytes, x.shape.tolist()[::-1]),
      x.tensor_type.name,
    )
    for x in theirs.tensors
  }


# Forms of weights, by what is asked for


@pytest.mark.parametrize('kernel', [False, True])
@pytest.mark.parametrize('rounds', [False, True])
@pytest.mark.parametrize('stored', [False, True])
@pytest.mark.parametrize('weights', parameters.FORMS)
def test_the_form_of_weights(weights, stored, rounds, kernel, tmp_path):
  """The bits of a file are taken unasked where the kernel multiplies them."""
  if stored:
    (tmp_path / 'model.gguf').symlink_to('x')
  kind = weights
  if weights == 'auto':
    kind = 'stored' if stored and kernel else 'floats'
  given = weights, rounds, tmp_path, kernel
  if kind == 'floats' and rounds:
    with pytest.raises(ValueError, match='rounds is true, but weights are fl'):
      parameters.choose_form(*given)
    return
  form = parameters.choose_form(*given)
  few = kind != 'floats'
  assert form == (kind, rounds, kernel and few)
  words = 'bits of the file' if kind == 'stored' else kind
  words += ', activations rounded' * rounds
  assert form.text == (words if few else None)
