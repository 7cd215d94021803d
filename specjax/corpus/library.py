"""Reads the library that comes with the running Python.

A corpus that is already on the machine needs no download and no licence to
check, and the standard library is the largest body of text every Python has.
It is also untidy: it holds conversion tables, generated settings and files
that are wrong on purpose. This module finds the sources worth reading and
takes out of them what the domains need.
"""

import ast
import functools
import inspect
import pathlib
import re
import sysconfig
import warnings
from typing import Any, NamedTuple

from specjax.corpus import names

_SKIPPED_FOLDERS = re.compile(
  r'site-packages|dist-packages|__pycache__|config-.*|lib-dynload|data'
)
# Broken on purpose, settings of one machine, or text that is no program.
_SKIPPED_FILES = re.compile(
  r'bad(_|syntax).*|_sysconfig.*|sitecustomize|usercustomize|topics'
)
# A statement begins with a word, an entry of a table with a quote, a digit or
# a bracket. Few programs have half of such lines, conversion tables have nine
# tenths.
_LINE = re.compile(r'^[ \t]*\S', re.MULTILINE)
_ENTRY = re.compile(
  r"""^[ \t]*(?:[-\d"'()\[\]{}\\]|[rbuRBU]{1,2}["'])""", re.MULTILINE
)
_ENTRY_SHARE = 0.6


class Module(NamedTuple):
  """A source file of the library.

  Attributes:
    name: The dotted name of the module.
    path: Where its source is.
  """

  name: str
  path: pathlib.Path

  @property
  def is_test(self) -> bool:
    return names.is_test(self.name)

  @property
  def is_held_out(self) -> bool:
    return names.is_held_out_module(self.name)


class Record(NamedTuple):
  """A thing that a module defines, and its documentation.

  Attributes:
    kind: One of "module", "class", "function" and "method".
    name: The qualified name, which is empty for the module itself.
    arguments: The arguments of a function, the bases of a class or the full
      names that a module imports.
    docstring: The cleaned docstring, empty where there is none.
  """

  kind: str
  name: str
  arguments: tuple[str, ...]
  docstring: str


@functools.cache
def find_modules() -> tuple[Module, ...]:
  """Lists the sources of the standard library by name, tests included."""
  root = pathlib.Path(sysconfig.get_path('stdlib'))
  modules = {}
  for path in root.rglob('*.py'):
    *folders, stem = path.relative_to(root).with_suffix('').parts
    if any(map(_SKIPPED_FOLDERS.fullmatch, folders)):
      continue
    if _SKIPPED_FILES.fullmatch(stem):
      continue
    parts = folders if stem == '__init__' else [*folders, stem]
    if parts:
      modules['.'.join(parts)] = path
  return tuple(Module(*item) for item in sorted(modules.items()))


def read_source(module: Module) -> str | None:
  """Reads a source file, with newlines normalised.

  None where it is empty, is not UTF-8, or is a table written as a program.
  """
  try:
    text = module.path.read_bytes().decode('utf-8-sig')
  except (OSError, UnicodeDecodeError):
    return None
  text = text.replace('\r\n', '\n').replace('\r', '\n')
  if not text.strip() or '\0' in text:
    return None
  entries = len(_ENTRY.findall(text))
  return None if entries > _ENTRY_SHARE * len(_LINE.findall(text)) else text


@functools.cache
def describe_module(module: Module) -> tuple[Record, ...]:
  """Lists what a module defines, in the order of the source.

  The module comes first, then its classes, functions and methods; there is
  nothing where the source is skipped or does not parse.
  """
  tree = _parse_source(module)
  if tree is None:
    return ()
  records = [
    Record('module', '', _list_imports(tree), ast.get_docstring(tree) or '')
  ]
  _collect_records(tree, '', records)
  return tuple(records)


def write_signature(value: Any) -> str:
  """Writes the arguments of what is compiled, "(...)" if they are not known."""
  try:
    signature = str(inspect.signature(value))
  except (AttributeError, NameError, TypeError, ValueError):
    # Besides having none, some have defaults that cannot be evaluated.
    return '(...)'
  # A default that prints its address would differ between two runs.
  return '(...)' if ' at 0x' in signature else signature


def _parse_source(module: Module) -> ast.Module | None:
  text = read_source(module)
  if text is None:
    return None
  try:
    with warnings.catch_warnings():
      # Old escapes in the library are no concern of the reader.
      warnings.simplefilter('ignore')
      return ast.parse(text)
  except SyntaxError:
    return None


_BLOCKS = ast.stmt, ast.excepthandler, ast.match_case


def _list_imports(tree: ast.Module) -> tuple[str, ...]:
  imports: set[str] = set()
  nodes: list[ast.AST] = [tree]
  for node in nodes:  # No expression has a statement in it.
    nodes += (x for x in ast.iter_child_nodes(node) if isinstance(x, _BLOCKS))
    if isinstance(node, ast.Import):
      imports.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
      imports.add(node.module or '')
  return tuple(sorted(imports))


def _collect_records(node: ast.AST, prefix: str, records: list) -> None:
  for child in ast.iter_child_nodes(node):
    if isinstance(child, ast.ClassDef):
      name = prefix + child.name
      bases = tuple(ast.unparse(base) for base in child.bases)
      records.append(
        Record('class', name, bases, ast.get_docstring(child) or '')
      )
      _collect_records(child, name + '.', records)
    elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
      records.append(
        Record(
          'method' if prefix else 'function',
          prefix + child.name,
          _list_arguments(child.args),
          ast.get_docstring(child) or '',
        )
      )


def _list_arguments(arguments: ast.arguments) -> tuple[str, ...]:
  positional = [*arguments.posonlyargs, *arguments.args]
  required = len(positional) - len(arguments.defaults)
  defaults = [*[None] * required, *arguments.defaults]
  texts = list(map(_write_argument, positional, defaults))
  if arguments.posonlyargs:
    texts.insert(len(arguments.posonlyargs), '/')
  if arguments.vararg:
    texts.append('*' + _write_argument(arguments.vararg, None))
  elif arguments.kwonlyargs:
    texts.append('*')
  texts.extend(
    map(_write_argument, arguments.kwonlyargs, arguments.kw_defaults)
  )
  if arguments.kwarg:
    texts.append('**' + _write_argument(arguments.kwarg, None))
  return tuple(texts)


def _write_argument(argument: ast.arg, default: ast.expr | None) -> str:
  text = ast.unparse(argument)
  if default is None:
    return text
  equals = ' = ' if argument.annotation else '='
  return text + equals + ast.unparse(default)
