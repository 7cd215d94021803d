"""Keywords of JSON schemas that are taken, and how others are refused."""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

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
COMBINING = ('$ref', 'const', 'enum', 'anyOf', 'allOf', 'oneOf')
DESCRIBING = {
  'title',
  'description',
  'default',
  'examples',
  'deprecated',
  'readOnly',
  'writeOnly',
  '$comment',
  '$defs',
  'definitions',
}
REMEDIES = {
  'oneOf': 'use anyOf, where one text may match several',
  'allOf': 'write its parts as one schema',
  'not': 'list what is allowed',
  'patternProperties': 'list the properties',
  'propertyNames': 'list the properties',
  'additionalProperties': 'list the properties',
  'uniqueItems': 'leave it out, or list the arrays in an enum',
  'minimum': 'leave it out, or use type integer',
  'maximum': 'leave it out, or use type integer',
  'exclusiveMinimum': 'leave it out, or use type integer',
  'exclusiveMaximum': 'leave it out, or use type integer',
  '$id': 'write references from the root, as #/$defs/name',
  '$anchor': 'write references from the root, as #/$defs/name',
}
LEAVE_OUT = 'leave it out, and check the text afterwards'


def refuse(path: str, why: str, remedy: str) -> NoReturn:
  raise ValueError(f'JSON schema, {path}: {why}; {remedy}')


def below(path: str, name: str | int) -> str:
  if isinstance(name, int):
    return f'{path}[{name}]'
  plain = re.fullmatch(r'[$\w-]+', name)
  return f'{path}.{name}' if plain else f'{path}[{json.dumps(name)}]'


def is_a(value: Any, kind: str) -> bool:
  """Whether a value is of a type of JSON schema."""
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


def written(value: Any, path: str) -> str:
  """Regex of one value."""
  try:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
  except ValueError as error:
    refuse(path, f'it cannot be written ({error})', 'correct it')
  return re.escape(text)


def _count(given: Mapping, path: str, name: str, default: int | None) -> Any:
  value = given.get(name, default)
  if name in given and not (is_a(value, 'integer') and value >= 0):
    refuse(below(path, name), f'{value!r} is no count', 'give an integer')
  return None if value is None else int(value)


def counts(given: Mapping, path: str, of: str) -> tuple[int, int | None]:
  low = _count(given, path, f'min{of}', 0)
  high = _count(given, path, f'max{of}', None)
  if high is not None and low > high:
    refuse(
      below(path, f'min{of}'), f'{low} is above max{of} {high}', 'correct one'
    )
  return low, high
