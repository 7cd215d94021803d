"""Checkpoint families: how the models of others become ours, and back.

A family is one table. Its rows say which attributes of a Hugging Face
`config.json` set which fields of `TransformerConfig`, and which tensors each
of our parameters is made of. Both are read in both directions, so a model
that can be loaded can be saved.

An attribute that no row handles and that is not known to be harmless is
rejected: to ignore it would be to run another model under the same name.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np

from specjax.models import transformer
from specjax.models.transformer import TransformerConfig


class Layout(NamedTuple):
  """How one parameter is cut into tensors of a checkpoint.

  cut(x) -> tensors: by shapes, slices and transposes only, so that it runs on
    shapes alone.
  join(tensors, shape) -> x of that shape: the inverse, in numpy.
  """

  cut: Callable[[Any], tuple[Any, ...]]
  join: Callable[[Any, tuple[int, ...]], np.ndarray]


class Source(NamedTuple):
  """The tensors that one parameter is made of; {} stands for the layer."""

  layout: Layout
  names: tuple[str, ...]


class Attribute(NamedTuple):
  """One attribute of `config.json`.

  name: of the attribute.
  fields: of `TransformerConfig` that it sets, all to the same value.
  decode(value) -> field: raises ValueError with what was expected.
  encode(field) -> value: the inverse.
  default(fields) -> field: for a file without it, from the fields set so far;
    None where the file must have it.
  """

  name: str
  fields: tuple[str, ...]
  decode: Callable[[Any], Any]
  encode: Callable[[Any], Any] = lambda field: field
  default: Callable[[dict[str, Any]], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Family:
  """Models that share the names in their files.

  Attributes:
    model_type: their name in `config.json`.
    architecture: name of the class with the language modelling head.
    attributes: rows that are handled, in order.
    fixed: fields that are the same for the whole family.
    only: attributes that are no choice here: any other value is rejected.
    harmless: attributes that do not change the logits.
    sources: of each parameter, '/' between the keys and {} for the layer.
      Rows of parameters that a configuration lacks are not used.
    ignored: endings of tensor names that hold no parameters.
  """

  model_type: str
  architecture: str
  attributes: tuple[Attribute, ...]
  fixed: Mapping[str, Any]
  only: Mapping[str, Any]
  harmless: frozenset[str]
  sources: Mapping[str, Source]
  ignored: tuple[str, ...] = ()


# Layouts. Checkpoints of PyTorch's Linear store [out, in], ours [in, out].


def _cut_groups(x):
  """[..., G, H/G + 2, D] -> queries, keys, values, each [out, in]."""
  parts = x[..., :-2, :], x[..., -2:-1, :], x[..., -1:, :]
  return tuple(part.reshape(*part.shape[:-3], -1).T for part in parts)


def _join_groups(tensors, shape):
  *inputs, groups, _, width = shape
  parts = [t.T.reshape(*inputs, groups, -1, width) for t in tensors]
  return np.concatenate(parts, -2)


KEEP = Layout(lambda x: (x,), lambda tensors, shape: tensors[0])
TRANSPOSE = Layout(lambda x: (x.T,), lambda tensors, shape: tensors[0].T)
# Queries, keys and values, which we group by key-value head. 1-D biases too.
GROUPS = Layout(_cut_groups, _join_groups)
# [..., ways, F]: the gate before what it gates, or one way without a gate.
WAYS = Layout(
  lambda x: tuple(x[..., i, :].T for i in range(x.shape[-2])),
  lambda tensors, shape: np.stack([t.T for t in tensors], -2),
)


# Values of attributes.


def gelu(x: jax.Array) -> jax.Array:
  """GELU by the error function; `nn.gelu` is its tanh approximation."""
  return nn.gelu(x, approximate=False)


# Saving writes the first name of a function.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  'silu': nn.silu,
  'swish': nn.silu,
  'relu': nn.relu,
  'gelu': gelu,
  'gelu_new': nn.gelu,
  'gelu_pytorch_tanh': nn.gelu,
}


def decode_size(value: Any) -> int:
  if type(value) is not int or value < 1:
    raise ValueError('a positive whole number')
  return value


def decode_number(value: Any) -> float:
  # A bool is an int in Python, but no number in a config.
  good = type(value) in (int, float) and math.isfinite(value) and value > 0
  if not good:
    raise ValueError('a positive number')
  return float(value)


def decode_flag(value: Any) -> bool:
  if type(value) is not bool:
    raise ValueError('true or false')
  return value


def decode_activation(value: Any) -> Callable[[jax.Array], jax.Array]:
  if not isinstance(value, str) or value not in ACTIVATIONS:
    raise ValueError(f'one of {", ".join(ACTIVATIONS)}')
  return ACTIVATIONS[value]


def encode_activation(field: Callable[[jax.Array], jax.Array]) -> str:
  for name, function in ACTIVATIONS.items():
    if function is field:
      return name
  raise ValueError(f'activation {field} has no name in a checkpoint')


# What transformers writes for any family: its own bookkeeping, training, and
# tokens that only `generate` looks at.
_HARMLESS = frozenset(
  {
    '_attn_implementation_autoset',
    '_name_or_path',
    'attention_dropout',
    'bos_token_id',
    'chunk_size_feed_forward',
    'dtype',
    'eos_token_id',
    'initializer_range',
    'model_type',
    'output_attentions',
    'output_hidden_states',
    'pad_token_id',
    'return_dict',
    'torch_dtype',
    'transformers.js_config',
    'transformers_version',
    'use_cache',
  }
)

LLAMA = Family(
  model_type='llama',
  architecture='LlamaForCausalLM',
  attributes=(
    Attribute('vocab_size', ('vocab_size',), decode_size),
    Attribute('hidden_size', ('width',), decode_size),
    Attribute('num_hidden_layers', ('num_layers',), decode_size),
    Attribute('num_attention_heads', ('num_heads',), decode_size),
    Attribute(
      'num_key_value_heads',
      ('num_kv_heads',),
      decode_size,
      default=lambda fields: fields['num_heads'],
    ),
    Attribute(
      'head_dim',
      ('head_dim',),
      decode_size,
      default=lambda fields: fields['width'] // fields['num_heads'],
    ),
    Attribute('intermediate_size', ('mlp_width',), decode_size),
    Attribute(
      'max_position_embeddings',
      ('max_positions',),
      decode_size,
      default=lambda _: 2048,
    ),
    Attribute(
      'hidden_act',
      ('activation',),
      decode_activation,
      encode_activation,
      default=lambda _: nn.silu,
    ),
    Attribute(
      'rms_norm_eps', ('norm_eps',), decode_number, default=lambda _: 1e-6
    ),
    Attribute(
      'rope_theta', ('rope_theta',), decode_number, default=lambda _: 1e4
    ),
    Attribute(
      'attention_bias',
      ('qkv_bias', 'out_bias'),
      decode_flag,
      default=lambda _: False,
    ),
    Attribute('mlp_bias', ('mlp_bias',), decode_flag, default=lambda _: False),
    Attribute(
      'tie_word_embeddings',
      ('tied_embeddings',),
      decode_flag,
      default=lambda _: False,
    ),
  ),
  fixed={'gated': True, 'layer_norm': False},
  only={
    'is_encoder_decoder': False,
    'partial_rotary_factor': 1,
    'pretraining_tp': 1,
    'rope_interleaved': False,
  },
  harmless=_HARMLESS | {'is_llama_config'},
  sources={
    'embedding': Source(KEEP, ('model.embed_tokens.weight',)),
    'unembedding': Source(TRANSPOSE, ('lm_head.weight',)),
    'norm/scale': Source(KEEP, ('model.norm.weight',)),
    'layer{}/norm1/scale': Source(
      KEEP, ('model.layers.{}.input_layernorm.weight',)
    ),
    'layer{}/qkv/w': Source(
      GROUPS,
      (
        'model.layers.{}.self_attn.q_proj.weight',
        'model.layers.{}.self_attn.k_proj.weight',
        'model.layers.{}.self_attn.v_proj.weight',
      ),
    ),
    'layer{}/qkv/b': Source(
      GROUPS,
      (
        'model.layers.{}.self_attn.q_proj.bias',
        'model.layers.{}.self_attn.k_proj.bias',
        'model.layers.{}.self_attn.v_proj.bias',
      ),
    ),
    'layer{}/out/w': Source(
      TRANSPOSE, ('model.layers.{}.self_attn.o_proj.weight',)
    ),
    'layer{}/out/b': Source(KEEP, ('model.layers.{}.self_attn.o_proj.bias',)),
    'layer{}/norm2/scale': Source(
      KEEP, ('model.layers.{}.post_attention_layernorm.weight',)
    ),
    'layer{}/up/w': Source(
      WAYS,
      (
        'model.layers.{}.mlp.gate_proj.weight',
        'model.layers.{}.mlp.up_proj.weight',
      ),
    ),
    'layer{}/up/b': Source(
      WAYS,
      (
        'model.layers.{}.mlp.gate_proj.bias',
        'model.layers.{}.mlp.up_proj.bias',
      ),
    ),
    'layer{}/down/w': Source(
      TRANSPOSE, ('model.layers.{}.mlp.down_proj.weight',)
    ),
    'layer{}/down/b': Source(KEEP, ('model.layers.{}.mlp.down_proj.bias',)),
  },
  # Old files store the rotary frequencies, which follow from the base.
  ignored=('.rotary_emb.inv_freq',),
)

FAMILIES = {family.model_type: family for family in (LLAMA,)}


def read_attributes(
  attributes: Mapping[str, Any],
) -> tuple[Family, TransformerConfig]:
  """Returns the family and the configuration that a `config.json` describes.

  Args:
    attributes: the file's content. What is missing takes the defaults of the
      family, as transformers has them.

  Raises:
    ValueError: an attribute is unknown, missing or has an unsupported value;
      the message names it.
  """
  kind = attributes.get('model_type')
  if not isinstance(kind, str) or kind not in FAMILIES:
    raise ValueError(
      f'model_type {kind!r} is unknown; known are {", ".join(FAMILIES)}'
    )
  family = FAMILIES[kind]
  rest = _merge_rotary(attributes)
  _take_architecture(rest, family)
  fields = dict(family.fixed)
  for row in family.attributes:
    fields |= dict.fromkeys(row.fields, _take(rest, row, fields))
  for name, value in family.only.items():
    found = rest.pop(name, value)
    # null is how some files write the default.
    if found is not None and found != value:
      raise ValueError(
        f'unsupported config attribute {name} = {found!r}; only {value!r} is'
      )
  unknown = sorted(rest.keys() - family.harmless)
  if unknown:
    listed = ', '.join(f'{name} = {rest[name]!r}' for name in unknown)
    raise ValueError(
      f'unsupported config attribute {listed}; remove it if it does not '
      'change the logits'
    )
  config = TransformerConfig(**fields)
  if config.rope_theta is not None and config.head_dim % 2:
    raise ValueError(
      f'head_dim = {config.head_dim} must be even for rotary positions'
    )
  return family, config


# Ways to say that the rotary positions are just that. A tuple, as a value may
# be a list.
_PLAIN_ROTARY = (
  ('rope_type', 'default'),
  ('type', 'default'),
  ('partial_rotary_factor', 1),
)


def _merge_rotary(attributes):
  """Copies the attributes with the rotary base at the top, as `rope_theta`.

  transformers 4 wrote `rope_theta` beside `rope_scaling`; 5 writes both
  inside `rope_parameters`. What is left of either is for others to reject.
  """
  rest = dict(attributes)
  for name in ('rope_scaling', 'rope_parameters'):
    inner = rest.pop(name, None)
    if inner is None:
      continue
    if not isinstance(inner, dict):
      raise ValueError(f'{name} = {inner!r} must be an object or null')
    for key, value in inner.items():
      if key == 'rope_theta':
        outer = rest.get(key)
        if outer is not None and outer != value:
          raise ValueError(f'{key} = {outer!r} but {name}.{key} = {value!r}')
        rest[key] = value
      elif (key, value) not in _PLAIN_ROTARY:
        rest[f'{name}.{key}'] = value
  return rest


def _take_architecture(rest, family):
  found = rest.pop('architectures', None)
  if found is not None and found != [family.architecture]:
    raise ValueError(
      f'architectures = {found!r}; only [{family.architecture!r}] has the '
      'head of a language model'
    )


def _take(rest, row, fields):
  value = rest.pop(row.name, None)
  if value is not None:
    try:
      return row.decode(value)
    except ValueError as error:
      raise ValueError(
        f'unsupported config attribute {row.name} = {value!r}; expected {error}'
      ) from None
  if row.default is None:
    raise ValueError(f'config attribute {row.name} is missing')
  return row.default(fields)


def write_attributes(
  config: TransformerConfig,
) -> tuple[Family, dict[str, Any]]:
  """Returns the family that covers a configuration, and its `config.json`.

  Raises:
    ValueError: no family has all of the configuration's options; the message
      names those that are missing.
  """
  if config.width % config.num_heads:
    # Nothing here needs that, but transformers refuses the file.
    raise ValueError(
      f'width = {config.width} must be a multiple of num_heads = '
      f'{config.num_heads}'
    )
  obstacles = []
  for family in FAMILIES.values():
    try:
      attributes = _write_family(family, config)
      _, found = read_attributes(attributes)
    except ValueError as error:
      obstacles.append(f'{family.model_type}: {error}')
      continue
    # What the rows cannot say comes back as something else.
    lost = [
      f'{field.name} = {getattr(config, field.name)}'
      for field in dataclasses.fields(config)
      if getattr(config, field.name) != getattr(found, field.name)
    ]
    if not lost:
      return family, attributes
    obstacles.append(f'{family.model_type} has no {", ".join(lost)}')
  raise ValueError(f'no family covers the model: {"; ".join(obstacles)}')


def _write_family(family, config):
  attributes = {
    row.name: row.encode(getattr(config, row.fields[0]))
    for row in family.attributes
  }
  attributes['model_type'] = family.model_type
  attributes['architectures'] = [family.architecture]
  if attributes.get('rope_theta') is not None:
    # Readers know one place or the other, and fall back silently to a default
    # where they find nothing.
    attributes['rope_parameters'] = {
      'rope_theta': attributes['rope_theta'],
      'rope_type': 'default',
    }
  return attributes


def shape_params(config: TransformerConfig) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of a model's parameters, '/' between the keys."""
  model = transformer.build(config)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  return flax.traverse_util.flatten_dict(shapes, sep='/')


def list_sources(family: Family, paths: Iterable[str]) -> dict[str, Source]:
  """Returns the sources of parameters, the layers' numbers filled in."""
  sources = {}
  for path in paths:
    layer = re.match(r'layer(\d+)/', path)
    row = re.sub(r'^layer\d+/', 'layer{}/', path)
    layout, names = family.sources[row]
    if layer:
      names = tuple(name.format(layer[1]) for name in names)
    sources[path] = Source(layout, names)
  return sources
