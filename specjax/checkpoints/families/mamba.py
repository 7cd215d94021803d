"""Families whose layers have a state that only decays (Mamba-2).

In Granite 4 and in Bamba a layer has either a state or attention, in Falcon-H1
both side by side.
"""

import math

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.dense import GRANITE_ROWS, multiplier_row
from specjax.checkpoints.families.hybrid import state_sources
from specjax.checkpoints.families.llama import (
  BIAS,
  DECODER,
  MLP_BIAS,
  SOURCES,
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
  scale,
)
from specjax.checkpoints.families.values import take
from specjax.models.config import Experts, Mamba2

_LAYER = 'model.layers.{}.'
_MIXER, _MLP = _LAYER + 'mamba.', _LAYER + 'feed_forward.'

# Fields of the sizes: attribute, decoder and default.
_NAMES = {
  'key_heads': ('mamba_n_groups', values.size, 1),
  'value_heads': ('mamba_n_heads', values.size, 128),
  'key_dim': ('mamba_d_state', values.size, 256),
  'kernel': ('mamba_d_conv', values.size, 4),
  'conv_bias': ('mamba_conv_bias', values.flag, True),
  'bias': ('mamba_proj_bias', values.flag, False),
}
_LIMIT = 'time_step_limit'


def _endless(value):
  """Refuses bounds of steps, which transformers itself keeps in blocks only."""
  ends = list(value) if isinstance(value, list | tuple) else value
  if ends not in ([0, math.inf], [0, {'__float__': 'Infinity'}]):
    raise ValueError('[0.0, Infinity]')


def _entries(value):
  return 0 if value == 'auto' else values.size(value)


def _read_mamba(rest, known, layers, entries=None, **more):
  """Takes the sizes of layers with a state out of the attributes.

  Args:
    rest: attributes that are left.
    known: fields of the rows before.
    layers: which have a state.
    entries: of all values; None: so many times the width as is said.
    **more: other fields.
  """
  take(rest, _LIMIT, _endless, None)
  sizes = {
    field: take(rest, name, decode, usual)
    for field, (name, decode, usual) in _NAMES.items()
  }
  expand = take(rest, 'mamba_expand', values.size, 2)
  entries = entries or expand * known['width']
  heads = sizes['value_heads']
  width = take(rest, 'mamba_d_head', _entries, 0) or entries // heads
  if not layers:
    return {'recurrent': None}
  if heads * width != entries:
    raise ValueError(
      f'mamba_n_heads = {heads} and mamba_d_head = {width} must make all '
      f'{entries} entries of a value'
    )
  try:
    sizes |= {'out_bias': sizes['bias'], 'activation': known['activation']}
    made = Mamba2(layers, value_dim=width, **sizes | more)
  except ValueError as error:
    raise ValueError(f'mamba_n_heads, mamba_n_groups: {error}') from None
  return {'recurrent': made}


def _write_mamba(config):
  made = config.recurrent
  if made is None:
    return {'mamba_n_heads': 1}
  if not isinstance(made, Mamba2):
    raise ValueError(f'recurrent = {made}')
  written = {name: getattr(made, field) for field, (name, *_) in _NAMES.items()}
  expand = made.values // config.width
  return written | {'mamba_d_head': made.value_dim, 'mamba_expand': expand}


# Types of layers, by the version that wrote them.
_STATES = 'linear_attention', 'mamba'
_ATTENTION = 'full_attention', 'attention'


def _read_types(rest, known):
  layers = range(known['num_layers'])
  kinds = values.of_layers(len(layers), *_STATES, *_ATTENTION)
  types = take(rest, 'layer_types', kinds, [_STATES[0]] * len(layers))
  states = tuple(i for i in layers if types[i] in _STATES)
  return _read_mamba(rest, known, states)


def _write_types(config):
  has_state = map(config.has_state, range(config.num_layers))
  types = [_STATES[0] if x else _ATTENTION[0] for x in has_state]
  return _write_mamba(config) | {'layer_types': types}


def _turns(value):
  if value not in ('rope', 'nope'):
    raise ValueError("'rope', 'nope' or null")
  return value == 'rope'


def _read_positions(rest, known):
  turns = take(rest, 'position_embedding_type', _turns, False)
  return {'unturned': () if turns else tuple(range(known['num_layers']))}


def _write_positions(config):
  return {'position_embedding_type': 'nope' if config.unturned else 'rope'}


_COUNT, _CHOSEN = 'num_local_experts', 'num_experts_per_tok'
_SHARED = 'shared_intermediate_size'


def _read_experts(rest, known):
  count = take(rest, _COUNT, values.index, 8)
  chosen = take(rest, _CHOSEN, values.size, 2)
  shared = take(rest, _SHARED, values.size, 1024)
  if not count:  # The expert that all tokens go to is a plain MLP.
    return {'mlp_width': shared}
  width = known['mlp_width']
  try:
    experts = Experts(count, chosen, width, shared=shared, shared_gate=False)
  except ValueError as error:
    raise ValueError(f'{_COUNT}, {_CHOSEN}: {error}') from None
  return {'experts': experts}


def _write_experts(config):
  made = config.experts
  if made is None:
    return {_COUNT: 0, _SHARED: config.mlp_width}
  return {_COUNT: made.count, _CHOSEN: made.chosen, _SHARED: made.shared}


_SOURCES = {
  **SOURCES,
  **state_sources(_MIXER),
  **linear('layer{}/mixer/in', LINEAR, _MIXER + 'in_proj'),
  'layer{}/mixer/conv_b': Tensors(KEEP, (_MIXER + 'conv1d.bias',)),
  'layer{}/mixer/skip': Tensors(KEEP, (_MIXER + 'D',)),
}
_EXPERTS = _LAYER + 'block_sparse_moe.'
_DENSE = {
  f'layer{{}}/{prefix}{ours}/w': Tensors(
    split, (f'{_LAYER}shared_mlp.{theirs}_linear.weight',)
  )
  for prefix in ('', 'shared_')
  for ours, split, theirs in (('up', WAYS, 'input'), ('down', LINEAR, 'output'))
}

GRANITE_HYBRID = like(
  DECODER,
  'granitemoehybrid',
  'GraniteMoeHybridForCausalLM',
  rows=usual_rows(
    2048,
    BIAS,
    *GRANITE_ROWS,
    Row(_read_positions, _write_positions),
    Row(_read_types, _write_types),
    Row(_read_experts, _write_experts),
  ),
  harmless=frozenset(
    {'init_method', 'mamba_chunk_size', 'normalization_function'}
  ),
  sources={
    **_SOURCES,
    **_DENSE,
    'layer{}/experts/router': Tensors(
      LINEAR, (_EXPERTS + 'router.layer.weight',)
    ),
    'layer{}/experts/up': Tensors(WAYS, (_EXPERTS + 'input_linear.weight',)),
    'layer{}/experts/down': Tensors(
      LINEAR, (_EXPERTS + 'output_linear.weight',)
    ),
  },
)


def _read_indices(rest, known):
  attends = take(rest, 'attn_layer_indices', values.layers, ())
  states = tuple(i for i in range(known['num_layers']) if i not in attends)
  return _read_mamba(rest, known, states)


def _write_indices(config):
  layers = range(config.num_layers)
  attends = [i for i in layers if not config.has_state(i)]
  return _write_mamba(config) | {'attn_layer_indices': attends}


_BLOCKS = {
  **_SOURCES,
  **scale('model.final_layernorm', 'norm'),
  **scale(_LAYER + 'pre_ff_layernorm', 'layer{}/norm2'),
  **linear('layer{}/up', WAYS, _MLP + 'gate_proj', _MLP + 'up_proj'),
  **linear('layer{}/down', LINEAR, _MLP + 'down_proj'),
}
# Of generation and training, and what follows from other attributes.
_UNREAD = """
  attn_rotary_emb mamba_chunk_size num_logits_to_keep z_loss_coefficient
"""

BAMBA = like(
  DECODER,
  'bamba',
  'BambaForCausalLM',
  rows=usual_rows(
    262144,
    BIAS,
    MLP_BIAS,
    Row(_read_indices, _write_indices),
    rotary=rope.rope_row(part=0.5),
    epsilon=1e-5,
    kv_heads=8,
  ),
  harmless=frozenset(_UNREAD.split()),
  sources=_BLOCKS,
)

# Factors of a layer, by the fields that hold them in this order.
_OF_STATES = 'ssm_in_multiplier', 'ssm_multipliers', 'ssm_out_multiplier'
_OF_ATTENTION = 'attention_in_multiplier', 'attention_out_multiplier'
_OF_KEYS, _OF_MLP = 'key_multiplier', 'mlp_multipliers'


def _factors(count):
  def decode(value):
    if not isinstance(value, list) or len(value) != count:
      raise ValueError(f'{count} positive numbers')
    return values.numbers(value)

  return decode


def _unless_ones(factors):
  """Returns factors, or None where they change nothing."""
  return None if set(factors) == {1} else tuple(factors)


def _read_beside(rest, known):
  first, last = (take(rest, _OF_STATES[i], values.number, 1.0) for i in (0, 2))
  inner = take(rest, _OF_STATES[1], _factors(5), (1.0,) * 5)
  options = {
    'out_bias': take(rest, 'projectors_bias', values.flag, False),
    'norm': take(rest, 'mamba_rms_norm', values.flag, False),
    'gate_first': not take(rest, 'mamba_norm_before_gate', values.flag, True),
    'scales': _unless_ones((first, *inner, last)) or (),
  }
  entries = take(rest, 'mamba_d_ssm', values.size, 1024, null=None)
  layers = tuple(range(known['num_layers']))
  return _read_mamba(rest, known, layers, entries, **options)


def _write_beside(config):
  written = _write_mamba(config)
  made = config.recurrent
  if made is None or len(made.layers) < config.num_layers:
    raise ValueError(f'recurrent = {made}')
  first, *inner, last = made.scales or (1.0,) * 7
  del written['mamba_expand']
  return written | {
    **dict(zip(_OF_STATES, (first, inner, last), strict=True)),
    'mamba_d_ssm': made.values,
    'mamba_norm_before_gate': not made.gate_first,
    'mamba_rms_norm': made.norm,
    'projectors_bias': made.out_bias,
  }


def _read_factors(rest, known):
  attention = (take(rest, x, values.number, 1.0) for x in _OF_ATTENTION)
  keys = take(rest, _OF_KEYS, values.number, 1.0)
  mlp = take(rest, _OF_MLP, _factors(2), (1.0, 1.0))
  # Scores grow with keys, before they are turned or after that.
  scale = None if keys == 1 else keys * known['head_dim'] ** -0.5
  return {
    'attention_scales': _unless_ones([*attention]),
    'mlp_scales': _unless_ones(mlp),
    'query_scale': scale,
  }


def _write_factors(config):
  scale, root = config.query_scale, config.head_dim**-0.5
  keys = 1.0 if scale is None else scale / root
  # The neighbour that is read back as the same.
  near = keys, *(math.nextafter(keys, keys * x) for x in (0, 2))
  keys = next((x for x in near if x * root == scale), keys)
  return {
    **dict(
      zip(_OF_ATTENTION, config.attention_scales or (1.0, 1.0), strict=True)
    ),
    _OF_KEYS: keys,
    _OF_MLP: [*(config.mlp_scales or (1.0, 1.0))],
  }


# Of first files besides: how weights begin, and the width of the MLP.
_UNREAD_BESIDE = """
  mlp_expansion_factor time_step_floor time_step_max time_step_min
  time_step_rank
"""

FALCON_H1 = like(
  BAMBA,
  'falcon_h1',
  'FalconH1ForCausalLM',
  rows=usual_rows(
    8192,
    BIAS,
    MLP_BIAS,
    multiplier_row('embedding_multiplier', 'embedding_scale'),
    multiplier_row('lm_head_multiplier', 'head_scale'),
    Row(_read_factors, _write_factors),
    Row(_read_beside, _write_beside),
    epsilon=1e-5,
    kv_heads=8,
  ),
  fixed={'state_beside': True},
  only={'attn_layer_indices': None, 'mamba_use_mlp': True},
  harmless=frozenset((_UNREAD + _UNREAD_BESIDE).split()),
)
