"""What a config names by its full name: functions, rules and policies.

A Python import is the registry.
"""

import importlib
from typing import Any

from experiments.errors import UserError, need
from specjax.drafting.policies import Policy
from specjax.types import Rule

_LOAD = 'specjax.drafters.ngram.load'


def resolve(field: str, name: str, example: str = _LOAD) -> Any:
  """The object of a full name.

  Args:
    field: of the config.
    name: such as 'specjax.verify.token'.
    example: what would be right in that field.

  Raises:
    UserError: there is no such thing.
  """
  module, _, attribute = name.rpartition('.')
  remedy = f'give a full name, such as {example!r}'
  need(
    module and all(map(str.isidentifier, name.split('.'))),
    f'{field}: {name!r} cannot be imported, it is no full name; {remedy}',
  )
  try:
    found = importlib.import_module(module)
  except ImportError as error:
    raise UserError(
      f'{field}: {name!r} cannot be imported ({error}); {remedy}'
    ) from error
  need(
    hasattr(found, attribute),
    f'{field}: {name!r} cannot be imported ({module} has no {attribute!r}); '
    f'{remedy}',
  )
  return getattr(found, attribute)


def resolve_function(field: str, name: str, example: str = _LOAD) -> Any:
  """The function of a full name, likewise."""
  found = resolve(field, name, example)
  need(
    callable(found),
    f'{field}: {name!r} is no function; give one such as {example!r}',
  )
  return found


def _resolve_made(
  field: str, name: str, kind: type, what: str, examples: tuple[str, str]
) -> Any:
  """A value by full name, or what its function makes of numbers.

  Args:
    field: of the config.
    name: of the value or the function; numbers may stand behind a colon.
    kind: of the value.
    what: it is called.
    examples: without numbers, and with them.
  """
  path, _, text = name.partition(':')
  made = resolve(field, path, examples[0])
  wrong = None
  try:
    if not isinstance(made, kind):
      made = made(*(float(x) for x in text.split(',') if x))
    elif text:
      wrong = 'it takes no arguments'
  except ValueError as error:
    raise UserError(f'{field}: {name!r}: {error}') from error
  except TypeError as error:
    wrong = str(error)
  if wrong or not isinstance(made, kind):
    raise UserError(
      f'{field}: {name!r} is no {what} ({wrong or type(made).__name__}); use '
      f'one such as {" or ".join(examples)}'
    )
  return made


def resolve_rule(name: str, field: str = 'verifiers') -> Rule:
  """A rule by name; its arguments may stand behind a colon."""
  examples = 'specjax.verify.token', 'specjax.verify.lenience:0.5'
  return _resolve_made(field, name, Rule, 'rule', examples)


def resolve_policy(name: str) -> Policy:
  """A policy of draft lengths by name, likewise."""
  known = 'specjax.drafting.policies'
  examples = f'{known}.heuristic', f'{known}.confidence:0.4'
  return _resolve_made('candidates', name, Policy, 'policy', examples)
