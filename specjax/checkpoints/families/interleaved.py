"""Families whose rotary positions turn entries that lie side by side.

GLM and GLM-4, ERNIE 4.5, Helium, Cohere 1 and 2. Queries and keys are read in
the order in which entries that are turned together lie half a head apart, as in
the other families: their products are the same, and the decoder is too.
"""

import dataclasses

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.dense import epsilon_row, multiplier_row
from specjax.checkpoints.families.llama import (
  LLAMA,
  SOURCES,
  attention_bias_row,
  size_rows,
  tied_row,
)
from specjax.checkpoints.families.olmo import WINDOWS, unturned
from specjax.checkpoints.families.table import KEEP, TURNED, WAYS, Row, Tensors
from specjax.checkpoints.families.values import attribute

_LAYER = 'model.layers.{}.'
_SOURCES = SOURCES | {
  key: SOURCES[key]._replace(split=TURNED)
  for key in ('layer{}/qkv/w', 'layer{}/qkv/b')
}
# A scaling of sine and cosine would scale what is not turned, too.
_UNSCALED = 'default', 'linear', 'dynamic', 'llama3'

GLM = dataclasses.replace(
  LLAMA,
  model_type='glm',
  architecture='GlmForCausalLM',
  rows=(
    *size_rows(131072, kv_heads=2, head_dim=128),
    rope.rope_row(part=0.5, allowed=_UNSCALED),
    values.SILU,
    epsilon_row(1.5625e-7),
    attribute('attention_bias', 'qkv_bias', values.flag, True),
    tied_row(False),
  ),
  fixed={'rotary_apart': True},
  only={},
  sources=_SOURCES
  | {'layer{}/up/w': Tensors(WAYS, (_LAYER + 'mlp.gate_up_proj.weight',))},
)

GLM4 = dataclasses.replace(
  GLM,
  model_type='glm4',
  architecture='Glm4ForCausalLM',
  fixed={'rotary_apart': True, 'post_norms': True},
  sources={
    **GLM.sources,
    **{
      f'layer{{}}/{key}/scale': Tensors(
        KEEP, (_LAYER + f'post_{name}_layernorm.weight',)
      )
      for key, name in (('post1', 'self_attn'), ('post2', 'mlp'))
    },
  },
)

ERNIE4_5 = dataclasses.replace(
  LLAMA,
  model_type='ernie4_5',
  architecture='Ernie4_5ForCausalLM',
  rows=(
    *size_rows(131072, kv_heads=2, head_dim=128),
    rope.rope_row(5e5),
    values.SILU,
    epsilon_row(1e-5),
    attribute(
      'use_bias', ('qkv_bias', 'out_bias', 'mlp_bias'), values.flag, False
    ),
    tied_row(True),
  ),
  only={},
  sources=_SOURCES,
)

HELIUM = dataclasses.replace(
  LLAMA,
  model_type='helium',
  architecture='HeliumForCausalLM',
  rows=(
    *size_rows(4096, head_dim=128),
    rope.rope_row(1e5),
    values.SILU,
    epsilon_row(1e-8),
    attribute('attention_bias', 'qkv_bias', values.flag, False),
    attribute('mlp_bias', 'mlp_bias', values.flag, False),
    tied_row(False),
  ),
  only={},
  sources=_SOURCES,
)

_COHERE_ROWS = (
  values.SILU,
  epsilon_row(1e-5, 'layer_norm_eps'),
  multiplier_row('logit_scale', 'head_scale', 0.0625),
  attention_bias_row(False),
  tied_row(True),
)

COHERE = dataclasses.replace(
  LLAMA,
  model_type='cohere',
  architecture='CohereForCausalLM',
  rows=(*size_rows(8192), rope.rope_row(), *_COHERE_ROWS),
  fixed={
    'layer_norm': True,
    'norm_bias': False,
    'parallel': True,
    'one_norm': True,
  },
  only={'use_qk_norm': False},
  sources=_SOURCES,
)


def _read_windows(rest, known):
  windows = WINDOWS.read(rest, known)['windows']
  return {'windows': windows, 'unturned': unturned(windows, known)}


COHERE2 = dataclasses.replace(
  COHERE,
  model_type='cohere2',
  architecture='Cohere2ForCausalLM',
  rows=(
    *size_rows(8192),
    rope.rope_row(),
    Row(_read_windows, WINDOWS.write),
    *_COHERE_ROWS,
  ),
  # What the first files say and no reader looks at.
  only={
    'order_of_interleaved_layers': 'local_attn_first',
    'position_embedding_type': 'rope_gptj',
    'rotary_pct': 1.0,
    'use_embedding_sharing': True,
    'use_gated_activation': True,
    'use_parallel_block': True,
    'use_qk_norm': False,
  },
  harmless=frozenset({'layer_switch', 'use_parallel_embedding'}),
)
