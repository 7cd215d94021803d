"""The folder of a training: whose it is, and what was spent in it."""

import dataclasses
import json
import pathlib
import platform
from typing import Any

import jax

from experiments.errors import need, writing
from experiments.recipes import Optimization
from specjax.checkpoints import precision


def claim(folder: pathlib.Path, recipe: Any) -> None:
  """Makes a folder that of a recipe.

  Raises:
    UserError: it is that of another, whose checkpoints would be continued.
  """
  file = folder / 'recipe.json'
  fields = dataclasses.asdict(recipe)
  del fields['folder'], fields['compilation_cache']  # They may be moved.
  if fields.get('dtype') == precision.AUTO:
    del fields['dtype']  # As ever.
  text = (json.dumps(fields, indent=2) + '\n').encode()
  with writing('folder', folder):
    folder.mkdir(parents=True, exist_ok=True)
    need(
      not file.exists() or file.read_bytes() == text,
      f'folder: {folder} holds the training of another recipe ({file}); name '
      'another folder, or remove it',
    )
    file.write_bytes(text)


def cost(
  folder: pathlib.Path, *runs: tuple[str, Optimization, int]
) -> dict[str, Any]:
  """What trained weights cost, all runs of `optimize.train` together.

  Args:
    folder: of the runs.
    *runs: name, optimization, and how many models were trained at once, whose
      cost is not told apart.

  Returns:
    seconds by the clock, cpu_seconds of all cores, steps, tokens, the largest
    number of models at once, and the machine in words.
  """
  totals = {'seconds': 0.0, 'cpu_seconds': 0.0, 'steps': 0, 'tokens': 0}
  for name, o, _ in runs:
    lines = (folder / f'{name}.jsonl').read_text().splitlines()
    last = json.loads(lines[-1])
    for key in ('seconds', 'cpu_seconds'):
      totals[key] = round(totals[key] + last[key], 1)
    totals['steps'] += o.steps
    totals['tokens'] += o.steps * o.batch * o.length
  together = max(count for *_, count in runs)
  return totals | {'together': together, 'machine': machine()}


def machine() -> str:
  """The devices that a training ran on, in words."""
  devices = jax.devices()
  return f'{len(devices)} x {devices[0].device_kind} ({platform.machine()})'
