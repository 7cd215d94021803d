"""GPT-2, GPT-Neo (which TinyStories models are), GPT-NeoX (Pythia) and OPT.

OPT has learned positions that start at the third row, and biases everywhere.
"""

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.llama import (
  BIASES,
  attention_bias_row,
  tied_row,
)
from specjax.checkpoints.families.table import (
  GROUPS,
  KEEP,
  LINEAR,
  MAPS,
  WAYS,
  Family,
  Row,
  Tensors,
  linear,
  norm,
  untransposed,
)
from specjax.checkpoints.families.values import attribute, derive, take

_NORMS = {'layer_norm': True, 'gated': False}
_SUMMARY = """
  summary_activation summary_first_dropout summary_proj_to_labels summary_type
  summary_use_proj
"""


def mlp_width_row(name: str) -> Row:
  """Four times the model's width where nothing else is said."""
  return attribute(
    name, 'mlp_width', values.size, lambda known: 4 * known['width']
  )


def _size_rows(width: str, layers: str, heads: str) -> tuple[Row, ...]:
  """Rows of the sizes, by their names; keys and values have as many heads."""
  return (
    attribute('vocab_size', 'vocab_size', values.size),
    attribute(width, 'width', values.size),
    attribute(layers, 'num_layers', values.size),
    attribute(heads, 'num_heads', values.size),
    derive('num_kv_heads', lambda known: known['num_heads']),
    derive('head_dim', lambda known: known['width'] // known['num_heads']),
  )


def _unscaled(value):
  return None if values.flag(value) else 1.0


# Of GPT-2 and GPT-Neo.
_SOURCES = (
  {
    'embedding': Tensors(KEEP, ('transformer.wte.weight',)),
    'position': Tensors(KEEP, ('transformer.wpe.weight',)),
    'unembedding': Tensors(LINEAR, ('lm_head.weight',)),
  }
  | norm('transformer.ln_f', 'norm')
  | norm('transformer.h.{}.ln_1', 'layer{}/norm1')
  | norm('transformer.h.{}.ln_2', 'layer{}/norm2')
)

GPT2 = Family(
  model_type='gpt2',
  architecture='GPT2LMHeadModel',
  rows=(
    *_size_rows('n_embd', 'n_layer', 'n_head'),
    attribute('n_positions', 'max_positions', values.size, 1024),
    mlp_width_row('n_inner'),
    values.activation_row('activation_function', 'gelu_new'),
    attribute('layer_norm_epsilon', 'norm_eps', values.number, 1e-5),
    attribute('scale_attn_weights', 'query_scale', _unscaled, None),
    tied_row(True),
  ),
  fixed=_NORMS | {'rope_theta': None} | dict.fromkeys(BIASES, True),
  sources=_SOURCES
  | linear('layer{}/qkv', untransposed(GROUPS), 'transformer.h.{}.attn.c_attn')
  | linear('layer{}/out', untransposed(LINEAR), 'transformer.h.{}.attn.c_proj')
  | linear('layer{}/up', untransposed(WAYS), 'transformer.h.{}.mlp.c_fc')
  | linear('layer{}/down', untransposed(LINEAR), 'transformer.h.{}.mlp.c_proj'),
  only={'scale_attn_by_inverse_layer_idx': False},
  # The order of operations, and another name for the positions.
  harmless=f'{_SUMMARY} attn_pdrop n_ctx reorder_and_upcast_attn',
  prefix='transformer.',
  ignored=('.attn.bias', '.attn.masked_bias'),
)

_ATTENTION = 'transformer.h.{}.attn.attention.'


def _read_layers(rest, known):
  layers = known['num_layers']
  window = take(rest, 'window_size', values.size, 256)
  if rest.get('attention_types') is None:
    rest['attention_types'] = [[['global', 'local'], 12]]
  types = take(rest, 'attention_types', _decode_types(layers))
  # The same again, layer by layer.
  listed = rest.pop('attention_layers', None)
  if listed is not None and listed != types:
    raise ValueError(
      f'attention_layers = {listed!r} is not what attention_types says'
    )
  windows = [window if kind == 'local' else None for kind in types]
  return {'windows': values.unless_none(windows)}


def _decode_types(layers):
  def decode(value):
    types = []
    try:
      for kinds, times in value:
        types += min(values.size(times), layers + 1) * list(kinds)
    except (TypeError, ValueError):
      types = []
    known = all(kind in ('global', 'local') for kind in types)
    if len(types) != layers or not known:
      raise ValueError(
        f"lists of 'global' and 'local' with their repeats, {layers} in all"
      )
    return types

  return decode


GPT_NEO = Family(
  model_type='gpt_neo',
  architecture='GPTNeoForCausalLM',
  rows=(
    *_size_rows('hidden_size', 'num_layers', 'num_heads'),
    attribute('max_position_embeddings', 'max_positions', values.size, 2048),
    mlp_width_row('intermediate_size'),
    values.activation_row('activation_function', 'gelu_new'),
    attribute('layer_norm_epsilon', 'norm_eps', values.number, 1e-5),
    _read_layers,
    tied_row(True),
  ),
  # Scores are not scaled, and queries, keys and values have no bias.
  fixed=_NORMS
  | {
    'rope_theta': None,
    'query_scale': 1.0,
    'out_bias': True,
    'mlp_bias': True,
  },
  sources=_SOURCES
  | linear('layer{}/qkv', GROUPS, *(_ATTENTION + f'{x}_proj' for x in 'qkv'))
  | linear('layer{}/out', LINEAR, _ATTENTION + 'out_proj')
  | linear('layer{}/up', WAYS, 'transformer.h.{}.mlp.c_fc')
  | linear('layer{}/down', LINEAR, 'transformer.h.{}.mlp.c_proj'),
  harmless=f'{_SUMMARY} embed_dropout resid_dropout',
  prefix='transformer.',
  ignored=('.attention.bias', '.attention.masked_bias'),
)

_LAYER = 'gpt_neox.layers.{}.'

GPT_NEOX = Family(
  model_type='gpt_neox',
  architecture='GPTNeoXForCausalLM',
  rows=(
    *_size_rows('hidden_size', 'num_hidden_layers', 'num_attention_heads'),
    attribute('intermediate_size', 'mlp_width', values.size),
    attribute('max_position_embeddings', 'max_positions', values.size, 2048),
    rope.rope_row(part=0.25, old_names=('rotary_emb_base', 'rotary_pct')),
    values.activation_row('hidden_act', 'gelu'),
    attribute('layer_norm_eps', 'norm_eps', values.number, 1e-5),
    attribute('use_parallel_residual', 'parallel', values.flag, True),
    attention_bias_row(True),
    tied_row(False),
  ),
  fixed=_NORMS | {'mlp_bias': True},
  sources={
    'embedding': Tensors(KEEP, ('gpt_neox.embed_in.weight',)),
    'unembedding': Tensors(LINEAR, ('embed_out.weight',)),
  }
  | norm('gpt_neox.final_layer_norm', 'norm')
  | norm(_LAYER + 'input_layernorm', 'layer{}/norm1')
  | norm(_LAYER + 'post_attention_layernorm', 'layer{}/norm2')
  | linear('layer{}/qkv', MAPS, _LAYER + 'attention.query_key_value')
  | linear('layer{}/out', LINEAR, _LAYER + 'attention.dense')
  | linear('layer{}/up', WAYS, _LAYER + 'mlp.dense_h_to_4h')
  | linear('layer{}/down', LINEAR, _LAYER + 'mlp.dense_4h_to_h'),
  harmless='hidden_dropout',
  prefix='gpt_neox.',
  ignored=('.attention.bias', '.attention.masked_bias', '.rotary_emb.inv_freq'),
)

_OPT_LAYER = 'model.decoder.layers.{}.'
_OPT_QKV = tuple(_OPT_LAYER + f'self_attn.{x}_proj' for x in 'qkv')


def _read_projection(rest, known):
  name, width = 'word_embed_proj_dim', known['width']
  values.agree(name, take(rest, name, values.size, width), width)
  return {}


OPT = Family(
  model_type='opt',
  architecture='OPTForCausalLM',
  rows=(
    *_size_rows('hidden_size', 'num_hidden_layers', 'num_attention_heads'),
    attribute('ffn_dim', 'mlp_width', values.size),
    attribute('max_position_embeddings', 'max_positions', values.size, 2048),
    _read_projection,
    values.activation_row('activation_function', 'relu'),
    attribute('enable_bias', BIASES, values.flag, True),
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
  }
  | norm('model.decoder.final_layer_norm', 'norm')
  | norm(_OPT_LAYER + 'self_attn_layer_norm', 'layer{}/norm1')
  | norm(_OPT_LAYER + 'final_layer_norm', 'layer{}/norm2')
  | linear('layer{}/qkv', GROUPS, *_OPT_QKV)
  | linear('layer{}/out', LINEAR, _OPT_LAYER + 'self_attn.out_proj')
  | linear('layer{}/up', WAYS, _OPT_LAYER + 'fc1')
  | linear('layer{}/down', LINEAR, _OPT_LAYER + 'fc2'),
  only={
    '_remove_final_layer_norm': False,
    'do_layer_norm_before': True,
    'layer_norm_elementwise_affine': True,
  },
  harmless='activation_dropout dropout init_std layerdrop prefix',
)

FAMILIES = (GPT2, GPT_NEOX, OPT, GPT_NEO)
