"""From a planned drafter to one with weights."""

import dataclasses
from collections.abc import Callable
from typing import Any

from experiments.errors import blame, need
from experiments.setup.plan import PlannedDrafter
from specjax.types import Drafter, LoadedDrafter, Target


def _option(value: Any) -> Any | Callable[[Target], tuple[Drafter, Any]]:
  """An option as a loader takes it: what drafts for it, given its model."""
  if not isinstance(value, PlannedDrafter):
    return value

  def inner(target: Target):
    loaded = load(value, target)
    return make(value, loaded, value.gammas[0]), loaded.params

  return inner


def load(planned: PlannedDrafter, target: Target) -> LoadedDrafter:
  """A drafter with its weights, for every draft length.

  Args:
    planned: what to load.
    target: what it drafts for.

  Raises:
    UserError: it cannot be loaded; names the function.
  """
  options = {name: _option(value) for name, value in planned.options.items()}
  with blame(f'{planned.field}: {planned.load}: '):
    loaded = planned.read(target, planned.path, **options)
  need(
    isinstance(loaded, LoadedDrafter),
    f'{planned.field}: {planned.load} must return a specjax.LoadedDrafter, got '
    f'{type(loaded).__name__}',
  )
  placement = target.model.placement
  if placement is None:
    return loaded
  # Weights that are not on the mesh yet.
  placed = placement.put_whole(loaded.params)
  return dataclasses.replace(loaded, params=placed)


def make(planned: PlannedDrafter, loaded: LoadedDrafter, gamma: int) -> Drafter:
  """The drafter of a draft length.

  Raises:
    UserError: there is none; names the function.
  """
  with blame(f'{planned.field}: {planned.load}: '):
    drafter = loaded.make(gamma)
  need(
    isinstance(drafter, Drafter),
    f'{planned.field}: {planned.load}: make({gamma}) must return a '
    f'specjax.Drafter, got {type(drafter).__name__}',
  )
  return drafter
