"""Whether every field of a config has the type that it declares.

A command line can only give values of the right type to most fields; files of
configs, and tuples, can hold anything.
"""

import builtins
import dataclasses
import numbers
import reprlib
import types
import typing
from typing import Any

from experiments.errors import need

# What a field declares: what it may be, and that in words.
_PLAIN = {
  int: (numbers.Integral, 'a whole number'),
  float: (numbers.Real, 'a number'),
  bool: (bool, 'True or False'),
  str: (str, 'a text'),
}


def check(config: Any, where: str = '') -> None:
  """Checks a config, and the configs that it holds.

  Args:
    config: a dataclass.
    where: what the names of its fields follow.

  Raises:
    UserError: names the first field that has another type.
  """
  kinds = typing.get_type_hints(type(config))
  for field in dataclasses.fields(config):
    _check(
      f'{where}{field.name}', getattr(config, field.name), kinds[field.name]
    )


def _check(name: str, value: Any, kind: Any) -> None:
  """Checks one value, and all that it holds."""
  need(
    fits(value, kind), f'{name} must be {in_words(kind)}, got {shown(value)}'
  )
  if dataclasses.is_dataclass(value):
    check(value, f'{name}.')
  elif isinstance(value, dict):
    for key, held in value.items():
      _check(f'{name}.{key}', held, _held(kind))


def _held(kind: Any) -> Any:
  """What a dictionary of a type holds."""
  return (typing.get_args(kind) or (Any, Any))[1]


def fits(value: Any, kind: Any) -> bool:
  """Whether a value is of a type; what dictionaries hold is not looked at."""
  held = typing.get_args(kind)
  match typing.get_origin(kind):
    case types.UnionType:
      return any(fits(value, one) for one in held)
    case builtins.tuple:
      if not isinstance(value, tuple | list):
        return False
      if held[-1] is not ...:
        return len(value) == len(held) and all(map(fits, value, held))
      return all(fits(one, held[0]) for one in value)
    case builtins.dict:
      return isinstance(value, dict) and all(isinstance(k, str) for k in value)
  if kind is Any:
    return True
  if kind in _PLAIN:
    number = isinstance(value, bool) and kind is not bool
    return isinstance(value, _PLAIN[kind][0]) and not number
  return isinstance(value, kind)


def in_words(kind: Any) -> str:
  """A type in words."""
  held = typing.get_args(kind)
  match typing.get_origin(kind):
    case types.UnionType:
      return ' or '.join(map(in_words, held))
    case builtins.tuple if held[-1] is ...:
      return f'a tuple, each of it {in_words(held[0])}'
    case builtins.tuple:
      return f'({", ".join(map(in_words, held))})'
    case builtins.dict:
      return 'a dictionary by name'
  if kind is types.NoneType:
    return 'None'
  return _PLAIN[kind][1] if kind in _PLAIN else f'a {kind.__name__}'


def shown(value: Any) -> str:
  """A value for a message, shortened where it is long."""
  return reprlib.repr(value)
