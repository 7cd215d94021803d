"""The results folder: one row a cell, resumable, never overwritten.

config.json   the settings; another experiment is refused
rows.jsonl    one object per cell, appended when the cell is done
summary.md    the table
samples.jsonl a few texts with where each token came from
report.html   all of it on one page
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

from experiments import devices, processes, prompts
from experiments.settings import Mesh
from specjax import metrics

KEY = ('drafter', 'verifier', 'gamma', 'domain', 'temperature')


def settings_of(experiment) -> dict:
  """What decides the results: every field but where they go."""
  settings = dataclasses.asdict(experiment)
  settings.pop('results')
  settings.pop('compilation_cache', None)
  if 'mesh' in settings:
    settings['mesh'] = devices.describe(experiment.mesh)
    if settings['mesh'] == devices.describe(Mesh()):
      del settings['mesh']  # One device, as ever.
  # Where the weights lie does not matter, what they are called does.
  text = json.dumps(settings, sort_keys=True, default=str)
  here = str(pathlib.Path(__file__).parent.parent)
  return json.loads(text.replace(here, '.'))


def default_folder(experiment) -> str:
  """runs/<name>-<hash>: every change of the settings has a folder."""
  text = json.dumps(settings_of(experiment), sort_keys=True)
  code = hashlib.sha256(text.encode()).hexdigest()[:6]
  return os.path.join('runs', f'{experiment.name}-{code}')


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
    self.rows = self._read()

  def _read(self) -> list[dict]:
    """Rows so far; a last line cut off by a kill is dropped."""
    file = self.path / 'rows.jsonl'
    if not file.exists():
      return []
    text = file.read_text()
    whole = text[: text.rfind('\n') + 1]
    if whole != text:
      part = file.with_suffix('.part')
      part.write_text(whole)
      part.rename(file)
    return [json.loads(line) for line in whole.splitlines()]

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
  value = row[name]
  if value is None:
    return '-'
  low, high = row[f'{name}_ci']
  return f'{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]'


def _number(row, name, digits) -> str:
  value = row[name]
  return '-' if value is None else f'{value:.{digits}f}'


COLUMNS = (
  ('drafter', lambda r: r['drafter']),
  ('rule', lambda r: r['verifier'] + ('' if r['lossless'] else ' (lossy)')),
  ('gamma', lambda r: str(r['gamma'])),
  ('alpha', lambda r: _interval(r, 'alpha')),
  ('tau', lambda r: _interval(r, 'tau')),
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


def markdown(head: list[str], lines: list[list[str]]) -> str:
  """A table whose columns line up as text, too."""
  table = [head, *lines]
  widths = [max(map(len, column)) for column in zip(*table, strict=True)]
  table.insert(1, ['-' * width for width in widths])
  return '\n'.join(
    '| '
    + ' | '.join(c.ljust(w) for c, w in zip(line, widths, strict=True))
    + ' |'
    for line in table
  )


def _prompts(row: dict) -> str:
  """What was continued; rows of older programs do not say."""
  if 'prompts_from' not in row:
    return ''
  return prompts.describe(row['prompts'], row['prompts_from'])


@dataclasses.dataclass
class Table:
  """One table of a summary or a report: words, no numbers."""

  title: str
  note: str
  head: list[str]
  lines: list[list[str]]

  def markdown(self) -> str:
    note = f'{self.note}\n\n' if self.note else ''
    return f'### {self.title}\n\n{note}{markdown(self.head, self.lines)}\n'


def cells(rows: list[dict]) -> list[Table]:
  """A table for each domain and temperature."""
  made = []
  for where in dict.fromkeys((r['domain'], r['temperature']) for r in rows):
    found = [r for r in rows if (r['domain'], r['temperature']) == where]
    first = found[0]
    plain = ''
    if first['baseline_tokens_per_second'] is not None:
      plain = f' {first["baseline_tokens_per_second"]:.0f} tokens/s,'
    title = (
      f'{where[0]}, temperature {where[1]:g}: plain decoding{plain} '
      f'{first["repetition"]:.0%} of its 4-grams repeated{_greedy(found)}'
    )
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


def _same_draft(row: dict) -> tuple:
  return tuple(row[k] for k in KEY if k != 'verifier')


def paired(rows: list[dict]) -> Table | None:
  """Each rule's tau over the first one's on the same prompts; None for one."""
  verifiers = list(dict.fromkeys(r['verifier'] for r in rows))
  if len(verifiers) < 2:
    return None
  first = {_same_draft(r): r for r in rows if r['verifier'] == verifiers[0]}
  lines = []
  for row in rows:
    base = first.get(_same_draft(row))
    if base is None or base is row:
      continue
    gain = metrics.estimate(
      lambda t, c, bt, bc: 100 * (t / c / (bt / bc) - 1),
      row['unit_tokens'],
      row['unit_target_calls'],
      base['unit_tokens'],
      base['unit_target_calls'],
    )
    lines.append(
      [
        row['domain'],
        f'{row["temperature"]:g}',
        row['drafter'],
        str(row['gamma']),
        row['verifier'] + ('' if row['lossless'] else ' (lossy)'),
        _interval(base, 'tau', 3),
        _interval(row, 'tau', 3),
        f'{gain.value:+.1f}% [{gain.low:+.1f}, {gain.high:+.1f}]',
      ]
    )
  head = ['domain', 'temperature', 'drafter', 'gamma', 'rule']
  head += [f'tau, {verifiers[0]}', 'tau', 'change, paired on prompts']
  return Table('Rules on the same prompts', '', head, lines)


def rules(rows: list[dict]) -> str:
  """That table in Markdown; '' where one rule was used."""
  found = paired(rows)
  return f'\n{found.markdown()}' if found else ''
