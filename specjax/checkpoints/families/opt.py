"""OPT: learned positions that start at the third row, biases everywhere."""

from specjax.checkpoints.families import values
from specjax.checkpoints.families.gpt import HEAD_ROWS, linear, norm
from specjax.checkpoints.families.llama import tied_row
from specjax.checkpoints.families.table import (
  GROUPS,
  KEEP,
  LINEAR,
  WAYS,
  Family,
  Row,
  Tensors,
)
from specjax.checkpoints.families.values import attribute, take

_LAYER = 'model.decoder.layers.{}.'
_QKV = tuple(_LAYER + f'self_attn.{x}_proj' for x in 'qkv')


def _read_projection(rest, known):
  width = known['width']
  size = take(rest, 'word_embed_proj_dim', values.size, width)
  if size != width:
    raise ValueError(
      f'unsupported config attribute word_embed_proj_dim = {size}; only '
      f'hidden_size = {width} is'
    )
  return {}


OPT = Family(
  model_type='opt',
  architecture='OPTForCausalLM',
  rows=(
    attribute('vocab_size', 'vocab_size', values.size),
    attribute('hidden_size', 'width', values.size),
    attribute('num_hidden_layers', 'num_layers', values.size),
    attribute('num_attention_heads', 'num_heads', values.size),
    attribute('ffn_dim', 'mlp_width', values.size),
    attribute('max_position_embeddings', 'max_positions', values.size, 2048),
    *HEAD_ROWS,
    # Readers default to 768, whatever the width.
    Row(_read_projection, lambda config: {'word_embed_proj_dim': config.width}),
    values.activation_row('activation_function', 'relu'),
    attribute(
      'enable_bias', ('qkv_bias', 'out_bias', 'mlp_bias'), values.flag, True
    ),
    tied_row(True),
  ),
  fixed={
    'layer_norm': True,
    'norm_eps': 1e-5,
    'gated': False,
    'rope_theta': None,
    'position_offset': 2,
  },
  sources={
    'embedding': Tensors(KEEP, ('model.decoder.embed_tokens.weight',)),
    'position': Tensors(KEEP, ('model.decoder.embed_positions.weight',)),
    'unembedding': Tensors(LINEAR, ('lm_head.weight',)),
    'layer{}/qkv/w': Tensors(GROUPS, tuple(f'{x}.weight' for x in _QKV)),
    'layer{}/qkv/b': Tensors(GROUPS, tuple(f'{x}.bias' for x in _QKV)),
  }
  | norm('model.decoder.final_layer_norm', 'norm')
  | norm(_LAYER + 'self_attn_layer_norm', 'layer{}/norm1')
  | norm(_LAYER + 'final_layer_norm', 'layer{}/norm2')
  | linear(_LAYER + 'self_attn.out_proj', 'layer{}/out', LINEAR)
  | linear(_LAYER + 'fc1', 'layer{}/up', WAYS)
  | linear(_LAYER + 'fc2', 'layer{}/down', LINEAR),
  only={
    '_remove_final_layer_norm': False,
    'do_layer_norm_before': True,
    'layer_norm_elementwise_affine': True,
  },
  harmless=frozenset(
    {'activation_dropout', 'dropout', 'init_std', 'layerdrop', 'prefix'}
  ),
)
