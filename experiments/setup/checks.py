"""The values of a configuration: checked before anything is read.

Every error names the field and what would be right.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from experiments import prompts
from experiments.errors import UserError, blame
from experiments.errors import need as need
from experiments.settings import Candidate, Experiment
from experiments.setup.names import resolve as resolve
from experiments.setup.names import resolve_function as resolve_function
from experiments.setup.names import resolve_policy as resolve_policy
from experiments.setup.names import resolve_rule as resolve_rule
from specjax import sampling
from specjax.types import Rule, Spec

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


def candidates(x: Experiment) -> dict[str, Candidate]:
  """The drafters to run, by name.

  Raises:
    UserError: one is unknown.
  """
  chosen = {}
  for name in x.drafters or tuple(x.known):
    function, _, path = name.partition(':')
    if name in x.known:
      label, candidate = name, x.known[name]
    elif '.' in function:
      label = os.path.basename(path.rstrip('/')) or function.split('.')[-2]
      candidate = Candidate(function, 4, path)
    else:
      raise UserError(
        f'drafters: {name!r} is unknown; choose from '
        f'{", ".join(x.known)}, or give a load function by its full '
        'name, with :path behind it'
      )
    need(
      label not in chosen,
      f'drafters: {tuple(x.drafters)} has {label!r} twice: leave one out',
    )
    chosen[label] = candidate
  return chosen


def levels(name: str, candidate: Candidate) -> dict[str, Candidate]:
  """A drafter and those that draft for it in turn, by name.

  One among the options of another is called after it, such as `staged.inner`.
  """
  found = {name: candidate}
  for option, value in candidate.options.items():
    if isinstance(value, Candidate):
      found |= levels(f'{name}.{option}', value)
  return found


def draft_name(candidate: Candidate) -> str | None:
  """Names of the models that draft, the largest first; None without any."""
  paths = [one.path.rstrip('/') for one in levels('', candidate).values()]
  return ' + '.join(os.path.basename(path) for path in paths if path) or None


def every_level(x: Experiment) -> dict[str, Candidate]:
  """The drafters to run and all that draft for them, by name."""
  found: dict[str, Candidate] = {}
  for name, candidate in candidates(x).items():
    found |= levels(name, candidate)
  return found


def draft_lengths(x: Experiment) -> Iterator[tuple[str, int]]:
  """Every gamma of an experiment, and how errors call it."""
  yield from (('gammas', gamma) for gamma in x.gammas)
  for name, candidate in candidates(x).items():
    for level, one in levels(name, candidate).items():
      if level != name or not x.gammas:
        yield f'gamma of the drafter {level}', one.gamma


def check_levels(x: Experiment) -> None:
  """Refuses a model that drafts for itself by way of others.

  Raises:
    UserError: names both fields that have its path.
  """
  for name, candidate in candidates(x).items():
    chain = levels(name, candidate)
    if len(chain) == 1:
      continue
    holds = {os.path.realpath(x.target.path): 'target.path'}
    for level, one in chain.items():
      if one.path:
        field = path_field(x, level)
        other = holds.setdefault(os.path.realpath(one.path), field)
        need(
          other == field,
          f'{field} and {other} are the same checkpoint, {one.path}: a model '
          'that drafts for itself saves nothing, choose a smaller one',
        )


def rules(x: Experiment) -> dict[str, dict[str, Rule]]:
  """The rules of every drafter to run, by full name.

  Raises:
    UserError: one cannot be found; names the field.
  """
  shared = {rule: resolve_rule(rule) for rule in x.verifiers}
  found = {}
  for name, candidate in candidates(x).items():
    field = f'verifiers of the drafter {name}'
    own = {rule: resolve_rule(rule, field) for rule in candidate.verifiers}
    found[name] = own or shared
  return found


def rule_names(x: Experiment) -> tuple[str, ...]:
  """The full names of all rules that the drafters to run are judged by."""
  every = (c.verifiers or x.verifiers for c in candidates(x).values())
  return tuple(dict.fromkeys(name for names in every for name in names))


def path_field(x: Experiment, name: str) -> str:
  """How errors call the path of a drafter."""
  own = name == 'lm' and x.draft.path
  return 'draft.path' if own else f'path of the drafter {name}'


# Stages that name tokens: what they may name is known with the target.
_TOKENS = ('logit_bias', 'forbidden', 'min_new_tokens')


def _make_values(batch, temperature, stages, **known):
  with blame('sampling.'):
    return sampling.make(batch, temperature, **stages, **known)


def values(
  x: Experiment, spec: Spec, batch: int, temperature
) -> sampling.Sampling:
  """The pipeline of an experiment, for rows of a spec.

  Args:
    x: the experiment.
    spec: whose vocabulary and ends of a text count.
    batch: rows.
    temperature: of all rows, or [B].

  Raises:
    UserError: names the field that is out of range or contradicts another.
  """
  return values_for(
    x, spec.target.config.vocab_size, spec.eos, batch, temperature
  )


def values_for(
  x: Experiment,
  vocab_size: int,
  eos: tuple[int, ...],
  batch: int = 1,
  temperature=1.0,
) -> sampling.Sampling:
  """The same for a vocabulary and the ends of a text."""
  return _make_values(
    batch, temperature, vars(x.sampling), vocab_size=vocab_size, eos=eos
  )


def check(x: Experiment) -> None:
  """Checks every value that can be checked without weights.

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
    '--config.target.path=...',
  )
  chosen = candidates(x)
  need(chosen, 'candidates is empty: name at least one drafter')
  for candidate in chosen.values():
    need(
      candidate.verifiers or x.verifiers,
      'verifiers is empty: name at least one, such as specjax.verify.token',
    )
  for field, gamma in draft_lengths(x):
    need(
      isinstance(gamma, int) and gamma >= 1,
      f'{field} must be integers of at least 1, got {gamma!r}',
    )
  need(x.temperatures, 'temperatures is empty: give at least one, such as 0')
  for temperature in x.temperatures:
    need(
      np.isfinite(temperature) and temperature >= 0,
      f'temperatures must be finite and at least 0, got {temperature}',
    )
  stages = {k: v for k, v in vars(x.sampling).items() if k not in _TOKENS}
  _make_values(1, 1.0, stages)
  if not x.prompt:
    prompts.check(x.prompts)
  need_least(x.prompts, 1, 'count', 'length', where='prompts.')
  need_least(x, 1, 'max_new_tokens', 'batch')
  least = x.sampling.min_new_tokens
  need(
    least is None or least <= x.max_new_tokens,
    f'sampling.min_new_tokens is {least}, but max_new_tokens is '
    f'{x.max_new_tokens}: lower one or raise the other',
  )
  need_seed(x.seed)
  cache = x.compilation_cache
  need(
    not cache or os.path.isdir(cache) or not os.path.exists(cache),
    f'compilation_cache: {cache} is a file; name a folder',
  )
  paths = {path_field(x, n): c.path for n, c in every_level(x).items()}
  for field, path in ({'target.path': x.target.path} | paths).items():
    need(
      not path or os.path.exists(path),
      f'{field}: {path} does not exist; give a local directory, nothing is '
      'downloaded',
    )
  check_levels(x)
