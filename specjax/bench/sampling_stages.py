"""The sampling pipeline of an experiment, and its compiled constraint."""

import dataclasses
import hashlib
import os
import pathlib
from typing import Any

from specjax import checkpoints, constraints, sampling
from specjax.bench.config import SamplingValues
from specjax.cli import names
from specjax.errors import UserError, blame, need, remedy
from specjax.sampling import Automaton
from specjax.sampling.constrained import tables
from specjax.types import Spec

_SAVED = '.npz'


# Stages that name tokens: their values are checked with the target.
_TOKENS = 'logit_bias', 'forbidden', 'min_new_tokens'


@dataclasses.dataclass
class Constrained(SamplingValues):
  """Stages with the automaton that `regex` or `json_schema` is compiled to."""

  constraint: Automaton | None = None


def check_stages(x: SamplingValues) -> None:
  """Checks the stages that need no target.

  Raises:
    UserError: names the field and the remedy.
  """
  stages = {k: v for k, v in x.stages.items() if k not in _TOKENS}
  with blame('sampling.'):
    sampling.make(1, 1.0, **stages)
  need(
    x.regex is None or x.json_schema is None,
    'sampling.regex and sampling.json_schema are both given: choose one',
  )
  if x.json_schema is not None:
    _read(x.json_schema)


def values(
  stages: SamplingValues, spec: Spec, batch: int, temperature
) -> sampling.Sampling:
  """Returns the pipeline of an experiment for rows of a spec.

  Args:
    stages: besides the temperature.
    spec: whose vocabulary and ends of a text count.
    batch: rows.
    temperature: of all rows, or [B].

  Raises:
    UserError: names the field that is out of range or contradicts another.
  """
  if stages.constrains and 'constraint' not in stages.stages:
    raise RuntimeError('the constraint was not compiled: use a plan')
  with blame('sampling.'):
    return sampling.make(
      batch,
      temperature,
      **stages.stages,
      vocab_size=spec.target.config.vocab_size,
      eos=spec.eos,
    )


def _read(path: str) -> bytes:
  """Returns a schema, of a file or as it was given."""
  if path.lstrip().startswith('{'):
    return path.encode()
  try:
    return pathlib.Path(path).read_bytes()
  except OSError as error:
    raise UserError(
      f'sampling.json_schema: {path} cannot be read ({error.strerror}); '
      f'{remedy(error)}'
    ) from error


def shorten(sampling: dict[str, Any]) -> None:
  """Leaves in settings a constraint's name and content, or nothing if none."""
  for name in ('regex', 'json_schema'):
    if sampling[name] is None:
      del sampling[name]
  if path := sampling.get('json_schema'):
    digest = hashlib.sha256(_read(path)).hexdigest()
    given = path.lstrip().startswith('{')
    name = 'given' if given else os.path.basename(path)
    sampling['json_schema'] = [name, digest[:12]]


def compile_for(
  x: SamplingValues, target: str, max_new_tokens: int
) -> SamplingValues:
  """Compiles the constraint on the texts of a target.

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
  """Returns the bytes that the constraint's tables take on each device."""
  made = getattr(plan.sampling, 'constraint', None)
  if made is None:
    return 0
  return sum(x.nbytes for x in tables([made])) * (rows // plan.mesh.data)


def check_rules(plan: Any) -> None:
  """Raises a UserError if a rule accepts what a constraint does not allow."""
  rules = {rule.partition(':')[0] for rule in plan.rules}
  need(
    not plan.sampling.constrains or names.RULE.full('simulated') not in rules,
    'verifiers: simulated accepts whatever is drafted, so that texts would '
    'leave their constraint: choose an exact rule',
  )
