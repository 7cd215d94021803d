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
from typing import Any

from specjax.cli import command
from specjax.errors import install, need, writing

# What a config names in the file.
ATTRIBUTES = {'drafter': 'load', 'rule': 'rule', 'policy': 'policy'}
_STARTERS = pathlib.Path(__file__).parent / 'starters'


def module_name(name: str, folder: pathlib.Path) -> str:
  """Returns the full name that a file of the folder is imported by, from here.

  Raises:
    UserError: it could not be imported, or is taken.
  """
  need(
    name.isidentifier() and not keyword.iskeyword(name) and name.islower(),
    f'name: {name!r} is no name of a module: use small letters, digits and _',
  )
  need(folder.is_dir(), f'folder: {folder} is no folder: make it first')
  inside, here = folder.resolve(), pathlib.Path.cwd()
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
  except ImportError:  # A folder on the way is no package.
    known = None
  need(
    known is None,
    f'name: a module {module} is there already: choose another name',
  )
  return module


def write(kind: str, name: str, folder: pathlib.Path) -> dict[str, Any]:
  """Writes the files of a new drafter, rule or policy.

  Args:
    kind: one of `ATTRIBUTES`.
    name: of the module.
    folder: where it goes, below the one that programs are started from.

  Returns:
    The name that a config gives it, and the files: module, test and config.

  Raises:
    UserError: the name or the folder cannot be used, or a file is there.
  """
  module = module_name(name, folder)
  files = {
    f'{kind}.py.txt': folder / f'{name}.py',
    'test.py.txt': folder / f'test_{name}.py',
    f'{kind}_table.py.txt': folder / f'compare_{name}.py',
  }
  for file in files.values():
    need(not file.exists(), f'name: {file} exists: choose another name')
  _, test, config = files.values()
  values = {'kind': kind, 'name': name, 'module': module, 'test': test}
  values |= {'attribute': ATTRIBUTES[kind], 'config': config}
  for starter, file in files.items():
    text = string.Template((_STARTERS / starter).read_text())
    with writing('folder', file):
      file.write_text(command.spelled(text.substitute(values)))
  return {
    'module': f'{module}.{ATTRIBUTES[kind]}',
    'files': [str(file) for file in files.values()],
  }


def main(kind: str, name: str, folder: str) -> None:
  made = write(kind, name, pathlib.Path(folder))
  code, test, config = made['files']
  text = f"""\
{code} is yours to change. Is it exact? Without pytest, first
{install('test')}

  python -m pytest {test}
  specjax certify --quick --{kind}={made['module']}

And what is it worth?

  specjax run {config} --timed=False"""
  print(command.spelled(text))
  print(json.dumps(made))


def start() -> None:
  parser = command.Parser(__doc__)
  parser.add_argument('kind', choices=sorted(ATTRIBUTES), help='what to begin')
  parser.add_argument('name', help='of the module')
  parser.add_argument('--folder', default='.', help='where it goes')
  command.guard(lambda: main(**vars(parser.parse_args())))
