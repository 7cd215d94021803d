"""From a planned drafter to one with weights."""

import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from specjax.bench.loading.plan import PlannedDrafter
from specjax.cli import hosts
from specjax.drafters.heads import files, published
from specjax.errors import blame, need
from specjax.types import Drafter, LoadedDrafter, Target


def _option(value: Any) -> Any | Callable[[Target], tuple[Drafter, Any]]:
  """An option as a loader takes it: what drafts for it, given its model."""
  if not isinstance(value, PlannedDrafter):
    return value

  def inner(target: Target):
    loaded = load(value, target)
    return make(value, loaded, value.gammas[0]), loaded.params

  return inner


@contextlib.contextmanager
def doubts(planned: PlannedDrafter, tell: bool = True) -> Iterator[None]:
  """Prints what is doubtful about a published head in one line each.

  Args:
    planned: the head, which is read meanwhile.
    tell: false where it was read, and all was said, before.
  """
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always', published.PairingWarning)
    yield
  for each in caught:
    if not issubclass(each.category, published.PairingWarning):
      warnings.warn_explicit(
        each.message, each.category, each.filename, each.lineno
      )
    elif tell and hosts.leads():
      print(f'warning: {planned.name}: {each.message}', file=sys.stderr)


def tell_pairing(planned: PlannedDrafter, loaded: LoadedDrafter) -> None:
  """Prints that nothing says which weights a drafter was trained for."""
  if loaded.pairing and hosts.leads():
    print(
      f'{planned.name}: {loaded.pairing} pairing: no fingerprint says which '
      'weights it was trained for; of another target, its drafts are rejected',
      file=sys.stderr,
    )


def describe_head(
  planned: PlannedDrafter, target: Target
) -> files.Description | None:
  """The head of a drafter without its weights; None where it is none.

  Raises:
    UserError: it is damaged, or cannot be for this target; names the field.
  """
  if not planned.path:
    return None
  with blame(f'{planned.path_field}: '):
    return files.describe(planned.path, target)


def load(
  planned: PlannedDrafter, target: Target, tell: bool = True
) -> LoadedDrafter:
  """A drafter with its weights, for every draft length.

  Args:
    planned: what to load.
    target: what it drafts for.
    tell: as `doubts` takes it.

  Raises:
    UserError: it cannot be loaded; names the function.
  """
  options = {name: _option(value) for name, value in planned.options.items()}
  with doubts(planned, tell), blame(f'{planned.field}: {planned.load}: '):
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
