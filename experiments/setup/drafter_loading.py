"""From a candidate of a configuration to a drafter."""

import inspect
from collections.abc import Callable
from typing import Any

from experiments.errors import UserError, blame, need
from experiments.settings import Candidate
from experiments.setup.checks import resolve_function, resolve_policy
from specjax.types import Drafter, LoadedDrafter, Target


def _drafts(candidate: Candidate) -> Callable[[Target], tuple[Drafter, Any]]:
  """What drafts for the model of another candidate, given that model."""

  def inner(target: Target):
    loaded = load(candidate, target)
    return make(candidate, loaded, candidate.gamma), loaded.params

  return inner


def _option(name: str, value: Any) -> Any:
  """An option of a configuration, as a loader takes it."""
  if isinstance(value, Candidate):
    return _drafts(value)
  if name == 'policy' and isinstance(value, str):
    return resolve_policy(value)
  return value


def load(candidate: Candidate, target: Target) -> LoadedDrafter:
  """A candidate's drafter with its weights, for every draft length.

  Args:
    candidate: what to load.
    target: what it drafts for.

  Raises:
    UserError: it cannot be loaded; names the function.
  """
  read = resolve_function('candidates', candidate.load)
  options = {n: _option(n, v) for n, v in candidate.options.items()}
  try:
    inspect.signature(read).bind(target, candidate.path, **options)
  except ValueError as error:  # Some of Python's own have no signature.
    raise UserError(
      f'candidates: {candidate.load} is no load function ({error}); give one '
      'such as specjax.drafters.ngram.load'
    ) from error
  except TypeError as error:
    raise UserError(f'candidates: {candidate.load}: {error}') from error
  with blame(f'candidates: {candidate.load}: '):
    loaded = read(target, candidate.path, **options)
  need(
    isinstance(loaded, LoadedDrafter),
    f'candidates: {candidate.load} must return a specjax.LoadedDrafter, got '
    f'{type(loaded).__name__}',
  )
  placement = target.model.placement
  if placement is None:
    return loaded
  # Weights that are not on the mesh yet.
  placed = placement.put_whole(loaded.params)
  return LoadedDrafter(loaded.model, loaded.make, placed, loaded.draft)


def make(candidate: Candidate, loaded: LoadedDrafter, gamma: int) -> Drafter:
  """The drafter of a draft length.

  Raises:
    UserError: there is none; names the function.
  """
  with blame(f'candidates: {candidate.load}: '):
    drafter = loaded.make(gamma)
  need(
    isinstance(drafter, Drafter),
    f'candidates: {candidate.load}: make({gamma}) must return a '
    f'specjax.Drafter, got {type(drafter).__name__}',
  )
  return drafter
