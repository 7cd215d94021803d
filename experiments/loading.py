"""From a candidate of a configuration to a drafter."""

import inspect
from typing import Any

from experiments.checks import resolve_function, resolve_policy
from experiments.errors import UserError, blame, need
from experiments.layouts import Form
from experiments.settings import Candidate
from specjax.drafters import cascade, lm, quantized
from specjax.models import checkpoints, quantize
from specjax.models.transformer import Model
from specjax.types import Drafter


def load(candidate: Candidate, target, depth: int, known: dict[str, Any]):
  """A drafter and its parameters.

  Args:
    candidate: what to load.
    target: the target model.
    depth: K.
    known: what functions are told that have such parameters: `max_length`, the
      longest text of the run, and `target_path`, where the target is. Those
      with a `fingerprint` are told that of the target.

  Raises:
    UserError: it cannot be made; names the function.
  """
  make = resolve_function('candidates', candidate.load)

  def drafts(inner: Candidate):
    """What drafts for a model of this candidate, given that model."""
    below = known | {'target_path': candidate.path}
    return lambda model: load(inner, model, inner.gamma, below)

  options = {
    name: drafts(value) if isinstance(value, Candidate) else value
    for name, value in candidate.options.items()
  }
  if isinstance(options.get('policy'), str):
    options['policy'] = resolve_policy(options['policy'])
  try:
    wanted = inspect.signature(make).parameters
  except ValueError as error:  # Some of Python's own have none.
    raise UserError(
      f'candidates: {candidate.load} is no load function ({error}); give one '
      'such as specjax.drafters.ngram.load'
    ) from error
  told = {name: value for name, value in known.items() if name in wanted}
  if 'fingerprint' in wanted:
    told['fingerprint'] = checkpoints.fingerprint(known['target_path'])
  options = told | options
  try:
    arguments = inspect.signature(make).bind(
      target, depth, path=candidate.path, **options
    )
  except TypeError as error:
    raise UserError(f'candidates: {candidate.load}: {error}') from error
  with blame(f'candidates: {candidate.load}: '):
    made = make(*arguments.args, **arguments.kwargs)
  pair = isinstance(made, tuple) and len(made) == 2
  need(
    pair and isinstance(made[0], Drafter),
    f'candidates: {candidate.load} must return (Drafter, params), got '
    f'{type(made[0] if pair else made).__name__}',
  )
  drafter, params = made
  if target.layout is not None:
    params = target.layout.put_whole(params)  # Where it is not there yet.
  return drafter, params


def is_model(candidate: Candidate) -> bool:
  """Whether a candidate drafts with a model of its own."""
  known = (lm.load, cascade.load, quantized.load)
  return resolve_function('candidates', candidate.load) in known


def read_model(
  candidate: Candidate, target: Model, known: dict[str, Any]
) -> Form:
  """That model alone, as `load` reads it for a target."""
  longest = known['max_length']
  if resolve_function('candidates', candidate.load) != quantized.load:
    return Form(*lm.read(target, candidate.path, longest))
  path = candidate.path or known['target_path']
  read = lm.read(target, path, longest, quantized=True)
  return Form(*quantize.quantize(*read))
