"""Fields of configurations: their types, checks, values from texts, and help.

A dataclass declares what a field takes. `Annotated[int, Between(1)]` is a whole
number of at least 1, and `Literal['a', 'b']` one of two texts.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import os
import re
import reprlib
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from specjax.errors import UserError, need

SEEDS = 2**32  # Larger ones give the keys of smaller ones.
_MISSING = dataclasses.MISSING
# The declared type, the types of its values, and its name for users.
_PLAIN = {
  int: (numbers.Integral, 'a whole number'),
  float: (numbers.Real, 'a number'),
  bool: (bool, 'True or False'),
  str: (str, 'a text'),
  dict: (dict, 'a dictionary'),
  types.NoneType: (types.NoneType, 'None'),
}
_BOOLEANS = {'true': True, 'false': False, '1': True, '0': False}
# A name in a path: of a field, or in brackets of an entry of a dictionary.
_NAME = re.compile(r"""\.?([^.\[\]]+)|\[(['"])(.+?)\2\]""")


class Between(NamedTuple):
  """The finite numbers that a field takes, from `least` to `most`."""

  least: float
  most: float = math.inf

  def words(self) -> str:
    if self.most == math.inf:
      return f'at least {self.least}'
    return f'from {self.least} to {self.most}'


Count = Annotated[int, Between(1)]
Seed = Annotated[int, Between(0, SEEDS - 1)]


def check_fields(config: Any, where: str = '') -> None:
  """Checks the fields of a dataclass, and of those that it holds.

  Args:
    config: a dataclass.
    where: precedes the names of the fields in an error.

  Raises:
    UserError: names the first field whose value is not of its declared type.
  """
  for name, kind in hints(type(config)).items():
    _check(f'{where}{name}', getattr(config, name), kind)


def hints(kind: type) -> dict[str, Any]:
  """Returns the declared type of each field of a dataclass."""
  declared = typing.get_type_hints(kind, include_extras=True)
  return {f.name: declared[f.name] for f in dataclasses.fields(kind)}


def _check(name: str, value: Any, kind: Any) -> None:
  need(
    fits(value, kind), f'{name} must be {in_words(kind)}, got {shown(value)}'
  )
  if dataclasses.is_dataclass(value):
    check_fields(value, f'{name}.')
  elif isinstance(value, dict):
    for key, held in value.items():
      _check(f'{name}.{key}', held, _entry_type(kind))


def _entry_type(kind: Any) -> Any:
  """Returns the declared type of the values of a dictionary."""
  return (typing.get_args(kind) or (Any, Any))[1]


def fits(value: Any, kind: Any) -> bool:
  """Returns whether a value has a type; entries of dictionaries are skipped."""
  parts = typing.get_args(kind)
  match typing.get_origin(kind):
    case typing.Annotated:
      low, high = parts[1]
      return fits(value, parts[0]) and low <= value <= high and value < math.inf
    case typing.Literal:
      return value in parts
    case types.UnionType | typing.Union:
      return any(fits(value, part) for part in parts)
    case origin if origin is tuple:
      if not isinstance(value, tuple | list):
        return False
      if parts[-1] is ...:
        return all(fits(part, parts[0]) for part in value)
      return len(value) == len(parts) and all(map(fits, value, parts))
    case origin if origin is list:
      some = isinstance(value, tuple | list)
      return some and all(fits(part, parts[0]) for part in value)
    case origin if origin is dict:
      return isinstance(value, dict) and all(isinstance(k, str) for k in value)
  if kind is Any:
    return True
  if kind in _PLAIN:
    mixed_up = isinstance(value, bool) and kind is not bool
    return isinstance(value, _PLAIN[kind][0]) and not mixed_up
  return isinstance(value, kind)


def in_words(kind: Any) -> str:
  """Returns a type in words, for an error."""
  parts = typing.get_args(kind)
  match typing.get_origin(kind):
    case typing.Annotated:
      return f'{in_words(parts[0])}, {parts[1].words()}'
    case typing.Literal:
      return f'one of {", ".join(part or "nothing" for part in parts)}'
    case types.UnionType | typing.Union:
      words = [in_words(part) for part in parts]
      return (', or ' if ', each' in ''.join(words[:-1]) else ' or ').join(
        words
      )
    case origin if origin is tuple and parts[-1] is ...:
      return f'a tuple, each entry {in_words(parts[0])}'
    case origin if origin is tuple:
      return f'({", ".join(map(in_words, parts))})'
    case origin if origin is list:
      return f'a list, each entry {in_words(parts[0])}'
    case origin if origin is dict:
      return 'a dictionary by name'
  if kind is Any:
    return 'anything'
  return _PLAIN[kind][1] if kind in _PLAIN else f'a {kind.__name__}'


def shown(value: Any) -> str:
  """Returns a value for a message, shortened where it is long."""
  return reprlib.repr(value)


def assign(config: Any, path: str, text: str | None) -> None:
  """Sets a field to the value that a text means.

  Args:
    config: a dataclass.
    path: of the field, such as `prompts.count` or `candidates['lm'].gamma`.
    text: the value as it was typed; None where there was none.

  Raises:
    UserError: there is no such field, or it takes no such value.
  """
  names = [bare or quoted for bare, _, quoted in _NAME.findall(path)]
  need(names, f'--{path} names no field; --help lists them')
  *parents, last = names
  owner, done = config, ''
  for name in parents:
    _member_type(owner, name, done)
    owner = owner[name] if isinstance(owner, dict) else getattr(owner, name)
    done += f'{name}.'
  value = _parse(text, _member_type(owner, last, done), done + last)
  if isinstance(owner, dict):
    owner[last] = value
  else:
    setattr(owner, last, value)


def lower(config: Any, path: str, value: Any) -> None:
  """Sets a field of a quick version, unless the command line gave that field.

  Args:
    config: as `command.parse` returns it, or any other.
    path: of the field, such as `prompts.count`.
    value: of the quick version.
  """
  if path not in getattr(config, 'given', ()):
    *parents, last = path.split('.')
    setattr(functools.reduce(getattr, parents, config), last, value)


def _member_type(owner: Any, name: str, where: str) -> Any:
  """Returns the declared type of a member of a dataclass or a dictionary."""
  if isinstance(owner, dict):
    held = {type(value) for value in owner.values()}
    if not any(map(dataclasses.is_dataclass, held)):
      return Any  # Options of a drafter: whatever it takes.
    declared: dict[str, Any] = {key: type(owner[key]) for key in owner}
    kind = 'entry'
  else:
    is_config = dataclasses.is_dataclass(owner)
    declared = hints(type(owner)) if is_config else {}
    kind = 'field'
  if name not in declared:
    close = ' or '.join(map(repr, difflib.get_close_matches(name, declared)))
    there = f'it has {", ".join(declared)}' if declared else 'it has none'
    if close:
      there = f'did you mean {close}? --help lists every {kind}'
    whose = where.rstrip('.') or type(owner).__name__
    raise UserError(f'{where}{name}: {whose} has no {kind} {name!r}; {there}')
  return declared[name]


def _parse(text: str | None, kind: Any, name: str) -> Any:
  """Returns the value of a declared type that a text means."""
  need(
    text is not None or kind is bool,
    f'{name} needs a value: give it as --{name}=VALUE',
  )
  if text is None:
    return True
  need(
    not dataclasses.is_dataclass(kind),
    f'{name} holds fields: set them one by one; --help lists them',
  )
  value = _value(text, kind, name)
  _check(name, value, kind)
  return value


def _value(text: str, kind: Any, name: str) -> Any:
  """Returns what a text means where a type is wanted; it may be of another."""
  origin, parts = typing.get_origin(kind), typing.get_args(kind)
  if origin is typing.Annotated:
    return _value(text, parts[0], name)
  if origin in (types.UnionType, typing.Union):
    wanted = [part for part in parts if part is not types.NoneType]
    return None if text == 'None' else _value(text, wanted[0], name)
  if kind is str or origin is typing.Literal:
    # A shell expands ~ only where a word begins with it.
    is_path = text.startswith('~/') and name != 'prompt'
    return os.path.expanduser(text) if is_path else text
  if kind is bool:
    return _BOOLEANS.get(text.lower(), text)
  try:
    value = float(text) if kind is float else ast.literal_eval(text)
  except (SyntaxError, ValueError, MemoryError, RecursionError):
    value = text
    if origin is tuple:
      # Names without quotes; a number behind a comma belongs to one of them.
      return tuple(re.split(r',(?![\d.]|$)', text))
  if origin is tuple and not isinstance(value, tuple | list):
    return (value,)
  return value


def sentences(kind: type) -> dict[str, str]:
  """Returns what the docstrings of a dataclass say about each field."""
  by_name = {}
  for base in reversed(kind.__mro__):
    text = inspect.cleandoc(base.__doc__ or '').partition('Attributes:\n')[2]
    for name, found in re.findall(r'^  (\w+): (.+(?:\n    .+)*)', text, re.M):
      by_name[name] = ' '.join(found.split())
  return by_name


def describe(kind: type, config: Any = None) -> str:
  """Lists every field that a command line can set: type, value, sentence.

  Args:
    kind: a dataclass.
    config: one of this kind, whose values are shown; None: the defaults.
  """
  return '\n'.join(_lines(kind, config, '--', set()))


def _lines(kind: type, config: Any, where: str, seen: set) -> Iterator[str]:
  """Yields the lines of `describe`; sentences of a class come once."""
  about = {} if kind in seen else sentences(kind)
  seen.add(kind)
  declared = hints(kind)
  for field in dataclasses.fields(kind):
    name, hint = where + field.name, declared[field.name]
    value = getattr(config, field.name, _default(field))
    inner = _inner(hint, value)
    shows = '' if inner or value is _MISSING else f' = {value!r}'
    for text, indent in (
      (f'{name}: {_annotation(hint)}{shows}', '  '),
      (about.get(field.name, ''), ' ' * 6),
    ):
      yield from textwrap.wrap(
        text,
        80,
        initial_indent=indent,
        subsequent_indent=' ' * 8,
        break_on_hyphens=False,
      )
    for key, (held, one) in inner.items():
      yield from _lines(held, one, f'{name}{key}.', seen)


def _inner(hint: Any, value: Any) -> dict[str, tuple[Any, Any]]:
  """Returns dataclasses inside a field: what follows its name, class, value."""
  if dataclasses.is_dataclass(hint):
    return {'': (hint, None if value is _MISSING else value)}
  values = value if isinstance(value, dict) else {}
  inner: dict[str, tuple[Any, Any]] = {
    f'.{k}' if '.' not in k else f'[{k!r}]': (type(v), v)
    for k, v in values.items()
    if dataclasses.is_dataclass(v)
  }
  held = _entry_type(hint)
  return inner or (
    {'.NAME': (held, None)} if dataclasses.is_dataclass(held) else {}
  )


def _default(field: dataclasses.Field) -> Any:
  if field.default_factory is not _MISSING:
    return field.default_factory()
  return field.default


def _annotation(kind: Any) -> str:
  """Returns a type as it is written, without modules and ranges."""
  if typing.get_origin(kind) is typing.Annotated:
    kind = typing.get_args(kind)[0]
  if isinstance(kind, type) and typing.get_origin(kind) is None:
    return kind.__name__
  text = re.sub(r'Annotated\[(\w+), Between\([^)]*\)\]', r'\1', str(kind))
  return re.sub(r'(\w+\.)+(?=\w)', '', text)
