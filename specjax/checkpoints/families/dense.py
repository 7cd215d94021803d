"""Families that differ from Llama in one or two choices of its decoder.

SmolLM3 has no positions in every fourth layer, Granite has four multipliers,
Seed-OSS other biases, Arcee an MLP without a gate, Ministral 3 queries that
grow with their position, Hunyuan norms behind the positions, StarCoder 2, Jais
2, Nemotron, StableLM and Phi LayerNorms, and Phi one of them for both attention
and MLP.
"""

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.llama import (
  BIAS,
  BIASES,
  DECODER,
  MLP_BIAS,
  SOURCES,
  attention_bias_row,
  epsilon_row,
  like,
  usual_rows,
)
from specjax.checkpoints.families.table import (
  KEEP,
  LINEAR,
  WAYS,
  Row,
  Tensors,
  linear,
  norm,
  scale,
)
from specjax.checkpoints.families.values import attribute, take
from specjax.errors import blame

_LAYER = 'model.layers.{}.'
_TRAINING = 'embedding_dropout pretraining_tp residual_dropout'


def _flags(value):
  good = isinstance(value, list) and all(x in (0, 1) for x in value)
  if not good:
    raise ValueError('a list of 1 for layers with positions and 0 for others')
  return value


def _read_unturned(rest, known):
  each = take(rest, 'no_rope_layer_interval', values.size, 4)
  layers = known['num_layers']
  usual = [int(bool((i + 1) % each)) for i in range(layers)]
  turned = take(rest, 'no_rope_layers', _flags, usual)
  if len(turned) < layers:
    raise ValueError(f'no_rope_layers has {len(turned)} of {layers} layers')
  return {'unturned': tuple(i for i in range(layers) if not turned[i])}


SMOLLM3 = like(
  DECODER,
  'smollm3',
  'SmolLM3ForCausalLM',
  rows=usual_rows(
    32768,
    BIAS,
    MLP_BIAS,
    rotary=rope.rope_row(2e6),
    layers=(
      _read_unturned,
      values.window_by_layer_row(
        None, lambda layer, known: layer in known['unturned'], switch=True
      ),
    ),
    tied=True,
    kv_heads=4,
  ),
  harmless=f'{_TRAINING} max_window_layers',
)

SEED_OSS = like(
  DECODER,
  'seed_oss',
  'SeedOssForCausalLM',
  rows=usual_rows(
    524288,
    attribute('attention_bias', 'qkv_bias', values.flag, True),
    attribute('attention_out_bias', 'out_bias', values.flag, False),
    MLP_BIAS,
    kv_heads=8,
    head_dim=128,
  ),
  harmless=_TRAINING,
)

_UP = linear('layer{}/up', WAYS, _LAYER + 'mlp.up_proj')
_RELU2 = values.activation_row('hidden_act', 'relu2')

ARCEE = like(
  DECODER,
  'arcee',
  'ArceeForCausalLM',
  rows=usual_rows(4096, BIAS, MLP_BIAS, activation=_RELU2, epsilon=1e-5),
  fixed={'gated': False},
  sources=SOURCES | _UP,
)


def _multiplier(value):
  value = values.number(value)
  return None if value == 1 else value


def multiplier_row(name: str, field: str, default: float | None = None) -> Row:
  """Returns the row of a multiplier; a multiplier of 1 adds no operation."""
  return attribute(name, field, _multiplier, default)


def _attention_row(default: float | None) -> Row:
  def read(rest, known):
    usual = known['head_dim'] ** -0.5
    missing = usual if default is None else default
    value = take(rest, 'attention_multiplier', values.number, missing)
    return {'query_scale': None if value == usual else value}

  return read


def _inverse(value):
  multiplier = _multiplier(value)
  return multiplier and 1 / multiplier


_MULTIPLIERS = (
  multiplier_row('embedding_multiplier', 'embedding_scale'),
  multiplier_row('residual_multiplier', 'residual_scale'),
)

GRANITE_ROWS = (
  *_MULTIPLIERS,
  _attention_row(1.0),
  attribute('logits_scaling', 'head_scale', _inverse, None),
)
GRANITE = like(
  DECODER,
  'granite',
  'GraniteForCausalLM',
  rows=usual_rows(2048, BIAS, MLP_BIAS, *GRANITE_ROWS),
)

HYPERCLOVAX = like(
  DECODER,
  'hyperclovax',
  'HyperCLOVAXForCausalLM',
  rows=usual_rows(
    2048,
    BIAS,
    MLP_BIAS,
    *_MULTIPLIERS,
    _attention_row(None),
    multiplier_row('logits_scaling', 'head_scale'),
    attribute('use_post_norm', 'post_norms', values.flag, True),
  ),
  sources=SOURCES
  | scale(_LAYER + 'post_norm1', 'layer{}/post1')
  | scale(_LAYER + 'post_norm2', 'layer{}/post2'),
)

_GROWTH = 'llama_4_scaling_beta'
_MINISTRAL_ROPE = {
  'rope_type': 'yarn',
  'rope_theta': 1e6,
  'factor': 16.0,
  'original_max_position_embeddings': 16384,
  'mscale_all_dim': 1.0,
  'mscale': 1.0,
  _GROWTH: 0.1,
}
_ROPE = rope.rope_row(1e6)


MINISTRAL = like(
  DECODER,
  'ministral',
  'MinistralForCausalLM',
  rows=usual_rows(
    131072,
    layers=(values.window_by_layer_row(4096, lambda layer, known: True),),
    kv_heads=8,
  ),
)


def _read_growing(rest, known):
  name = 'rope_parameters' if rest.get('rope_parameters') else 'rope_scaling'
  inner = rest.get(name)
  if inner is None:
    name, inner = 'rope_parameters', _MINISTRAL_ROPE
  if not isinstance(inner, dict):
    raise ValueError(f'{name} = {inner!r} must be an object')
  inner = dict(inner)
  inner.pop('max_position_embeddings', None)
  original = 'original_max_position_embeddings'
  with blame(f'{name}: '):
    rate = take(inner, _GROWTH, values.number)
    each = take(dict(inner), original, values.size)
  if inner.get('rope_type', inner.get('type', 'default')) == 'default':
    del inner[original]
  fields = _ROPE(rest | {name: inner}, known)
  for place in ('rope_parameters', 'rope_scaling', 'rope_theta'):
    rest.pop(place, None)
  return fields | {'query_growth': (rate, each)}


MINISTRAL3 = like(
  DECODER,
  'ministral3',
  'Ministral3ForCausalLM',
  rows=usual_rows(
    262144,
    rotary=_read_growing,
    layers=(values.window_row(None),),
    epsilon=1e-5,
    kv_heads=8,
    head_dim=128,
  ),
)

_HUNYUAN_ROPE = rope.rope_row()


def _read_alpha(rest, known):
  """A factor of the base, fixed under the name of a scaling that is not."""
  for name in ('rope_parameters', 'rope_scaling'):
    inner = rest.get(name)
    if not isinstance(inner, dict):
      continue
    inner = dict(inner)
    alpha = take(inner, 'alpha', values.number, None)
    kind = inner.get('rope_type', inner.get('type'))
    if alpha is not None and kind == 'dynamic':
      theta = take(rest, 'rope_theta', values.number, 1e4)
      theta = take(inner, 'rope_theta', values.number, theta)
      dim = known['head_dim']
      try:
        grown = values.number(theta * alpha ** (dim / (dim - 2)))
      except (ValueError, ArithmeticError):
        raise ValueError(
          f'{name}.alpha = {alpha} makes no base of rope_theta = {theta} and '
          f'head_dim = {dim}; expected a smaller alpha, and heads above 2'
        ) from None
      for unused in ('rope_parameters', 'rope_scaling', 'rope_theta'):
        rest.pop(unused, None)
      rest['rope_theta'] = grown
      break
    # In no other scaling does it count.
    rest[name] = inner
  return _HUNYUAN_ROPE(rest, known)


# Of classifiers, images and other sizes; the classes of text read none of it.
_HUNYUAN_UNREAD = """
  attention_head_dim cla_share_factor class_num dense_list eod_token_id
  im_end_id im_newline_id im_start_id mask_init_id org_vocab_size pad_id
  pool_type sep_token_id text_end_id text_start_id
"""

HUNYUAN = like(
  DECODER,
  'hunyuan_v1_dense',
  'HunYuanDenseV1ForCausalLM',
  rows=usual_rows(2048, BIAS, rotary=_read_alpha, epsilon=1e-5),
  fixed={'qk_norm': True, 'qk_norm_last': True},
  only={
    'add_classification_head': False,
    'mlp_bias': False,
    'num_experts': 1,
    'use_cla': False,
    'use_qk_norm': True,
    'use_rotary_pos_emb': True,
  },
  sources=SOURCES
  | scale(_LAYER + 'self_attn.query_layernorm', 'layer{}/q_norm')
  | scale(_LAYER + 'self_attn.key_layernorm', 'layer{}/k_norm'),
  harmless=_TRAINING + _HUNYUAN_UNREAD,
)

_NORMS = (
  norm('model.norm', 'norm')
  | norm(_LAYER + 'input_layernorm', 'layer{}/norm1')
  | norm(_LAYER + 'post_attention_layernorm', 'layer{}/norm2')
)
_PLAIN = {'layer_norm': True, 'gated': False}

STARCODER2 = like(
  DECODER,
  'starcoder2',
  'Starcoder2ForCausalLM',
  rows=usual_rows(
    4096,
    attribute('use_bias', BIASES, values.flag, True),
    layers=(values.window_row(None),),
    activation=values.activation_row('hidden_act', 'gelu_pytorch_tanh'),
    epsilon=epsilon_row(1e-5, 'norm_epsilon'),
    tied=True,
    kv_heads=2,
  ),
  fixed=_PLAIN,
  sources=SOURCES
  | _NORMS
  | linear('layer{}/up', WAYS, _LAYER + 'mlp.c_fc')
  | linear('layer{}/down', LINEAR, _LAYER + 'mlp.c_proj'),
  harmless=_TRAINING,
)

JAIS2 = like(
  DECODER,
  'jais2',
  'Jais2ForCausalLM',
  rows=usual_rows(
    8192,
    attention_bias_row(True),
    attribute('mlp_bias', 'mlp_bias', values.flag, True),
    activation=_RELU2,
    epsilon=epsilon_row(1e-5, 'layer_norm_eps'),
  ),
  fixed=_PLAIN,
  sources=SOURCES | _NORMS | _UP,
)

NEMOTRON = like(
  JAIS2,
  'nemotron',
  'NemotronForCausalLM',
  rows=usual_rows(
    4096,
    BIAS,
    MLP_BIAS,
    rotary=rope.rope_row(part=0.5),
    activation=_RELU2,
    epsilon=epsilon_row(1e-5, 'norm_eps'),
  ),
  fixed=_PLAIN | {'norm_plus_one': True},
)

STABLELM = like(
  DECODER,
  'stablelm',
  'StableLmForCausalLM',
  rows=usual_rows(
    4096,
    attribute('use_qkv_bias', 'qkv_bias', values.flag, False),
    attribute(
      'use_parallel_residual', ('parallel', 'one_norm'), values.flag, False
    ),
    rotary=rope.rope_row(part=0.25),
    epsilon=epsilon_row(1e-5, 'layer_norm_eps'),
    kv_heads=32,
  ),
  fixed={'layer_norm': True},
  only={'qk_layernorm': False, 'rotary_scaling_factor': 1.0},
  sources=SOURCES | _NORMS,
  harmless='hidden_dropout use_norm_bias',
)

PHI = like(
  DECODER,
  'phi',
  'PhiForCausalLM',
  rows=usual_rows(
    2048,
    rotary=rope.rope_row(part=0.5),
    activation=values.activation_row('hidden_act', 'gelu_new'),
    epsilon=epsilon_row(1e-5, 'layer_norm_eps'),
  ),
  fixed=_PLAIN
  | dict.fromkeys(('parallel', 'one_norm', 'head_bias', *BIASES), True),
  only={'qk_layernorm': False},
  sources=SOURCES
  | norm('model.final_layernorm', 'norm')
  | norm(_LAYER + 'input_layernorm', 'layer{}/norm1')
  | {'unembedding_bias': Tensors(KEEP, ('lm_head.bias',))}
  | linear('layer{}/out', LINEAR, _LAYER + 'self_attn.dense')
  | linear('layer{}/up', WAYS, _LAYER + 'mlp.fc1')
  | linear('layer{}/down', LINEAR, _LAYER + 'mlp.fc2'),
  harmless=_TRAINING,
)

FAMILIES = (
  SMOLLM3,
  GRANITE,
  SEED_OSS,
  MINISTRAL3,
  STARCODER2,
  HUNYUAN,
  ARCEE,
  PHI,
  MINISTRAL,
  NEMOTRON,
  STABLELM,
  HYPERCLOVAX,
  JAIS2,
)
