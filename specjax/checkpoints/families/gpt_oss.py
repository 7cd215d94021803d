"""gpt-oss: a sink in each head, clamped experts, windows in half the layers."""

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.llama import (
  DECODER,
  SOURCES,
  attention_bias_row,
  like,
  usual_rows,
)
from specjax.checkpoints.families.table import (
  HEADS,
  LINEAR,
  Tensors,
  TensorSplit,
  kept,
)
from specjax.checkpoints.families.values import take
from specjax.models.config import Experts
from specjax.models.experts import Swish

_YARN = {
  'rope_type': 'yarn',
  'factor': 32.0,
  'beta_fast': 32.0,
  'beta_slow': 1.0,
  'truncate': False,
  'original_max_position_embeddings': 4096,
}
_ROPE = rope.rope_row(150000.0)


def _read_rope(rest, known):
  if not rest.get('rope_parameters') and not rest.get('rope_scaling'):
    rest['rope_parameters'] = dict(_YARN)
  return _ROPE(rest, known)


def _read_experts(rest, known):
  # Another name of the same in the first files.
  count = take(rest, 'experts_per_token', values.size, None)
  chosen = take(rest, 'num_experts_per_tok', values.size, count or 4)
  if count not in (None, chosen):
    raise ValueError(
      f'num_experts_per_tok = {chosen} but experts_per_token = {count}'
    )
  experts = Experts(
    take(rest, 'num_local_experts', values.size, 128),
    chosen,
    known['mlp_width'],
    bias=True,
    limit=take(rest, 'swiglu_limit', values.number, 7.0),
  )
  rate = take(rest, 'swiglu_alpha', values.number, 1.702)
  return {'experts': experts, 'activation': Swish(rate)}


_LAYER = 'model.layers.{}.'
_MLP = _LAYER + 'mlp.'
# [.., 2, F] whose gate and what it gates lie side by side in a file.
_SIDE_BY_SIDE = TensorSplit(lambda x: (x.swapaxes(-1, -2),), 2, False)

GPT_OSS = like(
  DECODER,
  'gpt_oss',
  'GptOssForCausalLM',
  rows=usual_rows(
    131072,
    attention_bias_row(True),
    rotary=_read_rope,
    layers=(
      values.window_by_layer_row(128, lambda layer, known: layer % 2 == 0),
    ),
    activation=_read_experts,
    epsilon=1e-5,
    kv_heads=8,
    head_dim=64,
  ),
  fixed={'sink_logits': True},
  only={'hidden_act': 'silu'},
  harmless='initial_context_length',
  sources=SOURCES
  | {
    'layer{}/sinks': Tensors(HEADS, (_LAYER + 'self_attn.sinks',)),
    'layer{}/experts/router': Tensors(LINEAR, (_MLP + 'router.weight',)),
    'layer{}/experts/up': Tensors(
      _SIDE_BY_SIDE, (_MLP + 'experts.gate_up_proj',)
    ),
    'layer{}/experts/up_b': Tensors(
      _SIDE_BY_SIDE, (_MLP + 'experts.gate_up_proj_bias',)
    ),
  }
  | kept(
    _MLP,
    {
      'experts/router_b': 'router.bias',
      'experts/down': 'experts.down_proj',
      'experts/down_b': 'experts.down_proj_bias',
    },
  ),
)

FAMILIES = (GPT_OSS,)
