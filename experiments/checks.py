"""The values of a configuration: checked before anything is read.

Every error names the field and what would be right.
"""

import importlib
import os
from typing import Any

import numpy as np

from experiments import prompts
from experiments.settings import Candidate, Experiment
from specjax import sampling
from specjax.drafting.policies import Policy
from specjax.types import Rule, Spec


def need(condition, message: str) -> None:
  """Raises a ValueError with the message where a condition fails."""
  if not condition:
    raise ValueError(message)


def resolve(field: str, name: str) -> Any:
  """The object of a full name such as 'specjax.verify.token'."""
  module, _, attribute = name.rpartition('.')
  try:
    return getattr(importlib.import_module(module), attribute)
  except (ImportError, AttributeError, ValueError) as error:
    raise ValueError(
      f'{field}: {name!r} cannot be imported ({error}); give the full name of '
      "a function, such as 'specjax.drafters.ngram.load'"
    ) from error


def _resolve_made(field: str, name: str, kind: type, use: str) -> Any:
  """A value by full name, or what its function makes of numbers.

  Args:
    field: of the config.
    name: of the value or the function; numbers may stand behind a colon.
    kind: of the value.
    use: what it is called, and the remedy.
  """
  path, _, text = name.partition(':')
  made = resolve(field, path)
  wrong = None
  try:
    if not isinstance(made, kind):
      made = made(*(float(x) for x in text.split(',') if x))
    elif text:
      wrong = 'it takes no arguments'
  except ValueError as error:
    raise ValueError(f'{field}: {name!r}: {error}') from error
  except TypeError as error:
    wrong = str(error)
  if wrong or not isinstance(made, kind):
    raise ValueError(
      f'{field}: {name!r} is no {use.format(wrong or type(made).__name__)}'
    )
  return made


def resolve_rule(name: str, field: str = 'verifiers') -> Rule:
  """A rule by name; its arguments may stand behind a colon."""
  use = (
    'rule ({}); use one such as specjax.verify.token, specjax.verify.block or '
    'specjax.verify.lenience:0.5'
  )
  return _resolve_made(field, name, Rule, use)


def resolve_policy(name: str) -> Policy:
  """A policy of draft lengths by name, likewise."""
  use = (
    'policy ({}); use one such as specjax.drafting.policies.heuristic or '
    'specjax.drafting.policies.confidence:0.4'
  )
  return _resolve_made('candidates', name, Policy, use)


def candidates(x: Experiment) -> dict[str, Candidate]:
  """The drafters to run, by name.

  Raises:
    ValueError: one is unknown.
  """
  chosen = {}
  for name in x.drafters or tuple(x.known):
    function, _, path = name.partition(':')
    if name in x.known:
      chosen[name] = x.known[name]
    elif '.' in function:
      label = os.path.basename(path.rstrip('/')) or function.split('.')[-2]
      chosen[label] = Candidate(function, 4, path)
    else:
      raise ValueError(
        f'drafters: {name!r} is unknown; choose from '
        f'{", ".join(x.known)}, or give a load function by its full '
        'name, with :path behind it'
      )
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


def check_levels(x: Experiment) -> None:
  """Refuses a model that drafts for itself by way of others.

  Raises:
    ValueError: names both fields that have its path, or a gamma below 1.
  """
  for name, candidate in candidates(x).items():
    chain = levels(name, candidate)
    if len(chain) == 1:
      continue
    holds = {os.path.realpath(x.target.path): 'target.path'}
    for level, one in chain.items():
      need(
        level == name or (isinstance(one.gamma, int) and one.gamma >= 1),
        f'gamma of the drafter {level} must be an integer of at least 1, got '
        f'{one.gamma!r}',
      )
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
    ValueError: one cannot be found; names the field.
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
  try:
    return sampling.make(batch, temperature, **stages, **known)
  except ValueError as error:
    raise ValueError(f'sampling.{error}') from error


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
    ValueError: names the field that is out of range or contradicts another.
  """
  vocab_size = spec.target.config.vocab_size
  return _make_values(
    batch, temperature, vars(x.sampling), vocab_size=vocab_size, eos=spec.eos
  )


def check(x: Experiment) -> None:
  """Checks every value that can be checked without weights.

  Raises:
    ValueError: names the field, its value and the remedy.
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
  gammas = tuple(x.gammas) or tuple(c.gamma for c in candidates(x).values())
  for gamma in gammas:
    need(
      isinstance(gamma, int) and gamma >= 1,
      f'gammas must be integers of at least 1, got {gamma!r}',
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
  for field, value in (
    ('prompts.count', x.prompts.count),
    ('prompts.length', x.prompts.length),
    ('max_new_tokens', x.max_new_tokens),
    ('batch', x.batch),
  ):
    need(
      value is None or value >= 1, f'{field} must be at least 1, got {value}'
    )
  need(x.seed >= 0, f'seed must be at least 0, got {x.seed}')
  paths = {path_field(x, n): c.path for n, c in every_level(x).items()}
  for field, path in ({'target.path': x.target.path} | paths).items():
    need(
      not path or os.path.exists(path),
      f'{field}: {path} does not exist; give a local directory, nothing is '
      'downloaded',
    )
  check_levels(x)
