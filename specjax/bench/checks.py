"""The values of a configuration: checked before anything is read.

A field's type and range stand where it is declared; what follows here is about
several fields. Every error names the field and what would be right.
"""

from collections.abc import Sequence

from specjax import prompts
from specjax.bench import sampling_stages
from specjax.bench.config import NEW_TOKENS, Experiment, Parity, Prompts
from specjax.cli import fields
from specjax.errors import need
from specjax.prompts import conversations


def need_temperatures(field: str, temperatures: Sequence[float]) -> None:
  """Raises a UserError if temperatures are missing or the same."""
  need(temperatures, f'{field} is empty: give at least one, such as 0')
  for place, temperature in enumerate(temperatures):
    need(
      temperature not in temperatures[:place],
      f'{field} has {temperature} twice; leave it out',
    )


def need_one_turn(x: Prompts) -> None:
  """Raises a UserError in a program that decodes single prompts alone."""
  need(
    x.turns == 1,
    f'prompts.turns is {x.turns}, but this program continues single prompts: '
    'leave it at 1',
  )


def check_mesh(x: Experiment) -> None:
  """Checks the fields of a mesh that need neither devices nor models.

  Raises:
    UserError: names the field and the remedy.
  """
  mesh = x.mesh
  if mesh.processes > 1:
    need(
      0 <= mesh.process < mesh.processes,
      f'mesh.process must be from 0 to {mesh.processes - 1}, got '
      f'{mesh.process}',
    )
    host, _, port = mesh.coordinator.rpartition(':')
    need(
      host and port.isdigit() and 0 < int(port) < 2**16,
      f'mesh.coordinator must be the host and port of process 0, such as '
      f'10.0.0.1:8476, got {mesh.coordinator!r}',
    )
  field = 'batches has' if x.batches else 'batch is'
  for batch in x.batches or (x.batch,):
    need(
      batch % mesh.data == 0,
      f'{field} {batch}, which mesh.data = {mesh.data} does not divide: '
      f'choose a multiple of {mesh.data}, or less for mesh.data',
    )


def check(x: Experiment) -> None:
  """Checks the values of every field but those of drafters; see `plan`.

  Raises:
    UserError: names the field, its value and the remedy.
  """
  fields.check_fields(x)
  missing = getattr(x, 'missing', '')
  need(
    not missing,
    f'{x.name} cannot run: the project has no {missing} yet; `python -m '
    'experiments.tables` shows the numbers of the paper',
  )
  need(
    x.target.place,
    'target.path is empty: give the directory of a model with '
    '--target.path=...',
  )
  need_temperatures('temperatures', x.temperatures)
  sampling_stages.check_stages(x.sampling)
  if not x.prompt:
    prompts.check(x.prompts)
  conversations.check(x.prompts)
  need(
    not x.batches or x.batch == 1,
    f'batches is {x.batches} and batch is {x.batch}: give one of them',
  )
  least, most = x.sampling.min_new_tokens, x.max_new_tokens or NEW_TOKENS
  need(
    least is None or least <= most,
    f'sampling.min_new_tokens is {least}, but max_new_tokens is '
    f'{most}: lower one or raise the other',
  )
  for name in ('target', 'draft'):  # It is switched on there alone.
    need(
      isinstance(x, Parity) or getattr(x, name).dtype != 'float64',
      f'{name}.dtype is float64, which specjax parity alone computes in: '
      'choose another one',
    )
  check_mesh(x)
