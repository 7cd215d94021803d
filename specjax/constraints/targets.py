"""Constraints of prompts, for a loaded target."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from specjax import constraints
from specjax.arguments import named
from specjax.sampling import Automaton
from specjax.types import Target


def _rows(name: str, value: Any, count: int) -> Sequence[Any]:
  """What is asked of each prompt, of which some may be None."""
  if not isinstance(value, list | tuple):
    return [value] * count
  if len(value) != count:
    raise ValueError(
      f'{name} has {len(value)} entries for {count} prompts: give one, or one '
      'for each'
    )
  return value


def _compile(
  target: Target, name: str, make: Callable[..., Automaton], asked: Any
) -> Automaton:
  """The automaton, made once for a target."""
  try:
    key = 'constraint', name, json.dumps(asked)
  except TypeError as error:
    raise ValueError(f'{name} is no JSON ({error}): {named(asked)}') from error
  if key not in target.remembered:
    if target.tokenizer is None:
      raise ValueError(
        f'{name}: {target.path or "the target"} has no tokenizer, so that its '
        'tokens have no texts'
      )
    size = target.model.config.vocab_size
    made = make(asked, target.tokenizer, size, target.eos)
    target.remembered[key] = made
  return target.remembered[key]


def for_prompts(
  target: Target, count: int, patterns: Any = None, schemas: Any = None
) -> list[Automaton | None] | None:
  """What constrains each of so many prompts; None where nothing does.

  Args:
    target: whose tokenizer counts.
    count: of prompts.
    patterns: a regular expression, or one a prompt, or None.
    schemas: a JSON schema, as a dict or JSON, likewise.

  Raises:
    ValueError: one cannot be compiled, or a prompt has two of them.
  """
  if patterns is None and schemas is None:
    return None
  made: list[Automaton | None] = [None] * count
  for name, make, asked in (
    ('regex', constraints.regex, patterns),
    ('json_schema', constraints.json_schema, schemas),
  ):
    for row, one in enumerate(_rows(name, asked, count)):
      if one is None:
        continue
      if made[row] is not None:
        raise ValueError(
          f'prompt {row} has both a regex and a json_schema: give one of them'
        )
      made[row] = _compile(target, name, make, one)
  return made
