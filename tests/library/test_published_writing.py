"""Heads that are written for other engines come back as they were."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from specjax.drafters import dflash, eagle
from specjax.drafters.dflash import module as dflash_modules
from specjax.drafters.dflash import published as published_dflash
from specjax.drafters.eagle import published as published_eagle
from specjax.drafters.eagle.module import Head, Sizes, sizes_of
from specjax.drafters.heads import published, speculators
from specjax.models import reduced_vocab_head, rotary
from specjax.types import Target
from tests.library import test_published_blocks as blocks
from tests.support import models
from tests.support import published_eagle as written

TARGET = written.TARGET
FORMS = {
  Sizes: (Head, published_eagle.form),
  dflash_modules.Sizes: (dflash_modules.Head, published_dflash.form),
}
SIZES = dict(
  width=written.E, num_heads=2, num_kv_heads=1, head_dim=4, mlp_width=12
)
OPTIONS = {
  'plain': {},
  'normed early': {'norms': ('token', 'feature', 'last', 'residual', 'taps')},
  'normed at once': {'norms': ('token', 'feature', 'last', 'fused', 'carried')},
  'small head': {'draft_vocab': 6, 'norm_eps': 1e-6, 'rope_theta': 5e5},
  'queries normed': {'qk_norm': True, 'qkv_bias': True, 'out_bias': True},
  'scaled': {'rope_scaling': rotary.Llama3(8.0, 1.0, 4.0, 64)},
  'at once': {'mask_token': 3, 'layers': 2},
  'own tokens': {'own_embedding': True, 'width': 12, 'mlp_bias': True},
}


def make(**options):
  sizes = Sizes(3, (0, 4, 8), join='pair', **SIZES | options)
  params = models.random_of(Head(TARGET, sizes).init, jax.random.key(0))
  if sizes.draft_vocab:
    ids = np.array([0, 3, 4, 9, 17, 22])
    params['places'] = reduced_vocab_head.places(ids, written.V)
  return sizes, params


def write(path, sizes, params, target=TARGET, **options):
  head, form = FORMS[type(sizes)]
  made = form(head(target, sizes))
  speculators.write(path, made, params, target.config, 'owner/name', **options)


@pytest.mark.parametrize('options', OPTIONS.values(), ids=list(OPTIONS))
def test_a_written_head_is_read_as_it_was(tmp_path, options):
  sizes, params = make(**options)
  write(tmp_path / 'head', sizes, params, dtype='float32')
  found = published.find(tmp_path / 'head', TARGET)
  assert found.verifier == 'owner/name'
  back = sizes_of(found.config)
  assert {*back.norms} == {*sizes.norms}
  same = {'norms': ()}
  assert vars(back) | same == vars(sizes) | same
  loaded = eagle.load(Target(TARGET), tmp_path / 'head')
  jax.tree.map(np.testing.assert_array_equal, loaded.params, params)


def test_the_form_is_that_of_speculators(tmp_path):
  sizes, params = make(norms=('token', 'feature', 'last', 'residual'))
  write(tmp_path / 'head', sizes, params, architectures=('LlamaForCausalLM',))
  config = json.loads((tmp_path / 'head/config.json').read_text())
  assert config['speculators_model_type'] == 'eagle3'
  assert config['eagle_aux_hidden_state_layer_ids'] == [1, 5, 9]
  flags = 'norm_before_residual', 'norm_output', 'tie_word_embeddings'
  assert [config[name] for name in flags] == [True, False, False]
  assert (config['draft_vocab_size'], config['target_hidden_size']) == (23, 8)
  ways = config['speculators_config']
  assert ways['verifier']['architectures'] == ['LlamaForCausalLM']
  assert ways['proposal_methods'] == [
    {
      'proposal_type': 'greedy', 'speculative_tokens': 4,
      'verifier_accept_k': 1, 'accept_tolerance': 0.0,
    }
  ]  # fmt: skip
  assert config['transformer_layer_config']['hidden_size'] == written.E
  layout = written.LAYOUTS['speculators']
  expected = written.tensors(layout)
  with_all = published.find(tmp_path / 'head', TARGET).names
  assert with_all == expected.keys() - {'d2t', 't2d'}


@pytest.mark.parametrize(
  ('sizes', 'message'),
  [
    (Sizes(3, (0,), **SIZES), "join of the head is 'linear'"),
    (Sizes(1, (8,), **SIZES), 'version of the head is 1'),
    (Sizes(3, (0,), join='pair'), 'width of the head is 256'),
    (Sizes(3, (0,), join='pair', norms=('last',), **SIZES), 'norms of the'),
    (
      Sizes(3, (0,), join='pair', own_unembedding=False, **SIZES),
      'own_unembedding of the head is False',
    ),
  ],
)
def test_what_the_form_does_not_have_is_refused(tmp_path, sizes, message):
  models.refused(message, write, tmp_path / 'head', sizes, {})
  assert not (tmp_path / 'head').exists()


def test_nothing_is_overwritten_and_engines_draft_what_a_head_says(tmp_path):
  with pytest.raises(ValueError, match='exists; remove it'):
    write(tmp_path, *make())
  for tokens in (0, -5, 2.5):
    with pytest.raises(
      ValueError, match='tokens must be a whole number of at l'
    ):
      write(tmp_path / 'head', *make(), tokens=tokens)
  with pytest.raises(
    ValueError, match='tokens is 5, but the head says 4 places'
  ):
    write(tmp_path / 'head', BLOCK, {}, blocks.TARGET, tokens=5)


BLOCK = dflash_modules.Sizes(
  (0, 1), block=5, num_heads=4, num_kv_heads=2, head_dim=4, mlp_width=12,
  mask_token=9, rope_theta=1e6,
)  # fmt: skip
BLOCKS = {
  'plain': {},
  'own tokens': {'own_embedding': True, 'bias': True, 'norm_eps': 1e-6},
  'small head': {'own_unembedding': True, 'draft_vocab': 6},
  'vanilla': {'correction': 'markov', 'rank': 3, 'confidence': 'place'},
  'gated, some tokens': {
    'correction': 'gated', 'rank': 3, 'anchored': True,
    'own_unembedding': True, 'draft_vocab': 6,
  },
  'rnn': {
    'correction': 'rnn', 'rank': 3, 'anchored': True, 'confidence': 'token',
  },
}  # fmt: skip


@pytest.mark.parametrize('options', BLOCKS.values(), ids=list(BLOCKS))
def test_a_written_block_is_read_as_it_was(tmp_path, options):
  sizes = dataclasses.replace(BLOCK, **options)
  head = dflash_modules.Head(blocks.TARGET, sizes)
  params = models.random_of(head.init, jax.random.key(0))
  if sizes.draft_vocab:
    params['places'] = reduced_vocab_head.places(blocks.IDS, blocks.V)
  write(tmp_path / 'head', sizes, params, blocks.TARGET, dtype='float32')
  config = json.loads((tmp_path / 'head/config.json').read_text())
  method = config['speculators_config']['proposal_methods'][0]
  assert method['speculative_tokens'] == sizes.depth
  assert config['aux_hidden_state_layer_ids'] == [1, 2]
  found = published.find(tmp_path / 'head', blocks.TARGET)
  assert dflash_modules.sizes_of(found.config) == sizes
  loaded = dflash.load(blocks.HOST, tmp_path / 'head')
  jax.tree.map(np.testing.assert_array_equal, loaded.params, params)


@pytest.mark.parametrize(
  'wrong',
  [
    {'mask_token': None}, {'qk_norm': False}, {'causal': True},
    {'anchored': True}, {'correction': 'gru'}, {'confidence': 'place'},
    {'conv': 2}, {'windows': (None, 9)},
  ],
)  # fmt: skip
def test_a_block_that_the_form_does_not_have_is_refused(tmp_path, wrong):
  (name,) = wrong
  with pytest.raises(ValueError, match=f'{name} of the head is'):
    write(tmp_path / 'head', dataclasses.replace(BLOCK, **wrong), {})
  assert not (tmp_path / 'head').exists()
