"""Qwen3-Next and Qwen3.5: most layers have a state in place of attention.

Their next-token layer, `mtp`, is read by `drafters.mtp`.
"""

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.llama import (
  BIAS,
  DECODER,
  SOURCES,
  like,
  usual_rows,
)
from specjax.checkpoints.families.qwen import QWEN3_MOE, sparse_row
from specjax.checkpoints.families.table import (
  HEADS,
  LINEAR,
  WAYS,
  Row,
  Tensors,
  TensorSplit,
  kept,
  linear,
)
from specjax.checkpoints.families.values import take
from specjax.models.config import GatedDelta, TransformerConfig

_MIXER = 'model.layers.{}.linear_attn.'
_EXPERTS = 'model.layers.{}.mlp.experts.'
_SHARED = 'model.layers.{}.mlp.shared_expert'
_STATE, _ATTENTION = 'linear_attention', 'full_attention'


def _state_row(by_head: bool) -> Row:
  """Row of the layers with a state.

  Args:
    by_head: whether outputs of their maps lie head by head.
  """
  names = {
    'key_heads': ('linear_num_key_heads', 16),
    'value_heads': ('linear_num_value_heads', 32),
    'key_dim': ('linear_key_head_dim', 128),
    'value_dim': ('linear_value_head_dim', 128),
    'kernel': ('linear_conv_kernel_dim', 4),
  }

  def read(rest, known):
    every = take(rest, 'full_attention_interval', values.size, 4)
    layers = range(known['num_layers'])
    usual = [_ATTENTION if (i + 1) % every == 0 else _STATE for i in layers]
    kinds = values.of_layers(len(layers), _STATE, _ATTENTION)
    types = take(rest, 'layer_types', kinds, usual)
    states = tuple(i for i in layers if types[i] == _STATE)
    sizes = values.take_all(rest, names)
    made = GatedDelta(states, **sizes, by_head=by_head)
    return {'recurrent': made if states else None}

  return read


def _parts(config: TransformerConfig) -> dict[str, Tensors]:
  """Sources of maps that are several tensors, cut by sizes."""
  made = config.recurrent
  if made is None:
    return {}

  def parts(key: str, first: int, *names: str) -> dict[str, Tensors]:
    split = TensorSplit(lambda x: (x[..., :first], x[..., first:]))
    return linear(key, split, *(f'{_MIXER}in_proj_{name}' for name in names))

  return {
    **parts('layer{}/mixer/in', made.channels, 'qkv', 'z'),
    **parts('layer{}/mixer/rates', made.value_heads, 'b', 'a'),
  }


def state_sources(mixer: str) -> dict[str, Tensors]:
  """Returns what any layer with a state is made of, below a name."""
  same = {
    'mixer/conv': 'conv1d.weight',
    'mixer/rate': 'A_log',
    'mixer/shift': 'dt_bias',
    'mixer/norm': 'norm.weight',
  }
  out = linear('layer{}/mixer/out', LINEAR, mixer + 'out_proj')
  return out | kept(mixer, same)


_STATES = state_sources(_MIXER)
_SHARED_EXPERT = {
  **linear(
    'layer{}/shared_up', WAYS, _SHARED + '.gate_proj', _SHARED + '.up_proj'
  ),
  **linear('layer{}/shared_down', LINEAR, _SHARED + '.down_proj'),
  **linear('layer{}/shared_gate', LINEAR, _SHARED + '_gate'),
}
QWEN3_NEXT = like(
  DECODER,
  'qwen3_next',
  'Qwen3NextForCausalLM',
  rows=usual_rows(
    32768,
    BIAS,
    _state_row(by_head=True),
    sparse_row(512, 10, 512, normalize=True, shared=512),
    rotary=rope.rope_row(part=0.25),
    kv_heads=2,
    head_dim=256,
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=48,
    num_attention_heads=16,
  ),
  fixed={'qk_norm': True, 'norm_plus_one': True, 'attention_gate': True},
  sources={
    **QWEN3_MOE.sources,
    **_STATES,
    **_SHARED_EXPERT,
    **linear('layer{}/mixer/in', HEADS, _MIXER + 'in_proj_qkvz'),
    **linear('layer{}/mixer/rates', HEADS, _MIXER + 'in_proj_ba'),
  },
  unread=('mtp.',),
  stacked={
    'layer{}/experts/up': Tensors(HEADS, (_EXPERTS + 'gate_up_proj',)),
    'layer{}/experts/down': Tensors(LINEAR, (_EXPERTS + 'down_proj',)),
  },
  harmless='',
)

_OF_DRAFTS = """
  mamba_ssm_dtype mtp_num_hidden_layers mtp_use_dedicated_embeddings
"""
_ROPE_3_5 = rope.rope_row(allowed=tuple(rope.SCALINGS), part=0.25)

QWEN3_5 = like(
  QWEN3_NEXT,
  'qwen3_5_text',
  'Qwen3_5ForCausalLM',
  rows=usual_rows(
    32768,
    BIAS,
    _state_row(by_head=False),
    rotary=_ROPE_3_5,
    kv_heads=4,
    head_dim=256,
    vocab_size=248320,
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=32,
    num_attention_heads=16,
  ),
  only={'attn_output_gate': True},
  harmless=f'{_OF_DRAFTS} mlp_only_layers',
  sources={**SOURCES, **_STATES},
  varying=_parts,
)
QWEN3_5_MOE = like(
  QWEN3_5,
  'qwen3_5_moe_text',
  'Qwen3_5MoeForCausalLM',
  rows=usual_rows(
    32768,
    BIAS,
    _state_row(by_head=False),
    sparse_row(256, 8, 512, normalize=True, shared=512),
    rotary=_ROPE_3_5,
    kv_heads=2,
    head_dim=256,
    vocab_size=248320,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=40,
    num_attention_heads=16,
  ),
  harmless=_OF_DRAFTS,
  sources={**QWEN3_MOE.sources, **_STATES, **_SHARED_EXPERT},
)

FAMILIES = (QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE)
