"""What constrains the texts of an experiment."""

import dataclasses
import hashlib
import os
import pathlib
from typing import Any

from specjax import checkpoints, constraints
from specjax.bench.config import SamplingValues
from specjax.cli import names
from specjax.errors import UserError, blame, need, remedy
from specjax.sampling import Automaton
from specjax.sampling.constrained import tables

_SAVED = '.npz'


@dataclasses.dataclass
class Constrained(SamplingValues):
  """The same with what `regex` or `json_schema` was compiled to."""

  constraint: Automaton | None = None


def check(x: SamplingValues) -> None:
  """Checks what needs no target.

  Raises:
    UserError: names the field and the remedy.
  """
  need(
    x.regex is None or x.json_schema is None,
    'sampling.regex and sampling.json_schema are both given: choose one',
  )
  if x.json_schema is not None:
    _read(x.json_schema)


def _read(path: str) -> bytes:
  try:
    return pathlib.Path(path).read_bytes()
  except OSError as error:
    raise UserError(
      f'sampling.json_schema: {path} cannot be read ({error.strerror}); '
      f'{remedy(error)}'
    ) from error


def shorten(sampling: dict[str, Any]) -> None:
  """Leaves of settings what decides the results: a file's name and content."""
  for name in ('regex', 'json_schema'):
    if sampling[name] is None:
      del sampling[name]  # No constraint, as ever.
  if path := sampling.get('json_schema'):
    digest = hashlib.sha256(_read(path)).hexdigest()
    sampling['json_schema'] = [os.path.basename(path), digest[:12]]


def compile_for(
  x: SamplingValues, target: str, max_new_tokens: int
) -> SamplingValues:
  """Compiles what constrains the texts of a target.

  Args:
    x: the stages.
    target: directory of its checkpoint.
    max_new_tokens: of a text.

  Raises:
    UserError: it cannot be compiled, or no text of it is short enough.
  """
  if not x.constrains:
    return x
  field = 'sampling.regex' if x.json_schema is None else 'sampling.json_schema'
  with blame('target.path: '):
    tokenizer = checkpoints.load_tokenizer(target)
    eos = checkpoints.eos_ids(target)
    size = checkpoints.describe(target).model.config.vocab_size
  with blame(f'{field}: '):
    if x.json_schema is None:
      made = constraints.regex(x.regex, tokenizer, size, eos)
    elif x.json_schema.endswith(_SAVED):
      made = constraints.load(x.json_schema)
      made.check(constraints.vocabulary(tokenizer, size), size, eos)
    else:
      made = constraints.json_schema(
        _read(x.json_schema).decode(), tokenizer, size, eos
      )
  shortest = int(made.distance[0])
  need(
    shortest <= max_new_tokens,
    f'max_new_tokens is {max_new_tokens}, but the shortest text that {field} '
    f'allows has {shortest} tokens: allow as many',
  )
  return Constrained(**vars(x), constraint=made)


def bytes_of(plan: Any, rows: int) -> int:
  """Bytes on each device of the tables of so many rows, of all devices."""
  made = getattr(plan.sampling, 'constraint', None)
  if made is None:
    return 0
  return sum(x.nbytes for x in tables([made])) * (rows // plan.mesh.data)


def check_rules(plan: Any) -> None:
  """Refuses a rule that accepts what a constraint does not allow.

  Raises:
    UserError: names the field.
  """
  rules = {rule.partition(':')[0] for rule in plan.rules}
  need(
    not plan.sampling.constrains or names.RULE.full('simulated') not in rules,
    'verifiers: simulated accepts whatever is drafted, so that texts would '
    'leave their constraint: choose an exact rule',
  )
