"""Qwen2 and 2.5, Qwen3, with a mixture of experts, and the texts of Qwen-VL."""

import dataclasses

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.llama import (
  IGNORED,
  SOURCES,
  attention_bias_row,
  experts_of,
  size_rows,
  tied_row,
)
from specjax.checkpoints.families.table import (
  EXPERT_WAYS,
  EXPERTS,
  LINEAR,
  Family,
  Row,
  Tensors,
)
from specjax.checkpoints.families.values import attribute, take
from specjax.models.config import Experts

_WINDOWS = values.window_by_layer_row(
  4096,
  lambda layer, sizes: layer >= sizes['max_window_layers'],
  switch=True,
  sizes=(('max_window_layers', 28),),
)
_REST = (
  values.SILU,
  attribute('rms_norm_eps', 'norm_eps', values.number, 1e-6),
  tied_row(False),
)

QWEN2 = Family(
  model_type='qwen2',
  architecture='Qwen2ForCausalLM',
  rows=(*size_rows(32768, kv_heads=32), rope.rope_row(), _WINDOWS, *_REST),
  fixed={'qkv_bias': True},
  sources=SOURCES,
  only={'use_mrope': False},
  ignored=IGNORED,
)

# Its next-token layer is read by `drafters.mtp`.
MIMO = dataclasses.replace(
  QWEN2,
  model_type='mimo',
  architecture='MiMoForCausalLM',
  only={'attention_bias': True, 'use_mrope': False},
  harmless=frozenset({'num_nextn_predict_layers'}),
  unread=('model.mtp_layers.',),
)

QWEN3 = dataclasses.replace(
  QWEN2,
  model_type='qwen3',
  architecture='Qwen3ForCausalLM',
  rows=(
    *size_rows(32768, kv_heads=32, head_dim=128),
    rope.rope_row(),
    _WINDOWS,
    *_REST,
    attention_bias_row(False),
  ),
  fixed={'qk_norm': True},
)

QWEN2_VL = dataclasses.replace(
  QWEN2,
  model_type='qwen2_vl_text',
  architecture='Qwen2VLForConditionalGeneration',
  rows=(
    *size_rows(
      32768,
      kv_heads=8,
      vocab_size=152064,
      hidden_size=8192,
      intermediate_size=29568,
      num_hidden_layers=80,
      num_attention_heads=64,
    ),
    rope.rope_row(1e6, tuple(rope.SCALINGS)),
    values.window_by_layer_row(
      4096,
      lambda layer, sizes: layer >= sizes['max_window_layers'],
      switch=True,
      sizes=(('max_window_layers', 80),),
    ),
    values.SILU,
    attribute('rms_norm_eps', 'norm_eps', values.number, 1e-5),
    tied_row(False),
  ),
)
QWEN2_5_VL = dataclasses.replace(
  QWEN2_VL,
  model_type='qwen2_5_vl_text',
  architecture='Qwen2_5_VLForConditionalGeneration',
)
QWEN3_VL = dataclasses.replace(
  QWEN3,
  model_type='qwen3_vl_text',
  architecture='Qwen3VLForConditionalGeneration',
  rows=(
    *size_rows(
      128000,
      kv_heads=32,
      head_dim=128,
      vocab_size=151936,
      hidden_size=4096,
      intermediate_size=22016,
      num_hidden_layers=32,
      num_attention_heads=32,
    ),
    rope.rope_row(5e5, tuple(rope.SCALINGS)),
    *_REST,
    attention_bias_row(False),
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

  def write(config):
    experts = experts_of(config)
    written = {
      'decoder_sparse_step': 1,
      'mlp_only_layers': list(experts.dense),
      'num_experts': experts.count,
      'num_experts_per_tok': experts.chosen,
      'moe_intermediate_size': experts.width,
      'norm_topk_prob': experts.normalize,
    }
    # Zero comes back as the default, which is then named.
    return written | ({_SHARED: experts.shared} if experts.shared else {})

  return Row(read, write)


_SHARED = 'shared_expert_intermediate_size'
_MLP = 'model.layers.{}.mlp.'

QWEN3_MOE = dataclasses.replace(
  QWEN3,
  model_type='qwen3_moe',
  architecture='Qwen3MoeForCausalLM',
  rows=(
    *size_rows(32768, kv_heads=4),
    rope.rope_row(),
    values.window_row(4096, switch=True),
    *_REST,
    attention_bias_row(False),
    sparse_row(128, 8, 768, normalize=False),
  ),
  sources=SOURCES
  | {
    'layer{}/experts/router': Tensors(LINEAR, (_MLP + 'gate.weight',)),
    'layer{}/experts/up': Tensors(
      EXPERT_WAYS,
      tuple(
        _MLP + 'experts.{expert}.' + f'{x}_proj.weight' for x in ('gate', 'up')
      ),
    ),
    'layer{}/experts/down': Tensors(
      EXPERTS, (_MLP + 'experts.{expert}.down_proj.weight',)
    ),
  },
  # Of another kind of window, which these models do not have.
  harmless=frozenset({'max_window_layers'}),
)
