"""Lists small facts that Python knows, as records.

A table is the names of its columns and its rows. Tables are kept away from the
module that turns them into documents because there is no more to them than
where a fact is found.
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
from collections.abc import Callable, Iterable
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


def _table(columns: str, rows: Iterable[tuple]) -> list[dict]:
  """Returns rows as records, with columns that are named in one text."""
  names = columns.split()
  return [dict(zip(names, row, strict=True)) for row in rows]


def list_weeks(year: int) -> list[dict]:
  """Lists the weeks of a year of the ISO calendar, with first and last day."""
  day = datetime.date.fromisocalendar(year, 1, 1)
  rows = []
  while day.isocalendar().year == year:
    end = day + datetime.timedelta(days=6)
    rows.append(
      (
        f'{year}-W{day.isocalendar().week:02}',
        day.isoformat(),
        end.isoformat(),
        _MONTHS[day.month - 1],
        day.timetuple().tm_yday,
        day.toordinal(),
        day.month != end.month,
      )
    )
    day += datetime.timedelta(days=7)
  return _table(
    'week monday sunday month day_of_year ordinal turns_month', rows
  )


def list_entities(letter: str) -> list[dict]:
  """Lists the characters of HTML whose names begin so, in either case."""
  rows = [
    (
      f'&{name}',
      [f'U+{ord(char):04X}' for char in text],
      [unicodedata.name(char, 'CONTROL').lower() for char in text],
    )
    for name, text in sorted(html.entities.html5.items())
    # Old names are listed a second time without the semicolon.
    if name.lower().startswith(letter) and name.endswith(';')
  ]
  return _table('entity codes names', rows)


def list_locales(letter: str) -> list[dict]:
  """Lists the other names of locales, those that begin so."""
  rows = [
    (name, target, target.partition('.')[0], target.partition('.')[2])
    for name, target in sorted(locale.locale_alias.items())
    if name.startswith(letter)
  ]
  return _table('alias locale language encoding', rows)


def list_media_types(group: str) -> list[dict]:
  """Lists the media types that the library knows without the machine's files.

  Args:
    group: What stands before the slash.
  """
  registry = mimetypes.MimeTypes()
  rows = [
    (extension, kind, kind.partition('/')[2], strict)
    for strict in (True, False)
    for extension, kind in sorted(registry.types_map[strict].items())
    if kind.startswith(group + '/')
  ]
  return _table('extension type subtype standard', rows)


def _list_builtins() -> list[dict]:
  rows = [
    (name, 'type' if inspect.isclass(value) else 'function', *_describe(value))
    for name, value in sorted(vars(builtins).items())
    # Anything else was put there at startup, such as `exit`.
    if inspect.isbuiltin(value) or inspect.isclass(value)
    if not (name.startswith('_') or _is_exception(value))
  ]
  return _table('name kind signature summary', rows)


def _list_methods() -> list[dict]:
  kinds = (
    bytearray, bytes, complex, dict, float, frozenset, int, list, memoryview,
    object, range, set, slice, str, tuple, type,
  )  # fmt: skip
  rows = [
    (kind.__name__, name, *_describe(value))
    for kind in kinds
    for name, value in sorted(vars(kind).items())
    if callable(value) and value.__doc__
  ]
  return _table('type method signature summary', rows)


def _list_exceptions() -> list[dict]:
  rows = [
    (
      name,
      [base.__name__ for base in value.__mro__[1:-1]],
      sorted(
        kind.__name__
        for kind in value.__subclasses__()
        if kind.__module__ == 'builtins'
      ),
      _summarise(value),
    )
    for name, value in sorted(vars(builtins).items())
    if _is_exception(value)
  ]
  return _table('name parents children summary', rows)


def _list_encodings() -> list[dict]:
  rows = []
  for name in sorted(set(aliases.aliases.values())):
    try:
      kind = codecs.lookup(name)
    except LookupError:  # Encodings of another system.
      continue
    others = sorted(key for key, v in aliases.aliases.items() if v == name)
    rows.append((name, kind.name, others))
  return _table('encoding label aliases', rows)


def _list_tokens() -> list[dict]:
  exact = {number: text for text, number in token.EXACT_TOKEN_TYPES.items()}
  rows = [(n, name, exact.get(n)) for n, name in sorted(token.tok_name.items())]
  return _table('number name text', rows)


def _list_instructions() -> list[dict]:
  rows = [
    (n, name, n in dis.hasconst, n in dis.haslocal, n in dis.hasname)
    for name, n in sorted(dis.opmap.items())
  ]
  return _table('number name constant local attribute', rows)


def _list_ascii() -> list[dict]:
  rows = [
    (
      code,
      f'{code:02x}',
      f'{code:08b}',
      chr(code),
      unicodedata.name(chr(code)).lower(),
      ascii(chr(code)),
      chr(code) in string.punctuation,
    )
    for code in range(32, 127)
  ]
  columns = 'decimal hexadecimal binary character name escape punctuation'
  return _table(columns, rows)


def _list_modules() -> list[dict]:
  rows = [
    (name, name in sys.builtin_module_names, name.startswith('_'))
    for name in sorted(sys.stdlib_module_names)
    if not names.is_held_out_module(name)
  ]
  return _table('module compiled_in private', rows)


def _is_exception(value: object) -> bool:
  return inspect.isclass(value) and issubclass(value, BaseException)


def _describe(value: Callable) -> tuple[str, str]:
  return library.write_signature(value), _summarise(value)


def _summarise(value: object) -> str:
  return inspect.cleandoc(value.__doc__ or '').split('\n')[0]


SINGLE_TABLES = {
  'ascii': _list_ascii,
  'builtins': _list_builtins,
  'encodings': _list_encodings,
  'errors': lambda: _table(
    'name number exception',
    (
      (name, number, type(OSError(number, '')).__name__)
      for number, name in sorted(errno.errorcode.items())
    ),
  ),
  'exceptions': _list_exceptions,
  'instructions': _list_instructions,
  'keywords': lambda: _table(
    'keyword soft',
    (
      (word, word in keyword.softkwlist)
      for word in sorted({*keyword.kwlist, *keyword.softkwlist})
    ),
  ),
  'methods': _list_methods,
  'modes': lambda: _table(
    'name decimal octal',
    (
      (name, value, f'0o{value:o}')
      for name, value in sorted(vars(stat).items())
      if name.startswith('S_') and isinstance(value, int)
    ),
  ),
  'modules': _list_modules,
  'operators': lambda: _table(
    'function signature summary',
    (
      (f'operator.{name}', *_describe(getattr(operator, name)))
      for name in sorted(operator.__all__)
    ),
  ),
  'signals': lambda: _table(
    'name number', ((kind.name, int(kind)) for kind in sorted(signal.Signals))
  ),
  'statuses': lambda: _table(
    'status name phrase description',
    ((int(s), s.name, s.phrase, s.description) for s in http.HTTPStatus),
  ),
  'tokens': _list_tokens,
}
