"""Runs the code cells of a notebook without Jupyter.

A cell is Python with lines for the shell (`!command`, which may hold Python
expressions in braces) and for the notebook (`%matplotlib ...`). The value of a
cell's last expression is shown as a notebook would show it, so that whatever
renders it runs too.

  python -m tests.support.notebooks notebooks/quickstart.ipynb

runs a notebook as it is, and stores the figures of cells with the tag `kept`.
"""

import ast
import base64
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types

from PIL import Image

ROOT = pathlib.Path(__file__).parents[2]
LONGEST = 4000  # letters that a cell may print
_SPECIAL = re.compile(r'^(\s*)([!%])(.*)$')
_SHOWN = '--- shown'


class CellError(RuntimeError):
  """A cell failed; says which, and what it printed."""


def _code(notebook: dict) -> list[dict]:
  return [c for c in notebook['cells'] if c['cell_type'] == 'code']


def _tags(cell: dict) -> set[str]:
  return set(cell['metadata'].get('tags', ()))


def cells(path) -> list[tuple[set[str], str]]:
  """Tags and source of every code cell."""
  notebook = json.loads(pathlib.Path(path).read_text())
  return [(_tags(cell), ''.join(cell['source'])) for cell in _code(notebook)]


def digest(path) -> str:
  """A hash of all code, by which stored outputs name what they are of."""
  code = json.dumps([source for _, source in cells(path)])
  return hashlib.sha256(code.encode()).hexdigest()


def translate(source: str) -> str:
  """A cell as Python: lines of shell and notebook become calls."""
  made = []
  for line in source.replace('\\\n', '').splitlines():
    match = _SPECIAL.match(line)
    if not match:
      made.append(line)
      continue
    indent, mark, text = match.groups()
    call = f'_shell(f{text!r})' if mark == '!' else f'pass  # {text}'
    made.append(indent + call)
  return '\n'.join(made)


def _shell(command: str) -> None:
  subprocess.run(command, shell=True, check=True)


def _show(value, number: int) -> None:
  if value is None:
    return
  if hasattr(value, 'savefig'):
    file = io.BytesIO()
    value.savefig(file, dpi=80)
    few = Image.open(file).convert('RGB').quantize(64)  # A third of the bytes.
    few.save(f'shown-{number}.png', optimize=True)
  show = getattr(value, '_repr_html_', None)
  print(f'{_SHOWN}\n{(show and show()) or repr(value)}', flush=True)


def execute(sources: list[str]) -> None:
  """Runs translated cells in one namespace, as a notebook does."""
  main = types.ModuleType('__main__')
  sys.modules['__main__'] = main  # Whose names programs may resolve.
  names = vars(main)
  names['_shell'] = _shell
  for number, source in enumerate(sources):
    print(f'--- cell {number}', flush=True)
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body else None
    if last is not None and not isinstance(last, ast.Expr):
      tree.body.append(last)
      last = None
    exec(compile(tree, f'cell {number}', 'exec'), names)
    if last is not None:
      code = compile(ast.Expression(last.value), f'cell {number}', 'eval')
      _show(eval(code, names), number)


def _run(path, sources: list[str], folder: str, timeout: float) -> str:
  done = subprocess.run(
    [sys.executable, __file__], input=json.dumps(sources), capture_output=True,
    text=True, timeout=timeout, cwd=folder,
    env=os.environ | {'PYTHONPATH': str(ROOT), 'MPLBACKEND': 'Agg'},
    check=False,
  )  # fmt: skip
  if done.returncode:
    raise CellError(f'{path}:\n{done.stdout}\n{done.stderr}')
  for printed in re.split(r'^--- cell ', done.stdout, flags=re.MULTILINE):
    printed = printed.partition(_SHOWN)[0]
    if len(printed) > LONGEST:
      raise CellError(f'{path}: a cell prints {len(printed)}: {printed[:400]}')
  return done.stdout


def run_cells(path, skip_tags=(), after: dict[str, str] | None = None) -> str:
  """Returns what a notebook prints in a process and an empty folder of its own.

  Args:
    path: of the notebook.
    skip_tags: cells with one of these tags (`metadata.tags`) are left out.
    after: source that runs after the first cell with a tag, by tag: how a test
      changes what a cell has set.

  Raises:
    CellError: a cell failed, or printed too much.
  """
  sources = []
  left = dict(after or {})
  for tags, source in cells(path):
    if tags & set(skip_tags):
      continue
    sources.append(translate(source))
    sources += [left.pop(tag) for tag in tags if tag in left]
  if left:
    raise ValueError(f'after: {path} has no cell with the tags {list(left)}')
  with tempfile.TemporaryDirectory() as folder:
    return _run(path, sources, folder, timeout=300)


def store(path: pathlib.Path) -> None:
  """Runs a notebook as it is, and stores the figures of its kept cells."""
  notebook = json.loads(path.read_text())
  # An installation shows nothing, and here all is installed.
  sources = [
    '' if 'install' in tags else translate(source)
    for tags, source in cells(path)
  ]
  with tempfile.TemporaryDirectory() as folder:
    _run(path, sources, folder, timeout=1800)
    for number, cell in enumerate(_code(notebook)):
      cell.update(execution_count=None, outputs=[])
      if 'kept' in _tags(cell):
        picture = pathlib.Path(folder, f'shown-{number}.png').read_bytes()
        cell['execution_count'] = number + 1
        cell['outputs'] = [
          {
            'data': {'image/png': base64.b64encode(picture).decode()},
            'execution_count': number + 1,
            'metadata': {},
            'output_type': 'execute_result',
          }
        ]
  notebook['metadata']['outputs_of'] = digest(path)
  text = json.dumps(notebook, indent=1, ensure_ascii=False)
  path.write_text(text + '\n')


if __name__ == '__main__':
  if len(sys.argv) > 1:
    store(pathlib.Path(sys.argv[1]))
  else:
    execute(json.load(sys.stdin))
