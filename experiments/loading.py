"""From a candidate of a configuration to a drafter."""

import inspect
from typing import Any

from experiments.checks import resolve, resolve_policy
from experiments.settings import Candidate
from specjax.types import LoadedDrafter, Target


def _drafts(candidate: Candidate):
  """What drafts for the model of another candidate, given that model."""

  def inner(target: Target):
    loaded = load(candidate, target)
    return loaded.make(candidate.gamma), loaded.params

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
    ValueError: it cannot be loaded; names the function.
  """
  read = resolve('candidates', candidate.load)
  options = {n: _option(n, v) for n, v in candidate.options.items()}
  try:
    inspect.signature(read).bind(target, candidate.path, **options)
  except TypeError as error:
    raise ValueError(f'candidates: {candidate.load}: {error}') from error
  try:
    loaded = read(target, candidate.path, **options)
  except ValueError as error:
    raise ValueError(f'candidates: {candidate.load}: {error}') from error
  if not isinstance(loaded, LoadedDrafter):
    raise ValueError(
      f'candidates: {candidate.load} returns a {type(loaded).__name__}: a '
      'loader returns a specjax.LoadedDrafter'
    )
  layout = target.model.layout
  if layout is None:
    return loaded
  # Weights that are not on the mesh yet.
  return LoadedDrafter(
    loaded.model, loaded.make, layout.put_whole(loaded.params)
  )


def make(candidate: Candidate, loaded: LoadedDrafter, gamma: int):
  """The drafter of a draft length.

  Raises:
    ValueError: there is none; names the function.
  """
  try:
    return loaded.make(gamma)
  except ValueError as error:
    raise ValueError(f'candidates: {candidate.load}: {error}') from error
