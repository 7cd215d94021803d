"""Runs the code cells of a notebook without Jupyter.

A cell is Python with lines for the shell (`!command`) and for the notebook
(`%cd folder`, `%pip ...`, `%matplotlib ...`). Lines of the shell may hold
Python names in braces. The value of a cell's last expression is shown as a
notebook would show it, so that whatever renders it runs too.
"""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types

ROOT = pathlib.Path(__file__).parents[2]
_SPECIAL = re.compile(r'^(\s*)([!%])(.*)$')
_OWN = {'.git', 'runs'}  # of a checkout; a run makes its own


class CellError(RuntimeError):
  """A cell failed; says which, and what it printed."""


def cells(path) -> list[tuple[set[str], str]]:
  """Tags and source of every code cell."""
  found = json.loads(pathlib.Path(path).read_text())['cells']
  return [
    (set(cell['metadata'].get('tags', ())), ''.join(cell['source']))
    for cell in found
    if cell['cell_type'] == 'code'
  ]


def translate(source: str) -> str:
  """A cell as Python: lines of shell and notebook become calls."""
  made = []
  for line in source.replace('\\\n', '').splitlines():
    match = _SPECIAL.match(line)
    if not match:
      made.append(line)
      continue
    indent, mark, text = match.groups()
    if mark == '!' or text.startswith(('pip', 'sh ')):
      call = f'_shell(f{text!r})'
    elif text.startswith('cd '):
      call = f'__import__("os").chdir({text[3:].strip()!r})'
    else:
      call = f'pass  # {text}'
    made.append(indent + call)
  return '\n'.join(made)


def _shell(command: str) -> None:
  # The interpreter in use, whatever the shell would find.
  command = re.sub(r'^(\s*)python3?\b', rf'\1"{sys.executable}"', command)
  command = re.sub(r'^(\s*)pip\b', rf'\1"{sys.executable}" -m pip', command)
  subprocess.run(command, shell=True, check=True)


def _show(value) -> None:
  if value is None:
    return
  show = getattr(value, '_repr_html_', None)
  print((show and show()) or repr(value), flush=True)


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
      _show(eval(code, names))


def run_cells(
  path, skip_tags=(), timeout: float = 300, after: dict[str, str] | None = None
) -> str:
  """Runs a notebook in a process and a folder of its own.

  The folder shows the checkout, so that relative paths work, and what a cell
  writes beside it is gone afterwards.

  Args:
    path: of the notebook.
    skip_tags: cells with one of these tags (`metadata.tags`) are left out.
    timeout: seconds for all cells together.
    after: source that runs after the first cell with a tag, by tag: how a test
      changes what a cell has set.

  Returns:
    What the cells printed.

  Raises:
    CellError: a cell failed.
    subprocess.TimeoutExpired: they took too long.
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
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for entry in ROOT.iterdir():
      if entry.name not in _OWN:
        (folder / entry.name).symlink_to(entry)
    done = subprocess.run(
      [sys.executable, __file__],
      input=json.dumps(sources),
      capture_output=True,
      text=True,
      timeout=timeout,
      cwd=folder,
      env=os.environ | {'PYTHONPATH': name, 'MPLBACKEND': 'Agg'},
      check=False,
    )
  if done.returncode:
    raise CellError(f'{path}:\n{done.stdout}\n{done.stderr}')
  return done.stdout


if __name__ == '__main__':
  execute(json.load(sys.stdin))
