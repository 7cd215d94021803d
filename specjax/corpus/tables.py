"""Lists small facts that Python knows, as records.

Each function returns rows of one table. They are kept away from the module
that turns tables into documents because there is no more to them than where a
fact is found.
"""

import builtins
import codecs
import datetime
import dis
import errno
import html.entities
import http
import inspect
import keyword
import locale
import mimetypes
import operator
import signal
import stat
import string
import sys
import token
import unicodedata
from collections.abc import Callable
from encodings import aliases

from specjax.corpus import library, names

MEDIA_GROUPS = (
  'application', 'audio', 'font', 'image', 'message', 'model', 'text', 'video',
)  # fmt: skip

# Written out because `calendar` and `strftime` follow the locale.
_MONTHS = (
  'January', 'February', 'March', 'April', 'May', 'June', 'July', 'August',
  'September', 'October', 'November', 'December',
)  # fmt: skip


def list_weeks(year: int) -> list[dict]:
  """Lists the weeks of a year of the ISO calendar, with first and last day."""
  day = datetime.date.fromisocalendar(year, 1, 1)
  rows = []
  while day.isocalendar().year == year:
    end = day + datetime.timedelta(days=6)
    rows.append(
      {
        'week': f'{year}-W{day.isocalendar().week:02}',
        'monday': day.isoformat(),
        'sunday': end.isoformat(),
        'month': _MONTHS[day.month - 1],
        'day_of_year': day.timetuple().tm_yday,
        'ordinal': day.toordinal(),
        'turns_month': day.month != end.month,
      }
    )
    day += datetime.timedelta(days=7)
  return rows


def list_entities(letter: str) -> list[dict]:
  """Lists the characters of HTML whose names begin so, in either case."""
  return [
    {
      'entity': f'&{name}',
      'codes': [f'U+{ord(char):04X}' for char in text],
      'names': [unicodedata.name(char, 'CONTROL').lower() for char in text],
    }
    for name, text in sorted(html.entities.html5.items())
    # Old names are listed a second time without the semicolon.
    if name.lower().startswith(letter) and name.endswith(';')
  ]


def list_locales(letter: str) -> list[dict]:
  """Lists the other names of locales, those that begin so."""
  return [
    {
      'alias': name,
      'locale': target,
      'language': target.partition('.')[0],
      'encoding': target.partition('.')[2],
    }
    for name, target in sorted(locale.locale_alias.items())
    if name.startswith(letter)
  ]


def list_media_types(group: str) -> list[dict]:
  """Lists the media types that the library knows without the machine's files.

  Args:
    group: What stands before the slash.
  """
  registry = mimetypes.MimeTypes()
  return [
    {
      'extension': extension,
      'type': kind,
      'subtype': kind.partition('/')[2],
      'standard': strict,
    }
    for strict in (True, False)
    for extension, kind in sorted(registry.types_map[strict].items())
    if kind.startswith(group + '/')
  ]


def _list_statuses() -> list[dict]:
  return [
    {
      'status': int(status),
      'name': status.name,
      'phrase': status.phrase,
      'description': status.description,
    }
    for status in http.HTTPStatus
  ]


def _list_keywords() -> list[dict]:
  return [
    {'keyword': word, 'soft': word in keyword.softkwlist}
    for word in sorted({*keyword.kwlist, *keyword.softkwlist})
  ]


def _list_builtins() -> list[dict]:
  return [
    {
      'name': name,
      'kind': 'type' if inspect.isclass(value) else 'function',
      **_describe(value),
    }
    for name, value in sorted(vars(builtins).items())
    # What is neither was put there at startup, such as `exit`.
    if inspect.isbuiltin(value) or inspect.isclass(value)
    if not (name.startswith('_') or _is_exception(value))
  ]


def _list_methods() -> list[dict]:
  kinds = (
    bytearray, bytes, complex, dict, float, frozenset, int, list, memoryview,
    object, range, set, slice, str, tuple, type,
  )  # fmt: skip
  return [
    {'type': kind.__name__, 'method': name, **_describe(value)}
    for kind in kinds
    for name, value in sorted(vars(kind).items())
    if callable(value) and value.__doc__
  ]


def _list_exceptions() -> list[dict]:
  return [
    {
      'name': name,
      'parents': [base.__name__ for base in value.__mro__[1:-1]],
      'children': sorted(
        kind.__name__
        for kind in value.__subclasses__()
        if kind.__module__ == 'builtins'
      ),
      'summary': _summarise(value),
    }
    for name, value in sorted(vars(builtins).items())
    if _is_exception(value)
  ]


def _list_errors() -> list[dict]:
  return [
    {
      'name': name,
      'number': number,
      'exception': type(OSError(number, '')).__name__,
    }
    for number, name in sorted(errno.errorcode.items())
  ]


def _list_signals() -> list[dict]:
  return [
    {'name': kind.name, 'number': int(kind)} for kind in sorted(signal.Signals)
  ]


def _list_encodings() -> list[dict]:
  rows = []
  for name in sorted(set(aliases.aliases.values())):
    try:
      kind = codecs.lookup(name)
    except LookupError:  # Encodings of another system.
      continue
    others = sorted(
      key for key, value in aliases.aliases.items() if value == name
    )
    rows.append({'encoding': name, 'label': kind.name, 'aliases': others})
  return rows


def _list_tokens() -> list[dict]:
  exact = {number: text for text, number in token.EXACT_TOKEN_TYPES.items()}
  return [
    {'number': number, 'name': name, 'text': exact.get(number)}
    for number, name in sorted(token.tok_name.items())
  ]


def _list_instructions() -> list[dict]:
  return [
    {
      'number': number,
      'name': name,
      'constant': number in dis.hasconst,
      'local': number in dis.haslocal,
      'attribute': number in dis.hasname,
    }
    for name, number in sorted(dis.opmap.items())
  ]


def _list_operators() -> list[dict]:
  return [
    {'function': f'operator.{name}', **_describe(getattr(operator, name))}
    for name in sorted(operator.__all__)
  ]


def _list_modes() -> list[dict]:
  return [
    {'name': name, 'decimal': value, 'octal': f'0o{value:o}'}
    for name, value in sorted(vars(stat).items())
    if name.startswith('S_') and isinstance(value, int)
  ]


def _list_ascii() -> list[dict]:
  return [
    {
      'decimal': code,
      'hexadecimal': f'{code:02x}',
      'binary': f'{code:08b}',
      'character': chr(code),
      'name': unicodedata.name(chr(code)).lower(),
      'escape': ascii(chr(code)),
      'punctuation': chr(code) in string.punctuation,
    }
    for code in range(32, 127)
  ]


def _list_modules() -> list[dict]:
  return [
    {
      'module': name,
      'compiled_in': name in sys.builtin_module_names,
      'private': name.startswith('_'),
    }
    for name in sorted(sys.stdlib_module_names)
    if not names.is_held_out_module(name)
  ]


def _is_exception(value: object) -> bool:
  return inspect.isclass(value) and issubclass(value, BaseException)


def _describe(value: Callable) -> dict[str, str]:
  return {
    'signature': library.write_signature(value),
    'summary': _summarise(value),
  }


def _summarise(value: object) -> str:
  return inspect.cleandoc(value.__doc__ or '').split('\n')[0]


SINGLE_TABLES = {
  'ascii': _list_ascii,
  'builtins': _list_builtins,
  'encodings': _list_encodings,
  'errors': _list_errors,
  'exceptions': _list_exceptions,
  'instructions': _list_instructions,
  'keywords': _list_keywords,
  'methods': _list_methods,
  'modes': _list_modes,
  'modules': _list_modules,
  'operators': _list_operators,
  'signals': _list_signals,
  'statuses': _list_statuses,
  'tokens': _list_tokens,
}
