"""The fields of configs: what --help says of them, and whether they fit.

A command line can only give values of the right type to most fields; files of
configs, and tuples, can hold anything.
"""

import builtins
import dataclasses
import inspect
import numbers
import re
import reprlib
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any

from specjax.errors import need

_NONE = dataclasses.MISSING
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


def sentences(kind: type) -> dict[str, str]:
  """What the docstrings of a dataclass and its bases say of each field."""
  by_name = {}
  for base in reversed(kind.__mro__):
    _, _, section = inspect.cleandoc(base.__doc__ or '').partition(
      'Attributes:\n'
    )
    for name, sentence in re.findall(
      r'^  (\w+): (.+(?:\n    .+)*)', section, re.M
    ):
      by_name[name] = ' '.join(sentence.split())
  return by_name


def describe(kind: type, config: Any = None) -> str:
  """Every field that a command line can set: type, value and sentence.

  Args:
    kind: a dataclass.
    config: one of this kind, whose values are shown; without it those that
      the class declares.
  """
  return '\n'.join(_lines(kind, config, '--config', set()))


def _lines(
  kind: type, config: Any, name: str, described: set[type]
) -> Iterator[str]:
  """The lines of `describe`; sentences of a class are given once."""
  hints = typing.get_type_hints(kind)
  about = {} if kind in described else sentences(kind)
  described.add(kind)
  for field in dataclasses.fields(kind):
    path, hint = f'{name}.{field.name}', hints[field.name]
    value = getattr(config, field.name, _default(field))
    entries = _entries(hint, value)
    shown = '' if entries or value is _NONE else f' = {value!r}'
    yield from textwrap.wrap(
      f'{path}: {_annotation(hint)}{shown}',
      80,
      initial_indent='  ',
      subsequent_indent=' ' * 8,
      break_on_hyphens=False,
    )
    yield from textwrap.wrap(
      about.get(field.name, ''),
      80,
      initial_indent=' ' * 6,
      subsequent_indent=' ' * 6,
    )
    for key, (held, one) in entries.items():
      yield from _lines(held, one, path + key, described)


def _entries(hint: Any, value: Any) -> dict[str, tuple[type, Any]]:
  """Dataclasses that a field holds: what follows its name, class and value."""
  if dataclasses.is_dataclass(hint):
    return {'': (hint, None if value is _NONE else value)}
  values = value.items() if isinstance(value, dict) else ()
  entries = {
    f'.{k}' if k.isidentifier() else f'[{k!r}]': (type(v), v)
    for k, v in values
    if dataclasses.is_dataclass(v)
  }
  if not entries and dataclasses.is_dataclass(_held(hint)):
    return {'.NAME': (_held(hint), None)}
  return entries


def _default(field: dataclasses.Field) -> Any:
  if field.default_factory is not _NONE:
    return field.default_factory()
  return field.default


def _annotation(hint: Any) -> str:
  """A type as it is written, without modules."""
  if isinstance(hint, type) and typing.get_origin(hint) is None:
    return hint.__name__
  return re.sub(r'(\w+\.)+(?=\w)', '', str(hint))
