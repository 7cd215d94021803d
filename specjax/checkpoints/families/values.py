"""Values of attributes, and rows that families share."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax

from specjax.checkpoints.families.table import Row

MISSING = object()  # as a default: there is none


def gelu(x: jax.Array) -> jax.Array:
  """GELU by the error function; `nn.gelu` is its tanh approximation."""
  return nn.gelu(x, approximate=False)


def relu2(x: jax.Array) -> jax.Array:
  """The square of ReLU (So et al., 2021, arXiv:2109.08668)."""
  return jax.numpy.square(nn.relu(x))


# Saving writes the first name of a function.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  'silu': nn.silu,
  'swish': nn.silu,
  'relu': nn.relu,
  'relu2': relu2,
  'gelu': gelu,
  'gelu_new': nn.gelu,
  'gelu_pytorch_tanh': nn.gelu,
  'gelu_fast': nn.gelu,
}


def size(value: Any) -> int:
  if type(value) is not int or not 1 <= value < 2**31:
    raise ValueError('a whole number from 1 to 2147483647')
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
  default: Any = MISSING,
  null: Any = MISSING,
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
  value = rest.pop(name, MISSING)
  if value is None:
    value = MISSING
    default = default if null is MISSING else null
  if value is MISSING:
    if default is MISSING:
      raise ValueError(
        f'config attribute {name} is missing; take the whole config.json of '
        'the checkpoint'
      )
    return default
  try:
    return decode(value)
  except ValueError as error:
    raise ValueError(
      f'unsupported config attribute {name} = {value!r}; expected {error}'
    ) from None


def take_all(
  rest: dict[str, Any], names: Mapping[str, tuple]
) -> dict[str, Any]:
  """Takes the attributes of some fields out of `rest`.

  Args:
    rest: attributes that are left.
    names: attribute of each field, its default, and its decoder where it is
      not `size`.
  """
  return {
    field: take(rest, name, decode[0] if decode else size, default)
    for field, (name, default, *decode) in names.items()
  }


def agree(name: str, given: int, value: int) -> None:
  """Raises a ValueError where an attribute is not what follows from others."""
  if given != value:
    raise ValueError(
      f'unsupported config attribute {name} = {given}; expected {value}'
    )


def attribute(
  name: str,
  fields: str | tuple[str, ...],
  decode: Callable[[Any], Any],
  default: Any = MISSING,
  null: Any = MISSING,
) -> Row:
  """Row of one attribute.

  Args:
    name: of the attribute.
    fields: of `TransformerConfig` that it sets, all to the same value; empty:
      it is checked alone.
    decode: see `take`.
    default: of a file without it, or a function of the fields set so far.
    null: the value that null stands for; by default that of a file without it.
  """
  targets = (fields,) if isinstance(fields, str) else fields

  def read(rest, known):
    defaults = (x(known) if callable(x) else x for x in (default, null))
    return dict.fromkeys(targets, take(rest, name, decode, *defaults))

  return read


def activation_row(name: str, default: str) -> Row:
  """Row of the activation function."""
  function = ACTIVATIONS[default]
  return attribute(name, 'activation', activation, lambda _: function)


SILU = activation_row('hidden_act', 'silu')


def derive(field: str, function: Callable[[dict[str, Any]], Any]) -> Row:
  """Row of a field that follows from others and has no attribute."""

  def read(rest, known):
    return {field: function(known)}

  return read


SLIDING, FULL = 'sliding_attention', 'full_attention'


def unless_none(windows):
  """Returns the windows of layers, empty where no layer has any."""
  return tuple(windows) if any(windows) else ()


def window_row(default: int | None, switch: bool = False) -> Row:
  """Every layer has the window, or none has.

  Args:
    default: of `sliding_window`.
    switch: whether `use_sliding_window` must be true for it to count.
  """

  def read(rest, known):
    window = take(rest, 'sliding_window', size, default, null=None)
    if switch and not take(rest, 'use_sliding_window', flag, False):
      window = None
    return {'windows': unless_none([window] * known['num_layers'])}

  return read


def of_layers(count: int, *known: str) -> Callable[[Any], list[str]]:
  """Returns a decoder of lists with one of some names for each layer."""

  def decode(value):
    good = isinstance(value, list) and len(value) == count
    if not good or not all(name in known for name in value):
      raise ValueError(f'{count} times {" or ".join(map(repr, known))}')
    return value

  return decode


def window_by_layer_row(
  default: int | None,
  pattern: Callable[[int, dict[str, Any]], bool],
  switch: bool = False,
  sizes: tuple[tuple[str, int], ...] = (),
) -> Row:
  """Layers whose type says whether they have the window.

  Args:
    default: of `sliding_window`.
    pattern: (layer, sizes and fields so far) -> whether it has one, for files
      without the types.
    switch: whether `use_sliding_window` must be true for any to have it.
    sizes: attributes that the pattern looks at, and their defaults.
  """

  def read(rest, known):
    layers = known['num_layers']
    window = take(rest, 'sliding_window', size, default, null=None)
    given = known | {
      name: take(rest, name, size, usual) for name, usual in sizes
    }
    if switch and not take(rest, 'use_sliding_window', flag, False):
      window = None
    kinds = of_layers(layers, SLIDING, FULL)
    types = take(rest, 'layer_types', kinds, None)
    if types is None:
      types = [SLIDING if pattern(i, given) else FULL for i in range(layers)]
      if switch and window is None:
        types = [FULL] * layers
    if window is None and SLIDING in types:
      raise ValueError(
        f'layer_types has {SLIDING!r}, but there is no sliding_window'
      )
    windows = [window if kind == SLIDING else None for kind in types]
    return {'windows': unless_none(windows)}

  return read
