"""Families whose rotary positions turn entries that lie side by side.

GLM and GLM-4, ERNIE 4.5, Helium, Cohere 1 and 2. Queries and keys are read in
the order in which entries that are turned together lie half a head apart, as in
the other families: their products are the same, and the decoder is too.
"""

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.dense import multiplier_row
from specjax.checkpoints.families.llama import (
  BIAS,
  BIASES,
  DECODER,
  MLP_BIAS,
  SOURCES,
  epsilon_row,
  like,
  usual_rows,
)
from specjax.checkpoints.families.olmo import WINDOWS, unturned
from specjax.checkpoints.families.table import (
  TURNED,
  WAYS,
  Row,
  linear,
  scale,
)
from specjax.checkpoints.families.values import attribute

_LAYER = 'model.layers.{}.'
_SOURCES = SOURCES | {
  key: SOURCES[key]._replace(split=TURNED)
  for key in ('layer{}/qkv/w', 'layer{}/qkv/b')
}
# A scaling of sine and cosine would scale what is not turned, too.
_UNSCALED = 'default', 'linear', 'dynamic', 'llama3'

GLM = like(
  DECODER,
  'glm',
  'GlmForCausalLM',
  rows=usual_rows(
    131072,
    attribute('attention_bias', 'qkv_bias', values.flag, True),
    rotary=rope.rope_row(part=0.5, allowed=_UNSCALED),
    epsilon=1.5625e-7,
    kv_heads=2,
    head_dim=128,
  ),
  fixed={'rotary_apart': True},
  sources=_SOURCES | linear('layer{}/up', WAYS, _LAYER + 'mlp.gate_up_proj'),
)

GLM4 = like(
  GLM,
  'glm4',
  'Glm4ForCausalLM',
  fixed={'rotary_apart': True, 'post_norms': True},
  sources={
    **GLM.sources,
    **scale(_LAYER + 'post_self_attn_layernorm', 'layer{}/post1')
    | scale(_LAYER + 'post_mlp_layernorm', 'layer{}/post2'),
  },
)

ERNIE4_5 = like(
  DECODER,
  'ernie4_5',
  'Ernie4_5ForCausalLM',
  rows=usual_rows(
    131072,
    attribute('use_bias', BIASES, values.flag, False),
    rotary=rope.rope_row(5e5),
    epsilon=1e-5,
    tied=True,
    kv_heads=2,
    head_dim=128,
  ),
  sources=_SOURCES,
)

HELIUM = like(
  DECODER,
  'helium',
  'HeliumForCausalLM',
  rows=usual_rows(
    4096,
    attribute('attention_bias', 'qkv_bias', values.flag, False),
    MLP_BIAS,
    rotary=rope.rope_row(1e5),
    epsilon=1e-8,
    head_dim=128,
  ),
  sources=_SOURCES,
)


def _cohere_rows(*layers: Row) -> tuple[Row, ...]:
  return usual_rows(
    8192,
    multiplier_row('logit_scale', 'head_scale', 0.0625),
    BIAS,
    layers=layers,
    epsilon=epsilon_row(1e-5, 'layer_norm_eps'),
    tied=True,
  )


COHERE = like(
  DECODER,
  'cohere',
  'CohereForCausalLM',
  rows=_cohere_rows(),
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
  windows = WINDOWS(rest, known)['windows']
  return {'windows': windows, 'unturned': unturned(windows, known)}


COHERE2 = like(
  COHERE,
  'cohere2',
  'Cohere2ForCausalLM',
  rows=_cohere_rows(_read_windows),
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
  harmless='layer_switch use_parallel_embedding',
)

FAMILIES = (GLM4, COHERE2, ERNIE4_5, GLM, COHERE, HELIUM)
