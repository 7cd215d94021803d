"""Llama 2 and 3, and what is nearly Llama.

Mistral has a sliding window, Mixtral a mixture of experts in every layer, and
Phi-3 fused tensors, a window and LongRoPE.
"""

import dataclasses

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.table import (
  GROUPS,
  KEEP,
  LINEAR,
  WAYS,
  Family,
  Row,
  Tensors,
  experts,
  linear,
  scale,
)
from specjax.checkpoints.families.values import attribute, take
from specjax.models.config import Experts

# Where most families keep their tensors. Rows of biases and head norms are
# used by those that have them.
_LAYER = 'model.layers.{}.'
_ATTENTION = _LAYER + 'self_attn.'
SOURCES = (
  {
    'embedding': Tensors(KEEP, ('model.embed_tokens.weight',)),
    'unembedding': Tensors(LINEAR, ('lm_head.weight',)),
  }
  | scale('model.norm', 'norm')
  | scale(_LAYER + 'input_layernorm', 'layer{}/norm1')
  | scale(_LAYER + 'post_attention_layernorm', 'layer{}/norm2')
  | scale(_ATTENTION + 'q_norm', 'layer{}/q_norm')
  | scale(_ATTENTION + 'k_norm', 'layer{}/k_norm')
  | linear('layer{}/qkv', GROUPS, *(_ATTENTION + f'{x}_proj' for x in 'qkv'))
  | linear('layer{}/out', LINEAR, _ATTENTION + 'o_proj')
  | linear('layer{}/up', WAYS, _LAYER + 'mlp.gate_proj', _LAYER + 'mlp.up_proj')
  | linear('layer{}/down', LINEAR, _LAYER + 'mlp.down_proj')
)


def size_rows(
  max_positions: int,
  kv_heads: int | None = None,
  head_dim: int | None = None,
  **usual: int,
) -> tuple[Row, ...]:
  """Rows of the sizes.

  Args:
    max_positions: default of the longest sequence.
    kv_heads: default of the key-value heads; None: as many as heads.
    head_dim: default of their width; None: the model's over the heads.
    usual: defaults of other sizes, by attribute; without one it must be given.
  """

  def row(name, field):
    default = {'default': usual[name]} if name in usual else {}
    return attribute(name, field, values.size, **default)

  return (
    row('vocab_size', 'vocab_size'),
    row('hidden_size', 'width'),
    row('num_hidden_layers', 'num_layers'),
    row('num_attention_heads', 'num_heads'),
    attribute(
      'num_key_value_heads',
      'num_kv_heads',
      values.size,
      lambda known: kv_heads or known['num_heads'],
      null=lambda known: known['num_heads'],
    ),
    attribute(
      'head_dim',
      'head_dim',
      values.size,
      lambda known: head_dim or known['width'] // known['num_heads'],
    ),
    row('intermediate_size', 'mlp_width'),
    attribute(
      'max_position_embeddings', 'max_positions', values.size, max_positions
    ),
  )


def epsilon_row(default: float, name: str = 'rms_norm_eps') -> Row:
  return attribute(name, 'norm_eps', values.number, default)


def tied_row(default: bool) -> Row:
  return attribute(
    'tie_word_embeddings', 'tied_embeddings', values.flag, default
  )


def attention_bias_row(default: bool) -> Row:
  return attribute(
    'attention_bias', ('qkv_bias', 'out_bias'), values.flag, default
  )


BIASES = 'qkv_bias', 'out_bias', 'mlp_bias'
BIAS = attention_bias_row(False)
MLP_BIAS = attribute('mlp_bias', 'mlp_bias', values.flag, False)


def usual_rows(
  max_positions: int,
  *more: Row,
  rotary: Row | None = None,
  layers: tuple[Row, ...] = (),
  activation: Row = values.SILU,
  epsilon: Row | float = 1e-6,
  tied: bool = False,
  **sizes: int,
) -> tuple[Row, ...]:
  """Rows that nearly every family has.

  Args:
    max_positions: default of the longest sequence.
    *more: other rows.
    rotary: row of the positions; None: plain ones.
    layers: rows of windows.
    activation: row of the function.
    epsilon: row of the norms' epsilon, or its default.
    tied: default of whether the head is the embedding.
    **sizes: as of `size_rows`.
  """
  if not callable(epsilon):
    epsilon = epsilon_row(epsilon)
  return (
    *size_rows(max_positions, **sizes),
    rotary or rope.rope_row(),
    *layers,
    activation,
    epsilon,
    *more,
    tied_row(tied),
  )


def like(base: Family, model_type: str, architecture: str, **changes) -> Family:
  """Returns a family that differs from another one in some fields."""
  return dataclasses.replace(
    base, model_type=model_type, architecture=architecture, **changes
  )


def experts_row(
  name: str, count: int, chosen: int, normalize: bool | None = None
) -> Row:
  """Row of experts, whose width is the attribute of an MLP.

  Args:
    name: of the attribute that counts them.
    count: default of their number.
    chosen: default of how many of them read a token.
    normalize: default of whether their weights add up to one; None: they do,
      and there is no attribute.
  """
  norm = 'norm_topk_prob'

  def read(rest, known):
    numbers = (
      take(rest, name, values.size, count),
      take(rest, 'num_experts_per_tok', values.size, chosen),
    )
    normal = normalize is None or take(rest, norm, values.flag, normalize)
    return {'experts': Experts(*numbers, known['mlp_width'], normal)}

  return read


LLAMA = Family(
  model_type='llama',
  architecture='LlamaForCausalLM',
  rows=usual_rows(2048, BIAS, MLP_BIAS),
  fixed={},
  only={'rope_interleaved': False},
  harmless='is_llama_config',
  sources=SOURCES,
  # Old files store the rotary frequencies, which follow from the base.
  ignored=('.rotary_emb.inv_freq',),
)
DECODER = dataclasses.replace(LLAMA, only={})  # that most families differ from

MISTRAL = like(
  DECODER,
  'mistral',
  'MistralForCausalLM',
  rows=usual_rows(131072, layers=(values.window_row(4096),), kv_heads=8),
)

PHI3 = like(
  DECODER,
  'phi3',
  'Phi3ForCausalLM',
  rows=usual_rows(
    4096,
    rotary=rope.rope_row(
      allowed=('default', 'longrope', 'su'), part=1.0, original=4096
    ),
    layers=(values.window_row(None),),
    epsilon=1e-5,
  ),
  only={
    'attention_bias': False,
    'full_attn_mod': 1,
    'interpolate_factor': 1,
    'lm_head_bias': False,
    'mlp_bias': False,
  },
  harmless='',
  sources=SOURCES
  | linear('layer{}/qkv', GROUPS, _ATTENTION + 'qkv_proj')
  | linear('layer{}/up', WAYS, _LAYER + 'mlp.gate_up_proj'),
)

MIXTRAL = like(
  MISTRAL,
  'mixtral',
  'MixtralForCausalLM',
  rows=usual_rows(
    131072,
    experts_row('num_local_experts', 8, 2),
    rotary=rope.rope_row(1e6),
    layers=(values.window_row(None),),
    epsilon=1e-5,
    kv_heads=8,
  ),
  sources=SOURCES
  | experts(_LAYER + 'block_sparse_moe.', 'w1', 'w3', down='w2'),
  # Noise that is added in training only.
  harmless='router_jitter_noise',
)

FAMILIES = (LLAMA, MISTRAL, PHI3, MIXTRAL)
