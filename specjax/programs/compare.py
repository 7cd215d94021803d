"""Compares two runs: which cells differ beyond chance.

  specjax compare runs/before-012345 runs/after-678901

prints, for alpha, tau and speed-up, the second folder over the first: paired
prompt by prompt where both saw the same prompts, with intervals and a verdict
for each cell that allows for how many cells there are. A field of which each
folder has one value (such as drafter: draft-128 and eagle1) may differ.

  specjax compare A B --format=latex

prints the tables for booktabs instead. Nothing is measured and nothing written.
"""

import json
import pathlib
import sys

from specjax.cli import command
from specjax.errors import need
from specjax.reports import comparing, latex
from specjax.stats import folders


def _names(paths: tuple[str, str]) -> tuple[str, str]:
  """Names folders by the ends of their paths, as far as needed."""
  parts = [pathlib.Path(p).absolute().parts for p in paths]
  for n in range(1, max(map(len, parts)) + 1):
    one, other = ('/'.join(p[-n:]) for p in parts)
    if one != other:
      return one, other
  return paths


def main(paths: tuple[str, str], form: str = 'text') -> None:
  need(
    pathlib.Path(paths[0]).resolve() != pathlib.Path(paths[1]).resolve(),
    f'folder: {paths[0]} is given twice: give two runs',
  )
  one, other = map(folders.existing_run, paths)
  for warning in (one.warning, other.warning):
    if warning:
      print(warning, file=sys.stderr)
  settings = [
    json.loads((folder.path / 'config.json').read_text())
    for folder in (one, other)
  ]
  keys, cells = comparing.matched(one.rows, other.rows)
  need(
    cells,
    f'folder: {paths[0]} and {paths[1]} have no cell in common (fields '
    f'{", ".join(keys)}): run them with the same axes',
  )
  text, found = comparing.page(
    _names(paths), (settings[0], settings[1]), (one.rows, other.rows)
  )
  print(latex.tables(text) if form == 'latex' else text)
  print(json.dumps(folders.plain(found)))


def _from_command_line() -> None:
  parser = command.Parser(__doc__)
  parser.add_argument('folder', nargs=2, help='of a run')
  parser.add_argument('--format', choices=('text', 'latex'), default='text')
  given = parser.parse_args()
  main(tuple(given.folder), given.format)


def start() -> None:
  command.guard(_from_command_line)
