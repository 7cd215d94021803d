"""DeepSeek V2 and V3, and what shares their latents or their experts.

Kimi K2 is DeepSeek V3 under another name, GLM-4.7 Flash differs in its
defaults, Youtu-LLM has no experts, and GLM-4.5 has experts but no latents. The
layer behind the last one is read by `drafters.mtp`.
"""

import dataclasses
import math
from typing import Any

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.llama import (
  BIAS,
  DECODER,
  MLP_BIAS,
  like,
  usual_rows,
)
from specjax.checkpoints.families.qwen import QWEN3_MOE
from specjax.checkpoints.families.table import (
  HEADS,
  LINEAR,
  WAYS,
  Row,
  kept,
  linear,
)
from specjax.checkpoints.families.values import attribute, take
from specjax.errors import blame
from specjax.models.config import Experts, Latent

_LAYER = 'model.layers.{}.'
_ATTENTION, _MLP = _LAYER + 'self_attn.', _LAYER + 'mlp.'
_ROPE = rope.rope_row()


def _read_rope(rest, known, turned: int):
  """Positions of a part of a head; stretched ones make scores larger."""
  places = rest.get('rope_parameters'), rest.get('rope_scaling')
  growth = [x.get('mscale_all_dim') for x in places if isinstance(x, dict)]
  fields = _ROPE(rest, known | {'head_dim': turned})
  scaling, scale = fields['rope_scaling'], None
  if scaling is not None and any(growth) and scaling.factor > 1:
    rate = next(filter(None, growth))
    grown = 0.1 * rate * math.log(scaling.factor) + 1
    scale = known['head_dim'] ** -0.5 * grown**2
  return fields | {'rotary_dim': turned, 'query_scale': scale}


def _latent_row(
  queries: int = 1536, keys: int = 128, heads: int = 128, choice: bool = True
) -> Row:
  """Row of attention to latents, with its positions.

  Args:
    queries: default entries that queries are compressed to.
    keys: default entries of a head's key.
    heads: default entries of a head's value.
    choice: whether an attribute says which entries positions turn; without it
      they lie side by side.
  """
  names = {
    'rank': ('kv_lora_rank', 512),
    'turned': ('qk_rope_head_dim', 64),
    'keys': ('qk_nope_head_dim', keys),
    'values': ('v_head_dim', heads),
  }

  def read(rest, known):
    sizes = values.take_all(rest, names)
    compressed = take(rest, 'q_lora_rank', values.size, queries, null=None)
    beside = not choice or take(rest, 'rope_interleave', values.flag, True)
    head = sizes['keys'] + sizes['turned']
    values.agree(
      'qk_head_dim', take(rest, 'qk_head_dim', values.size, head), head
    )
    # Each head makes its own keys and values.
    count = known['num_heads']
    values.agree('num_key_value_heads', known['num_kv_heads'], count)
    fields = {
      'latent': Latent(**sizes, queries=compressed, side_by_side=beside),
      'num_kv_heads': 1,
      'head_dim': head,
    }
    return fields | _read_rope(rest, known | fields, sizes['turned'])

  return read


_METHODS = 'greedy', 'group_limited_greedy'


def _method(value):
  if value not in _METHODS:
    raise ValueError(' or '.join(map(repr, _METHODS)))
  return value == _METHODS[1]


def grouped_experts_row(
  count: int,
  chosen: Any,
  width: int,
  scale: float = 1.0,
  shared: int = 1,
  groups: tuple[int, int] = (1, 1),
  sigmoid: bool = True,
) -> Row:
  """Row of experts in groups; arguments are defaults.

  Args:
    count: experts.
    chosen: experts that read a token; `values.MISSING`: it must be given.
    width: inner width of an expert.
    scale: factor of the experts' weights.
    shared: experts that read every token.
    groups: groups of experts, and groups that are open to a token.
    sigmoid: whether odds are sigmoids; otherwise an attribute says whether
      there are groups, and weights do not add up to one.
  """
  names = {
    'count': ('n_routed_experts', count),
    'chosen': ('num_experts_per_tok', chosen),
    'width': ('moe_intermediate_size', width),
    'groups': ('n_group', groups[0]),
    'best_groups': ('topk_group', groups[1]),
  }

  def read(rest, known):
    sizes = values.take_all(rest, names)
    if not sigmoid and not take(rest, 'topk_method', _method, False):
      sizes |= {'groups': 1, 'best_groups': 1}
    common = take(rest, 'n_shared_experts', values.size, shared)
    normal = sigmoid and take(rest, 'norm_topk_prob', values.flag, True)
    factor = take(rest, 'routed_scaling_factor', values.number, scale)
    with blame(f'{", ".join(name for name, _ in names.values())}: '):
      experts = Experts(
        **sizes,
        normalize=normal,
        shared=sizes['width'] * common,
        shared_gate=False,
        sigmoid=sigmoid,
        scale=factor,
      )
    return {'experts': experts}

  return read


def _without_experts(known, layers):
  experts = dataclasses.replace(known['experts'], dense=tuple(layers))
  return {'experts': experts}


_FIRST = 'first_k_dense_replace'


def _first_row(default: int) -> Row:
  """Row of how many layers, the first ones, have no experts."""

  def read(rest, known):
    first = take(rest, _FIRST, values.index, default)
    return _without_experts(known, range(min(first, known['num_layers'])))

  return read


_DENSE, _SPARSE = 'dense', 'sparse'


def _read_types(rest, known):
  layers = known['num_layers']
  usual = [_DENSE, *[_SPARSE] * (layers - 1)]
  kinds = values.of_layers(layers, _DENSE, _SPARSE)
  types = take(rest, 'mlp_layer_types', kinds, usual)
  dense = [i for i in range(layers) if types[i] == _DENSE]
  first = take(rest, _FIRST, values.index, len(dense))
  values.agree(_FIRST, first, len(dense))
  return _without_experts(known, dense)


def _of_queries(config):
  """Sources of the map that makes queries."""
  compressed = config.latent is not None and config.latent.queries is not None
  name = 'q_b_proj' if compressed else 'q_proj'
  return linear('layer{}/latent/q', HEADS, _ATTENTION + name)


_KV_DOWN = _ATTENTION + 'kv_a_proj_with_mqa'
_SHARED = _MLP + 'shared_experts.'
_SOURCES = {
  **QWEN3_MOE.sources,
  **linear('layer{}/latent/q_down', LINEAR, _ATTENTION + 'q_a_proj'),
  **linear('layer{}/latent/kv_down', LINEAR, _KV_DOWN),
  **kept(
    _ATTENTION,
    {
      'latent/q_norm': 'q_a_layernorm.weight',
      'latent/kv_norm': 'kv_a_layernorm.weight',
      'latent/kv_up': 'kv_b_proj.weight',
    },
  ),
  **kept(_MLP, {'experts/router_shift': 'gate.e_score_correction_bias'}),
  **linear(
    'layer{}/shared_up', WAYS, _SHARED + 'gate_proj', _SHARED + 'up_proj'
  ),
  **linear('layer{}/shared_down', LINEAR, _SHARED + 'down_proj'),
}
# Attributes of training, of its machines, and of the layer that drafts.
_HARMLESS = """
  aux_loss_alpha ep_size num_mtp_layers num_nextn_predict_layers seq_aux
"""

DEEPSEEK_V2 = like(
  DECODER,
  'deepseek_v2',
  'DeepseekV2ForCausalLM',
  rows=usual_rows(
    2048,
    BIAS,
    MLP_BIAS,
    grouped_experts_row(64, values.MISSING, 1407, shared=2, sigmoid=False),
    _first_row(0),
    rotary=_latent_row(choice=False),
  ),
  # Readers differ in what is done where weights are to add up to one.
  only={
    'moe_layer_freq': 1,
    'norm_topk_prob': False,
    'scoring_func': 'softmax',
  },
  harmless=_HARMLESS,
  sources=_SOURCES,
  varying=_of_queries,
  unread=('model.layers.{}.',),
)

DEEPSEEK_V3 = like(
  DEEPSEEK_V2,
  'deepseek_v3',
  'DeepseekV3ForCausalLM',
  rows=usual_rows(
    4096,
    BIAS,
    grouped_experts_row(256, 8, 2048, scale=2.5, groups=(8, 4)),
    _first_row(3),
    rotary=_latent_row(),
  ),
  only={
    'moe_layer_freq': 1,
    'scoring_func': 'sigmoid',
    'topk_method': 'noaux_tc',
  },
)

KIMI_K2 = dataclasses.replace(DEEPSEEK_V3, model_type='kimi_k2')

GLM4_MOE_LITE = like(
  DEEPSEEK_V3,
  'glm4_moe_lite',
  'Glm4MoeLiteForCausalLM',
  rows=usual_rows(
    202752,
    BIAS,
    grouped_experts_row(64, 4, 1536, scale=1.8),
    _read_types,
    rotary=_latent_row(queries=768, keys=192, heads=256),
    epsilon=1e-5,
  ),
)

GLM4_MOE = like(
  DEEPSEEK_V3,
  'glm4_moe',
  'Glm4MoeForCausalLM',
  rows=usual_rows(
    131072,
    attribute('attention_bias', 'qkv_bias', values.flag, False),
    attribute('use_qk_norm', 'qk_norm', values.flag, False),
    grouped_experts_row(128, 8, 1408),
    _first_row(1),
    rotary=rope.rope_row(part=0.5),
    epsilon=1e-5,
    kv_heads=8,
  ),
)

YOUTU = like(
  DEEPSEEK_V3,
  'youtu',
  'YoutuForCausalLM',
  rows=usual_rows(131072, BIAS, rotary=_latent_row(), tied=True),
  only={'mlp_bias': False},
  harmless='embedding_initializer_range',
  unread=(),
)

FAMILIES = (DEEPSEEK_V2, DEEPSEEK_V3, KIMI_K2, GLM4_MOE_LITE, GLM4_MOE, YOUTU)
