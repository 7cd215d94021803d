"""Generates structured text from what the library knows.

Structured text on a machine is mostly settings of that machine, which differ
from one to the next. What Python itself knows does not: names of characters,
of errors, of media types, of its own functions. This module lists them as
records, one document per group of things that belong together, so that a
field can be told from the ones before it but not copied from them.
"""

import functools
import string
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

from specjax.corpus import formats, library, names, tables

# Scripts and symbols, without those whose characters have numbers or one
# syllable after the other for names.
_SCRIPTS = (
  (0x0000, 0x2800),
  (0x2900, 0x3200),
  (0xA480, 0xAC00),
  (0x10A00, 0x11000),
  (0x1D000, 0x1D400),
  (0x1F000, 0x1FA80),
)
_BLOCK = 128
_YEARS = range(1990, 2050)


def plan_documents(held_out: bool) -> Iterator[tuple[str, Callable[[], str]]]:
  """Lists the documents that are held out, or all others, without making them.

  Yields:
    The name of a document, whose extension is its format, and a function that
    returns its text, in the order of the names. The text is empty where the
    running Python knows no record of the kind.
  """
  documents = {}
  for key, collect in _list_sources().items():
    if names.is_held_out_table(key) == held_out:
      extension = formats.choose_extension(key)
      documents[f'{key}.{extension}'] = functools.partial(
        _write_document, key, extension, collect
      )
  yield from sorted(documents.items(), key=lambda item: item[0])


def _list_sources() -> dict[str, Callable[[], list[dict]]]:
  blocks = [x for ends in _SCRIPTS for x in range(*ends, _BLOCK)]
  modules = [m for m in library.find_modules() if not m.is_test]
  letters = {letter: letter for letter in string.ascii_lowercase}
  # A group's documents by key, and what they are made from.
  groups: tuple[tuple[str, Callable, dict[Any, Any]], ...] = (
    ('unicode', _list_characters, {f'{start:05X}': start for start in blocks}),
    ('calendar', tables.list_weeks, {year: year for year in _YEARS}),
    ('inventory', _list_definitions, {m.name: m for m in modules}),
    ('imports', _list_imports, {**letters, 'held_out': None}),
    ('entities', tables.list_entities, letters),
    ('locales', tables.list_locales, letters),
    ('mime', tables.list_media_types, {g: g for g in tables.MEDIA_GROUPS}),
  )
  sources = {
    f'{group}/{key}': functools.partial(collect, value)
    for group, collect, values in groups
    for key, value in values.items()
  }
  single = tables.SINGLE_TABLES.items()
  return sources | {f'tables/{name}': collect for name, collect in single}


def _write_document(key: str, extension: str, collect: Callable) -> str:
  rows = collect()
  if not rows:
    return ''
  group, name = key.split('/', 1)
  return formats.RENDERERS[extension](f'{group}: {name}', rows)


def _list_characters(start: int) -> list[dict]:
  rows = []
  for code in range(start, start + _BLOCK):
    name = unicodedata.name(chr(code), '')
    if not name:
      continue
    char = chr(code)
    rows.append(
      {
        'code': f'U+{code:04X}',
        'name': name,
        'category': unicodedata.category(char),
        'bidirectional': unicodedata.bidirectional(char),
        'combining': unicodedata.combining(char),
        'width': unicodedata.east_asian_width(char),
        'decomposition': unicodedata.decomposition(char),
        'number': unicodedata.numeric(char, None),
      }
    )
  # A column in which no character says anything is left out.
  empty = {
    key
    for key in ('decomposition', 'number', 'combining')
    if not any(row[key] for row in rows)
  }
  return [
    {key: value for key, value in row.items() if key not in empty}
    for row in rows
  ]


def _list_definitions(module: library.Module) -> list[dict]:
  return [
    {
      'name': record.name,
      'kind': record.kind,
      'arguments': list(record.arguments),
      'summary': record.docstring.strip().split('\n')[0],
    }
    for record in library.describe_module(module)[1:]
  ]


def _list_imports(letter: str | None) -> list[dict]:
  # The held-out modules are a document of their own, as their records must
  # not stand among those of the letter they begin with.
  rows = []
  for module in library.find_modules():
    if module.is_test or module.is_held_out != (letter is None):
      continue
    if letter is None or module.name.lstrip('_').lower().startswith(letter):
      imports = [
        name
        for record in library.describe_module(module)[:1]
        for name in record.arguments
      ]
      rows.append(
        {
          'module': module.name,
          'package': module.path.stem == '__init__',
          'imports': imports,
        }
      )
  return rows
