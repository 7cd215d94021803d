"""Begins a drafter, a rule or a policy of your own.

  specjax new drafter echo

writes echo.py, which runs as it is and is yours to change; test_echo.py, which
certifies it; and compare_echo.py, a config of `specjax run` that compares
it with what is there on the embedded pair. What to do with them is printed,
and told at length in docs/research.md.
"""

import importlib.util
import json
import keyword
import pathlib
import string

from specjax.cli import command
from specjax.errors import need, writing

# What a config names in the file.
ATTRIBUTES = {'drafter': 'load', 'rule': 'rule', 'policy': 'policy'}
_STARTERS = pathlib.Path(__file__).parent / 'starters'


def _module(name: str, folder: pathlib.Path) -> str:
  """The full name that the file is imported by, from here.

  Raises:
    UserError: it could not be imported, or is taken.
  """
  need(
    name.isidentifier() and not keyword.iskeyword(name) and name.islower(),
    f'name: {name!r} is no name of a module: use small letters, digits and _',
  )
  need(folder.is_dir(), f'folder: {folder} is no folder: make it first')
  inside = folder.resolve()
  here = pathlib.Path.cwd()
  need(
    inside.is_relative_to(here),
    f'folder: {folder} is outside of {here}, from where modules are imported: '
    'choose one below it',
  )
  parts = [*inside.relative_to(here).parts, name]
  need(
    all(map(str.isidentifier, parts)),
    f'folder: {folder} cannot be part of the name of a module: rename it',
  )
  module = '.'.join(parts)
  try:
    known = importlib.util.find_spec(module)
  except ImportError:  # What it would be in is no package.
    known = None
  need(
    known is None,
    f'name: a module {module} is there already: choose another name',
  )
  return module


def write(kind: str, name: str, folder: pathlib.Path) -> list[pathlib.Path]:
  """Writes the files of a new thing.

  Args:
    kind: one of `ATTRIBUTES`.
    name: of the module.
    folder: where it goes, below the one that programs are started from.

  Returns:
    The module, its test and its config.

  Raises:
    UserError: the name or the folder cannot be used, or a file is there.
  """
  module = _module(name, folder)
  files = {
    f'{kind}.py.txt': folder / f'{name}.py',
    'test.py.txt': folder / f'test_{name}.py',
    f'{kind}_table.py.txt': folder / f'compare_{name}.py',
  }
  for file in files.values():
    need(not file.exists(), f'name: {file} exists: choose another name')
  values = {
    'kind': kind,
    'name': name,
    'module': module,
    'attribute': ATTRIBUTES[kind],
    'test': files['test.py.txt'],
    'config': files[f'{kind}_table.py.txt'],
  }
  for starter, file in files.items():
    text = string.Template((_STARTERS / starter).read_text())
    with writing('folder', file):
      file.write_text(text.substitute(values))
  return [*files.values()]


def main(kind: str, name: str, folder: str) -> None:
  made = write(kind, name, pathlib.Path(folder))
  code, test, table = made
  full = f'{_module_of(code)}.{ATTRIBUTES[kind]}'
  print(f'{code} is yours to change. Is it exact?\n')
  print(f'  python -m pytest -n 0 {test}')
  print(f'  specjax certify --quick --{kind}={full}\n')
  print('And what is it worth?\n')
  print(f'  specjax run {table} --timed=False')
  print(json.dumps({'module': full, 'files': [str(file) for file in made]}))


def _module_of(file: pathlib.Path) -> str:
  inside = file.resolve().relative_to(pathlib.Path.cwd())
  return '.'.join(inside.with_suffix('').parts)


def _from_command_line() -> None:
  parser = command.Parser(__doc__)
  parser.add_argument('kind', choices=sorted(ATTRIBUTES), help='what to begin')
  parser.add_argument('name', help='of the module')
  parser.add_argument('--folder', default='.', help='where it goes')
  given = parser.parse_args()
  main(given.kind, given.name, given.folder)


def start() -> None:
  command.guard(_from_command_line)
