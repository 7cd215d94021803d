"""Gemma 1, 2, 3 and 4 (text), and VaultGemma, whose norms are before alone."""

import math

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.llama import (
  BIAS,
  DECODER,
  SOURCES,
  like,
  usual_rows,
)
from specjax.checkpoints.families.table import (
  HEADS,
  KEEP,
  LAST_APART,
  LINEAR,
  MAPS,
  Row,
  Tensors,
  kept,
  linear,
  scale,
)
from specjax.checkpoints.families.values import attribute, derive, take
from specjax.models.config import Experts, LayerInputs, Sharing, Wide

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
  tanh = 'gelu_pytorch_tanh'
  given = [rest.pop(name, None) for name in ('hidden_activation', 'hidden_act')]
  named = given[0] or given[1] or tanh
  if given[0] is None and named == 'gelu':
    named = tanh
  return {
    'activation': take({'hidden_act': named}, 'hidden_act', values.activation)
  }


def _cap_row(name: str, field: str, default: float | None) -> Row:
  return attribute(name, field, values.number, default, null=None)


def _read_scale(rest, known):
  value = take(rest, 'query_pre_attn_scalar', values.number, 256.0)
  # Of the scores; the attribute is one over its square.
  return {'query_scale': None if value == known['head_dim'] else value**-0.5}


def _rows(
  max_positions: int,
  *more: Row,
  scores: tuple[Row, ...] = (_read_scale,),
  kv_heads: int = 4,
  **options,
) -> tuple[Row, ...]:
  """Returns the rows of a version; later ones say how scores are scaled."""
  return usual_rows(
    max_positions,
    _EMBEDDING_ROW,
    BIAS,
    *scores,
    *more,
    activation=_read_activation,
    tied=True,
    kv_heads=kv_heads,
    head_dim=256,
    **options,
  )


GEMMA = like(
  DECODER,
  'gemma',
  'GemmaForCausalLM',
  rows=_rows(8192, scores=(), kv_heads=16),
  fixed={'norm_plus_one': True},
  only=_ONLY,
  harmless='',
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
  harmless='sliding_window_size',
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
  harmless='_sliding_window_pattern',
)


def _read_wide(rest, known):
  """Layers without a window have heads of other sizes."""
  windows = known['windows'] or (None,) * known['num_layers']
  if windows[-1] is not None:
    raise ValueError('layer_types: the last one must be full_attention')
  layers = tuple(i for i, window in enumerate(windows) if window is None)
  alike = take(rest, 'attention_k_eq_v', values.flag, False)
  width = take(rest, 'global_head_dim', values.size, 512)
  heads = take(rest, 'num_global_key_value_heads', values.size, None)
  count = heads if alike and heads else known['num_kv_heads']
  given = rest.pop('per_layer_config', None)
  if given is None:
    return {'wide': Wide(layers, count, width, alike)}
  known_layers = isinstance(given, dict) and all(map(str.isdecimal, given))
  if not known_layers or sorted(map(int, given)) != [*layers]:
    raise ValueError(
      f'unsupported config attribute per_layer_config = {given!r}; expected '
      f'sizes of the layers with full_attention, {layers}, alone'
    )
  sizes = [dict(one) for one in given.values()]
  if any(one != sizes[0] for one in sizes):
    raise ValueError('per_layer_config: the layers must have the same sizes')
  own = sizes[0]
  width = take(own, 'head_dim', values.size, known['head_dim'])
  count = take(own, 'num_key_value_heads', values.size, known['num_kv_heads'])
  if own:
    raise ValueError(f'per_layer_config: {sorted(own)} cannot differ by layer')
  return {'wide': Wide(layers, count, width, alike)}


def _read_sharing(rest, known):
  count = take(rest, 'num_kv_shared_layers', values.index, 0)
  double = take(rest, 'use_double_wide_mlp', values.flag, False)
  if not count:
    return {'sharing': None}
  layers, windows = known['num_layers'], known['windows']
  first = layers - count
  kinds = [window is None for window in windows or [None] * layers]
  if not {*kinds[first:]} <= {*kinds[: max(first, 0)]}:
    raise ValueError(
      f'unsupported config attribute num_kv_shared_layers = {count}; expected '
      'fewer: a layer of each kind must come before them'
    )
  return {'sharing': Sharing(first, known['mlp_width'] * (1 + double))}


def _read_inputs(rest, known):
  width = take(rest, 'hidden_size_per_layer_input', values.index, 256)
  vocab = take(rest, 'vocab_size_per_layer_input', values.index, 262144)
  made = LayerInputs(width, known['num_layers'], vocab) if width else None
  return {'layer_inputs': made}


_EXPERTS = {
  'num_experts': 'count',
  'top_k_experts': 'chosen',
  'moe_intermediate_size': 'width',
}


def _read_experts(rest, known):
  if not take(rest, 'enable_moe_block', values.flag, False):
    for name in _EXPERTS:
      rest.pop(name, None)
    return {'experts': None}
  sizes = {ours: take(rest, n, values.size) for n, ours in _EXPERTS.items()}
  return {'experts': Experts(**sizes, beside=True)}


def _sight(value):
  if value != 'vision':  # Tokens of images alone see later ones.
    raise ValueError("null or 'vision'")


_TWO_BASES = rope.two_bases_row(
  1e6, 1e4, allowed=(*rope.OF_TEXTS, 'proportional')
)


def _read_rope(rest, known):
  part = {'rope_type': 'proportional', 'partial_rotary_factor': 0.25}
  rest['rope_parameters'] = rest.get('rope_parameters') or {
    'full_attention': part
  }
  return _TWO_BASES(rest, known)


_QUERIES, _KEYS = (_LAYER + f'self_attn.{x}_proj' for x in 'qk')
_MIXTURE = {
  'post_dense/scale': 'post_feedforward_layernorm_1.weight',
  'post_experts/scale': 'post_feedforward_layernorm_2.weight',
  'norm_experts/scale': 'pre_feedforward_layernorm_2.weight',
  'norm_router/scale': 'router.scale',
  'experts/router_gain': 'router.per_expert_scale',
}

GEMMA4 = like(
  GEMMA,
  'gemma4_text',
  'Gemma4ForCausalLM',
  rows=_rows(
    131072,
    _cap_row('final_logit_softcapping', 'logit_cap', None),
    scores=(),
    rotary=_read_rope,
    layers=(
      values.window_by_layer_row(512, lambda layer, _: bool((layer + 1) % 6)),
      _read_wide,
      _read_sharing,
      _read_inputs,
      _read_experts,
      attribute('use_bidirectional_attention', (), _sight, None),
    ),
    vocab_size=262144,
    hidden_size=2304,
    intermediate_size=9216,
    num_hidden_layers=30,
    num_attention_heads=8,
  ),
  fixed={
    'post_norms': True,
    'qk_norm': True,
    'value_norm': True,
    'layer_scale': True,
    'query_scale': 1.0,
  },
  sources=SOURCES
  | _NORMS
  # Of layers whose keys are their values, and whose keys are another layer's.
  | linear('layer{}/qk', LAST_APART, _QUERIES, _KEYS)
  | linear('layer{}/q', MAPS, _QUERIES)
  | linear('layer{}/inputs_gate', LINEAR, _LAYER + 'per_layer_input_gate')
  | linear('layer{}/inputs_out', LINEAR, _LAYER + 'per_layer_projection')
  | scale(_LAYER + 'post_per_layer_input_norm', 'layer{}/post_inputs')
  | linear('inputs/map', HEADS, 'model.per_layer_model_projection')
  | scale('model.per_layer_projection_norm', 'inputs/norm')
  | kept(_LAYER, {'layer_scale': 'layer_scalar'} | _MIXTURE)
  | {
    ours: Tensors(split, (name,))
    for ours, split, name in (
      ('inputs/table', KEEP, 'model.embed_tokens_per_layer.weight'),
      ('layer{}/experts/router', LINEAR, _LAYER + 'router.proj.weight'),
      ('layer{}/experts/up', HEADS, _LAYER + 'experts.gate_up_proj'),
      ('layer{}/experts/down', LINEAR, _LAYER + 'experts.down_proj'),
    )
  },
  only={},
)

FAMILIES = (GEMMA, GEMMA2, GEMMA3, GEMMA4, VAULTGEMMA)
