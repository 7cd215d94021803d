"""T5, T5 v1.1 and Flan-T5: encoder-decoders with relative positions."""

from specjax.checkpoints.families import values
from specjax.checkpoints.families.table import (
  GROUPS,
  KEEP,
  LAST_APART,
  LINEAR,
  MAPS,
  WAYS,
  Family,
  Tensors,
  linear,
  scale,
)
from specjax.checkpoints.families.values import attribute, derive, take
from specjax.errors import blame
from specjax.models.config import Encoder, Relative, TransformerConfig

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


def _stacks(config: TransformerConfig) -> dict[str, Tensors]:
  """Sources of the encoder and the decoder."""
  ways = ('wi_0', 'wi_1') if config.gated else ('wi',)

  def stack(name: str, key: str, mlp: int) -> dict[str, Tensors]:
    first, last = _sublayer(name, 0), _sublayer(name, mlp)
    attention, dense = first + 'SelfAttention.', last + 'DenseReluDense.'
    table = f'{name}.block.0.layer.0.SelfAttention.relative_attention_bias'
    layer = key + 'layer{}/'
    return {
      f'{key}relative/table': Tensors(KEEP, (f'{table}.weight',)),
      **scale(f'{name}.final_layer_norm', f'{key}norm'),
      **scale(first + 'layer_norm', f'{layer}norm1'),
      **linear(f'{layer}qkv', GROUPS, *(attention + x for x in 'qkv')),
      **linear(f'{layer}out', LINEAR, attention + 'o'),
      **scale(last + 'layer_norm', f'{layer}norm2'),
      **linear(f'{layer}up', WAYS, *(dense + x for x in ways)),
      **linear(f'{layer}down', LINEAR, dense + 'wo'),
    }

  return stack('encoder', 'encoder/', 1) | stack('decoder', '', 2)


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
  }
  | scale(_sublayer('decoder', 1) + 'layer_norm', 'layer{}/norm_source')
  | linear('layer{}/source_q', MAPS, _CROSS + 'q')
  | linear('layer{}/source_out', LINEAR, _CROSS + 'o')
  | linear('encoder/source{}', LAST_APART, _CROSS + 'k', _CROSS + 'v'),
  varying=_stacks,
  only={'is_encoder_decoder': True},
  harmless='dropout_rate initializer_factor output_past',
  copies=('encoder.embed_tokens.weight', 'decoder.embed_tokens.weight'),
  spare_head=True,
  prefix='',
  # Written by old versions, and read by none.
  ignored=('EncDecAttention.relative_attention_bias.weight',),
)

FAMILIES = (T5,)
