"""LFM2, with experts and without: most layers convolve a few tokens."""

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.llama import (
  DECODER,
  SOURCES,
  epsilon_row,
  like,
  usual_rows,
)
from specjax.checkpoints.families.table import (
  HEADS,
  LINEAR,
  WAYS,
  Row,
  experts,
  kept,
  linear,
  scale,
)
from specjax.checkpoints.families.values import take
from specjax.models.config import Experts, ShortConv

_CONV, _ATTENTION = 'conv', 'full_attention'


def _read_conv(rest, known):
  layers = range(known['num_layers'])
  attends = take(rest, 'full_attn_idxs', values.layers, tuple(layers))
  usual = [_ATTENTION if i in attends else _CONV for i in layers]
  kinds = values.of_layers(len(layers), _CONV, _ATTENTION)
  types = take(rest, 'layer_types', kinds, usual)
  made = ShortConv(
    tuple(i for i in layers if types[i] == _CONV),
    known['width'],
    take(rest, 'conv_L_cache', values.size, 3),
    take(rest, 'conv_bias', values.flag, False),
  )
  return {'recurrent': made if made.layers else None}


def _read_width(rest, known):
  """The width of the MLP, which files say before it is adjusted."""
  width = take(rest, 'block_ff_dim', values.size, known['mlp_width'])
  multiple = take(rest, 'block_multiple_of', values.size, 256)
  factor = take(rest, 'block_ffn_dim_multiplier', values.number, 1.0)
  if take(rest, 'block_auto_adjust_ff_dim', values.flag, True):
    width = -(-int(factor * int(2 * width / 3)) // multiple) * multiple
  return {'mlp_width': width}


def _read_old_name(rest, known):
  if 'tie_embedding' in rest:
    rest['tie_word_embeddings'] = rest.pop('tie_embedding')
  return {}


def _read_experts(rest, known):
  dense = take(rest, 'num_dense_layers', values.index, 2)
  experts = Experts(
    take(rest, 'num_experts', values.size, 32),
    take(rest, 'num_experts_per_tok', values.size, 4),
    take(rest, 'moe_intermediate_size', values.size, 1792),
    take(rest, 'norm_topk_prob', values.flag, True),
    tuple(range(min(dense, known['num_layers']))),
    sigmoid=True,
    scale=take(rest, 'routed_scaling_factor', values.number, 1.0),
  )
  return {'experts': experts}


def _rows(more: Row, mlp_width: int) -> tuple[Row, ...]:
  return usual_rows(
    128000,
    _read_conv,
    more,
    _read_old_name,
    rotary=rope.rope_row(1e6),
    epsilon=epsilon_row(1e-5, 'norm_eps'),
    tied=True,
    kv_heads=8,
    intermediate_size=mlp_width,
  )


_LAYER = 'model.layers.{}.'
_MAPS, _MLP = _LAYER + 'conv.', _LAYER + 'feed_forward.'
_UNREAD = """
  block_dim block_mlp_init_scale block_norm_eps block_out_init_scale
  block_use_xavier_init conv_dim conv_dim_out conv_use_xavier_init num_heads
"""

LFM2 = like(
  DECODER,
  'lfm2',
  'Lfm2ForCausalLM',
  rows=_rows(_read_width, 12288),
  fixed={'qk_norm': True},
  only={'block_use_swiglu': True, 'use_pos_enc': True},
  harmless=_UNREAD,
  sources={
    **SOURCES,
    **scale('model.embedding_norm', 'norm'),
    **scale(_LAYER + 'operator_norm', 'layer{}/norm1'),
    **scale(_LAYER + 'ffn_norm', 'layer{}/norm2'),
    **scale(_LAYER + 'self_attn.q_layernorm', 'layer{}/q_norm'),
    **scale(_LAYER + 'self_attn.k_layernorm', 'layer{}/k_norm'),
    **linear('layer{}/out', LINEAR, _LAYER + 'self_attn.out_proj'),
    **linear('layer{}/mixer/in', HEADS, _MAPS + 'in_proj'),
    **linear('layer{}/mixer/out', LINEAR, _MAPS + 'out_proj'),
    **kept(_MAPS, {'mixer/conv': 'conv.weight', 'mixer/conv_b': 'conv.bias'}),
    **linear('layer{}/up', WAYS, _MLP + 'w1', _MLP + 'w3'),
    **linear('layer{}/down', LINEAR, _MLP + 'w2'),
  },
)

LFM2_MOE = like(
  LFM2,
  'lfm2_moe',
  'Lfm2MoeForCausalLM',
  rows=_rows(_read_experts, 7168),
  only={'use_expert_bias': True},
  harmless='',
  sources={
    **LFM2.sources,
    **experts(_MLP, 'w1', 'w3', down='w2'),
    **kept(_MLP, {'experts/router_shift': 'expert_bias'}),
  },
)

FAMILIES = (LFM2, LFM2_MOE)
