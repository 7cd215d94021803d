"""From `config.json` to a configuration and back, by the tables."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax

from specjax.checkpoints.families import FAMILIES, rope, values, wrappers
from specjax.checkpoints.families.table import HARMLESS, ONLY, Family
from specjax.models import cache_attention, rotary, transformer
from specjax.models.config import TransformerConfig
from specjax.models.devices import CPU

# A part of a path that is counted, and its number; the first may have none.
_LAYER = re.compile(r'\b(layer|source)(\d*)/')


def read_attributes(
  attributes: Mapping[str, Any],
  max_length: int | None = None,
) -> tuple[Family, TransformerConfig]:
  """Returns the family and the configuration that a `config.json` describes.

  Args:
    attributes: the file's content. What is missing takes the defaults of the
      family, as transformers has them. Of a model that sees images the
      language model is taken, see `wrappers`.
    max_length: longest sequence of the run, see `limit_length`.

  Raises:
    ValueError: an attribute is unknown, missing or has an unsupported value;
      the message names it.
  """
  attributes = wrappers.text_attributes(attributes)
  kind = attributes.get('model_type')
  if not isinstance(kind, str) or kind not in FAMILIES:
    raise ValueError(
      f'model_type {kind!r} is unknown; known are '
      f'{", ".join([*FAMILIES, *wrappers.WRAPPERS])}'
    )
  family = FAMILIES[kind]
  rest = dict(attributes)
  wrappers.take_architecture(rest, family.architecture)
  fields = dict(family.fixed)
  for row in family.rows:
    fields |= row(rest, fields)
  harmless = {*family.harmless.split()}
  for name, value in (ONLY | dict(family.only)).items():
    if name in harmless:
      continue
    given = rest.pop(name, value)
    # null is how some files write the default.
    if given is not None and given != value:
      raise ValueError(
        f'unsupported config attribute {name} = {given!r}; only {value!r} is'
      )
  wrappers.refuse_unknown(rest, HARMLESS | harmless, 'the logits')
  return family, limit_length(TransformerConfig(**fields), max_length)


def limit_length(
  config: TransformerConfig, max_length: int | None
) -> TransformerConfig:
  """Fixes the longest sequence of a run.

  Rotary scalings that depend on the length are computed for `max_length`
  tokens instead of the checkpoint's maximum. Nothing else depends on it.

  Raises:
    ValueError: the model has fewer positions.
  """
  if max_length is None:
    return config
  if max_length < 1:
    raise ValueError(f'max_length = {max_length} must be at least 1')
  scaling = config.rope_scaling
  dynamic = isinstance(scaling, rotary.Dynamic)
  relative = config.relative is not None  # These never end.
  if max_length > config.max_positions and not dynamic and not relative:
    raise ValueError(
      f'max_length = {max_length} is more than the {config.max_positions} '
      'positions of the model'
    )
  if dynamic or relative or isinstance(scaling, rotary.LongRope):
    return dataclasses.replace(config, max_positions=max_length)
  return config


def llama_attributes(config: TransformerConfig) -> dict[str, Any]:
  """Attributes that a Llama, or a Qwen or Mistral, has of its layers."""
  scaling = rope.write_scaling(config.rope_scaling)
  attributes: dict[str, Any] = {
    'model_type': 'qwen3' if config.qk_norm else 'llama',
    'vocab_size': config.vocab_size,
    'hidden_size': config.width,
    'num_hidden_layers': config.num_layers,
    'num_attention_heads': config.num_heads,
    'num_key_value_heads': config.num_kv_heads,
    'head_dim': config.head_dim,
    'intermediate_size': config.mlp_width,
    'max_position_embeddings': config.max_positions,
    'hidden_act': values.name_of(config.activation),
    'rms_norm_eps': config.norm_eps,
    'tie_word_embeddings': config.tied_embeddings,
    'rope_theta': config.rope_theta,
    'rope_parameters': {'rope_theta': config.rope_theta} | scaling,
  }
  if config.rope_scaling is not None:
    attributes['rope_scaling'] = scaling
    # The run may have changed it for a scaling that depends on the length.
    trained = getattr(config.rope_scaling, 'trained', config.max_positions)
    attributes['max_position_embeddings'] = trained
  return attributes


def _write_llama(config: TransformerConfig) -> dict[str, Any]:
  """Attributes of a Llama, or of a Qwen or Mistral, which differ in few fields.

  What they cannot say comes back as something else when they are read.

  Raises:
    ValueError: transformers refuses such a file, or the activation has no name.
  """
  if config.width % config.num_heads:
    raise ValueError(
      f'width = {config.width} must be a multiple of num_heads = '
      f'{config.num_heads}'
    )
  attributes = llama_attributes(config)
  windows = {window for window in config.windows if window is not None}
  if config.qk_norm or config.qkv_bias > config.out_bias:
    kinds = (config.window(i) is None for i in range(config.num_layers))
    attributes |= {
      'model_type': 'qwen3' if config.qk_norm else 'qwen2',
      'use_sliding_window': bool(windows),
      # A file without a window would get the default.
      'sliding_window': max(windows, default=4096),
      'layer_types': [values.FULL if x else values.SLIDING for x in kinds],
    }
    if config.qk_norm:
      attributes['attention_bias'] = config.out_bias
    return attributes
  if windows:
    window = {'model_type': 'mistral', 'sliding_window': max(windows)}
    return attributes | window
  biases = {'attention_bias': config.out_bias, 'mlp_bias': config.mlp_bias}
  return attributes | biases


def write_attributes(
  config: TransformerConfig,
  given: Mapping[str, Any],
) -> tuple[Family, dict[str, Any]]:
  """Returns the family of a configuration, and its attributes.

  Args:
    config: what the attributes have to say.
    given: content of the `config.json` that the model was read from; without a
      `model_type` attributes besides, of a Llama, Mistral, Qwen2 or Qwen3.

  Raises:
    ValueError: the attributes do not say all of the configuration; the message
      names those that are missing.
  """
  # What suits a device is nothing that a file says.
  config = dataclasses.replace(
    config, attention=cache_attention.blocked, device=CPU
  )
  attributes = wrappers.text_attributes(given)
  if wrappers.is_wrapper(given):  # Its default was another before.
    attributes.setdefault(wrappers.TIED, config.tied_embeddings)
  if 'model_type' not in given:
    attributes = _write_llama(config)
  family, reread = read_attributes(attributes, config.max_positions)
  lost = [
    f'{field.name} = {getattr(config, field.name)}'
    for field in dataclasses.fields(config)
    if getattr(config, field.name) != getattr(reread, field.name)
  ]
  if lost:
    raise ValueError(
      f'{family.model_type} has no {", ".join(lost)}; give as attributes the '
      'config.json that the model was read from'
    )
  if 'model_type' not in given:
    attributes |= given
  return family, attributes | {
    'model_type': family.model_type,
    'architectures': [family.architecture],
  }


def shape_params(config: TransformerConfig) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of a model's parameters, '/' between the keys."""
  shapes = transformer.shape_params(config)
  return flax.traverse_util.flatten_dict(shapes, sep='/')


def fill(table: Mapping[str, Any], shapes: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the rows of a table for parameters, layers and experts filled in.

  Args:
    table: sources of parameters, as of a `Family`; one layer may have rows of
      its own.
    shapes: of the parameters that there are.
  """
  sources = {}
  for path, x in shapes.items():
    layer = _LAYER.search(path)
    source = table.get(path) or table[_LAYER.sub(r'\1{}/', path)]
    names = source.names
    if any('{expert}' in name for name in names):
      names = tuple(
        name.replace('{expert}', str(i))
        for i in range(x.shape[0])
        for name in names
      )
    if layer:
      names = tuple(name.format(layer[2] or 0) for name in names)
    sources[path] = source._replace(names=names)
  return sources
