"""JSON schema -> regex, of which every match validates.

The regex makes a part of what the schema allows, which is said here:

  objects     their named properties, in the order of the schema, those that
              are not required or not; no others
  strings     without \\u escapes and control characters; a pattern matches the
              string as a whole
  values      of enum and const as Python's json writes them, without \\u
  spaces      at most one between two parts, no line breaks

A keyword that cannot be promised is refused with its path, such as
`$.properties.age.multipleOf`, rather than ignored: the keywords that are taken
are listed below. Keywords that describe are ignored.
"""

import json
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, NoReturn

from specjax.constraints import bytewise, keywords, leaves
from specjax.constraints.keywords import below, counts, is_a, refuse, written

SPACE = '[ ]?'

# A schema may refer to one part many times.
_LONGEST, _DEEPEST = 1_000_000, 64
_TOO_LARGE = ('too large', 'choose, or refer to other parts, less often')


def _constant(name: str) -> NoReturn:
  raise ValueError(f'{name} is no number of JSON')


def to_regex(schema: Mapping[str, Any] | str) -> tuple[str, str]:
  """What messages call a schema, and its regex.

  Raises:
    ValueError: the schema is no JSON, or has what cannot be promised.
  """
  try:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    root = json.loads(text, parse_constant=_constant)
  except (TypeError, ValueError, RecursionError) as error:
    refuse('$', f'it is no JSON ({error})', 'correct it')
  title = root.get('title') if isinstance(root, dict) else None
  name = bytewise.shown(title if isinstance(title, str) else json.dumps(root))
  return f'JSON schema {name}', _Reader(root).node(root, '$')


def _repeat(low: int, high: int | None) -> str:
  return f'{{{low},{"" if high is None else high}}}'


class _Reader:
  """Reads the nodes of one schema; `inside` are the references it is in."""

  def __init__(self, root: Any):
    self.root = root
    self.inside: list[str] = []
    self.depth = 0

  def node(self, schema: Any, path: str) -> str:
    """Regex of a schema, in a group."""
    self.depth += 1
    if self.depth > _DEEPEST:
      refuse(path, f'more than {_DEEPEST} levels', 'nest less')
    made = f'(?:{self._node(schema, path)})'
    self.depth -= 1
    if len(made) > _LONGEST:
      refuse(path, *_TOO_LARGE)
    return made

  def _node(self, schema: Any, path: str) -> str:
    if schema is False:
      refuse(path, 'nothing validates', 'leave it out')
    if schema is True or schema == {}:
      refuse(path, 'any value validates', 'give it a type')
    if not isinstance(schema, dict):
      refuse(path, f'{schema!r} is no schema', 'give an object')
    root = {'$schema', '$id'} if path == '$' else set()
    given = {
      name: value
      for name, value in schema.items()
      if name not in keywords.DESCRIBING | root
    }
    for name in keywords.COMBINING:
      if name in given:
        return self._combined(name, given, path)
    types = given.pop('type', None)
    if types is None:
      name = next(iter(given), 'type')
      refuse(below(path, name), 'there is no type', 'add the type beside it')
    if not isinstance(types, list):
      types = [types]
    where = below(path, 'type')
    if not types:
      refuse(where, 'it is empty', 'name a type')
    for kind in types:
      if not isinstance(kind, str) or kind not in keywords.KEYWORDS:
        refuse(
          where, f'{kind!r} is no type', f'use {", ".join(keywords.KEYWORDS)}'
        )
    known = set[str]().union(*(keywords.KEYWORDS[kind] for kind in types))
    for name in given:
      if name not in known:
        refuse(
          below(path, name),
          f'not possible with type {" or ".join(types)}',
          keywords.REMEDIES.get(name, keywords.LEAVE_OUT),
        )
    if 'number' in types and known & keywords.KEYWORDS['integer'] & set(given):
      refuse(where, 'number has no bounds here', 'leave out one of them')
    return '|'.join(getattr(self, f'_{kind}')(given, path) for kind in types)

  def _combined(self, name: str, given: dict, path: str) -> str:
    """Keywords that stand alone, but for a type beside values."""
    where, value = below(path, name), given[name]
    types = given.get('type') if name in ('const', 'enum') else None
    beside = set(given) - {name} - ({'type'} if types is not None else set())
    if beside:
      refuse(below(path, min(beside)), f'it stands beside {name}', 'keep one')
    if name == '$ref':
      return self._referred(value, where)
    if name == 'const':
      value = [value]
    if not isinstance(value, list) or not value:
      refuse(where, 'it is no list of at least one', 'list the alternatives')
    if name in ('const', 'enum'):
      for n, each in enumerate(value):
        of = types if isinstance(types, list) else [types]
        if types is not None and not any(is_a(each, str(kind)) for kind in of):
          at = below(where, n) if name == 'enum' else where
          refuse(at, f'{each!r} is not of type {types}', 'remove it')
      return '|'.join(written(each, where) for each in value)
    if name != 'anyOf' and len(value) > 1:
      refuse(where, 'not possible', keywords.REMEDIES[name])
    return '|'.join(
      self.node(each, below(where, n)) for n, each in enumerate(value)
    )

  def _referred(self, value: Any, path: str) -> str:
    if not isinstance(value, str) or not re.match(r'#(/|$)', value):
      refuse(
        path,
        f'{value!r} is no reference into this schema',
        'copy what it means to $defs, and write #/$defs/name',
      )
    if value in self.inside or value == '#':
      refuse(
        path,
        f'{value!r} refers to itself, and texts would nest without bound',
        'write out as many levels as you need',
      )
    found, where = self.root, '$'
    for part in urllib.parse.unquote(value).split('/')[1:]:
      name = part.replace('~1', '/').replace('~0', '~')
      try:
        key = int(name) if isinstance(found, list) else name
        found = found[key]
      except (IndexError, KeyError, TypeError, ValueError):
        refuse(path, f'there is no {value!r}', 'correct it')
      where = below(where, key)
    self.inside.append(value)
    made = self.node(found, where)
    self.inside.pop()
    return made

  def _null(self, given: dict, path: str) -> str:
    del given, path  # Unused.
    return 'null'

  def _boolean(self, given: dict, path: str) -> str:
    del given, path  # Unused.
    return 'true|false'

  def _number(self, given: dict, path: str) -> str:
    del given, path  # Unused.
    return leaves.NUMBER

  def _integer(self, given: dict, path: str) -> str:
    lows: list[int] = []
    highs: list[int] = []
    for name in sorted(keywords.KEYWORDS['integer'] & set(given)):
      bound = given[name]
      if not is_a(bound, 'integer') or abs(bound) >= 10**18:
        why = f'{bound!r} is no integer of at most 18 digits'
        refuse(below(path, name), why, 'give one')
      beyond = int(name.startswith('exclusive'))
      if name.lower().endswith('minimum'):
        lows.append(int(bound) + beyond)
      else:
        highs.append(int(bound) - beyond)
    low, high = max(lows, default=None), min(highs, default=None)
    made = leaves.integer(low, high)
    if made is None:
      refuse(path, f'no integer is from {low} to {high}', 'correct the bounds')
    return made

  def _string(self, given: dict, path: str) -> str:
    low, high = counts(given, path, 'Length')
    for name in ('pattern', 'format'):
      beside = set(given) & keywords.KEYWORDS['string'] - {name}
      if name not in given:
        continue
      where, value = below(path, name), given[name]
      if beside:
        other = min(beside)
        refuse(below(path, other), f'it stands beside {name}', 'keep one')
      if name == 'pattern':
        if not isinstance(value, str):
          refuse(where, f'{value!r} is no regex', 'give a text')
        return f'"{leaves.pattern(where, value)}"'
      if not isinstance(value, str) or value not in leaves.FORMATS:
        refuse(
          where,
          f'{value!r} cannot be promised',
          f'use {", ".join(leaves.FORMATS)} or a pattern, or leave it out',
        )
      return f'"{leaves.FORMATS[value]}"'
    return f'"{leaves.CHARACTER}{_repeat(low, high)}"'

  def _array(self, given: dict, path: str) -> str:
    low, high = counts(given, path, 'Items')
    unique, items = given.get('uniqueItems', False), given.get('items')
    if unique is not False:
      where = below(path, 'uniqueItems')
      refuse(where, 'not possible', keywords.REMEDIES['uniqueItems'])
    comma = f'{SPACE},{SPACE}'
    if 'prefixItems' in given:
      where, fixed = below(path, 'prefixItems'), given['prefixItems']
      if not isinstance(fixed, list) or not fixed:
        refuse(where, 'it is no list of at least one', 'list the items')
      if items not in (None, False):
        refuse(below(path, 'items'), 'it stands beside prefixItems', 'keep one')
      if low > len(fixed) or (high is not None and high < len(fixed)):
        refuse(
          where, f'{len(fixed)} items are not allowed', 'correct the counts'
        )
      made = [self.node(x, below(where, n)) for n, x in enumerate(fixed)]
      return rf'\[{SPACE}{comma.join(made)}{SPACE}\]'
    if items is None and high != 0:
      refuse(path, 'there are no items', 'add items, the schema of each')
    if items is False and low:
      refuse(below(path, 'items'), 'nothing validates', 'correct minItems')
    if high == 0 or items is False:
      return rf'\[{SPACE}\]'
    item = self.node(items, below(path, 'items'))
    more = _repeat(max(low, 1) - 1, None if high is None else high - 1)
    full = f'{item}(?:{comma}{item}){more}{SPACE}'
    return rf'\[{SPACE}{full}\]' if low else rf'\[{SPACE}(?:{full})?\]'

  def _object(self, given: dict, path: str) -> str:
    named = given.get('properties', {})
    where = below(path, 'properties')
    if not isinstance(named, dict):
      refuse(where, f'{named!r} is no object', 'give one')
    required = given.get('required', [])
    if not isinstance(required, list):
      refuse(below(path, 'required'), f'{required!r} is no list', 'give one')
    for n, name in enumerate(required):
      if not isinstance(name, str) or name not in named:
        refuse(
          below(below(path, 'required'), n),
          f'{name!r} is not among the properties',
          'add its schema to properties, or remove it',
        )
    others = given.get('additionalProperties', True)
    if not isinstance(others, bool | dict):
      refuse(
        below(path, 'additionalProperties'),
        f'{others!r} is no schema',
        'give one',
      )
    if not named and others is not False:
      name = (
        'additionalProperties' if isinstance(others, dict) else 'properties'
      )
      refuse(
        below(path, name),
        'names of any kind might repeat',
        'list the properties, or set additionalProperties to false',
      )
    low, high = counts(given, path, 'Properties')
    if low > len(set(required)):
      refuse(
        below(path, 'minProperties'),
        f'only {len(set(required))} are required',
        'require as many',
      )
    if high is not None and high < len(named):
      refuse(
        below(path, 'maxProperties'),
        f'there are {len(named)} properties',
        'remove some',
      )
    made = []
    for name, schema in named.items():
      value = self.node(schema, below(where, name))
      key = written(name, below(where, name))
      made.append((f'{key}{SPACE}:{SPACE}{value}', name in required))
    return rf'\{{{SPACE}{self._listed(made, path)}\}}'

  def _listed(self, parts: list[tuple[str, bool]], path: str) -> str:
    """Properties in their order, each with whether it is required.

    Read from the last: `alone` if none came before, `more` if one did.
    """
    alone = more = ''
    for part, required in reversed(parts):
      first = f'{part}{SPACE}{more}'
      if required:
        alone, more = first, f',{SPACE}{first}'
      else:
        alone, more = (
          f'(?:{first}|{alone})',
          f'(?:,{SPACE}{part}{SPACE})?{more}',
        )
      if len(alone) > _LONGEST:
        refuse(path, *_TOO_LARGE)
    return alone
