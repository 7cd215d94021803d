"""The folder of a training: whose it is, and what was spent in it."""

import dataclasses
import json
import pathlib
import platform
from typing import Any

import jax

from specjax.errors import UserError, need, writing
from specjax.stats.folders import write_text
from specjax.training.data import TOKENS
from specjax.training.recipes import Optimization


def _facts_of(field: str, file: pathlib.Path) -> dict[str, Any]:
  """Returns what a file says that its folder is for.

  Raises:
    UserError: it is damaged.
  """
  with writing(field, file.parent):
    text = file.read_text()
  try:
    return dict(json.loads(text))
  except (ValueError, TypeError) as error:
    raise UserError(
      f'{field}: {file} is damaged ({error}); name another folder'
    ) from error


def hold(field: str, file: pathlib.Path, facts: Any, others: str) -> None:
  """Writes what a folder is for into a file of it, where there is none.

  Args:
    field: that names the folder.
    file: in the folder, which is made.
    facts: which JSON can say.
    others: what is wrong where the file has other facts.

  Raises:
    UserError: the file has other facts, or is damaged.
  """
  facts = json.loads(json.dumps(facts))  # Tuples become lists.
  with writing(field, file.parent):
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
      write_text(file, json.dumps(facts, indent=2) + '\n', field)
  found = _facts_of(field, file)
  need(found == facts, f'{field}: {others}; name another folder')


def claim(folder: pathlib.Path, recipe: Any) -> None:
  """Makes a folder that of a recipe.

  Raises:
    UserError: it is that of another, whose checkpoints would be continued.
  """
  file = folder / 'recipe.json'
  fields = dataclasses.asdict(recipe)
  del fields['folder'], fields['compilation_cache']  # They may be moved.
  others = f'{folder} holds the training of another recipe ({file})'
  hold('folder', file, fields, others)


def claim_data(folder: pathlib.Path, made_for: dict[str, Any]) -> None:
  """Makes a folder that of what some tokens and texts are made for.

  One that has them already, and does not say of what they are, is taken as it
  is.

  Args:
    folder: which is there.
    made_for: what they depend on, by name.

  Raises:
    UserError: it holds those of another target or of other settings.
  """
  file = folder / 'data.json'
  with writing('data', folder):
    if not any((folder / name).exists() for name in (TOKENS, 'samples')):
      file.write_text(json.dumps(made_for, indent=2) + '\n')
    if not file.exists():
      return
  found = _facts_of('data', file)
  for name, value in made_for.items():
    need(
      found.get(name) == value,
      f'data: {folder} holds texts of another target or other settings ({name} '
      'differs); name another folder',
    )


def claim_examples(folder: pathlib.Path, fingerprint: str) -> None:
  """Makes a folder that of some examples.

  Raises:
    UserError: its checkpoints have learned from others.
  """
  file = folder / 'examples.sha256'
  with writing('folder', folder):
    need(
      not file.exists() or file.read_text().strip() == fingerprint,
      f'examples.prompts.path: the training in {folder} began with other '
      f'examples ({file}); give it those, or name another folder',
    )
    file.write_text(f'{fingerprint}\n')


def cost(folder: pathlib.Path, name: str, o: Optimization) -> dict[str, Any]:
  """The cost of the weights that a run of `optimize.train` made.

  Returns:
    seconds by the clock, cpu_seconds of all cores, steps, tokens and the
    machine in words.
  """
  last = json.loads((folder / f'{name}.jsonl').read_text().splitlines()[-1])
  return {
    'seconds': round(last['seconds'], 1),
    'cpu_seconds': round(last['cpu_seconds'], 1),
    'steps': last['step'],
    'tokens': last['step'] * o.accumulate * o.batch * o.length,
    'machine': machine(),
  }


def machine() -> str:
  """The devices that a training ran on, in words."""
  devices = jax.devices()
  return f'{len(devices)} x {devices[0].device_kind} ({platform.machine()})'
