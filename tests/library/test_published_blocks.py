"""Published DFlash and Medusa heads say what their own modules say."""

import numpy as np
import pytest

from specjax.drafters import dflash, medusa
from specjax.drafters.dflash.module import Head, sizes_of
from specjax.drafters.heads import published
from specjax.types import Target
from tests.library.test_dflash import check_along_a_text, features_of
from tests.support import heads_in_numpy, models
from tests.support.directories import write

TARGET, V = models.TARGET, models.VOCAB
E, D, HEADS, KV, MLP, LAYERS, MASK = 8, 4, 4, 2, 12, 2, 9
HOST = Target(TARGET)
SIZES = {
  'model_type': 'qwen3', 'hidden_size': E, 'num_hidden_layers': LAYERS,
  'num_attention_heads': HEADS, 'num_key_value_heads': KV, 'head_dim': D,
  'intermediate_size': MLP, 'rms_norm_eps': 1e-5, 'rope_theta': 1e6,
  'vocab_size': V, 'max_position_embeddings': 4096, 'attention_bias': False,
  'hidden_act': 'silu', 'layer_types': ['full_attention'] * LAYERS,
}  # fmt: skip
AUTHORS = SIZES | {
  'architectures': ['DFlashDraftModel'],
  'block_size': 5,
  'num_target_layers': 2,
  'dflash_config': {'mask_token_id': MASK, 'target_layer_ids': [0, 1]},
}
IDS_OF = 'aux_hidden_state_layer_ids'
SPECULATORS = {
  'speculators_model_type': 'dflash',
  'transformer_layer_config': SIZES,
  IDS_OF: [1],
  'block_size': 5,
  'mask_token_id': MASK,
  'draft_vocab_size': 6,
  'speculators_config': {'verifier': {'name_or_path': 'some/target'}},
}
IDS = np.array([0, 3, 4, 7, 9, 10])  # tokens of the reduced vocabulary
LAYOUTS = {'z-lab': (AUTHORS, (0, 1)), 'speculators': (SPECULATORS, (0,))}


def authors(**more):
  """The authors' config with other entries of its own part; None: without."""
  made = AUTHORS['dflash_config'] | more
  kept = {name: x for name, x in made.items() if x is not None}
  return AUTHORS | {'dflash_config': kept}


def tensors_of(name):
  random = np.random.default_rng(3)

  def draw(*shape):
    return (random.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)

  def norm(size):
    return (1 + 0.3 * random.normal(size=size)).astype(np.float32)

  taps = LAYOUTS[name][1]
  tensors = {
    'fc.weight': draw(E, len(taps) * E),
    'hidden_norm.weight': norm(E),
    'norm.weight': norm(E),
  }
  for i in range(LAYERS):
    tensors |= {
      f'layers.{i}.{key}.weight': x
      for key, x in {
        'self_attn.q_proj': draw(HEADS * D, E),
        'self_attn.k_proj': draw(KV * D, E),
        'self_attn.v_proj': draw(KV * D, E),
        'self_attn.o_proj': draw(E, HEADS * D),
        'self_attn.q_norm': norm(D),
        'self_attn.k_norm': norm(D),
        'mlp.gate_proj': draw(MLP, E),
        'mlp.up_proj': draw(MLP, E),
        'mlp.down_proj': draw(E, MLP),
        'input_layernorm': norm(E),
        'post_attention_layernorm': norm(E),
      }.items()
    }
  if name == 'speculators':
    kept = np.isin(np.arange(V), IDS)
    tensors |= {
      'embed_tokens.weight': draw(V, E),
      'lm_head.weight': draw(len(IDS), E),
      'd2t': IDS - np.arange(len(IDS)),
      't2d': kept,
    }
  return tensors


def body(name, own, text, rows=4, **more):
  """What the output layer reads [rows, E] of a block, by numpy."""
  table = own.get('embed_tokens.weight', models.target_weights()['embedding'])
  block = np.asarray(table, np.float64)[[text[-1], *[MASK] * (rows - 1)]]
  before = features_of(text, LAYOUTS[name][1])[:-1]
  before = before.reshape(len(before), before.shape[1] * E)
  config = SIZES | more
  return heads_in_numpy.dflash(own, config, before, block, len(text) - 1)


def unembed(own, made):
  """Logits [..., V_d] of what the output layer reads."""
  whole = np.asarray(models.target_weights()['unembedding'], np.float64).T
  return made @ own.get('lm_head.weight', whole).T


def in_vocabulary(logits):
  """Logits [K, V] of those of all tokens, or of `IDS` alone."""
  if logits.shape[1] == V:
    return logits
  wide = np.full((len(logits), V), -np.inf)
  wide[:, IDS] = logits
  return wide


def expected(name, tensors, text):
  """Logits [3, V] behind a text, by numpy."""
  own = {key: np.asarray(x, np.float64) for key, x in tensors.items()}
  return in_vocabulary(unembed(own, body(name, own, text)[1:]))


@pytest.mark.parametrize('name', LAYOUTS)
def test_blocks_are_those_of_the_published_module(name, tmp_path):
  config, taps = LAYOUTS[name]
  tensors = tensors_of(name)
  path = write(tmp_path / 'head', config, tensors)
  loaded = dflash.load(HOST, path)
  assert loaded.pairing == published.UNVERIFIED
  assert loaded.make(3).taps == taps
  found = published.find(path, TARGET)
  assert found.verifier == ('' if name == 'z-lab' else 'some/target')
  head = Head(TARGET, sizes_of(found.config))
  walker = dflash.walk(head, 4)
  check_along_a_text(
    walker, loaded.params, lambda text: expected(name, tensors, text)
  )


SLIDING = AUTHORS | {'layer_types': ['sliding_attention', 'full_attention']}
DOWN = 'layers.{}.mlp.down_proj.weight'


@pytest.mark.parametrize(
  ('config', 'changes', 'message'),
  [
    (authors(target_layer_ids=[0, 2]), {}, r'\[0, 2\] name layers that do not'),
    (authors(target_layer_ids=[-1, 1]), {}, r'\[-1, 1\] name layers that do'),
    (authors(target_layer_ids=[1]), {}, '1 layers of the target, and fc reads'),
    # Ids of outputs taken for inputs.
    (SPECULATORS | {IDS_OF: [0]}, {}, r'ids \[0\] name layers that do not exi'),
    (authors(target_layer_ids=None), {}, 'a list of layers of the target is n'),
    (authors(target_layer_ids=['0', 1]), {}, 'a list of layers of the target'),
    (authors(mask_token_id=None), {}, 'mask_token_id must be a whole number'),
    (authors(mask_token_id=V), {}, f'mask_token_id .* below {V}, got {V}'),
    (AUTHORS, {DOWN.format(1): None}, 'unset parameters: layer1/down/w'),
    (AUTHORS, {DOWN.format(2): np.zeros((E, MLP))}, 'unused tensors: layers.2'),
    (AUTHORS | {'vocab_size': 12}, {}, 'vocabulary of 12'),


    (SLIDING, {}, 'layers with sliding attention need sliding_window'),
    (
      SLIDING | {'sliding_window': 8, 'is_causal': True}, {},
      'is_causal = true and some layers',
    ),
    (SLIDING | {'sliding_window': 4}, {}, 'shorter than a block of 5'),
    (SLIDING | {'sliding_window': 1}, {}, 'shorter than a block of 5'),
    (SLIDING | {'sliding_window': 0}, {}, 'attention need sliding_window'),
    (AUTHORS | {'block_size': True}, {}, 'block_size must be a whole number'),
    (AUTHORS | {'output_multiplier': 2}, {}, 'output_multiplier = 2, which no'),
    (AUTHORS | {'dflash_config': [1]}, {}, r'= \[1\]; expected an object'),
    (AUTHORS, {'fc.weight': np.zeros(6)}, r'fc\.weight has shape \(6,\) where'),
    (SPECULATORS, {'t2d': np.arange(V) < len(IDS)}, 'd2t and t2d disagree'),
  ],
)  # fmt: skip
def test_what_is_no_such_head_is_refused(config, changes, message, tmp_path):
  layout = 'z-lab' if 'dflash_config' in config else 'speculators'
  tensors = tensors_of(layout) | changes
  tensors = {key: x for key, x in tensors.items() if x is not None}
  path = write(tmp_path / 'head', config, tensors)
  models.refused(message, dflash.load, HOST, path)


def test_near_readings_are_of_the_layers_and_the_base(tmp_path):
  path = write(tmp_path / 'head', SPECULATORS, tensors_of('speculators'))
  found = dflash.alternatives(HOST, path)
  assert {*found} == {
    'taps (1,)',
    'rope_theta 10000',
    'rope_theta 500000',
    'masks see no later ones',
    'the last token says the first place',
    'whole block',
  }
  assert found['whole block'] == {'block': 5}
  assert 'whole block' not in dflash.alternatives(HOST, path, block=5)
  for options in found.values():
    loaded = dflash.load(HOST, path, **options)
    assert loaded.make(3) != dflash.load(HOST, path).make(3)
  (own,) = dflash.alternatives(HOST, path, **found['taps (1,)']).keys() - {
    *found
  }
  assert own == 'taps (0,)'
  assert dflash.load(HOST, path, **found['taps (1,)']).make(3).taps == (1,)


def medusa_tensors(bias=True):
  random = np.random.default_rng(4)
  tensors = {}
  for i in range(5):  # The authors' config says 2.
    tensors |= {
      f'{i}.0.linear.weight': random.normal(size=(E, E)),
      f'{i}.0.linear.bias': random.normal(size=E) * bias,
      f'{i}.1.weight': random.normal(size=(V, E)),
    }
  return {name: x.astype(np.float32) for name, x in tensors.items()}


def write_authors(path, tensors):
  config = {
    'medusa_num_heads': 2,
    'medusa_num_layers': 1,
    'base_model_name_or_path': 'lmsys/vicuna-7b-v1.3',
  }
  return write(path, config, tensors, 'medusa_lm_head.safetensors')


def write_vllm(path, tensors):
  renamed = {}
  for name, x in tensors.items():
    head, _, rest = name.partition('.')
    if rest == '1.weight':
      renamed[f'lm_heads.{head}.weight'] = x
    elif rest.endswith('weight'):
      renamed[f'blocks.{head}.layers.0.weight'] = x
  config = {'model_type': 'medusa', 'num_heads': 5, 'vocab_size': V}
  return write(path, config, renamed)


@pytest.mark.parametrize('written', [write_authors, write_vllm])
def test_medusas_heads_are_those_of_the_published_module(written, tmp_path):
  tensors = medusa_tensors(bias=written is write_authors)
  loaded = medusa.load(HOST, written(tmp_path / 'head', tensors))
  assert loaded.pairing == published.UNVERIFIED
  own = {name: np.asarray(x, np.float64) for name, x in tensors.items()}
  weights = models.target_weights()

  def expected(text):
    """Places 1 to 5 are said of the feature before the last token."""
    if len(text) == 1:
      last = np.zeros(E)  # Nothing has been fed.
    else:
      last = features_of(text, (1,))[-2, 0]
    normed = TARGET.norm(weights, np.asarray(last, np.float32))
    return heads_in_numpy.medusa(own, np.asarray(normed, np.float64))

  check_along_a_text(medusa.walk(TARGET), loaded.params, expected)
  assert loaded.make(5).depth == 5
  with pytest.raises(ValueError, match='deeper than the 5 heads'):
    loaded.make(6)
  with pytest.raises(ValueError, match='nobody counted'):
    medusa.load(HOST, tmp_path / 'head', tree=8)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'4.1.weight': None}, r'unset parameters: unembedding/head5'),
    ({'3.0.linear.bias': None}, r'unset parameters: bias'),
    ({'0.1.linear.weight': np.zeros((E, E))}, 'of a second residual block'),
    ({'0.1.weight': np.zeros((V + 1, E))}, f'vocabulary of {V + 1} tokens'),
    (dict.fromkeys(f'{i}.1.weight' for i in range(5)), 'no vocab_size: no'),
    ({'2.0.linear.weight': np.zeros((E, E + 1))}, 'has shape'),
    ({'0.0.linear.weight': np.zeros(())}, r'has shape \(\) where 2 axes'),
  ],
)
def test_medusas_files_that_do_not_fit_are_refused(changes, message, tmp_path):
  tensors = medusa_tensors() | changes
  tensors = {
    name: np.asarray(x, np.float32)
    for name, x in tensors.items()
    if x is not None
  }
  path = write_authors(tmp_path / 'head', tensors)
  models.refused(message, medusa.load, HOST, path)
