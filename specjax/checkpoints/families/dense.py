"""Families that differ from Llama in one or two choices of its decoder.

SmolLM3 has no positions in every fourth layer, Granite has four multipliers,
Seed-OSS other biases, Arcee an MLP without a gate, Ministral 3 queries that
grow with their position, Hunyuan norms behind the positions, StarCoder 2, Jais
2, Nemotron, StableLM and Phi LayerNorms, and Phi one of them for both attention
and MLP.
"""

import dataclasses

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.llama import (
  LLAMA,
  SOURCES,
  attention_bias_row,
  size_rows,
  tied_row,
)
from specjax.checkpoints.families.table import KEEP, LINEAR, WAYS, Row, Tensors
from specjax.checkpoints.families.values import attribute, take

_LAYER = 'model.layers.{}.'
_MLP_BIAS = attribute('mlp_bias', 'mlp_bias', values.flag, False)
_TRAINING = frozenset(
  {'embedding_dropout', 'pretraining_tp', 'residual_dropout'}
)


def epsilon_row(default: float, name: str = 'rms_norm_eps') -> Row:
  return attribute(name, 'norm_eps', values.number, default)


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


def _write_unturned(config):
  layers = range(config.num_layers)
  return {'no_rope_layers': [int(i not in config.unturned) for i in layers]}


SMOLLM3 = dataclasses.replace(
  LLAMA,
  model_type='smollm3',
  architecture='SmolLM3ForCausalLM',
  rows=(
    *size_rows(32768, kv_heads=4),
    rope.rope_row(2e6),
    Row(_read_unturned, _write_unturned),
    values.window_by_layer_row(
      None, lambda layer, known: layer in known['unturned'], switch=True
    ),
    values.SILU,
    epsilon_row(1e-6),
    attention_bias_row(False),
    _MLP_BIAS,
    tied_row(True),
  ),
  only={},
  harmless=_TRAINING | {'max_window_layers'},
)

SEED_OSS = dataclasses.replace(
  LLAMA,
  model_type='seed_oss',
  architecture='SeedOssForCausalLM',
  rows=(
    *size_rows(524288, kv_heads=8, head_dim=128),
    rope.rope_row(),
    values.SILU,
    epsilon_row(1e-6),
    attribute('attention_bias', 'qkv_bias', values.flag, True),
    attribute('attention_out_bias', 'out_bias', values.flag, False),
    _MLP_BIAS,
    tied_row(False),
  ),
  only={},
  harmless=_TRAINING,
)

_UP = {
  'layer{}/up/w': Tensors(WAYS, (_LAYER + 'mlp.up_proj.weight',)),
  'layer{}/up/b': Tensors(WAYS, (_LAYER + 'mlp.up_proj.bias',)),
}

ARCEE = dataclasses.replace(
  LLAMA,
  model_type='arcee',
  architecture='ArceeForCausalLM',
  rows=(
    *size_rows(4096),
    rope.rope_row(),
    values.activation_row('hidden_act', 'relu2'),
    epsilon_row(1e-5),
    attention_bias_row(False),
    _MLP_BIAS,
    tied_row(False),
  ),
  fixed={'gated': False},
  only={},
  sources=SOURCES | _UP,
)


def multiplier_row(name: str, field: str, default: float = 1.0) -> Row:
  """Returns the row of a multiplier; a multiplier of 1 adds no operation."""
  row = attribute(name, field, values.number, default)

  def read(rest, known):
    (value,) = row.read(rest, known).values()
    return {field: None if value == 1 else value}

  def write(config):
    value = getattr(config, field)
    return {name: 1.0 if value is None else value}

  return Row(read, write)


def _attention_row(default: float | None) -> Row:
  name = 'attention_multiplier'

  def read(rest, known):
    usual = known['head_dim'] ** -0.5
    value = take(
      rest, name, values.number, usual if default is None else default
    )
    return {'query_scale': None if value == usual else value}

  def write(config):
    scale = config.query_scale
    return {name: config.head_dim**-0.5 if scale is None else scale}

  return Row(read, write)


def _read_logits(rest, known):
  del known  # Unused.
  value = take(rest, 'logits_scaling', values.number, 1.0)
  return {'head_scale': None if value == 1 else 1 / value}


def _write_logits(config):
  scale = config.head_scale or 1.0
  whole = round(1 / scale) or 1
  return {'logits_scaling': whole if 1 / whole == scale else 1 / scale}


_MULTIPLIERS = (
  multiplier_row('embedding_multiplier', 'embedding_scale'),
  multiplier_row('residual_multiplier', 'residual_scale'),
)

GRANITE = dataclasses.replace(
  LLAMA,
  model_type='granite',
  architecture='GraniteForCausalLM',
  rows=(
    *size_rows(2048),
    rope.rope_row(),
    values.SILU,
    epsilon_row(1e-6),
    attention_bias_row(False),
    _MLP_BIAS,
    *_MULTIPLIERS,
    _attention_row(1.0),
    Row(_read_logits, _write_logits),
    tied_row(False),
  ),
  only={},
)

HYPERCLOVAX = dataclasses.replace(
  LLAMA,
  model_type='hyperclovax',
  architecture='HyperCLOVAXForCausalLM',
  rows=(
    *size_rows(2048),
    rope.rope_row(),
    values.SILU,
    epsilon_row(1e-6),
    attention_bias_row(False),
    _MLP_BIAS,
    *_MULTIPLIERS,
    _attention_row(None),
    multiplier_row('logits_scaling', 'head_scale'),
    attribute('use_post_norm', 'post_norms', values.flag, True),
    tied_row(False),
  ),
  only={},
  sources=SOURCES
  | {
    f'layer{{}}/post{i}/scale': Tensors(
      KEEP, (_LAYER + f'post_norm{i}.weight',)
    )
    for i in (1, 2)
  },
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


MINISTRAL = dataclasses.replace(
  LLAMA,
  model_type='ministral',
  architecture='MinistralForCausalLM',
  rows=(
    *size_rows(131072, kv_heads=8),
    rope.rope_row(),
    values.window_by_layer_row(4096, lambda layer, known: True),
    values.SILU,
    epsilon_row(1e-6),
    tied_row(False),
  ),
  only={},
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
  try:
    rate = take(inner, _GROWTH, values.number)
    each = take(dict(inner), original, values.size)
  except ValueError as error:
    raise ValueError(f'{name}: {error}') from None
  if inner.get('rope_type', inner.get('type', 'default')) == 'default':
    del inner[original]
  fields = _ROPE.read(rest | {name: inner}, known)
  for place in ('rope_parameters', 'rope_scaling', 'rope_theta'):
    rest.pop(place, None)
  return fields | {'query_growth': (rate, each)}


def _write_growing(config):
  if config.query_growth is None:
    raise ValueError('query_growth = None')
  rate, each = config.query_growth
  written = _ROPE.write(config)
  growth = {_GROWTH: rate, 'original_max_position_embeddings': each}
  return {'rope_parameters': written['rope_parameters'] | growth}


MINISTRAL3 = dataclasses.replace(
  LLAMA,
  model_type='ministral3',
  architecture='Ministral3ForCausalLM',
  rows=(
    *size_rows(262144, kv_heads=8, head_dim=128),
    Row(_read_growing, _write_growing),
    values.window_row(None),
    values.SILU,
    epsilon_row(1e-5),
    tied_row(False),
  ),
  only={},
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
  return _HUNYUAN_ROPE.read(rest, known)


# Of classifiers, images and other sizes; the classes of text read none of it.
_WORDS = """
  attention_head_dim cla_share_factor class_num dense_list eod_token_id
  im_end_id im_newline_id im_start_id mask_init_id org_vocab_size pad_id
  pool_type sep_token_id text_end_id text_start_id
"""
_HUNYUAN_UNREAD = frozenset(_WORDS.split())

HUNYUAN = dataclasses.replace(
  LLAMA,
  model_type='hunyuan_v1_dense',
  architecture='HunYuanDenseV1ForCausalLM',
  rows=(
    *size_rows(2048),
    Row(_read_alpha, _HUNYUAN_ROPE.write),
    values.SILU,
    epsilon_row(1e-5),
    attention_bias_row(False),
    tied_row(False),
  ),
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
  | {
    f'layer{{}}/{key}_norm/scale': Tensors(
      KEEP, (_LAYER + f'self_attn.{name}_layernorm.weight',)
    )
    for key, name in (('q', 'query'), ('k', 'key'))
  },
  harmless=_TRAINING | _HUNYUAN_UNREAD,
)


def norm_biases(names: dict[str, str]) -> dict[str, Tensors]:
  """Sources of norms with a bias, by their names in a file."""
  return {
    f'{key}/{ours}': Tensors(KEEP, (f'{name}.{theirs}',))
    for key, name in names.items()
    for ours, theirs in (('scale', 'weight'), ('bias', 'bias'))
  }


_NORMS = norm_biases(
  {
    'norm': 'model.norm',
    'layer{}/norm1': _LAYER + 'input_layernorm',
    'layer{}/norm2': _LAYER + 'post_attention_layernorm',
  }
)
_BIASES = 'qkv_bias', 'out_bias', 'mlp_bias'

STARCODER2 = dataclasses.replace(
  LLAMA,
  model_type='starcoder2',
  architecture='Starcoder2ForCausalLM',
  rows=(
    *size_rows(4096, kv_heads=2),
    rope.rope_row(),
    values.window_row(None),
    values.activation_row('hidden_act', 'gelu_pytorch_tanh'),
    epsilon_row(1e-5, 'norm_epsilon'),
    attribute('use_bias', _BIASES, values.flag, True),
    tied_row(True),
  ),
  fixed={'layer_norm': True, 'gated': False},
  only={},
  sources=SOURCES
  | _NORMS
  | {
    'layer{}/up/w': Tensors(WAYS, (_LAYER + 'mlp.c_fc.weight',)),
    'layer{}/up/b': Tensors(WAYS, (_LAYER + 'mlp.c_fc.bias',)),
    'layer{}/down/w': Tensors(LINEAR, (_LAYER + 'mlp.c_proj.weight',)),
    'layer{}/down/b': Tensors(KEEP, (_LAYER + 'mlp.c_proj.bias',)),
  },
  harmless=_TRAINING,
)

JAIS2 = dataclasses.replace(
  LLAMA,
  model_type='jais2',
  architecture='Jais2ForCausalLM',
  rows=(
    *size_rows(8192),
    rope.rope_row(),
    values.activation_row('hidden_act', 'relu2'),
    epsilon_row(1e-5, 'layer_norm_eps'),
    attention_bias_row(True),
    attribute('mlp_bias', 'mlp_bias', values.flag, True),
    tied_row(False),
  ),
  fixed={'layer_norm': True, 'gated': False},
  only={},
  sources=SOURCES | _NORMS | _UP,
)

NEMOTRON = dataclasses.replace(
  JAIS2,
  model_type='nemotron',
  architecture='NemotronForCausalLM',
  rows=(
    *size_rows(4096),
    rope.rope_row(part=0.5),
    values.activation_row('hidden_act', 'relu2'),
    epsilon_row(1e-5, 'norm_eps'),
    attention_bias_row(False),
    _MLP_BIAS,
    tied_row(False),
  ),
  fixed={'layer_norm': True, 'gated': False, 'norm_plus_one': True},
)

STABLELM = dataclasses.replace(
  LLAMA,
  model_type='stablelm',
  architecture='StableLmForCausalLM',
  rows=(
    *size_rows(4096, kv_heads=32),
    rope.rope_row(part=0.25),
    values.SILU,
    epsilon_row(1e-5, 'layer_norm_eps'),
    attribute('use_qkv_bias', 'qkv_bias', values.flag, False),
    attribute(
      'use_parallel_residual', ('parallel', 'one_norm'), values.flag, False
    ),
    tied_row(False),
  ),
  fixed={'layer_norm': True},
  only={'qk_layernorm': False, 'rotary_scaling_factor': 1.0},
  sources=SOURCES | _NORMS,
  harmless=frozenset({'hidden_dropout', 'use_norm_bias'}),
)

PHI = dataclasses.replace(
  LLAMA,
  model_type='phi',
  architecture='PhiForCausalLM',
  rows=(
    *size_rows(2048),
    rope.rope_row(part=0.5),
    values.activation_row('hidden_act', 'gelu_new'),
    epsilon_row(1e-5, 'layer_norm_eps'),
    tied_row(False),
  ),
  fixed={
    'layer_norm': True,
    'gated': False,
    'parallel': True,
    'one_norm': True,
    'qkv_bias': True,
    'out_bias': True,
    'mlp_bias': True,
    'head_bias': True,
  },
  only={'qk_layernorm': False},
  sources=SOURCES
  | norm_biases(
    {
      'norm': 'model.final_layernorm',
      'layer{}/norm1': _LAYER + 'input_layernorm',
    }
  )
  | {
    'unembedding_bias': Tensors(KEEP, ('lm_head.bias',)),
    'layer{}/out/w': Tensors(LINEAR, (_LAYER + 'self_attn.dense.weight',)),
    'layer{}/out/b': Tensors(KEEP, (_LAYER + 'self_attn.dense.bias',)),
    'layer{}/up/w': Tensors(WAYS, (_LAYER + 'mlp.fc1.weight',)),
    'layer{}/up/b': Tensors(WAYS, (_LAYER + 'mlp.fc1.bias',)),
    'layer{}/down/w': Tensors(LINEAR, (_LAYER + 'mlp.fc2.weight',)),
    'layer{}/down/b': Tensors(KEEP, (_LAYER + 'mlp.fc2.bias',)),
  },
  harmless=_TRAINING,
)
