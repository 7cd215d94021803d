"""A folder of results: one row a cell, resumable, never overwritten.

config.json     the settings; another experiment is refused
rows.jsonl      one object per cell, appended when the cell is done
samples.jsonl   a few texts of a run, token by token
summary.md      the tables

A folder may have been written by another version, or cut off by a full disk.
What is damaged is named.
"""

import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping

import numpy as np

from specjax.errors import UserError, need, writing
from specjax.stats.row import SCHEMA

Rows = dict[str, list[dict]]  # by folder
SAMPLES = 'samples.jsonl'
# Fields that identify a text of samples.jsonl.
SAMPLE_KEY = ('drafter', 'verifier', 'gamma', 'domain', 'temperature')
# Where a token may come from.
ORIGINS = ('accepted', 'corrected', 'bonus')


def read_text(file: pathlib.Path) -> str:
  """Reads a file of results.

  Raises:
    UserError: it cannot be read, or it is no text.
  """
  with writing('results', file):
    content = file.read_bytes()
  try:
    return content.decode()
  except UnicodeDecodeError as error:
    raise UserError(
      f'results: {file} is no text ({error}): remove it, or choose another '
      'folder'
    ) from error


def write_text(file: pathlib.Path, text: str, field: str = 'results') -> None:
  """Writes a file as a whole or not at all; `field` names its folder."""
  part = file.with_name(f'{file.name}.{os.getpid()}.part')
  with writing(field, part):
    part.write_text(text)
    part.replace(file)


def mend(file: pathlib.Path) -> str:
  """Returns a file of lines; a last line cut off by a kill is dropped."""
  text = read_text(file)
  whole = text[: text.rfind('\n') + 1]
  if whole != text:
    write_text(file, whole)
  return whole


def read_object(text: str, place: str, remedy: str) -> dict:
  """Reads an object of a file of results.

  Args:
    text: of it.
    place: where it stands, for messages.
    remedy: what to do where it is damaged.

  Raises:
    UserError: it is none.
  """
  try:
    value = json.loads(text)
  except ValueError as error:
    raise UserError(
      f'results: {place} is damaged ({error}): {remedy}, or choose another '
      'folder'
    ) from error
  need(
    isinstance(value, dict),
    f'results: {place} is damaged (it holds no object): {remedy}, or choose '
    'another folder',
  )
  return value


def check_place(path: pathlib.Path, settings: Mapping) -> None:
  """Refuses a folder that cannot take the rows of an experiment.

  Raises:
    UserError: it is a file, or holds other results.
  """
  path = path.absolute()
  config = path / 'config.json'
  with writing('results', path):
    if config.exists():
      stored = read_object(read_text(config), str(config), 'remove the folder')
      names = sorted(
        k for k in {*stored, *settings} if stored.get(k) != settings.get(k)
      )
      need(
        not names,
        f'results: {path} holds results of another config (different: '
        f'{", ".join(names)}); choose another folder with --results',
      )
    else:
      need(
        not path.exists() or not any(path.iterdir()),
        f'results: {path} is not empty and holds no config.json; choose '
        'another folder with --results',
      )
    nearest = next(one for one in (path, *path.parents) if one.exists())
    # Root may write everywhere, as permissions say, and not in /proc.
    try:
      tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
      error.filename = str(path)
      raise


def _numbered(file: pathlib.Path) -> tuple[list[tuple[int, dict]], str]:
  """Reads rows as `read_rows` does, with the number of each line."""
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
  """Reads the rows of a file that have this program's layout.

  Returns:
    The rows, and what is to be said of those left out; '' where there are none.
  """
  numbered, warning = _numbered(file)
  return [row for _, row in numbered], warning


def _mixed(rows: list[dict]) -> str:
  """Says why rows do not belong together in one folder; '' if they do."""
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
  """Reads the rows of every folder below a root, by its path from there.

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


class Folder:
  """Rows of one experiment on disk."""

  def __init__(self, path: str, settings: Mapping):
    """Opens a folder, creates it or refuses it.

    Raises:
      UserError: it holds other results.
    """
    self.path = pathlib.Path(path)
    check_place(self.path, settings)
    config, file = self.path / 'config.json', self.path / 'rows.jsonl'
    if not config.exists():
      with writing('results', path):
        self.path.mkdir(parents=True, exist_ok=True)
      write_text(config, json.dumps(settings, indent=2, sort_keys=True) + '\n')
    if file.exists():
      mend(file)
    self.rows, self.warning = read_rows(file)

  def clear(self) -> None:
    """Forgets the rows of a run that was not finished."""
    (self.path / 'rows.jsonl').unlink(missing_ok=True)
    self.rows = []

  def has(self, **cell) -> bool:
    return any(all(r.get(k) == v for k, v in cell.items()) for r in self.rows)

  def add(self, row: dict) -> None:
    row = {'schema': SCHEMA} | row
    place = self.path / 'rows.jsonl'
    with writing('results', place), open(place, 'a') as file:
      file.write(json.dumps(row) + '\n')
      file.flush()
      os.fsync(file.fileno())
    self.rows.append(row)

  def write(self, name: str, text: str) -> None:
    write_text(self.path / name, text)


def existing(path: str) -> Folder:
  """Opens a folder that an experiment has filled.

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


def existing_run(path: str) -> Folder:
  """Opens a folder that `specjax run` has filled.

  Raises:
    UserError: it is none, or of another program.
  """
  folder = existing(path)
  programs = {str(row.get('program', 'run')) for row in folder.rows} - {'run'}
  need(
    not programs,
    f'folder: {path} holds rows of {", ".join(sorted(programs))}; give a '
    'folder of specjax run, whose rows have the columns of each prompt',
  )
  return folder


def read_samples(folder: Folder) -> list[dict]:
  """Reads the texts that were recorded; [] without such a file.

  Raises:
    UserError: the file is not one of these.
  """
  file = folder.path / SAMPLES
  if not file.exists():
    return []
  try:
    samples = [json.loads(line) for line in file.read_text().splitlines()]
    for sample in samples:
      check_sample(sample)
  except (ValueError, TypeError, KeyError) as error:
    raise UserError(
      f'{file} cannot be read ({type(error).__name__}: {error}): remove it, '
      'and specjax run records the texts again'
    ) from error
  return samples


def check_sample(sample: dict) -> None:
  """Raises a KeyError, TypeError or ValueError for what is no sample."""
  for name in (*SAMPLE_KEY, 'lossless', 'prompt', 'continues', 'target_calls'):
    _ = sample[name]
  for token in sample['tokens']:
    if token['origin'] not in ORIGINS:
      raise UserError(f'no origin of a token: {token["origin"]!r}')
    for part in (token, *token['others']):
      _ = part['text'], float(part['chance'] or 0)


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
