"""The results folder: one row a cell, resumable, never overwritten.

config.json   the settings; another experiment is refused
rows.jsonl    one object per cell, appended when the cell is done
summary.md    the table
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess

import jax
import numpy as np

from experiments import comparison, devices, differences, processes, prompts
from experiments.differences import KEY as KEY
from experiments.markdown import Table, with_interval
from experiments.markdown import markdown as markdown
from experiments.settings import Mesh

# The layout of a row. A program reads rows of its own layout and sets others
# aside; they stay in the file.
SCHEMA = 1


def portable(value):
  """A value as JSON has it, without where this checkout lies."""
  text = json.dumps(value, sort_keys=True, default=str)
  here = str(pathlib.Path(__file__).parent.parent)
  return json.loads(text.replace(here, '.'))


def settings_of(experiment) -> dict:
  """What decides the results: every field but where they go."""
  settings = dataclasses.asdict(experiment)
  settings.pop('results')
  settings.pop('compilation_cache', None)
  if 'mesh' in settings:
    settings['mesh'] = devices.describe(experiment.mesh)
    if settings['mesh'] == devices.describe(Mesh()):
      del settings['mesh']  # One device, as ever.
  for candidate in settings.get('candidates', {}).values():
    if not candidate['verifiers']:
      del candidate['verifiers']  # Those of the experiment, as ever.
  # Where the weights lie does not matter, what they are called does.
  return portable(settings)


def default_folder(experiment) -> str:
  """runs/<name>-<hash>: every change of the settings has a folder."""
  text = json.dumps(settings_of(experiment), sort_keys=True)
  code = hashlib.sha256(text.encode()).hexdigest()[:6]
  return os.path.join('runs', f'{experiment.name}-{code}')


def read_rows(file: pathlib.Path) -> tuple[list[dict], str]:
  """The rows of a file that have this program's layout.

  Returns:
    The rows, and what is to be said of those left out; '' where there are none.
  """
  if not file.exists():
    return [], ''
  found = [json.loads(line) for line in file.read_text().splitlines()]
  rows = [row for row in found if row.get('schema') == SCHEMA]
  others = {row.get('schema', 'none') for row in found} - {SCHEMA}
  if not others:
    return rows, ''
  versions = ', '.join(sorted(map(str, others)))
  return rows, (
    f'{file}: {len(found) - len(rows)} of {len(found)} rows are left out: '
    f'their schema is {versions}, this program reads {SCHEMA}. The command '
    'that made them measures these cells again'
  )


def read_folders(
  root: pathlib.Path,
) -> tuple[dict[str, list[dict]], list[str]]:
  """The rows of every folder below a root, by its path from there.

  Returns:
    The rows, and those of `result.json` as one; and what is to be said of what
    was left out: rows of another layout, and folders of several configs.

  Raises:
    ValueError: there is no such folder.
  """
  if not root.is_dir():
    raise ValueError(
      f'{root} is no folder of results: name one, such as results'
    )
  found, warnings = {}, []
  for file in sorted(root.rglob('rows.jsonl')):
    rows, warning = read_rows(file)
    configs = sorted({str(row.get('config')) for row in rows})
    if warning:
      warnings.append(warning)
    if len(configs) > 1:
      warnings.append(
        f'{file}: rows of several configs ({", ".join(configs)}) in one folder '
        'are left out: move each to a folder of its own'
      )
    elif rows:
      found[file.parent.relative_to(root).as_posix()] = rows
  for file in sorted(root.rglob('result.json')):
    found[file.relative_to(root).as_posix()] = [json.loads(file.read_text())]
  return found, warnings


class Folder:
  """Rows of one experiment on disk."""

  def __init__(self, path: str, settings: dict):
    """Opens a folder, creates it or refuses it.

    Raises:
      ValueError: it holds other results.
    """
    self.path = pathlib.Path(path)
    config = self.path / 'config.json'
    if config.exists():
      found = json.loads(config.read_text())
      if found != settings:
        names = sorted(
          k for k in found | settings if found.get(k) != settings.get(k)
        )
        raise ValueError(
          f'results: {path} holds results of another config (different: '
          f'{", ".join(names)}); choose another folder with --config.results'
        )
    elif self.path.exists() and any(self.path.iterdir()):
      raise ValueError(
        f'results: {path} is not empty and holds no config.json; choose '
        'another folder with --config.results'
      )
    else:
      self.path.mkdir(parents=True, exist_ok=True)
      part = config.with_suffix('.part')
      part.write_text(json.dumps(settings, indent=2, sort_keys=True) + '\n')
      part.rename(config)
    file = self.path / 'rows.jsonl'
    if file.exists():
      text = file.read_text()
      whole = text[: text.rfind('\n') + 1]
      if whole != text:  # A last line cut off by a kill is dropped.
        part = file.with_suffix('.part')
        part.write_text(whole)
        part.rename(file)
    self.rows, self.warning = read_rows(file)

  def clear(self) -> None:
    """Forgets the rows of a run that was not finished."""
    (self.path / 'rows.jsonl').unlink(missing_ok=True)
    self.rows = []

  def has(self, **cell) -> bool:
    return any(all(r.get(k) == v for k, v in cell.items()) for r in self.rows)

  def check_prompts(self, texts: dict[str, list[list[int]]]) -> None:
    """Refuses to go on with rows that were made on other prompts.

    Raises:
      ValueError: there are such rows; texts are those of each domain now.
    """
    for row in self.rows:
      here = texts.get(row['domain'])
      if here and row['prompts_hash'] != prompts.digest(here):
        raise ValueError(
          f'results: {self.path} holds rows of other prompts of '
          f'{row["domain"]}: what they are read from has changed; choose '
          'another folder with --config.results'
        )

  def add(self, row: dict) -> None:
    row = {'schema': SCHEMA} | row
    with open(self.path / 'rows.jsonl', 'a') as file:
      file.write(json.dumps(row) + '\n')
      file.flush()
      os.fsync(file.fileno())
    self.rows.append(row)

  def write(self, name: str, text: str) -> None:
    part = self.path / f'{name}.part'
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


def open_folder(experiment, texts: dict[str, list[list[int]]]) -> Folder:
  """The folder of an experiment: that of process 0, which others follow.

  Args:
    experiment: the experiment.
    texts: its prompts, by domain.

  Raises:
    ValueError: it holds other results, or rows of other prompts.
  """

  def make():
    path = experiment.results or default_folder(experiment)
    folder = Folder(path, settings_of(experiment))
    folder.check_prompts(texts)
    return folder

  folder = processes.alone(make)
  rows = processes.share(folder and folder.rows)
  return folder or Follower(rows)


def existing(path: str) -> Folder:
  """A folder that an experiment has filled.

  Raises:
    ValueError: it is none, or it has no rows.
  """
  config = pathlib.Path(path) / 'config.json'
  if not config.is_file():
    raise ValueError(
      f'folder: {path} has no config.json, so it is no results folder: give '
      'the one that experiments.run printed'
    )
  folder = Folder(path, json.loads(config.read_text()))
  if not folder.rows:
    raise ValueError(
      f'folder: {path} has no rows yet: experiments.run with the same settings '
      'makes them'
    )
  return folder


def conditions() -> dict:
  """Versions, device and commit: what a number depends on."""
  packages = ('jax', 'jaxlib', 'flax', 'numpy', 'transformers')
  versions = {p: importlib.metadata.version(p) for p in packages}
  versions['python'] = platform.python_version()
  device = jax.devices()[0]
  name = device.device_kind
  if device.platform == 'cpu':
    name = f'{_cpu()}, {len(os.sched_getaffinity(0))} cores'
  return {'versions': versions, 'device': name, 'commit': _commit()}


def _cpu() -> str:
  try:
    with open('/proc/cpuinfo') as file:
      names = [line for line in file if line.startswith('model name')]
    return names[0].partition(':')[2].strip()
  except (OSError, IndexError):
    return platform.processor() or platform.machine()


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


def _interval(row, name, digits=2) -> str:
  return with_interval(
    row[name], row[f'{name}_ci'], row['prompts'], digits=digits
  )


def _number(row, name, digits) -> str:
  return '-' if row[name] is None else f'{row[name]:.{digits}f}'


COLUMNS = (
  ('drafter', lambda r: r['drafter']),
  ('rule', lambda r: r['verifier'] + ('' if r['lossless'] else ' (lossy)')),
  ('gamma', lambda r: str(r['gamma'])),
  ('alpha', lambda r: _interval(r, 'alpha')),
  ('tau', lambda r: _interval(r, 'tau')),
  ('no bonus', lambda r: _number(r, 'tau_without_bonus', 2)),
  (
    'accepted at 1, 2, ...',
    lambda r: ' '.join(
      '-' if a is None else f'{a:.2f}' for a in r['acceptance_by_position']
    ),
  ),
  ('tokens/s', lambda r: _number(r, 'tokens_per_second', 0)),
  ('speed-up', lambda r: _interval(r, 'speedup')),
  ('predicted', lambda r: _number(r, 'predicted_speedup', 2)),
  ('c', lambda r: _number(r, 'c', 3)),
  ('v', lambda r: _number(r, 'v', 2)),
)

COUNTING = """
How it is counted: **alpha** is the mean of sum(min(p, q)) over prefixes that
the target generated, **tau** tokens per target call with the bonus or corrected
token, **no bonus** the mean accepted length of the whole steps, which are those
that began with room for gamma + 1 tokens. Any other step counts in tokens and
target calls alone, whatever it accepted; one in which the text ends counts with
the verdict on its whole draft, and a row that has finished counts nowhere.
Where nothing was proposed, beta is 0. Intervals are 95% by bootstrap over
prompts (of speeds: over batches).
"""


def _greedy(cells: list[dict]) -> str:
  """How many greedy texts were those of plain decoding, and what differed."""
  if cells[0]['temperature'] or not cells[0]['lossless']:
    return ''
  texts = sum(r['prompts'] for r in cells if r['lossless'])
  same = sum(r['identical_to_plain'] for r in cells if r['lossless'])
  found = [
    d['verdict'] for r in cells for d in r['differences'] if r['lossless']
  ]
  note = ''
  if found:
    note = f', {found.count("tie")} ties, {found.count("bug")} bugs'
  return f'; {same} of {texts} texts identical to it{note}'


def _prompts(row: dict) -> str:
  """What was continued; rows of older programs do not say."""
  if not row.get('prompts_from'):
    return ''
  return prompts.describe(row['prompts'], row['prompts_from'])


def cells(rows: list[dict]) -> list[Table]:
  """A table for each domain and temperature."""
  made = []
  for where in dict.fromkeys((r['domain'], r['temperature']) for r in rows):
    found = [r for r in rows if (r['domain'], r['temperature']) == where]
    first = found[0]
    speed, repeated = first['baseline_tokens_per_second'], first['repetition']
    timed = 'not timed' if speed is None else f'{speed:.0f} tokens/s'
    title = f'{where[0]}, temperature {where[1]:g}: plain decoding {timed}'
    if repeated is not None:
      title += f', {repeated:.0%} of its 4-grams repeated'
    title += _greedy(found)
    lines = [[show(r) for _, show in COLUMNS] for r in found]
    head = [name for name, _ in COLUMNS]
    made.append(Table(title, _prompts(first), head, lines))
  return made


def table(rows: list[dict]) -> str:
  """Markdown tables, one for each domain and temperature."""
  return '\n'.join(one.markdown() for one in cells(rows))


def best(rows: list[dict]) -> dict | None:
  """The lossless row with the largest speed-up."""
  lossless = [r for r in rows if r['lossless'] and r['speedup']]
  return max(lossless, key=lambda r: r['speedup'], default=None)


def summary(rows: list[dict]) -> str:
  """What a run found: tables, differences on the same prompts, and how."""
  if not rows:
    return 'No rows.\n'
  parts = [table(rows), comparison.text(rows), differences.text(rows)]
  parts += [along_the_text(rows), COUNTING]
  return ''.join(parts)


def along_the_text(rows: list[dict]) -> str:
  """Acceptance by context and its memory; '' where steps were not kept."""
  rows = [r for r in rows if r['acceptance_by_context']]
  if not rows:
    return ''
  lines = []
  for row in rows:
    bins = [
      f'{b["from"]}: {b["acceptance"]:.2f}'
      for b in row['acceptance_by_context']
      if b['acceptance'] is not None
    ]
    lags = [
      with_interval(found[0], found[1:], row['prompts'])
      for found in row['autocorrelation'][:2]
    ]
    where = [row['domain'], f'{row["temperature"]:g}', row['drafter']]
    where += [row['verifier'], str(row['gamma'])]
    lines.append([*where, ', '.join(bins), *lags])
  head = ['domain', 'temperature', 'drafter', 'rule', 'gamma']
  head += ['accepted / drafted from context', 'lag 1', 'lag 2']
  return (
    '\n### Along the text\n\nAccepted over drafted tokens, from so many '
    'committed tokens on; and the\ncorrelation of the accepted lengths of '
    'steps one and two apart, over all prompts\ntogether.\n\n'
    f'{markdown(head, lines)}\n'
  )
