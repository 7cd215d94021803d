"""The values of a configuration: checked before anything is read.

Every error names the field and what would be right.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from specjax import prompts, sampling
from specjax.bench.config import Experiment, Parity, Prompts, SamplingValues
from specjax.bench.loading import constrained
from specjax.checkpoints import precision
from specjax.errors import blame
from specjax.errors import need as need
from specjax.prompts import conversations
from specjax.types import Spec

SEEDS = 2**32  # Larger ones give the keys of smaller ones.


def need_seed(value: int, field: str = 'seed') -> None:
  """Raises a UserError where a seed has no keys of its own."""
  need(
    0 <= value < SEEDS, f'{field} must be from 0 to {SEEDS - 1}, got {value}'
  )


def need_least(x: Any, least: int, *names: str, where: str = '') -> None:
  """Raises a UserError that names the first field below `least`.

  Args:
    x: the config.
    least: of a value; None is no value.
    *names: its fields.
    where: what their names follow.
  """
  for name in names:
    value = getattr(x, name)
    need(
      value is None or value >= least,
      f'{where}{name} must be at least {least}, got {value}',
    )


def need_temperatures(field: str, temperatures: Sequence[float]) -> None:
  """Raises a UserError where there is no temperature, a wrong one or one twice.

  Args:
    field: that has them.
    temperatures: of the texts.
  """
  need(temperatures, f'{field} is empty: give at least one, such as 0')
  for place, temperature in enumerate(temperatures):
    need(
      np.isfinite(temperature) and temperature >= 0,
      f'{field} must be finite and at least 0, got {temperature}',
    )
    need(
      temperature not in temperatures[:place],
      f'{field} has {temperature} twice; leave it out',
    )


def need_one_turn(x: Prompts) -> None:
  """Raises a UserError where a program decodes single prompts alone."""
  need(
    x.turns == 1,
    f'prompts.turns is {x.turns}, but this program continues single prompts: '
    'leave it at 1',
  )


# Stages that name tokens: what they may name is known with the target.
_TOKENS = ('logit_bias', 'forbidden', 'min_new_tokens')


def values(
  stages: SamplingValues, spec: Spec, batch: int, temperature
) -> sampling.Sampling:
  """The pipeline of an experiment, for rows of a spec.

  Args:
    stages: besides the temperature.
    spec: whose vocabulary and ends of a text count.
    batch: rows.
    temperature: of all rows, or [B].

  Raises:
    UserError: names the field that is out of range or contradicts another.
  """
  return values_for(
    stages, spec.target.config.vocab_size, spec.eos, batch, temperature
  )


def values_for(
  stages: SamplingValues,
  vocab_size: int,
  eos: tuple[int, ...],
  batch: int = 1,
  temperature=1.0,
) -> sampling.Sampling:
  """The same for a vocabulary and the ends of a text."""
  if stages.constrains and 'constraint' not in stages.stages:
    raise RuntimeError('what constrains the texts was not compiled: use a plan')
  with blame('sampling.'):
    return sampling.make(
      batch, temperature, **stages.stages, vocab_size=vocab_size, eos=eos
    )


def check_dtype(field: str, name: Any, *more: str) -> None:
  """Raises a UserError where there is no such type.

  Args:
    field: that names it.
    name: of it.
    *more: names that may be given besides those of every experiment.
  """
  choices = (precision.AUTO, 'float32', *precision.NARROW, *more)
  need(
    name in choices,
    f'{field} must be one of {", ".join(choices)}, got {name!r}',
  )


def check_dtypes(x: Experiment) -> None:
  """The same of all fields of an experiment but options of drafters."""
  more = ('float64',) if isinstance(x, Parity) else ()
  check_dtype('dtype', x.dtype, *more)
  for field, value in (
    ('target.dtype', x.target.dtype),
    ('draft.dtype', x.draft.dtype),
  ):
    if value:
      check_dtype(field, value, *more)


def check_mesh(x: Experiment) -> None:
  """Checks what needs neither devices nor models.

  Raises:
    UserError: names the field and the remedy.
  """
  mesh = x.mesh
  need_least(mesh, 1, 'data', 'model', 'timeout', where='mesh.')
  need(
    mesh.processes >= 0,
    f'mesh.processes must be at least 0 (0: what the cluster says), got '
    f'{mesh.processes}',
  )
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
  missing = getattr(x, 'missing', '')
  need(
    not missing,
    f'{x.name} cannot run: the project has no {missing} yet; `python -m '
    'experiments.tables` shows the numbers of the paper',
  )
  need(
    x.target.path,
    'target.path is empty: give the directory of a model with '
    '--target.path=...',
  )
  need_temperatures('temperatures', x.temperatures)
  stages = {k: v for k, v in x.sampling.stages.items() if k not in _TOKENS}
  with blame('sampling.'):
    sampling.make(1, 1.0, **stages)
  constrained.check(x.sampling)
  need_least(x.prompts, 0, 'turns', where='prompts.')
  if not x.prompt:
    prompts.check(x.prompts)
  conversations.check(x.prompts)
  need_least(x.prompts, 1, 'count', 'length', where='prompts.')
  need_least(x, 1, 'max_new_tokens', 'batch')
  need(
    min(x.batches, default=1) >= 1,
    f'batches must be of at least 1, got {x.batches}',
  )
  least = x.sampling.min_new_tokens
  need(
    least is None or least <= x.max_new_tokens,
    f'sampling.min_new_tokens is {least}, but max_new_tokens is '
    f'{x.max_new_tokens}: lower one or raise the other',
  )
  need_seed(x.seed)
  check_dtypes(x)
  check_mesh(x)
