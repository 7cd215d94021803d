"""Families whose layers have a state that only decays (Mamba-2).

In Granite 4 and in Bamba a layer has either a state or attention, in Falcon-H1
both side by side. A layer of Nemotron-H has one of a state, attention, an MLP
and experts, and nothing else.
"""

import dataclasses
import math

import flax.linen as nn

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.deepseek import grouped_experts_row
from specjax.checkpoints.families.dense import GRANITE_ROWS, multiplier_row
from specjax.checkpoints.families.hybrid import state_sources
from specjax.checkpoints.families.llama import (
  BIAS,
  DECODER,
  MLP_BIAS,
  SOURCES,
  epsilon_row,
  like,
  usual_rows,
)
from specjax.checkpoints.families.table import (
  GROUPS,
  KEEP,
  LINEAR,
  WAYS,
  Tensors,
  experts,
  kept,
  linear,
  scale,
)
from specjax.checkpoints.families.values import attribute, take, take_all
from specjax.errors import blame
from specjax.models.config import Experts, Mamba2

_LAYER = 'model.layers.{}.'
_MLP = _LAYER + 'feed_forward.'

# Fields of the sizes, see `take_all`.
_NAMES = {
  'key_heads': ('mamba_n_groups', 1),
  'value_heads': ('mamba_n_heads', 128),
  'key_dim': ('mamba_d_state', 256),
  'kernel': ('mamba_d_conv', 4),
  'conv_bias': ('mamba_conv_bias', True, values.flag),
  'bias': ('mamba_proj_bias', False, values.flag),
}


def _endless(value):
  """Refuses bounds of steps, which transformers itself keeps in blocks only."""
  ends = list(value) if isinstance(value, list | tuple) else value
  if ends not in ([0, math.inf], [0, {'__float__': 'Infinity'}]):
    raise ValueError('[0.0, Infinity]')


_read_limit = attribute('time_step_limit', (), _endless, None)


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
  _read_limit(rest, known)
  sizes = take_all(rest, _NAMES)
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
  sizes |= {'out_bias': sizes['bias'], 'activation': known['activation']}
  with blame('mamba_n_heads, mamba_n_groups: '):
    made = Mamba2(layers, value_dim=width, **sizes | more)
  return {'recurrent': made}


# Types of layers, by the version that wrote them.
_STATES = 'linear_attention', 'mamba'
_ATTENTION = 'full_attention', 'attention'


def _read_types(rest, known):
  layers = range(known['num_layers'])
  kinds = values.of_layers(len(layers), *_STATES, *_ATTENTION)
  types = take(rest, 'layer_types', kinds, [_STATES[0]] * len(layers))
  states = tuple(i for i in layers if types[i] in _STATES)
  return _read_mamba(rest, known, states)


def _turns(value):
  if value not in ('rope', 'nope'):
    raise ValueError("'rope', 'nope' or null")
  return value == 'rope'


def _read_positions(rest, known):
  turns = take(rest, 'position_embedding_type', _turns, False)
  return {'unturned': () if turns else tuple(range(known['num_layers']))}


_COUNT, _CHOSEN = 'num_local_experts', 'num_experts_per_tok'


def _read_experts(rest, known):
  count = take(rest, _COUNT, values.index, 8)
  chosen = take(rest, _CHOSEN, values.index, 2)
  shared = take(rest, 'shared_intermediate_size', values.size, 1024)
  if not count:  # The expert that all tokens go to is a plain MLP.
    return {'mlp_width': shared}
  width = known['mlp_width']
  with blame(f'{_COUNT}, {_CHOSEN}: '):
    experts = Experts(count, chosen, width, shared=shared, shared_gate=False)
  return {'experts': experts}


def _mixer(name):
  return (
    state_sources(name)
    | linear('layer{}/mixer/in', LINEAR, name + 'in_proj')
    | kept(name, {'mixer/conv_b': 'conv1d.bias', 'mixer/skip': 'D'})
  )


_SOURCES = SOURCES | _mixer(_LAYER + 'mamba.')
_EXPERTS = _LAYER + 'block_sparse_moe.'
_DENSE = _LAYER + 'shared_mlp.'

GRANITE_HYBRID = like(
  DECODER,
  'granitemoehybrid',
  'GraniteMoeHybridForCausalLM',
  rows=usual_rows(
    2048,
    BIAS,
    *GRANITE_ROWS,
    _read_positions,
    _read_types,
    _read_experts,
  ),
  harmless='init_method mamba_chunk_size normalization_function',
  sources={
    **_SOURCES,
    # A plain MLP where there are no experts, the shared one beside them.
    **linear('layer{}/up', WAYS, _DENSE + 'input_linear'),
    **linear('layer{}/down', LINEAR, _DENSE + 'output_linear'),
    **linear('layer{}/shared_up', WAYS, _DENSE + 'input_linear'),
    **linear('layer{}/shared_down', LINEAR, _DENSE + 'output_linear'),
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
    _read_indices,
    rotary=rope.rope_row(part=0.5),
    epsilon=1e-5,
    kv_heads=8,
  ),
  harmless=_UNREAD,
  sources=_BLOCKS,
)


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
  first = take(rest, 'ssm_in_multiplier', values.number, 1.0)
  inner = take(rest, 'ssm_multipliers', _factors(5), (1.0,) * 5)
  last = take(rest, 'ssm_out_multiplier', values.number, 1.0)
  options = {
    'out_bias': take(rest, 'projectors_bias', values.flag, False),
    'norm': take(rest, 'mamba_rms_norm', values.flag, False),
    'gate_first': not take(rest, 'mamba_norm_before_gate', values.flag, True),
    'scales': _unless_ones((first, *inner, last)) or (),
  }
  entries = take(rest, 'mamba_d_ssm', values.size, 1024, null=None)
  layers = tuple(range(known['num_layers']))
  return _read_mamba(rest, known, layers, entries, **options)


def _read_factors(rest, known):
  attention = [
    take(rest, f'attention_{place}_multiplier', values.number, 1.0)
    for place in ('in', 'out')
  ]
  keys = take(rest, 'key_multiplier', values.number, 1.0)
  mlp = take(rest, 'mlp_multipliers', _factors(2), (1.0, 1.0))
  # Scores grow with keys, before they are turned or after that.
  scale = None if keys == 1 else keys * known['head_dim'] ** -0.5
  return {
    'attention_scales': _unless_ones(attention),
    'mlp_scales': _unless_ones(mlp),
    'query_scale': scale,
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
    _read_factors,
    _read_beside,
    epsilon=1e-5,
    kv_heads=8,
  ),
  fixed={'state_beside': True},
  only={'attn_layer_indices': None, 'mamba_use_mlp': True},
  harmless=_UNREAD + _UNREAD_BESIDE,
)

# Types of layers of Nemotron-H: a letter and an older name of each.
_KINDS = {
  'linear_attention': ('M', 'mamba'),
  'full_attention': ('*', 'attention'),
  'mlp': ('-', 'mlp'),
  'moe': ('E', 'moe'),
}
# Layers of a file that names none.
_USUAL = ['linear_attention', 'moe', 'full_attention', 'mlp']
_TYPES, _PATTERN = 'layers_block_type', 'hybrid_override_pattern'
_NEMOTRON_NAMES = {
  'key_heads': ('n_groups', 8),
  'value_heads': ('mamba_num_heads', 128),
  'value_dim': ('mamba_head_dim', 64),
  'key_dim': ('ssm_state_size', 128),
  'kernel': ('conv_kernel', 4),
  'conv_bias': ('use_conv_bias', True, values.flag),
  'bias': ('use_bias', False, values.flag),
  'activation': ('mamba_hidden_act', nn.silu, values.activation),
}
_GROUPED = grouped_experts_row(8, 2, 7688)
_SHARED_WIDTH, _INNER = 'moe_shared_expert_intermediate_size', 'moe_latent_size'


def _kinds(value):
  known = {
    name: kind for kind, (_, old) in _KINDS.items() for name in (kind, old)
  }
  names = [*known]
  if not isinstance(value, list) or not all(x in names for x in value):
    raise ValueError(f'a list of {" or ".join(map(repr, known))}')
  return [known[x] for x in value]


def _letters(value):
  known = {letter: kind for kind, (letter, _) in _KINDS.items()}
  if not isinstance(value, str) or not value or {*value} - {*known}:
    raise ValueError(f'letters of {"".join(known)}')
  return [known[x] for x in value]


def _untied(value):
  if value is not False:
    raise ValueError('false, since transformers ties nothing here')


def _read_layout(rest, known):
  """Says the types of layers in one way; their number is that of the types."""
  del known  # Nothing is.
  pattern = take(rest, _PATTERN, _letters, None)
  types = take(rest, _TYPES, _kinds, pattern or _USUAL)
  count = take(rest, 'num_hidden_layers', values.size, len(types))
  if pattern not in (None, types) or count != len(types):
    raise ValueError(
      f'{_TYPES} has {len(types)} layers, which {_PATTERN} and '
      'num_hidden_layers must have, too'
    )
  rest |= {_TYPES: types, 'num_hidden_layers': count}
  take(rest, 'tie_word_embeddings', _untied, None)
  return {}


def _read_kinds(rest, known):
  types = rest.pop(_TYPES)
  sizes = take_all(rest, _NEMOTRON_NAMES)
  shared = take(rest, _SHARED_WIDTH, values.size, 7688)
  inner = take(rest, _INNER, values.size, 0)
  experts = _GROUPED(rest, known)['experts']

  def layers(*kinds):
    return tuple(i for i, kind in enumerate(types) if kind in kinds)

  states, attends, dense, sparse = map(layers, _KINDS)
  made = None
  if states:
    with blame('mamba_num_heads, n_groups: '):
      made = Mamba2(states, out_bias=sizes['bias'], **sizes)
  if sparse:
    others = tuple(sorted((*states, *attends, *dense)))
    changes = {'dense': others, 'shared': shared, 'inner': inner}
    experts = dataclasses.replace(experts, **changes)
  return {
    'recurrent': made,
    'experts': experts if sparse else None,
    'without_attention': layers('mlp', 'moe'),
    'without_mlp': layers('linear_attention', 'full_attention'),
  }


_BLOCK = 'backbone.layers.{}.'
_INSIDE = _BLOCK + 'mixer.'
# Of training and of readers, or without an effect in transformers, which holds
# steps above time_step_min in blocks of rows and not in single ones.
_UNREAD_NEMOTRON = """
  attention_head_dim chunk_size expand hidden_dropout mamba_proj_bias
  mamba_ssm_cache_dtype moe_shared_expert_overlap mtp_hybrid_override_pattern
  mtp_layers_block_type norm_eps num_logits_to_keep num_nextn_predict_layers
  num_query_groups partial_rotary_factor rescale_prenorm_residual
  residual_in_fp32 rms_norm_eps rope_theta time_step_floor time_step_max
  time_step_min time_step_rank use_mamba_kernels
"""

NEMOTRON_H = like(
  DECODER,
  'nemotron_h',
  'NemotronHForCausalLM',
  rows=(
    _read_layout,
    *usual_rows(
      4096,
      MLP_BIAS,
      _read_limit,
      _read_kinds,
      rotary=values.derive(
        'unturned', lambda known: tuple(range(known['num_layers']))
      ),
      activation=values.activation_row('mlp_hidden_act', 'relu2'),
      epsilon=epsilon_row(1e-5, 'layer_norm_epsilon'),
      kv_heads=8,
      head_dim=128,
      intermediate_size=21504,
    ),
  ),
  fixed={'gated': False},
  only={'attention_bias': False, 'sliding_window': None},
  harmless=_UNREAD_NEMOTRON,
  sources={
    'embedding': Tensors(KEEP, ('backbone.embeddings.weight',)),
    'unembedding': SOURCES['unembedding'],
    **scale('backbone.norm_f', 'norm'),
    **scale(_BLOCK + 'norm', 'layer{}/norm1'),
    **scale(_BLOCK + 'norm', 'layer{}/norm2'),
    **_mixer(_INSIDE),
    **linear('layer{}/qkv', GROUPS, *(_INSIDE + f'{x}_proj' for x in 'qkv')),
    **linear('layer{}/out', LINEAR, _INSIDE + 'o_proj'),
    **linear('layer{}/up', WAYS, _INSIDE + 'up_proj'),
    **linear('layer{}/down', LINEAR, _INSIDE + 'down_proj'),
    **linear('layer{}/shared_up', WAYS, _INSIDE + 'shared_experts.up_proj'),
    **linear(
      'layer{}/shared_down', LINEAR, _INSIDE + 'shared_experts.down_proj'
    ),
    **linear('layer{}/experts_in', LINEAR, _INSIDE + 'fc1_latent_proj'),
    **linear('layer{}/experts_out', LINEAR, _INSIDE + 'fc2_latent_proj'),
    **experts(_INSIDE, 'up_proj', down='down_proj'),
    **kept(_INSIDE, {'experts/router_shift': 'gate.e_score_correction_bias'}),
  },
  prefix='backbone.',
  unread=('mtp.',),
)

FAMILIES = (GRANITE_HYBRID, BAMBA, FALCON_H1, NEMOTRON_H)
