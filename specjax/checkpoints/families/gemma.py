"""Gemma 1, 2 and 3 (text), and VaultGemma, whose norms are before alone."""

import math

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.llama import (
  BIAS,
  IGNORED,
  SOURCES,
  like,
  usual_rows,
)
from specjax.checkpoints.families.table import Family, Row, scale
from specjax.checkpoints.families.values import attribute, derive, take

_LAYER = 'model.layers.{}.'
# Norms before and after attention and MLP have names of their own.
_NORMS = (
  scale(_LAYER + 'post_attention_layernorm', 'layer{}/post1')
  | scale(_LAYER + 'pre_feedforward_layernorm', 'layer{}/norm2')
  | scale(_LAYER + 'post_feedforward_layernorm', 'layer{}/post2')
)
_ONLY = {'use_bidirectional_attention': False}
# Embeddings grow with the width, though no attribute says so.
_EMBEDDING_ROW = derive(
  'embedding_scale', lambda known: math.sqrt(known['width'])
)


def _read_activation(rest, known):
  # The first files name the wrong function as `hidden_act`.
  del known  # Unused.
  tanh = 'gelu_pytorch_tanh'
  given = [rest.pop(name, None) for name in ('hidden_activation', 'hidden_act')]
  named = given[0] or given[1] or tanh
  if given[0] is None and named == 'gelu':
    named = tanh
  return {
    'activation': take({'hidden_act': named}, 'hidden_act', values.activation)
  }


def _activation_row(name: str) -> Row:
  return Row(
    _read_activation, lambda config: {name: values.name_of(config.activation)}
  )


GEMMA = Family(
  model_type='gemma',
  architecture='GemmaForCausalLM',
  rows=usual_rows(
    8192,
    _EMBEDDING_ROW,
    BIAS,
    activation=_activation_row('hidden_act'),
    tied=True,
    kv_heads=16,
    head_dim=256,
  ),
  fixed={'norm_plus_one': True},
  sources=SOURCES,
  only=_ONLY,
  ignored=IGNORED,
)


def _cap_row(name: str, field: str, default: float | None) -> Row:
  return attribute(name, field, values.number, default, null=None)


def _read_scale(rest, known):
  value = take(rest, 'query_pre_attn_scalar', values.number, 256.0)
  # Of the scores; the attribute is one over its square.
  return {'query_scale': None if value == known['head_dim'] else value**-0.5}


def _write_scale(config):
  if config.query_scale is None:
    return {'query_pre_attn_scalar': config.head_dim}
  value = config.query_scale**-2
  # Readers want a whole number where it is one.
  whole = round(value) or 1
  exact = whole**-0.5 == config.query_scale
  return {'query_pre_attn_scalar': whole if exact else value}


def _rows(max_positions: int, *more: Row, **options) -> tuple[Row, ...]:
  """Returns the rows of the second and the third version."""
  return usual_rows(
    max_positions,
    _EMBEDDING_ROW,
    BIAS,
    Row(_read_scale, _write_scale),
    *more,
    activation=_activation_row('hidden_activation'),
    tied=True,
    kv_heads=4,
    head_dim=256,
    **options,
  )


GEMMA2 = like(
  GEMMA,
  'gemma2',
  'Gemma2ForCausalLM',
  rows=_rows(
    8192,
    _cap_row('attn_logit_softcapping', 'attention_cap', 50.0),
    _cap_row('final_logit_softcapping', 'logit_cap', 30.0),
    layers=(values.window_by_layer_row(4096, lambda layer, _: layer % 2 == 0),),
  ),
  fixed={'norm_plus_one': True, 'post_norms': True},
  sources=SOURCES | _NORMS,
  # Readers look at `sliding_window` alone.
  harmless=frozenset({'sliding_window_size'}),
)


VAULTGEMMA = like(
  GEMMA2,
  'vaultgemma',
  'VaultGemmaForCausalLM',
  fixed={'norm_plus_one': True},
)

GEMMA3 = like(
  GEMMA,
  'gemma3_text',
  'Gemma3ForCausalLM',
  rows=_rows(
    131072,
    _cap_row('final_logit_softcapping', 'logit_cap', None),
    rotary=rope.two_bases_row(1e6, 1e4, 'rope_local_base_freq'),
    layers=(
      values.window_by_layer_row(
        4096,
        lambda layer, sizes: bool(
          (layer + 1) % sizes['sliding_window_pattern']
        ),
        sizes=(('sliding_window_pattern', 6),),
      ),
    ),
    vocab_size=262208,
    hidden_size=2304,
    intermediate_size=9216,
    num_hidden_layers=26,
    num_attention_heads=8,
  ),
  fixed={'norm_plus_one': True, 'post_norms': True, 'qk_norm': True},
  sources=SOURCES | _NORMS,
  only=_ONLY | {'attn_logit_softcapping': None},
  # Written beside the types of the layers, which say more.
  harmless=frozenset({'_sliding_window_pattern'}),
)
