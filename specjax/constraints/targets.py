"""Constraints of prompts, for a loaded target."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from specjax import constraints
from specjax.arguments import named
from specjax.sampling import Automaton
from specjax.types import Target


def _rows(name: str, value: Any, count: int) -> Sequence[Any]:
  """Returns one constraint for each prompt; some may be None."""
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
  """The automaton of a regex or a schema, made once for a target."""
  try:
    text = asked if isinstance(asked, str) else json.dumps(asked)
  except (TypeError, ValueError, RecursionError) as error:
    raise ValueError(
      f'{name} must be a text or a schema that is JSON ({error}), got '
      f'{named(asked)}'
    ) from error
  key = 'constraint', name, text
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


def _check(target: Target, one: Automaton) -> None:
  """Raises unless an automaton was made for the tokens of a target."""
  key = 'constraint', 'checked', one
  if key not in target.remembered and target.tokenizer is not None:
    size = target.model.config.vocab_size
    vocabulary = constraints.vocabulary(target.tokenizer, size)
    one.check(vocabulary, size, target.eos)
    target.remembered[key] = True


def for_prompts(
  target: Target,
  count: int,
  patterns: Any = None,
  schemas: Any = None,
  automata: Any = None,
) -> Any:
  """Returns the automaton of each prompt; None where nothing constrains.

  Args:
    target: whose tokenizer counts.
    count: of prompts.
    patterns: a regular expression, or one a prompt, or None.
    schemas: a JSON schema, as a dict or JSON, or one a prompt, or None.
    automata: compiled constraints, if there is neither of these.

  Raises:
    ValueError: one cannot be compiled or was made for another target, or a
      prompt has two of them.
  """
  if patterns is None and schemas is None:
    several = isinstance(automata, list | tuple)
    for one in automata if several else [automata]:
      if isinstance(one, Automaton):
        _check(target, one)
    return automata
  if automata is not None:
    raise ValueError(
      'constraint is given beside a regex or a json_schema: give one of them, '
      'or compile all with specjax.constraints'
    )
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
