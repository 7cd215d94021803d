"""The results folder: one row a cell, resumable, never overwritten.

config.json   the settings; another experiment is refused
rows.jsonl    one object per cell, appended when the cell is done
summary.md    the table
"""

import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
from collections.abc import Callable, Mapping

import jax
import numpy as np

from specjax import checkpoints, prompts
from specjax.bench.plan import Plan
from specjax.bench.plan import default_folder as default_folder
from specjax.bench.plan import settings_of as settings_of
from specjax.bench.stored import check_place, read_object, read_text
from specjax.cli import cpu, hosts
from specjax.errors import UserError, writing

# What identifies a row.
KEY = ('drafter', 'verifier', 'gamma', 'domain', 'temperature', 'batch')
# The layout of a row. A program reads rows of its own layout and sets others
# aside; they stay in the file.
SCHEMA = 1
Rows = dict[str, list[dict]]  # by folder


def _numbered(file: pathlib.Path) -> tuple[list[tuple[int, dict]], str]:
  """What `read_rows` returns, and the number of each row's line."""
  if not file.exists():
    return [], ''
  numbered = [
    (number, read_object(line, f'{file}: line {number}', 'remove the line'))
    for number, line in enumerate(read_text(file).split('\n'), 1)
    if line.strip()
  ]
  rows = [one for one in numbered if one[1].get('schema') == SCHEMA]
  others = {row.get('schema', 'none') for _, row in numbered} - {SCHEMA}
  if not others:
    return rows, ''
  versions = ', '.join(sorted(map(str, others)))
  return rows, (
    f'{file}: {len(numbered) - len(rows)} of {len(numbered)} rows are left '
    f'out: their schema is {versions}, this program reads {SCHEMA}. The '
    'command that made them measures these cells again'
  )


def read_rows(file: pathlib.Path) -> tuple[list[dict], str]:
  """The rows of a file that have this program's layout.

  Returns:
    The rows, and what is to be said of those left out; '' where there are none.
  """
  numbered, warning = _numbered(file)
  return [row for _, row in numbered], warning


def _mixed(rows: list[dict]) -> str:
  """Why rows do not belong together in one folder; '' where they do."""
  silent = sum('program' not in row for row in rows)
  if silent:
    return (
      f'{silent} of {len(rows)} rows do not say which program made them, so '
      'the folder is left out: put "program": "run", or explain, predict, ..., '
      'behind the "schema" of these lines'
    )
  for name in ('program', 'config'):
    values = sorted({str(row.get(name)) for row in rows})
    if len(values) > 1:
      return (
        f'rows of several {name}s ({", ".join(values)}) in one folder are left '
        'out: move each to a folder of its own'
      )
  return ''


def read_folders(
  root: pathlib.Path, fault: Callable[[dict], str]
) -> tuple[Rows, list[str]]:
  """The rows of every folder below a root, by its path from there.

  Args:
    root: the folder.
    fault: why a row cannot be used; '' where it can.

  Returns:
    The rows, and what is to be said of what was left out: rows of another
    layout, rows with a fault, and folders of several programs or configs.

  Raises:
    UserError: there is no such folder.
  """
  if not root.is_dir():
    raise UserError(
      f'{root} is no folder of results: name one, such as results'
    )
  by_folder, warnings = {}, []
  for file in sorted(root.rglob('rows.jsonl')):
    numbered, warning = _numbered(file)
    if warning:
      warnings.append(warning)
    if reason := _mixed([row for _, row in numbered]):
      warnings.append(f'{file}: {reason}')
      continue
    rows = []
    for number, row in numbered:
      if reason := fault(row):
        warnings.append(f'{file}: line {number} is left out, it {reason}')
      else:
        rows.append(row)
    if rows:
      by_folder[file.parent.relative_to(root).as_posix()] = rows
  return by_folder, warnings


def check_folder(plan: Plan) -> None:
  """The same of the folder of an experiment, before anything is loaded."""
  hosts.alone(lambda: check_place(pathlib.Path(plan.results), plan.settings))


class Folder:
  """Rows of one experiment on disk."""

  def __init__(self, path: str, settings: Mapping):
    """Opens a folder, creates it or refuses it.

    Raises:
      UserError: it holds other results.
    """
    self.path = pathlib.Path(path)
    check_place(self.path, settings)
    with writing('results', path):
      self._open(settings)
    self.rows, self.warning = read_rows(self.path / 'rows.jsonl')

  def _open(self, settings: Mapping) -> None:
    """Creates the folder where it is not there, and mends its last line."""
    config = self.path / 'config.json'
    if not config.exists():
      self.path.mkdir(parents=True, exist_ok=True)
      part = config.with_suffix('.part')
      part.write_text(json.dumps(settings, indent=2, sort_keys=True) + '\n')
      part.rename(config)
    file = self.path / 'rows.jsonl'
    if file.exists():
      text = read_text(file)
      whole = text[: text.rfind('\n') + 1]
      if whole != text:  # A last line cut off by a kill is dropped.
        part = file.with_suffix('.part')
        part.write_text(whole)
        part.rename(file)

  def clear(self) -> None:
    """Forgets the rows of a run that was not finished."""
    (self.path / 'rows.jsonl').unlink(missing_ok=True)
    self.rows = []

  def has(self, **cell) -> bool:
    return any(all(r.get(k) == v for k, v in cell.items()) for r in self.rows)

  def check_prompts(self, texts: dict[str, list[list[int]]]) -> None:
    """Refuses to go on with rows that were made on other prompts.

    Raises:
      UserError: there are such rows; texts are those of each domain now.
    """
    for row in self.rows:
      here = texts.get(row.get('domain', ''))
      if here and row.get('prompts_hash') != prompts.digest(here):
        raise UserError(
          f'results: {self.path} holds rows of other prompts of '
          f'{row["domain"]}: what they are read from has changed; choose '
          'another folder with --results'
        )

  def check_revisions(self, plan: Plan) -> None:
    """Refuses to go on with rows of other commits of models of the Hub.

    Raises:
      UserError: there are such rows.
    """
    target = checkpoints.revision_of(plan.target)
    for row in self.rows:
      drafter = plan.drafters.get(row.get('drafter', ''))
      for who, now in (
        ('target', target),
        ('draft', drafter and drafter.draft_revision),
      ):
        before = row.get(f'{who}_revision')
        if before and now and before != now:
          raise UserError(
            f'results: {self.path} holds rows of the commit {before[:12]} of '
            f'the {who} {row[who]}, and {now[:12]} is here now: name a commit '
            'behind @, or choose another folder with --results'
          )

  def add(self, row: dict) -> None:
    row = {'schema': SCHEMA} | row
    place = self.path / 'rows.jsonl'
    with writing('results', place), open(place, 'a') as file:
      file.write(json.dumps(row) + '\n')
      file.flush()
      os.fsync(file.fileno())
    self.rows.append(row)

  def write(self, name: str, text: str) -> None:
    part = self.path / f'{name}.part'
    with writing('results', part):
      part.write_text(text)
      part.rename(self.path / name)


class Follower(Folder):
  """The folder where another process writes it: rows, and nothing on disk."""

  def __init__(self, rows: list[dict]):
    self.rows = rows

  def add(self, row: dict) -> None:
    self.rows.append(row)

  def write(self, name: str, text: str) -> None:
    pass


def open_folder(plan: Plan, texts: dict[str, list[list[int]]]) -> Folder:
  """The folder of an experiment: that of process 0, which others follow.

  Args:
    plan: of the experiment.
    texts: its prompts, by domain.

  Raises:
    UserError: it holds other results, or rows of other prompts or commits.
  """

  def make():
    folder = Folder(plan.results, plan.settings)
    folder.check_prompts(texts)
    folder.check_revisions(plan)
    return folder

  folder = hosts.alone(make)
  rows = hosts.share(folder and folder.rows)
  return folder or Follower(rows)


def existing(path: str) -> Folder:
  """A folder that an experiment has filled.

  Raises:
    UserError: it is none, or it has no rows.
  """
  config = pathlib.Path(path) / 'config.json'
  if not config.is_file():
    raise UserError(
      f'folder: {path} has no config.json, so it is no results folder: give '
      'the one that specjax run printed'
    )
  settings = read_object(read_text(config), str(config), 'remove the folder')
  folder = Folder(path, settings)
  if not folder.rows:
    raise UserError(
      f'folder: {path} has no rows yet: specjax run with the same settings '
      'makes them'
    )
  return folder


def conditions() -> dict:
  """Versions, device, threads and commit: what a number depends on."""
  packages = ('jax', 'jaxlib', 'flax', 'numpy', 'transformers')
  versions = {p: importlib.metadata.version(p) for p in packages}
  versions['python'] = platform.python_version()
  device = jax.devices()[0]
  name, threads = device.device_kind, None
  if device.platform == 'cpu':
    cores = len(os.sched_getaffinity(0))
    name = f'{cpu.name()}, {cores} cores'
    said = os.environ.get('NPROC') or str(cores)
    threads = int(said) if said.isdecimal() else None
  return {
    'versions': versions,
    'device': name,
    'xla_threads': threads,
    'commit': _commit(),
  }


def _commit() -> str | None:
  """The checkout's commit; None outside of git."""
  try:
    done = subprocess.run(
      ['git', 'rev-parse', '--short=12', 'HEAD'],
      capture_output=True,
      text=True,
      check=True,
      cwd=pathlib.Path(__file__).parent,
    )
  except (OSError, subprocess.CalledProcessError):
    return None
  return done.stdout.strip()


def plain(value):
  """numpy scalars as Python ones, NaN as None: JSON knows neither."""
  if isinstance(value, dict):
    return {k: plain(v) for k, v in value.items()}
  if isinstance(value, list):
    return [plain(v) for v in value]
  if isinstance(value, np.generic):
    value = value.item()
  if isinstance(value, float) and not np.isfinite(value):
    return None
  return value
