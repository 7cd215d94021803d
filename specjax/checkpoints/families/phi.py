"""Phi-3: Llama with fused tensors, a window, and LongRoPE."""

import dataclasses

from specjax.checkpoints.families import rope, values, windows
from specjax.checkpoints.families.llama import (
  LLAMA,
  SOURCES,
  size_rows,
  tied_row,
)
from specjax.checkpoints.families.table import GROUPS, WAYS, Tensors
from specjax.checkpoints.families.values import attribute

_LAYER = 'model.layers.{}.'

PHI3 = dataclasses.replace(
  LLAMA,
  model_type='phi3',
  architecture='Phi3ForCausalLM',
  rows=(
    *size_rows(4096),
    rope.rope_row(
      allowed=('default', 'longrope', 'su'), part=1.0, original=4096
    ),
    windows.everywhere(None),
    values.activation_row('hidden_act', 'silu'),
    attribute('rms_norm_eps', 'norm_eps', values.number, 1e-5),
    tied_row(False),
  ),
  only={
    'attention_bias': False,
    'full_attn_mod': 1,
    'interpolate_factor': 1,
    'lm_head_bias': False,
    'mlp_bias': False,
  },
  harmless=frozenset(),
  sources=SOURCES
  | {
    'layer{}/qkv/w': Tensors(GROUPS, (_LAYER + 'self_attn.qkv_proj.weight',)),
    'layer{}/up/w': Tensors(WAYS, (_LAYER + 'mlp.gate_up_proj.weight',)),
  },
)
