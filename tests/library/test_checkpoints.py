"""Tests of checkpoints: what is loaded is the model, or it is an error."""

import dataclasses
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
import transformers

from specjax import checkpoints
from specjax.checkpoints import files, loading, tokenizer
from specjax.checkpoints.families import values
from specjax.models import transformer
from tests.support.directories import (
  assert_same,
  edit_config,
  edit_tensors,
  read_config,
  refused,
)

CONFIG = transformer.TransformerConfig(
  vocab_size=11, width=8, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6,
  mlp_width=5, max_positions=32,
)  # fmt: skip
TIED = dataclasses.replace(CONFIG, tied_embeddings=True)
# One with biases is a stored family of `test_families`.
OTHER = dataclasses.replace(
  CONFIG, num_kv_heads=4, activation=values.gelu, rope_theta=5e5, norm_eps=1e-6
)


def make(config=CONFIG):
  """Returns a model and parameters that are all different from one another."""
  model = transformer.build(config)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  rng = np.random.default_rng(0)
  return model, jax.tree.map(
    lambda s: jnp.asarray(rng.normal(size=s.shape), jnp.float32), shapes
  )


@pytest.fixture
def saved(tmp_path):
  """A complete checkpoint in float32, to be damaged by a test."""
  path = tmp_path / 'model'
  checkpoints.save(path, *make(), dtype=jnp.float32)
  return path


@pytest.mark.parametrize('config', [CONFIG, OTHER])
def test_round_trip_is_exact_in_float32(config, tmp_path):
  model, params = make(config)
  checkpoints.save(tmp_path / 'a', model, params, dtype=jnp.float32)
  loaded_model, loaded = checkpoints.load(tmp_path / 'a')
  assert loaded_model is model
  assert_same(loaded, params)


@pytest.mark.parametrize(
  ('dtype', 'options'),
  [('float16', {}), ('bfloat16', {'dtype': jnp.bfloat16})],
)
def test_round_trip_rounds_once(dtype, options, tmp_path):
  """To float16 unless told otherwise."""
  model, params = make()
  options['attributes'] = {'torch_dtype': 'float64'}  # Of another file.
  checkpoints.save(tmp_path / 'a', model, params, **options)
  with safetensors.safe_open(tmp_path / 'a/model.safetensors', 'np') as file:
    assert file.metadata() == {'format': 'pt'}
    names, kind = file.keys(), {'float16': 'F16', 'bfloat16': 'BF16'}[dtype]
    assert {file.get_slice(x).get_dtype() for x in names} == {kind}
  config = read_config(tmp_path / 'a')
  assert (config['dtype'], config.get('torch_dtype')) == (dtype, None)
  _, loaded = checkpoints.load(tmp_path / 'a')
  rounded = jax.tree.map(lambda x: x.astype(dtype).astype(x.dtype), params)
  assert_same(loaded, rounded)
  _, narrow = checkpoints.load(tmp_path / 'a', dtype)
  assert {x.dtype for x in jax.tree.leaves(narrow)} == {jnp.dtype(dtype)}
  assert_same(narrow, loaded)


def test_load_accepts_the_attributes_of_old_and_new_files(saved):
  whole, _ = checkpoints.load(saved)
  edit_config(
    saved, rope_parameters=..., rope_theta=10000, rope_scaling=None, dtype=...,
    torch_dtype='float16', hidden_act=..., attention_bias=..., mlp_bias=...,
    tie_word_embeddings=...,
  )  # fmt: skip
  assert checkpoints.load(saved)[0] is whole
  edit_config(saved, rope_theta=..., rope_scaling={'type': 'default'})
  assert checkpoints.load(saved)[0] is whole
  rope = {'rope_type': 'default', 'rope_theta': 500000.0}
  edit_config(saved, rope_scaling=..., rope_parameters=rope)
  assert checkpoints.load(saved)[0].config.rope_theta == 5e5


def test_load_ignores_stored_frequencies(saved):
  name = 'model.layers.0.self_attn.rotary_emb.inv_freq'
  edit_tensors(saved, lambda t: t.update({name: np.ones(3, np.float32)}))
  checkpoints.load(saved)


def test_tied_head_may_be_stored_only_as_a_copy(tmp_path, monkeypatch):
  model, params = make(TIED)
  path = tmp_path / 'model'
  checkpoints.save(path, model, params, dtype=jnp.float32)
  table = np.asarray(params['embedding'])
  edit_tensors(path, lambda t: t.update({'lm_head.weight': table}))
  assert_same(checkpoints.load(path)[1], params)
  monkeypatch.setattr(loading, '_ROWS', 4)
  for place in ((0, 0), (4, 0), (10, 7)):  # Any number of it.
    other = table.copy()
    other[place] += 1
    edit_tensors(path, lambda t, x=other: t.update({'lm_head.weight': x}))
    refused(r'unused.*lm_head', checkpoints.load, path)


def test_load_rejects_an_incomplete_directory(saved, tmp_path):
  refused('is no directory', checkpoints.load, tmp_path / 'none')
  (saved / 'model.safetensors').rename(saved / 'other.bin')
  refused(r'model.safetensors is missing', checkpoints.load, saved)
  (saved / 'config.json').write_text('{"model_type": ')
  refused('no valid JSON', checkpoints.load, saved)
  (saved / 'config.json').write_text('[]')
  refused('JSON object', checkpoints.load, saved)
  (saved / 'config.json').unlink()
  refused(r'config.json is missing', checkpoints.load, saved)


_KEY, _NORM = 'model.layers.1.self_attn.k_proj.weight', 'model.norm.weight'


@pytest.mark.parametrize(
  ('config', 'change', 'message'),
  [
    (
      {},
      lambda t: t.update({'extra': t.pop(_KEY)}),
      r'unset parameters: layer1/qkv/w \(.*k_proj.weight\); '
      r'unused tensors: extra$',
    ),
    (
      {'num_hidden_layers': 1},
      lambda t: None,
      r'unset parameters: none; unused tensors: model.*and 1 more$',
    ),
    (
      {'intermediate_size': 6},
      lambda t: None,
      r'down_proj.weight has shape \(8, 5\).*\(8, 6\)',
    ),
    ({}, lambda t: t.update({_NORM: np.ones(8, np.int8)}), 'norm.weight is I8'),
  ],
)
def test_load_names_tensors_that_do_not_fit(config, change, message, saved):
  edit_config(saved, **config)
  edit_tensors(saved, change)
  refused(message, checkpoints.load, saved)


def test_save_takes_no_place_that_is_taken(saved):
  refused('exists', checkpoints.save, saved, *make())
  refused('exists', checkpoints.save, saved / 'config.json', *make())
  empty = saved.parent / 'a' / 'b'
  empty.mkdir(parents=True)
  checkpoints.save(empty, *make())
  checkpoints.load(empty)


class BadTokenizer:
  eos_token_id = 1

  def __len__(self):
    return 11

  def save_pretrained(self, path):
    (path / 'tokenizer.json').write_text('{')
    raise RuntimeError('interrupted')


def test_interrupted_save_leaves_nothing(tmp_path):
  with pytest.raises(RuntimeError, match='interrupted'):
    checkpoints.save(tmp_path / 'a', *make(), tokenizer=BadTokenizer())
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'layer_norm': True, 'qk_norm': True}, r'qwen3 has no layer_norm = True'),
    ({'rope_theta': None}, r'llama has no rope_theta = None'),
    ({'head_bias': True}, r'llama has no head_bias = True'),
    ({'activation': jnp.tanh}, r'activation .* has no name'),
    ({'num_heads': 6}, r'width = 8 must be a multiple of num_heads = 6'),
  ],
)  # fmt: skip
def test_save_rejects_what_no_family_has(changes, message, tmp_path):
  model, params = make(dataclasses.replace(CONFIG, **changes))
  refused(message, checkpoints.save, tmp_path / 'a', model, params)
  assert not list(tmp_path.iterdir())


def test_save_rejects_parameters_of_another_model(tmp_path):
  model, params = make()
  path = tmp_path / 'a'
  _, tied = make(TIED)
  refused('missing: unembedding', checkpoints.save, path, model, tied)
  bad = params | {'embedding': params['embedding'][:7]}
  refused(r'embedding has shape \(7, 8\)', checkpoints.save, path, model, bad)
  bad = params | {'embedding': params['embedding'] * 1e6}
  refused('fit into float16', checkpoints.save, path, model, bad)
  refused('save as int8', checkpoints.save, path, model, params, dtype=jnp.int8)
  assert not list(tmp_path.iterdir())
  wide = params | {'embedding': params['embedding'].at[0, 0].set(jnp.inf)}
  checkpoints.save(path, model, wide)  # What is infinite stays so.


def test_eos_ids_come_from_the_first_file_that_has_them(saved):
  assert checkpoints.eos_ids(saved) == ()
  edit_config(saved, eos_token_id=3)
  assert checkpoints.eos_ids(saved) == (3,)
  generation = saved / 'generation_config.json'
  generation.write_text('{"eos_token_id": [5, 2]}')
  assert checkpoints.eos_ids(saved) == (5, 2)
  generation.write_text('{}')
  assert checkpoints.eos_ids(saved) == (3,)
  edit_config(saved, eos_token_id=[2, 0])
  assert checkpoints.eos_ids(saved) == (2, 0)
  for wrong in ('</s>', -1, [True], [2, 3.0]):
    edit_config(saved, eos_token_id=wrong)
    refused('config.json: eos_token_id = ', checkpoints.eos_ids, saved)


@pytest.mark.parametrize(('eos', 'ids'), [((4,), 4), ((4, 7), [4, 7])])
def test_save_writes_the_ends_it_is_given(eos, ids, tmp_path):
  path = tmp_path / 'a/b/c'  # In folders that there are not yet.
  checkpoints.save(path, *make(), eos=eos)
  assert checkpoints.eos_ids(path) == eos
  config = read_config(path)
  assert config['eos_token_id'] == ids
  lines = json.dumps(config, indent=2, sort_keys=True) + '\n'
  assert (path / 'config.json').read_text() == lines
  # Null where nothing is known, so that no default of the family holds.
  told = (path / 'generation_config.json').read_text()
  known = dict.fromkeys(('bos_token_id', 'pad_token_id')) | {
    'eos_token_id': ids
  }
  assert json.loads(told) == known


def make_tokenizer(size):
  words = {f'w{i}': i for i in range(size - 1)} | {'</s>': size - 1}
  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(words, unk_token='w0')
  )
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, eos_token='</s>'
  )


def test_equal_tokenizers_are_read_once(tmp_path):
  """A chat template may differ; a token, or the end of a text, may not."""
  for name, size in (('a', 11), ('chat', 11), ('other', 10), ('end', 11)):
    checkpoints.save(tmp_path / name, *make(), tokenizer=make_tokenizer(size))
  (tmp_path / 'chat/chat_template.jinja').write_text('{{ messages }}')
  told = tmp_path / 'end/tokenizer_config.json'
  told.write_text(told.read_text().replace('</s>', 'w1'))
  known = checkpoints.load_tokenizer(tmp_path / 'a')
  for name, same in (('a', 1), ('chat', 1), ('other', 0), ('end', 0)):
    found = checkpoints.load_tokenizer(tmp_path / name, known)
    assert (found is known) == bool(same), name
  assert found.eos_token == 'w1'
  (tmp_path / 'end/tokenizer_config.json').unlink()
  assert checkpoints.load_tokenizer(tmp_path / 'end', known) is not known
  for more in ('merges.txt', 'added_tokens.json', 'special_tokens_map.json'):
    for name, text in (('a', 'ab'), ('chat', 'ac')):
      (tmp_path / name / more).write_text(text)
      os.utime(tmp_path / name / more, (1, 1))  # Of the same size and time.
    assert not tokenizer._same_files(tmp_path / 'a', tmp_path / 'chat')
    (tmp_path / 'chat' / more).write_text('ab')


def test_tokenizer_travels_with_the_model(tmp_path):
  path = tmp_path / 'a'
  refused('has 12 tokens', checkpoints.save, path, *make(), make_tokenizer(12))
  checkpoints.save(path, *make(), tokenizer=make_tokenizer(11))
  assert checkpoints.load_tokenizer(path).encode('w3 w1 w9') == [3, 1, 9]
  assert checkpoints.eos_ids(path) == (10,)
  (path / 'tokenizer.json').write_text('{')
  refused('cannot be read', checkpoints.load_tokenizer, path)
  (path / 'tokenizer.json').unlink()
  refused('has no tokenizer', checkpoints.load_tokenizer, path)


def test_long_lists_of_names_are_cut():
  eight = list('hgfedcba')
  assert files.shorten(eight) == 'a, b, c, d, e, f, g, h'
  assert files.shorten(['j', *eight, 'i'], 3) == 'a, b, c, and 7 more'
  assert files.shorten([]) == 'none'
