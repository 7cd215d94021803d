"""Which settings a folder of results belongs to, and how it is called."""

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

from specjax.bench.config import Experiment, Mesh, Prompts
from specjax.bench.loading import constrained
from specjax.checkpoints import precision
from specjax.cli import names
from specjax.errors import need

_CONVERSATION = ('system', 'template_kwargs', 'turns')


def portable(value: Any) -> Any:
  """A value as JSON has it, without where this checkout lies."""
  text = json.dumps(value, sort_keys=True, default=str)
  here = str(pathlib.Path(__file__).parents[3])
  return json.loads(text.replace(here, '.'))


def settings_of(x: Any) -> dict:
  """What decides the results: every field of a config but where they go."""
  if isinstance(x, Experiment):
    x = names.complete(x)
  settings = dataclasses.asdict(x)
  settings.pop('results')
  settings.pop('compilation_cache', None)
  settings.pop('probe', None)
  if 'mesh' in settings:
    settings['mesh'] = x.mesh.facts()
    if settings['mesh'] == Mesh().facts():
      del settings['mesh']  # One device, as ever.
  if not settings.get('batches', True):
    del settings['batches']  # That of `batch`, as ever.
  if isinstance(x, Experiment):
    constrained.shorten(settings['sampling'])
    for name in _CONVERSATION:
      if settings['prompts'][name] == getattr(Prompts(), name):
        del settings['prompts'][name]  # One turn and no system prompt, as ever.
    for name in ('target', 'draft'):
      for field in ('dtype', 'vocabulary', 'frequencies'):
        if not settings[name].get(field, True):
          del settings[name][field]  # That of the experiment; all tokens.
  for name in ('rule', 'drafter', 'policy'):
    if not settings.get(name, True):
      del settings[name]  # The whole certificate, as ever.
  if settings.get('dtype') == precision.AUTO:
    del settings['dtype']  # As ever.
  if not settings.get('by_load', True):
    del settings['by_load']  # Constant lengths, as ever.
  for candidate in settings.get('candidates', {}).values():
    if not candidate['verifiers']:
      del candidate['verifiers']  # Those of the experiment, as ever.
  # Where the weights lie does not matter, what they are called does.
  return portable(settings)


def default_folder(x: Any) -> str:
  """runs/<name>-<hash>: every change of the settings has a folder.

  Raises:
    UserError: the name is none of a folder.
  """
  need(
    x.name and os.path.basename(x.name) == x.name,
    f'name is {x.name!r}, which names no folder of runs; choose another one',
  )
  text = json.dumps(settings_of(x), sort_keys=True)
  code = hashlib.sha256(text.encode()).hexdigest()[:6]
  return os.path.join('runs', f'{x.name}-{code}')
