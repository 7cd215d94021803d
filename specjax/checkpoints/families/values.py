"""Values of attributes, and rows that hold one attribute."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from specjax.checkpoints.families.table import Row

_MISSING = object()


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
  'gelu_fast': nn.gelu,
}


def size(value: Any) -> int:
  if type(value) is not int or value < 1:
    raise ValueError('a positive whole number')
  return value


def index(value: Any) -> int:
  if type(value) is not int or value < 0:
    raise ValueError('a whole number from 0 on')
  return value


def number(value: Any) -> float:
  # A bool is an int in Python, but no number in a config.
  good = type(value) in (int, float) and math.isfinite(value) and value > 0
  if not good:
    raise ValueError('a positive number')
  return float(value)


def numbers(value: Any) -> tuple[float, ...]:
  if not isinstance(value, list):
    raise ValueError('a list of positive numbers')
  return tuple(number(x) for x in value)


def layers(value: Any) -> tuple[int, ...]:
  good = isinstance(value, list)
  if not good or not all(type(x) is int and x >= 0 for x in value):
    raise ValueError('a list of layers, counted from 0')
  return tuple(value)


def flag(value: Any) -> bool:
  if type(value) is not bool:
    raise ValueError('true or false')
  return value


def activation(value: Any) -> Callable[[jax.Array], jax.Array]:
  if not isinstance(value, str) or value not in ACTIVATIONS:
    raise ValueError(f'one of {", ".join(ACTIVATIONS)}')
  return ACTIVATIONS[value]


def name_of(function: Callable[[jax.Array], jax.Array]) -> str:
  """Name of an activation."""
  for name, known in ACTIVATIONS.items():
    if known is function:
      return name
  raise ValueError(f'activation {function} has no name in a checkpoint')


def take(
  rest: dict[str, Any],
  name: str,
  decode: Callable[[Any], Any],
  default: Any = _MISSING,
  null: Any = _MISSING,
) -> Any:
  """Takes an attribute out of `rest` and decodes it.

  Args:
    rest: attributes that are left.
    name: of the attribute.
    decode: its decoder, which raises ValueError with what was expected.
    default: where it is missing; by default it must not be.
    null: where it is null; by default the same.

  Raises:
    ValueError: names the attribute.
  """
  value = rest.pop(name, _MISSING)
  if value is None:
    value = _MISSING
    default = default if null is _MISSING else null
  if value is _MISSING:
    if default is _MISSING:
      raise ValueError(f'config attribute {name} is missing')
    return default
  try:
    return decode(value)
  except ValueError as error:
    raise ValueError(
      f'unsupported config attribute {name} = {value!r}; expected {error}'
    ) from None


def attribute(
  name: str,
  fields: str | tuple[str, ...],
  decode: Callable[[Any], Any],
  default: Any = _MISSING,
  encode: Callable[[Any], Any] = lambda field: field,
  null: Any = _MISSING,
) -> Row:
  """Row of one attribute.

  Args:
    name: of the attribute.
    fields: of `TransformerConfig` that it sets, all to the same value.
    decode: see `take`.
    default: of a file without it, or a function of the fields set so far.
    encode: inverse of `decode`.
    null: what null stands for, likewise; by default the same as missing.
  """
  targets = (fields,) if isinstance(fields, str) else fields

  def read(rest, known):
    defaults = (x(known) if callable(x) else x for x in (default, null))
    return dict.fromkeys(targets, take(rest, name, decode, *defaults))

  def write(config):
    return {name: encode(getattr(config, targets[0]))}

  return Row(read, write)


def activation_row(name: str, default: str) -> Row:
  """Row of the activation function."""
  function = ACTIVATIONS[default]
  return attribute(name, 'activation', activation, lambda _: function, name_of)


def derive(field: str, function: Callable[[dict[str, Any]], Any]) -> Row:
  """Row of a field that follows from others and has no attribute."""

  def read(rest, known):
    del rest  # Unused.
    return {field: function(known)}

  def write(config):
    del config  # Unused.
    return {}

  return Row(read, write)
