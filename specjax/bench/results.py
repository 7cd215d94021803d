"""The folder that an experiment writes, and the conditions of its machine.

Process 0 writes the folder; other processes follow its rows.
"""

import importlib.metadata
import os
import pathlib
import platform
import subprocess
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax

from specjax import checkpoints, native, prompts, reports
from specjax.bench.plan import Plan
from specjax.bench.plan import default_folder as default_folder
from specjax.bench.plan import settings_of as settings_of
from specjax.cli import cpu, hosts, progress
from specjax.errors import UserError
from specjax.stats.folders import Folder as Folder
from specjax.stats.folders import check_place
from specjax.stats.folders import plain as plain
from specjax.stats.folders import read_rows as read_rows
from specjax.stats.row import KEY as KEY


def check_folder(plan: Plan) -> None:
  """Refuses a folder of other results, before anything is loaded."""
  hosts.on_primary(
    lambda: check_place(pathlib.Path(plan.results), plan.settings)
  )


def check_prompts(folder: Folder, texts: Mapping[str, list[list[int]]]) -> None:
  """Refuses to go on with rows that were made on other prompts.

  Raises:
    UserError: there are such rows; `texts` are the prompts of each domain now.
  """
  for row in folder.rows:
    here = texts.get(row.get('domain', ''))
    if here and row.get('prompts_hash') != prompts.digest(here):
      raise UserError(
        f'results: {folder.path} holds rows of other prompts of '
        f'{row["domain"]}: what they are read from has changed; choose '
        'another folder with --results'
      )


def check_revisions(folder: Folder, plan: Plan) -> None:
  """Refuses to go on with rows of other commits of models of the Hub.

  Raises:
    UserError: there are such rows.
  """
  target = checkpoints.revision_of(plan.target)
  for row in folder.rows:
    drafter = plan.drafters.get(row.get('drafter', ''))
    for who, now in (
      ('target', target),
      ('draft', drafter and drafter.draft_revision),
    ):
      before = row.get(f'{who}_revision')
      if before and now and before != now:
        raise UserError(
          f'results: {folder.path} holds rows of the commit {before[:12]} of '
          f'the {who} {row[who]}, and {now[:12]} is here now: name a commit '
          'behind @, or choose another folder with --results'
        )


class Follower(Folder):
  """The folder where another process writes it: rows, and nothing on disk."""

  def __init__(self, rows: list[dict]):
    self.rows = rows

  def add(self, row: dict) -> None:
    self.rows.append(row)

  def write(self, name: str, text: str) -> None:
    pass


def open_folder(
  plan: Plan, texts: Mapping[str, list[list[int]]] = MappingProxyType({})
) -> Folder:
  """Opens the folder of an experiment: process 0 writes, others follow.

  Args:
    plan: of the experiment.
    texts: its prompts by domain, where they are known.

  Raises:
    UserError: it holds other results, or rows of other prompts or commits.
  """

  def make():
    folder = Folder(plan.results, plan.settings)
    check_prompts(folder, texts)
    check_revisions(folder, plan)
    return folder

  folder = hosts.on_primary(make)
  rows = hosts.broadcast(folder and folder.rows)
  return folder or Follower(rows)


def folder_of(x: Any) -> Folder:
  """Opens the folder of a config that needs no plan."""
  return Folder(x.results or default_folder(x), settings_of(x))


def publish(folder: Folder) -> None:
  """Writes and prints the summary of the rows of a folder; writes figures."""
  with progress.phase('report'):
    text = reports.summary(folder.rows)
    folder.write('summary.md', text)
    for draw in reports.figures(folder.rows):
      reports.save(draw, folder.rows, folder.path)
  print(text)


def conditions() -> dict:
  """Returns versions, device, threads and commit."""
  packages = ('jax', 'jaxlib', 'flax', 'numpy', 'transformers')
  versions = {p: importlib.metadata.version(p) for p in packages}
  versions['python'] = platform.python_version()
  device = jax.devices()[0]
  name, threads = device.device_kind, None
  if device.platform == 'cpu':
    cores = native.cores()
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
  """Returns the commit of the checkout; None outside of git."""
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
