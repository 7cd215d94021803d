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

from experiments import prompts
from specjax import metrics

# The layout of a row. A program reads rows of its own layout and sets others
# aside; they stay in the file.
SCHEMA = 1

KEY = ('drafter', 'verifier', 'gamma', 'domain', 'temperature')


def settings_of(experiment) -> dict:
  """What decides the results: every field but where they go."""
  settings = dataclasses.asdict(experiment)
  settings.pop('results')
  # Where the weights lie does not matter, what they are called does.
  text = json.dumps(settings, sort_keys=True, default=str)
  here = str(pathlib.Path(__file__).parent.parent)
  return json.loads(text.replace(here, '.'))


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
    return any(all(r[k] == v for k, v in cell.items()) for r in self.rows)

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


def _interval(row, name, digits=2) -> str:
  value = row[name]
  if value is None:
    return '-'
  low, high = row[f'{name}_ci']
  return f'{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]'


COLUMNS = (
  ('drafter', lambda r: r['drafter']),
  ('rule', lambda r: r['verifier'] + ('' if r['lossless'] else ' (lossy)')),
  ('gamma', lambda r: str(r['gamma'])),
  ('alpha', lambda r: _interval(r, 'alpha')),
  ('tau', lambda r: _interval(r, 'tau')),
  (
    'accepted at 1, 2, ...',
    lambda r: ' '.join(f'{a:.2f}' for a in r['acceptance_by_position']),
  ),
  ('tokens/s', lambda r: f'{r["tokens_per_second"]:.0f}'),
  ('speed-up', lambda r: _interval(r, 'speedup')),
  ('predicted', lambda r: f'{r["predicted_speedup"]:.2f}'),
  ('c', lambda r: f'{r["c"]:.3f}'),
  ('v', lambda r: f'{r["v"]:.2f}'),
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
  return f'{prompts.describe(row["prompts"], row["prompts_from"])}\n\n'


def table(rows: list[dict]) -> str:
  """Markdown tables, one for each domain and temperature."""
  parts = []
  groups = dict.fromkeys((r['domain'], r['temperature']) for r in rows)
  for domain, temperature in groups:
    cells = [
      r
      for r in rows
      if (r['domain'], r['temperature']) == (domain, temperature)
    ]
    lines = [[show(r) for _, show in COLUMNS] for r in cells]
    first = cells[0]
    parts.append(
      f'### {domain}, temperature {temperature:g}: plain decoding '
      f'{first["baseline_tokens_per_second"]:.0f} tokens/s, '
      f'{first["repetition"]:.0%} of its 4-grams repeated{_greedy(cells)}\n\n'
      + _prompts(first)
      + markdown([name for name, _ in COLUMNS], lines)
      + '\n'
    )
  return '\n'.join(parts)


def _same_draft(row: dict) -> tuple:
  return tuple(row[k] for k in KEY if k != 'verifier')


def rules(rows: list[dict]) -> str:
  """Each rule's tau over the first one's on the same prompts; '' for one."""
  verifiers = list(dict.fromkeys(r['verifier'] for r in rows))
  if len(verifiers) < 2:
    return ''
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
  return f'\n### Rules on the same prompts\n\n{markdown(head, lines)}\n'
