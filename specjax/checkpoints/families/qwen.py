"""Qwen2 and 2.5, Qwen3, with a mixture of experts, and the texts of Qwen-VL."""

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.llama import (
  BIAS,
  DECODER,
  SOURCES,
  like,
  usual_rows,
)
from specjax.checkpoints.families.table import Row, experts
from specjax.checkpoints.families.values import take
from specjax.models.config import Experts


def _windows(layers: int) -> Row:
  """Returns the row of windows behind so many layers, unless said."""
  return values.window_by_layer_row(
    4096,
    lambda layer, sizes: layer >= sizes['max_window_layers'],
    switch=True,
    sizes=(('max_window_layers', layers),),
  )


QWEN2 = like(
  DECODER,
  'qwen2',
  'Qwen2ForCausalLM',
  rows=usual_rows(32768, layers=(_windows(28),), kv_heads=32),
  fixed={'qkv_bias': True},
  only={'use_mrope': False},
  harmless='',
)

# Its next-token layer is read by `drafters.mtp`.
MIMO = like(
  QWEN2,
  'mimo',
  'MiMoForCausalLM',
  only={'attention_bias': True, 'use_mrope': False},
  harmless='num_nextn_predict_layers',
  unread=('model.mtp_layers.',),
)

QWEN3 = like(
  QWEN2,
  'qwen3',
  'Qwen3ForCausalLM',
  rows=usual_rows(
    32768, BIAS, layers=(_windows(28),), kv_heads=32, head_dim=128
  ),
  fixed={'qk_norm': True},
)

QWEN2_VL = like(
  QWEN2,
  'qwen2_vl_text',
  'Qwen2VLForConditionalGeneration',
  rows=usual_rows(
    32768,
    rotary=rope.rope_row(1e6, tuple(rope.SCALINGS)),
    layers=(_windows(80),),
    epsilon=1e-5,
    kv_heads=8,
    vocab_size=152064,
    hidden_size=8192,
    intermediate_size=29568,
    num_hidden_layers=80,
    num_attention_heads=64,
  ),
)
QWEN2_5_VL = like(
  QWEN2_VL,
  'qwen2_5_vl_text',
  'Qwen2_5_VLForConditionalGeneration',
)
QWEN3_VL = like(
  QWEN3,
  'qwen3_vl_text',
  'Qwen3VLForConditionalGeneration',
  rows=usual_rows(
    128000,
    BIAS,
    rotary=rope.rope_row(5e5, tuple(rope.SCALINGS)),
    kv_heads=32,
    head_dim=128,
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=22016,
    num_hidden_layers=32,
    num_attention_heads=32,
  ),
)


def sparse_row(
  count: int, chosen: int, width: int, normalize: bool, shared: int = 0
) -> Row:
  """Row of a mixture of experts in some layers.

  Args:
    count: default of their number.
    chosen: default of how many of them read a token.
    width: default of theirs.
    normalize: default of whether their weights add up to one.
    shared: default of the width of the expert that all tokens go to; 0: there
      is none.
  """

  def read(rest, known):
    every = take(rest, 'decoder_sparse_step', values.size, 1)
    listed = take(rest, 'mlp_only_layers', values.layers, ())
    layers = range(known['num_layers'])
    dense = tuple(i for i in layers if i in listed or (i + 1) % every)
    # Two names of the same, by the version that wrote it.
    given = take(rest, 'num_experts', values.size, None)
    usual = count if given is None else given
    other = take(rest, 'num_local_experts', values.size, usual)
    if given not in (None, other):
      raise ValueError(f'num_experts = {given} but num_local_experts = {other}')
    experts = Experts(
      other,
      take(rest, 'num_experts_per_tok', values.size, chosen),
      take(rest, 'moe_intermediate_size', values.size, width),
      take(rest, 'norm_topk_prob', values.flag, normalize),
      dense,
      shared=shared and take(rest, _SHARED, values.size, shared),
    )
    return {'experts': experts}

  return read


_SHARED = 'shared_expert_intermediate_size'

QWEN3_MOE = like(
  QWEN3,
  'qwen3_moe',
  'Qwen3MoeForCausalLM',
  rows=usual_rows(
    32768,
    BIAS,
    sparse_row(128, 8, 768, normalize=False),
    layers=(values.window_row(4096, switch=True),),
    kv_heads=4,
  ),
  sources=SOURCES
  | experts('model.layers.{}.mlp.', 'gate_proj', 'up_proj', down='down_proj'),
  # Of another kind of window, which these models do not have.
  harmless='max_window_layers',
)

FAMILIES = (QWEN2, MIMO, QWEN3, QWEN3_MOE, QWEN2_VL, QWEN2_5_VL, QWEN3_VL)
