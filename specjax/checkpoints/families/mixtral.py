"""Mixtral: Mistral with a mixture of experts in every layer."""

import dataclasses

from specjax.checkpoints.families import rope, values, windows
from specjax.checkpoints.families.llama import (
  MISTRAL,
  SOURCES,
  size_rows,
  tied_row,
)
from specjax.checkpoints.families.table import (
  EXPERT_WAYS,
  EXPERTS,
  LINEAR,
  Row,
  Tensors,
)
from specjax.checkpoints.families.values import attribute, take
from specjax.models.config import Experts

_BLOCK = 'model.layers.{}.block_sparse_moe.'
_EXPERT = _BLOCK + 'experts.{expert}.'


def _read_experts(rest, known):
  experts = Experts(
    take(rest, 'num_local_experts', values.size, 8),
    take(rest, 'num_experts_per_tok', values.size, 2),
    known['mlp_width'],
  )
  return {'experts': experts}


def _write_experts(config):
  experts = config.experts
  if experts is None:
    raise ValueError('experts = None')
  return {
    'num_local_experts': experts.count,
    'num_experts_per_tok': experts.chosen,
  }


MIXTRAL = dataclasses.replace(
  MISTRAL,
  model_type='mixtral',
  architecture='MixtralForCausalLM',
  rows=(
    *size_rows(131072, kv_heads=8),
    rope.rope_row(1e6),
    windows.everywhere(None),
    values.activation_row('hidden_act', 'silu'),
    attribute('rms_norm_eps', 'norm_eps', values.number, 1e-5),
    tied_row(False),
    Row(_read_experts, _write_experts),
  ),
  sources=SOURCES
  | {
    'layer{}/experts/router': Tensors(LINEAR, (_BLOCK + 'gate.weight',)),
    'layer{}/experts/up': Tensors(
      EXPERT_WAYS, (_EXPERT + 'w1.weight', _EXPERT + 'w3.weight')
    ),
    'layer{}/experts/down': Tensors(EXPERTS, (_EXPERT + 'w2.weight',)),
  },
  # Noise that is added in training only.
  harmless=frozenset({'router_jitter_noise'}),
)
