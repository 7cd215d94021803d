"""Makes regexes of JSON schemas: every match validates.

The regex makes a part of what the schema allows, which is said here:

  objects     their named properties, in the order of the schema, those that
              are not required or not; no others
  strings     without \\u escapes and control characters; a pattern matches the
              string as a whole
  values      of enum and const as Python's json writes them, without \\u
  spaces      at most one between two parts, no line breaks

A keyword that cannot be promised is refused with its path, such as
`$.properties.age.multipleOf`, rather than ignored: `KEYWORDS` lists those that
are taken. Keywords that describe are ignored.

Why not a library: outlines-core has such a function, which ignores bounds of
numbers and properties, `uniqueItems`, `not` and others without a word. Of 46
schemas, one for each keyword, it allowed texts that do not validate for 21.
"""

import functools
import json
import re
import urllib.parse
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from specjax.constraints import bytewise

SPACE = '[ ]?'
CHARACTER = r'(?:[^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt])'
INTEGER = '-?(?:0|[1-9][0-9]*)'
NUMBER = INTEGER + r'(?:\.[0-9]+)?(?:[eE][+-][0-9]+)?'

_YEAR = '[1-9][0-9]{3}'
_LEAP = (
  '(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])'
  '|(?:[2468][048]|[13579][26])00)'
)
_DATE = (
  f'(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])'
  '|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)'
  f'|{_LEAP}-02-29)'
)
_CLOCK = '(?:[01][0-9]|2[0-3]):[0-5][0-9]'
_TIME = rf'{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_CLOCK})'

# Of RFC 3339: years from 1000, no leap seconds, at most microseconds.
FORMATS = {
  'date': _DATE,
  'time': _TIME,
  'date-time': f'{_DATE}T{_TIME}',
  'uuid': '[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}',
}

KEYWORDS = {
  'array': {'items', 'prefixItems', 'minItems', 'maxItems', 'uniqueItems'},
  'boolean': set(),
  'integer': {'minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'},
  'null': set(),
  'number': set(),
  'object': {
    'properties',
    'required',
    'additionalProperties',
    'minProperties',
    'maxProperties',
  },
  'string': {'minLength', 'maxLength', 'pattern', 'format'},
}
_COMBINING = ('$ref', 'const', 'enum', 'anyOf', 'allOf', 'oneOf')
_DESCRIBING = {
  *('title', 'description', 'default', 'examples', 'deprecated', 'readOnly'),
  *('writeOnly', '$comment', '$defs', 'definitions'),
}
_LEAVE_OUT = 'leave it out, and check the text afterwards'
_LIST = 'list the properties'
_BOUND = 'leave it out, or use type integer'
_FROM_ROOT = 'write references from the root, as #/$defs/name'
_REMEDIES = {
  'oneOf': 'use anyOf, where one text may match several',
  'allOf': 'write its parts as one schema',
  'not': 'list what is allowed',
  'uniqueItems': 'leave it out, or list the arrays in an enum',
  **dict.fromkeys(('patternProperties', 'propertyNames'), _LIST),
  'additionalProperties': _LIST,
  **dict.fromkeys(KEYWORDS['integer'], _BOUND),
  **dict.fromkeys(('$id', '$anchor'), _FROM_ROOT),
}

_MOST = 1_000_000  # of what is counted
# A schema may refer to one part many times.
_LONGEST, _DEEPEST = 1_000_000, 64


def to_regex(schema: Mapping[str, Any] | str) -> tuple[str, str]:
  """Returns the name of a schema in messages, and its regex.

  Raises:
    ValueError: the schema is no JSON, or has what cannot be promised.
  """
  try:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    root = json.loads(text, parse_constant=_refuse_constant)
  except (TypeError, ValueError, RecursionError) as error:
    _refuse('$', f'it is no JSON ({error})', 'correct it')
  title = root.get('title') if isinstance(root, dict) else None
  name = bytewise.shown(title if isinstance(title, str) else json.dumps(root))
  return f'JSON schema {name}', _Reader(root).node(root, '$')


def _refuse_constant(name: str) -> NoReturn:
  raise ValueError(f'{name} is no number of JSON')


def _refuse(path: str, why: str, remedy: str) -> NoReturn:
  raise ValueError(f'JSON schema, {path}: {why}; {remedy}')


def _below(path: str, *names: str | int) -> str:
  for name in names:
    if isinstance(name, int):
      path += f'[{name}]'
    else:
      plain = re.fullmatch(r'[$\w-]+', name)
      path += f'.{name}' if plain else f'[{json.dumps(name)}]'
  return path


def _is_a(value: Any, kind: str) -> bool:
  """Returns true if a value has a type of JSON schema."""
  if isinstance(value, bool):
    return kind == 'boolean'
  if isinstance(value, float):
    return kind == 'number' or (kind == 'integer' and value.is_integer())
  kinds = {
    dict: ('object',),
    int: ('integer', 'number'),
    list: ('array',),
    str: ('string',),
    type(None): ('null',),
  }
  return kind in kinds[type(value)]


def _written(value: Any, path: str) -> str:
  """Regex of one value."""
  try:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
  except ValueError as error:
    _refuse(path, f'it cannot be written ({error})', 'correct it')
  return re.escape(text)


def _counts(given: Mapping, path: str, of: str) -> tuple[int, int | None]:
  """The least and the greatest number of characters, items or properties."""
  for name in (f'min{of}', f'max{of}'):
    value = given.get(name, 0)
    if not _is_a(value, 'integer') or value < 0:
      _refuse(_below(path, name), f'{value!r} is no count', 'give an integer')
    if value > _MOST:
      _refuse(_below(path, name), f'{value} is above {_MOST:,}', 'lower it')
  low, high = int(given.get(f'min{of}', 0)), given.get(f'max{of}')
  if high is not None and low > high:
    why = f'{low} is above max{of} {int(high)}'
    _refuse(_below(path, f'min{of}'), why, 'correct one')
  return low, None if high is None else int(high)


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
      _refuse(path, f'more than {_DEEPEST} levels', 'nest less')
    made = f'(?:{self._node(schema, path)})'
    self.depth -= 1
    return self._bounded(made, path)

  def _bounded(self, made: str, path: str) -> str:
    if len(made) > _LONGEST:
      remedy = 'choose, or refer to other parts, less often'
      _refuse(path, 'too large', remedy)
    return made

  def _node(self, schema: Any, path: str) -> str:
    if schema is False:
      _refuse(path, 'nothing validates', 'leave it out')
    if schema is True or schema == {}:
      _refuse(path, 'any value validates', 'give it a type')
    if not isinstance(schema, dict):
      _refuse(path, f'{schema!r} is no schema', 'give an object')
    ignored = _DESCRIBING | ({'$schema', '$id'} if path == '$' else set())
    given = {name: x for name, x in schema.items() if name not in ignored}
    for name in _COMBINING:
      if name in given:
        return self._combined(name, given, path)
    types = given.pop('type', None)
    if types is None:
      name = next(iter(given), 'type')
      _refuse(_below(path, name), 'there is no type', 'add the type beside it')
    types = self._types(types, path)
    known = set[str]().union(*(KEYWORDS[kind] for kind in types))
    for name in given:
      if name not in known:
        why = f'not possible with type {" or ".join(types)}'
        _refuse(_below(path, name), why, _REMEDIES.get(name, _LEAVE_OUT))
    if 'number' in types and known & KEYWORDS['integer'] & set(given):
      why = 'number has no bounds here'
      _refuse(_below(path, 'type'), why, 'leave out one of them')
    makers = {
      'array': self._array,
      'boolean': lambda *_: 'true|false',
      'integer': _integer,
      'null': lambda *_: 'null',
      'number': lambda *_: NUMBER,
      'object': self._object,
      'string': _string,
    }
    return '|'.join(makers[kind](given, path) for kind in types)

  def _types(self, types: Any, path: str) -> list[str]:
    types, where = types if isinstance(types, list) else [types], f'{path}.type'
    if not types:
      _refuse(where, 'it is empty', 'name a type')
    for kind in types:
      if not isinstance(kind, str) or kind not in KEYWORDS:
        _refuse(where, f'{kind!r} is no type', f'use {", ".join(KEYWORDS)}')
    return types

  def _combined(self, name: str, given: dict, path: str) -> str:
    """Keywords that stand alone, but for a type beside values."""
    where, value = _below(path, name), given[name]
    types = given.get('type') if name in ('const', 'enum') else None
    beside = set(given) - {name} - ({'type'} if types is not None else set())
    if beside:
      _refuse(_below(path, min(beside)), f'it stands beside {name}', 'keep one')
    if name == '$ref':
      return self._referred(value, where)
    if name == 'const':
      value = [value]
    if not isinstance(value, list) or not value:
      _refuse(where, 'it is no list of at least one', 'list the alternatives')
    if name in ('const', 'enum'):
      of = [] if types is None else self._types(types, path)
      for n, each in enumerate(value):
        if of and not any(_is_a(each, kind) for kind in of):
          at = _below(where, n) if name == 'enum' else where
          _refuse(at, f'{each!r} is not of type {types}', 'remove it')
      return '|'.join(_written(each, where) for each in value)
    if name != 'anyOf' and len(value) > 1:
      _refuse(where, 'not possible', _REMEDIES[name])
    return '|'.join(
      self.node(each, _below(where, n)) for n, each in enumerate(value)
    )

  def _referred(self, value: Any, path: str) -> str:
    if not isinstance(value, str) or not re.match(r'#(/|$)', value):
      why = f'{value!r} is no reference into this schema'
      remedy = 'copy what it means to $defs, and write #/$defs/name'
      _refuse(path, why, remedy)
    if value in self.inside:
      why = f'{value!r} refers to itself, and texts would nest without bound'
      _refuse(path, why, 'write out as many levels as you need')
    found, where = self.root, '$'
    for part in urllib.parse.unquote(value).split('/')[1:]:
      name = part.replace('~1', '/').replace('~0', '~')
      try:
        number = isinstance(found, list) and re.fullmatch('0|[1-9][0-9]*', name)
        key = int(name) if number else name
        found = found[key]
      except (IndexError, KeyError, TypeError, ValueError):
        _refuse(path, f'there is no {value!r}', 'correct it')
      where = _below(where, key)
    self.inside.append(value)
    made = self.node(found, where)
    self.inside.pop()
    return made

  def _array(self, given: dict, path: str) -> str:
    low, high = _counts(given, path, 'Items')
    items, where = given.get('items'), _below(path, 'items')
    if given.get('uniqueItems', False) is not False:
      remedy = _REMEDIES['uniqueItems']
      _refuse(_below(path, 'uniqueItems'), 'not possible', remedy)
    comma = f'{SPACE},{SPACE}'
    if 'prefixItems' in given:
      at, fixed = _below(path, 'prefixItems'), given['prefixItems']
      if not isinstance(fixed, list) or not fixed:
        _refuse(at, 'it is no list of at least one', 'list the items')
      if items not in (None, False):
        _refuse(where, 'it stands beside prefixItems', 'keep one')
      if low > len(fixed) or (high is not None and high < len(fixed)):
        why = f'{len(fixed)} items are not allowed'
        _refuse(at, why, 'correct the counts')
      made = [self.node(x, _below(at, n)) for n, x in enumerate(fixed)]
      return rf'\[{SPACE}{comma.join(made)}{SPACE}\]'
    if items is None and high != 0:
      _refuse(path, 'there are no items', 'add items, the schema of each')
    if items is False and low:
      _refuse(where, 'nothing validates', 'correct minItems')
    if high == 0 or items is False:
      return rf'\[{SPACE}\]'
    item = self.node(items, where)
    more = _repeat(max(low, 1) - 1, None if high is None else high - 1)
    full = f'{item}(?:{comma}{item}){more}{SPACE}'
    return rf'\[{SPACE}{full}\]' if low else rf'\[{SPACE}(?:{full})?\]'

  def _object(self, given: dict, path: str) -> str:
    named, required = given.get('properties', {}), given.get('required', [])
    if not isinstance(named, dict):
      _refuse(_below(path, 'properties'), f'{named!r} is no object', 'give one')
    if not isinstance(required, list):
      _refuse(_below(path, 'required'), f'{required!r} is no list', 'give one')
    for n, name in enumerate(required):
      if not isinstance(name, str) or name not in named:
        why = f'{name!r} is not among the properties'
        remedy = 'add its schema to properties, or remove it'
        _refuse(_below(path, 'required', n), why, remedy)
    others = given.get('additionalProperties', True)
    if not isinstance(others, bool | dict):
      where = _below(path, 'additionalProperties')
      _refuse(where, f'{others!r} is no schema', 'give one')
    if not named and others is not False:
      key = 'additionalProperties' if isinstance(others, dict) else 'properties'
      remedy = f'{_LIST}, or set additionalProperties to false'
      _refuse(_below(path, key), 'names of any kind might repeat', remedy)
    low, high = _counts(given, path, 'Properties')
    if low > len(set(required)):
      why = f'only {len(set(required))} are required'
      _refuse(_below(path, 'minProperties'), why, 'require as many')
    if high is not None and high < len(named):
      why = f'there are {len(named)} properties'
      _refuse(_below(path, 'maxProperties'), why, 'remove some')
    made = []
    for name, schema in named.items():
      where = _below(path, 'properties', name)
      value = self.node(schema, where)
      key = _written(name, where)
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
      self._bounded(alone, path)
    return alone


def _integer(given: dict, path: str) -> str:
  lows: list[int] = []
  highs: list[int] = []
  for name in sorted(KEYWORDS['integer'] & set(given)):
    bound = given[name]
    if not _is_a(bound, 'integer') or abs(bound) >= 10**18:
      why = f'{bound!r} is no integer of at most 18 digits'
      _refuse(_below(path, name), why, 'give one')
    beyond = int(name.startswith('exclusive'))
    if name.lower().endswith('minimum'):
      lows.append(int(bound) + beyond)
    else:
      highs.append(int(bound) - beyond)
  low, high = max(lows, default=None), min(highs, default=None)
  made = integer(low, high)
  if made is None:
    _refuse(path, f'no integer is from {low} to {high}', 'correct the bounds')
  return made


def integer(low: int | None, high: int | None) -> str | None:
  """Integers from low to high, both included; None where there is none."""
  if low is None and high is None:
    return INTEGER
  ways = []
  if high is None or high >= 0:
    ways += _natural(max(low or 0, 0), high)
  if low is None or low < 0:
    least = 1 if high is None else max(1, -high)
    negative = _natural(least, None if low is None else -low)
    ways += [f'-{way}' for way in negative]
  return f'(?:{"|".join(ways)})' if ways else None


def _natural(low: int, high: int | None) -> list[str]:
  """Integers from low >= 0 to high, without a sign, by their length."""
  ways = []
  longest = len(str(low if high is None else high))
  for length in range(len(str(low)), longest + 1):
    least = max(low, 10 ** (length - 1) if length > 1 else 0)
    most = 10**length - 1 if high is None else min(high, 10**length - 1)
    if least <= most:
      ways.append(_digits(str(least), str(most)))
  if high is None:
    ways.append(f'[1-9][0-9]{{{longest},}}')
  return ways


def _digits(low: str, high: str) -> str:
  """Numbers of one length from low to high."""
  if not low:
    return ''
  if low[0] == high[0]:
    return low[0] + _digits(low[1:], high[1:])
  rest = len(low) - 1
  zeros, nines, free = '0' * rest, '9' * rest, f'[0-9]{{{rest}}}'
  first, last, ways = int(low[0]), int(high[0]), []
  if low[1:] != zeros:
    ways.append(low[0] + _digits(low[1:], nines))
    first += 1
  if high[1:] != nines:
    ways.append(high[0] + _digits(zeros, high[1:]))
    last -= 1
  if first <= last:
    ways.append(f'[{first}-{last}]{free}')
  return f'(?:{"|".join(ways)})'


def _string(given: dict, path: str) -> str:
  low, high = _counts(given, path, 'Length')
  for name in ('pattern', 'format'):
    if name not in given:
      continue
    where, value = _below(path, name), given[name]
    if beside := set(given) & KEYWORDS['string'] - {name}:
      _refuse(_below(path, min(beside)), f'it stands beside {name}', 'keep one')
    if name == 'pattern':
      if not isinstance(value, str):
        _refuse(where, f'{value!r} is no regex', 'give a text')
      return f'"{_pattern(where, value)}"'
    if not isinstance(value, str) or value not in FORMATS:
      remedy = f'use {", ".join(FORMATS)} or a pattern, or leave it out'
      _refuse(where, f'{value!r} cannot be promised', remedy)
    return f'"{FORMATS[value]}"'
  return f'"{CHARACTER}{_repeat(low, high)}"'


@functools.lru_cache
def _pattern(path: str, text: str) -> str:
  """Regex of the strings that a `pattern` of a schema matches as a whole.

  Only what every dialect reads alike is taken, and only what needs no escapes
  between quotation marks.

  Raises:
    ValueError: it has other things.
  """
  what = f'JSON schema, {path}: {bytewise.shown(text)}'
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # Of what is refused below.
      re.compile(text)
  except (re.error, OverflowError, RecursionError) as error:
    raise ValueError(
      f'{what} is no regex that all dialects read alike ({error}): escape '
      'what stands for itself'
    ) from None
  written = '(?:' + ''.join(_rewritten(what, _unanchored(text))) + ')'
  table = bytewise.build(what, written)
  unsafe = [ord('"'), ord('\\'), *range(32)]
  if (table[:, unsafe] >= 0).any():
    raise ValueError(
      f'{what} matches quotation marks, backslashes or control characters, '
      'which JSON writes otherwise: list the characters, such as [A-Za-z0-9 ]'
    )
  return written


def _unanchored(text: str) -> str:
  """Without anchors around all of it: what is made matches as a whole."""
  text = text.removeprefix('^')
  bare = text.removesuffix('$')  # Two backslashes match one: it is refused.
  return text if bare.endswith('\\') else bare


def _rewritten(what: str, text: str) -> Iterator[str]:
  """Pieces of a pattern in the dialect of outlines-core."""
  before, negated = '', False
  for piece, inside in bytewise.pieces(text):
    wrong = ''
    if inside and before in ('&', '|', '-', '~') and piece == before:
      wrong = 'twice in a class: escape both'
    elif piece in ('[', '[^') and inside > 1:
      wrong = 'inside a class: escape it'
    elif piece[0] == '(' and piece not in ('(', '(?:'):
      wrong = 'which not every dialect has: write it with plain groups'
    elif not inside and piece == '+' and before in ('*', '+', '?', '}'):
      wrong = 'twice a repeat: write one'
    elif piece in ('[', '[^'):
      negated = piece == '[^'
    elif piece in (r'\d', r'\w'):
      if inside and negated:
        wrong = 'in a class of what is left out: write out the characters'
      ranges = '0-9' if piece == r'\d' else 'A-Za-z0-9_'
      piece = ranges if inside else f'[{ranges}]'
    elif re.fullmatch(r'\\[A-Za-z0-9]', piece) and piece not in (r'\x', r'\u'):
      wrong = 'which dialects read differently: write out the characters'
    if wrong:
      raise ValueError(f'{what} has {piece!r}, {wrong}')
    before = piece
    yield '(?:' if piece == '(' and not inside else piece
