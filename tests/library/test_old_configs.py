"""Config files that leave out what newer ones say."""

import math

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from specjax.checkpoints.families import conversion, rope, values
from specjax.models import rotary
from tests.support import family_facts, tiny_families

SIZES = {
  'hidden_size': 16, 'intermediate_size': 16, 'num_attention_heads': 2,
  'num_key_value_heads': 2, 'head_dim': 8, 'vocab_size': 16,
}  # fmt: skip


def read(kind, **attributes):
  given = SIZES | {'model_type': kind, 'num_hidden_layers': 6} | attributes
  if kind in ('qwen2', 'llama'):
    del given['head_dim']
  return conversion.read_attributes(given)[1]


def windows_of_transformers(kind, **attributes):
  made = transformers.AutoConfig.for_model(
    kind, **SIZES, num_hidden_layers=6, **attributes
  )
  if made.sliding_window is None:
    return (None,) * 6
  return tuple(
    made.sliding_window if name == 'sliding_attention' else None
    for name in made.layer_types
  )


@pytest.mark.parametrize(
  ('kind', 'more', 'count'),
  [
    *(
      (kind, {'max_window_layers': first, 'use_sliding_window': switch}, count)
      for kind in ('qwen2', 'qwen3')
      for first in range(1, 8)
      for switch, count in ((False, 0), (True, max(6 - first, 0)))
    ),
    *(
      ('gemma3_text', {'sliding_window_pattern': each}, 6 - 6 // each)
      for each in (1, 2, 3, 5, 6, 7)
    ),
  ],
)
def test_layers_have_the_windows_of_their_type(kind, more, count):
  """From one layer on, or but for every few."""
  found = read(kind, sliding_window=8, **more).windows or (None,) * 6
  assert found == windows_of_transformers(kind, sliding_window=8, **more)
  assert sum(x is not None for x in found) == count


SCALES = st.one_of(st.none(), st.floats(0.2, 2))


def stretched(**scaling):
  """(frequencies, amplitude) of a head of 8 entries, trained on 64 tokens."""
  attributes = {'max_position_embeddings': 64, 'rope_theta': 100.0}
  config = read('llama', rope_scaling=scaling, **attributes)
  return lambda longest: config.rope_scaling(100.0, 8, longest)


# Frequency i of four turns 64 / (2 pi 100^(i / 4)) times in 64 tokens: 10.2,
# 3.2, 1.02 and 0.32 times. The share that is divided rises with i between 4 and
# 0.5 turns, which are at 0.8119 and 2.6181; cut to whole numbers at 0 and 3.
CUT = (0, 1 / 3, 2 / 3, 1)


@pytest.mark.parametrize(
  ('said', 'shares'),
  [
    ({'truncate': False}, (0, 0.10411, 0.65777, 1)),
    ({'truncate': True}, CUT),
    ({}, CUT),
  ],
)
@given(st.floats(1, 8), SCALES, SCALES)
def test_yarn_has_two_scales_or_none(said, shares, factor, one, all_dim):
  """A scale counts only where both `mscale` and `mscale_all_dim` are given."""
  scales = {'mscale': one, 'mscale_all_dim': all_dim}
  scales = {name: x for name, x in scales.items() if x is not None}
  found, amplitude = stretched(
    rope_type='yarn',
    factor=factor,
    original_max_position_embeddings=64,
    beta_fast=4.0,
    beta_slow=0.5,
    **said,
    **scales,
  )(64)
  grown = [0.1 * x * math.log(factor) + 1 for x in (1.0, *scales.values())]
  wanted = grown[1] / grown[2] if len(scales) == 2 else grown[0]
  assert amplitude == pytest.approx(wanted)
  for i, share in enumerate(shares):
    plain = 100 ** (-i / 4)
    mixed = plain * (1 - share + share / factor)
    assert found[i] == pytest.approx(mixed, rel=1e-4)


@pytest.mark.parametrize(
  ('longest', 'growth'), [(1, 1), (63, 1), (64, 1), (65, 1.03125), (128, 3)]
)
def test_dynamic_scaling_begins_behind_the_trained_length(longest, growth):
  """At twice the length a factor of 2 makes the base 3^(8/6) times as large."""
  found, amplitude = stretched(rope_type='dynamic', factor=2.0)(longest)
  base = 100 * growth ** (8 / 6)
  assert amplitude == 1
  assert found.tolist() == pytest.approx([base ** (-i / 4) for i in range(4)])


# Defaults that make no model, as the first released files have them.
_RELEASED = {
  'deepseek_v2': {'num_experts_per_tok': 6},
  'glm4_moe': {'head_dim': 128},
}


# Their default was another one when files were written.
_OTHERWISE = {
  ('cohere', 'rope_parameters'),
  ('internvl', 'tie_word_embeddings'),
  ('mistral3', 'tie_word_embeddings'),
  ('mistral3 of ministral3', 'tie_word_embeddings'),
}


@pytest.mark.parametrize('name', tiny_families.OPTIONS)
def test_what_a_file_leaves_out_has_the_default_of_its_type(name):
  """Or is missing, and said to be."""
  released = _RELEASED.get(name, {})
  made = transformers.CONFIG_MAPPING[tiny_families.type_of(name)](**released)
  text, made = made.get_text_config(), made.to_dict()
  family, whole = conversion.read_attributes(made)
  assert family.model_type == text.model_type
  assert (whole.vocab_size, whole.width) == (text.vocab_size, text.hidden_size)
  for key in made.keys() - {'model_type', 'text_config'}:
    if key in released or (name, key) in _OTHERWISE:
      continue
    rest = {other: value for other, value in made.items() if other != key}
    try:
      _, found = conversion.read_attributes(rest)
    except ValueError as error:
      found = str(error)
    missing = f'attribute {key} is missing'
    assert found == whole or missing in found, (key, found)


def test_texts_of_released_models_of_images_are_read():
  """LLaVA 1.5 says few sizes, and SmolVLM what no text reads."""
  text = {'max_position_embeddings': 4096, 'rms_norm_eps': 1e-5}
  text |= {'model_type': 'llama', 'vocab_size': 32064}
  files = {
    'llava': {'ignore_index': -100, 'vocab_size': 32064, 'text_config': text},
    'smolvlm': {
      'text_config': text
      | {'architectures': ['VLlama3ForCausalLM'], 'hidden_size': 2048}
      | {'_flash_attn_2_enabled': True, 'neftune_noise_alpha': 0.0}
      | {'perceiver_config': {}, 'pixel_shuffle_factor': 4}
      | {'qk_layer_norms': False, 'use_resampler': False}
    },
  }
  for (kind, file), width in zip(files.items(), (4096, 2048), strict=True):
    _, config = conversion.read_attributes(file | {'model_type': kind})
    assert (config.width, config.mlp_width) == (width, 11008)
    assert (config.num_layers, config.num_heads) == (32, 32)
    assert config.vocab_size == 32064


@pytest.mark.parametrize('name', tiny_families.OPTIONS)
def test_files_are_read_as_when_torch_agreed(name):
  """Also with old names and odd values, and without each attribute."""
  found, known = family_facts.facts(name), family_facts.KNOWN[name]
  assert found.keys() == known.keys()
  for change, told in known.items():
    assert found[change] == told, change


# Values of attributes: what is taken, and the nearest that are not.
TAKEN = {
  values.size: ((1, 2**31 - 1), (0, -1, 2**31, 1.0, True, '1')),
  values.index: ((0, 7), (-1, 1.0, False, '0')),
  values.number: ((1e-9, 3, 2.5), (0, 0.0, -1, math.nan, math.inf, True, '1')),
  values.numbers: (([], [1, 0.5]), ((1.0,), [1, 0], [None], 1.0)),
  values.layers: (([], [0, 3]), ((0,), [-1], [1.0], [True], 0)),
  values.flag: ((True, False), (1, 0, 'true')),
  values.of_layers(2, 'a', 'b'): (
    (['a', 'b'], ['b', 'b']), (['a'], ['a', 'b', 'a'], ['a', 'c'], ('a', 'b')),
  ),
}  # fmt: skip


@pytest.mark.parametrize('decode', TAKEN, ids=lambda x: x.__name__)
def test_values_that_are_taken_and_that_are_not(decode):
  good, bad = TAKEN[decode]
  for value in good:
    found = values.take({'a': value}, 'a', decode)
    assert found == (tuple(value) if type(found) is tuple else value)
  for value in bad:
    with pytest.raises(ValueError, match=r'attribute a = .*; expected '):
      values.take({'a': value}, 'a', decode)


def rotary_fields(row=None, head_dim=8, longest=64, **attributes):
  row, rest = row or rope.rope_row(), dict(attributes)
  fields = row(rest, {'head_dim': head_dim, 'max_positions': longest})
  assert rest == {}
  return fields


@pytest.mark.parametrize(
  ('part', 'share', 'turned'),
  [
    (0.5, None, 4),
    (0.5, 1, None),
    (0.5, 0.125, 1),
    (0.5, 0.124, ''),
    (0.5, 1.01, ''),
    (None, 1.0, None),
    (None, 0.5, ''),
  ],
)
def test_the_share_of_a_head_that_is_turned(part, share, turned):
  """Less than one of eight entries is none."""
  row = rope.rope_row(3.0, part=part, old_names=('base', 'pct'))
  for place in ('pct', 'rope_parameters'):
    given = {place: share} if share else {}
    if share and place != 'pct':
      given = {place: {'partial_rotary_factor': share}}
    if turned == '':
      with pytest.raises(ValueError, match='partial_rotary_factor = '):
        rotary_fields(row, **given)
      continue
    found = rotary_fields(row, **given, base=5)
    assert (found['rope_theta'], found['rotary_dim']) == (5.0, turned)
    assert rotary_fields(row, **given)['rope_theta'] == 3.0


def _grown(factor):
  return math.sqrt(1 + math.log(factor) / math.log(16))


@pytest.mark.parametrize(
  ('longest', 'said', 'amplitude'),
  [
    (64, {}, _grown(4)),
    (16, {}, 1.0),
    (64, {'factor': 2.0}, _grown(2)),
    (64, {'factor': 0.5}, 1.0),
    (64, {'attention_factor': 1.5}, 1.5),
  ],
)
@pytest.mark.parametrize('kind', ['longrope', 'su'])
def test_what_longrope_leaves_out(kind, longest, said, amplitude):
  """Trained on 16 tokens at first."""
  row = rope.rope_row(original=16)
  given = {'type': kind, 'short_factor': [1, 1], 'long_factor': [2, 3]} | said
  found = rotary_fields(row, 4, longest, rope_scaling=given)['rope_scaling']
  wanted = (1, 1), (2, 3), 16, longest, pytest.approx(amplitude)
  assert tuple(vars(found).values()) == wanted
  plain = rotary_fields(row, original_max_position_embeddings=16)
  assert plain['rope_scaling'] is None


@pytest.mark.parametrize(
  ('original', 'factor', 'amplitude'),
  [
    (None, 4.0, 0.1 * math.log(4) + 1),
    (16, None, 0.1 * math.log(4) + 1),
    (16, 1.0, 1.0),
    (16, 0.5, 1.0),
  ],
)
def test_what_yarn_leaves_out(original, factor, amplitude):
  """Its factor is that of its lengths, and the rest is as published."""
  said = {'original_max_position_embeddings': original, 'factor': factor}
  given = {'rope_type': 'yarn'} | {k: x for k, x in said.items() if x}
  found = rotary_fields(rope_parameters=given)['rope_scaling']
  wanted = original or 64, 32.0, 1.0, pytest.approx(amplitude), True
  assert tuple(vars(found).values()) == (factor or 4.0, *wanted)


SCALED = {'rope_type': 'linear', 'factor': 2.0}


@pytest.mark.parametrize(
  ('attributes', 'found'),
  [
    ({}, (1e6, 1e4, None)),
    ({'rope_theta': 5.0, 'local': 3.0}, (5.0, 3.0, None)),
    ({'rope_scaling': SCALED}, (1e6, 1e4, rotary.Linear(2.0))),
    (
      {'full_attention': SCALED, 'sliding_attention': {'rope_theta': 9.0}},
      (1e6, 9.0, rotary.Linear(2.0)),
    ),
    ({'rope_parameters': 3}, 'rope_parameters = 3 must'),
    ({'sliding_attention': {}, 'other': 1}, 'rope_parameters: other = 1'),
    ({'sliding_attention': {'factor': 2.0}}, 'factor = 2'),
    ({'sliding_attention': SCALED}, "'linear'; expected one of default"),
  ],
)
def test_layers_with_a_window_have_a_base_that_nothing_scales(
  attributes, found
):
  row = rope.two_bases_row(1e6, 1e4, 'local')
  if {'sliding_attention'} & attributes.keys():
    attributes = {'rope_parameters': attributes}
  if isinstance(found, str):
    with pytest.raises(ValueError, match=found):
      rotary_fields(row, **attributes)
    return
  names = 'rope_theta', 'local_rope_theta', 'rope_scaling'
  wanted = dict(zip(names, found, strict=True))
  assert rotary_fields(row, **attributes) == wanted


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'rope_theta': -1.0}, 'rope_theta = -1'),
    ({'alpha': 1e300}, 'alpha = 1e'),
    ({'head_dim': 2}, 'head_dim = 2'),
  ],
)
def test_a_base_that_cannot_grow_is_named(changes, message):
  config = tiny_families.attributes('hunyuan_v1_dense')
  changes = dict(changes)
  config['head_dim'] = changes.pop('head_dim', config['head_dim'])
  rope = {'rope_type': 'dynamic', 'factor': 1.0, 'alpha': 20.0} | changes
  with pytest.raises(ValueError, match=message):
    conversion.read_attributes(config | {'rope_parameters': rope})


def test_kimi_k2_is_deepseek_v3_under_another_name():
  plain = tiny_families.attributes('deepseek_v3')
  plain['architectures'] = ['DeepseekV3ForCausalLM']
  other = plain | {'model_type': 'kimi_k2'}
  family, config = conversion.read_attributes(other)
  assert family.model_type == 'kimi_k2'
  assert config == conversion.read_attributes(plain)[1]
