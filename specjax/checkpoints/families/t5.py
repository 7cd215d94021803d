"""T5, T5 v1.1 and Flan-T5: encoder-decoders with relative positions."""

from collections.abc import Mapping

from specjax.checkpoints.families import values
from specjax.checkpoints.families.gpt import HEADS
from specjax.checkpoints.families.table import (
  GROUPS,
  KEEP,
  LINEAR,
  WAYS,
  Family,
  Tensors,
  TensorSplit,
)
from specjax.checkpoints.families.values import attribute, derive, take
from specjax.errors import blame
from specjax.models.config import Encoder, Relative, TransformerConfig

# Keys and values of the source, by key-value head: [G, 2, D].
_PAIRS = TensorSplit(lambda x: (x[..., :1, :], x[..., 1:, :]), 3)
_GATED = 'gated-'
_RELATIVE = (
  'relative_attention_num_buckets',
  'relative_attention_max_distance',
)


def _read_encoder(rest, known):
  # `num_layers` are the encoder's; those of the decoder may be others.
  layers = take(rest, 'num_layers', values.size, 6)
  start = take(rest, 'decoder_start_token_id', values.index, 0)
  return {
    'encoder': Encoder(layers, start),
    'num_layers': take(rest, 'num_decoder_layers', values.size, layers),
  }


def _read_relative(rest, known):
  buckets, longest = (
    take(rest, name, values.size, default)
    for name, default in zip(_RELATIVE, (32, 128), strict=True)
  )
  with blame(
    f'unsupported config attributes {_RELATIVE[0]} = {buckets}, '
    f'{_RELATIVE[1]} = {longest}: '
  ):
    return {'relative': Relative(buckets, longest)}


def _read_feed_forward(rest, known):

  def decode(value):
    name = value.removeprefix(_GATED) if isinstance(value, str) else value
    # The tanh approximation, though no name says so.
    function = 'gelu_new' if value == _GATED + 'gelu' else name
    try:
      return value != name, function, values.activation(function)
    except ValueError as error:
      raise ValueError(f'{error}, each also as {_GATED}...') from None

  name = 'feed_forward_proj'
  gated, function, activation = take(rest, name, decode, decode('relu'))
  # The same again, in parts.
  for part, value in (('is_gated_act', gated), ('dense_act_fn', function)):
    given = rest.pop(part, value)
    if given != value:
      raise ValueError(
        f'unsupported config attribute {part} = {given!r}; {name} makes it '
        f'{value!r}'
      )
  return {'gated': gated, 'activation': activation}


def _read_tied(rest, known):
  # Newer files call all heads tied, and say otherwise which of them are.
  tied = take(rest, 'tie_word_embeddings', values.flag, True)
  tied = take(rest, 'scale_decoder_outputs', values.flag, tied)
  scale = known['width'] ** -0.5 if tied else None
  return {'tied_embeddings': tied, 'head_scale': scale}


def _sublayer(stack: str, index: int) -> str:
  return stack + '.block.{}' + f'.layer.{index}.'


def _norm(stack: str, index: int) -> Tensors:
  return Tensors(KEEP, (_sublayer(stack, index) + 'layer_norm.weight',))


def _stack(name: str, key: str, mlp: int) -> dict[str, Tensors]:
  """Sources of encoder or decoder; `mlp` is the number of that sublayer."""
  attention = _sublayer(name, 0) + 'SelfAttention.'
  layer = key + 'layer{}/'
  bias = f'{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight'
  return {
    f'{key}relative/table': Tensors(KEEP, (bias,)),
    f'{key}norm/scale': Tensors(KEEP, (f'{name}.final_layer_norm.weight',)),
    f'{layer}norm1/scale': _norm(name, 0),
    f'{layer}qkv/w': Tensors(
      GROUPS, tuple(f'{attention}{x}.weight' for x in 'qkv')
    ),
    f'{layer}out/w': Tensors(LINEAR, (attention + 'o.weight',)),
    f'{layer}norm2/scale': _norm(name, mlp),
    f'{layer}down/w': Tensors(
      LINEAR, (_sublayer(name, mlp) + 'DenseReluDense.wo.weight',)
    ),
  }


def _feed_forward(config: TransformerConfig) -> Mapping[str, Tensors]:
  names = ('wi_0', 'wi_1') if config.gated else ('wi',)
  return {
    f'{key}layer{{}}/up/w': Tensors(
      WAYS,
      tuple(
        f'{_sublayer(stack, mlp)}DenseReluDense.{name}.weight' for name in names
      ),
    )
    for stack, key, mlp in (('encoder', 'encoder/', 1), ('decoder', '', 2))
  }


_CROSS = _sublayer('decoder', 1) + 'EncDecAttention.'

T5 = Family(
  model_type='t5',
  architecture='T5ForConditionalGeneration',
  rows=(
    attribute('vocab_size', 'vocab_size', values.size, 32128),
    attribute('d_model', 'width', values.size, 512),
    attribute('num_heads', 'num_heads', values.size, 8),
    derive('num_kv_heads', lambda known: known['num_heads']),
    attribute('d_kv', 'head_dim', values.size, 64),
    attribute('d_ff', 'mlp_width', values.size, 2048),
    # What it was trained for; nothing in the model depends on it.
    attribute('n_positions', 'max_positions', values.size, 512),
    attribute('layer_norm_epsilon', 'norm_eps', values.number, 1e-6),
    _read_encoder,
    _read_relative,
    _read_feed_forward,
    _read_tied,
  ),
  fixed={'rope_theta': None, 'query_scale': 1.0},
  sources={
    'embedding': Tensors(KEEP, ('shared.weight',)),
    'unembedding': Tensors(LINEAR, ('lm_head.weight',)),
    'layer{}/norm_source/scale': _norm('decoder', 1),
    'layer{}/source_q/w': Tensors(HEADS, (_CROSS + 'q.weight',)),
    'layer{}/source_out/w': Tensors(LINEAR, (_CROSS + 'o.weight',)),
    'encoder/source{}/w': Tensors(
      _PAIRS, tuple(f'{_CROSS}{x}.weight' for x in 'kv')
    ),
  }
  | _stack('encoder', 'encoder/', 1)
  | _stack('decoder', '', 2),
  varying=_feed_forward,
  only={'is_encoder_decoder': True},
  harmless='dropout_rate initializer_factor output_past',
  copies=('encoder.embed_tokens.weight', 'decoder.embed_tokens.weight'),
  spare_head=True,
  prefix='',
  # Written by old versions, and read by none.
  ignored=('EncDecAttention.relative_attention_bias.weight',),
)

FAMILIES = (T5,)
