"""The plan of an experiment: its config, checked and frozen.

A program may change its config until `plan` checks every value that needs no
weights and finds all that it names. What comes after takes the plan.
"""

import copy
import dataclasses
import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from experiments.errors import UserError, blame, need
from experiments.settings import (
  Candidate,
  Experiment,
  Mesh,
  Prompts,
  SamplingValues,
)
from experiments.setup import checks, names, result_folders
from specjax import checkpoints
from specjax.checkpoints import Description
from specjax.types import LoadedDrafter, Rule


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedDrafter:
  """A drafter to run.

  Attributes:
    name: in rows; one that drafts for another is called `staged.inner`.
    field: of the config that named it.
    path_field: that its path comes from.
    load: full name of its load function, and
    read: that function.
    describe: what the same module tells of it without reading weights.
    path: of its weights, likewise; empty where it has none.
    options: further arguments: one that drafts for this one is planned, too.
    stored: the options as rows have them.
    gammas: draft lengths.
    rules: it is judged by, by full name.
  """

  name: str
  field: str
  path_field: str
  load: str
  read: Callable[..., LoadedDrafter]
  describe: Callable[..., Description | None] | None
  path: str
  options: Mapping[str, Any]
  stored: Mapping[str, Any]
  gammas: tuple[int, ...]
  rules: Mapping[str, Rule]

  def levels(self) -> list['PlannedDrafter']:
    """This one and those that draft for it in turn."""
    inner = (v for v in self.options.values() if isinstance(v, PlannedDrafter))
    return [self, *(level for one in inner for level in one.levels())]

  @property
  def draft(self) -> str | None:
    """Names of the models that draft, the largest first; None without any."""
    paths = [one.path for one in self.levels() if one.path]
    return ' + '.join(map(checkpoints.title_of, paths)) or None

  @property
  def draft_revision(self) -> str | None:
    """Their commits on the Hub, likewise; None where none comes from there."""
    paths = [one.path for one in self.levels() if one.path]
    commits = [checkpoints.revision_of(path) for path in paths]
    return ' + '.join(c or '-' for c in commits) if any(commits) else None


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
  """What is run, and where; fields are called as those of `Experiment`.

  Attributes:
    target: directory of the target; of a model of the Hub, its snapshot.
    dtype: of it, as it was asked for.
    drafters: by name.
    gammas: asked of every drafter; empty where each has its own.
    results: folder of rows and summary.
    settings: that the folder belongs to.
  """

  name: str
  target: str
  dtype: str
  drafters: Mapping[str, PlannedDrafter]
  gammas: tuple[int, ...]
  temperatures: tuple[float, ...]
  sampling: SamplingValues
  prompts: Prompts
  prompt: str
  max_new_tokens: int
  batch: int
  seed: int
  mesh: Mesh
  timed: bool
  results: str
  quick: bool
  settings: Mapping[str, Any]

  @property
  def rules(self) -> tuple[str, ...]:
    """The full names of all rules that drafters are judged by."""
    every = (rule for one in self.drafters.values() for rule in one.rules)
    return tuple(dict.fromkeys(every))

  def levels(self) -> list[PlannedDrafter]:
    """The drafters, and all that draft for them."""
    return [one for each in self.drafters.values() for one in each.levels()]

  def draft_lengths(self) -> Iterator[tuple[str, int]]:
    """Every draft length, and how errors call it."""
    for one in self.levels():
      shared = self.gammas and one.name in self.drafters
      field = 'gammas' if shared else f'gamma of the drafter {one.name}'
      yield from ((field, gamma) for gamma in one.gammas)


def choose(x: Experiment) -> dict[str, tuple[str, Candidate]]:
  """The drafters to run by name, and the field that named each.

  Raises:
    UserError: one is unknown.
  """
  chosen = {}
  for name in x.drafters or tuple(x.known):
    if name in x.known:
      field = f'.{name}' if name.isidentifier() else f'[{name!r}]'
      label, choice = name, (f'candidates{field}', x.known[name])
    else:
      load, _, path = names.LOAD.full(name).partition(':')
      need(
        '.' in load,
        f'drafters: {name!r} is unknown; '
        f'{names.LOAD.remedy(name, *x.known)}, with :path behind it',
      )
      label = checkpoints.title_of(path) or load.split('.')[-2]
      choice = 'drafters', Candidate(load, 4, path)
    need(
      label not in chosen,
      f'drafters: {tuple(x.drafters)} has {label!r} twice: leave one out',
    )
    chosen[label] = choice
  return chosen


def plan_drafter(
  name: str,
  candidate: Candidate,
  field: str = 'candidates',
  path_field: str = '',
  gammas: tuple[int, ...] = (),
  verifiers: tuple[str, ...] = (),
) -> PlannedDrafter:
  """A drafter to run; what it names is found.

  Args:
    name: of it.
    candidate: what to load.
    field: of the config that named it.
    path_field: that its path comes from.
    gammas: draft lengths; empty for its own.
    verifiers: rules, where it has none of its own.

  Raises:
    UserError: names what cannot be found, or the option that it does not take.
  """
  candidate = names.complete_candidate(candidate)
  read = names.resolve_function(field, candidate.load)
  module = importlib.import_module(candidate.load.rpartition('.')[0])
  options = dict(candidate.options)
  for option, value in options.items():
    if isinstance(value, Candidate):
      options[option] = plan_drafter(f'{name}.{option}', value, field)
    elif option == 'policy' and isinstance(value, str):
      options[option] = names.resolve_made(field, value, names.POLICY)
    elif option == 'dtype' and value:
      checks.check_dtype(f'{field}: dtype', value, 'float64')
  path_field = path_field or f'path of the drafter {name}'
  try:
    signature = inspect.signature(read)
    signature.bind(None, candidate.path, **options)
  except ValueError as error:  # Some of Python's own have no signature.
    raise UserError(
      f'{field}: {candidate.load} is no load function ({error}); give one such '
      f'as {names.LOAD.example}'
    ) from error
  except TypeError as error:
    own = ', '.join([*signature.parameters][2:]) or 'nothing'
    raise UserError(
      f'{field}: {candidate.load}: {error}; behind target and path, which are '
      f'given, its options are {own}'
    ) from error
  path = signature.parameters.get('path')
  need(
    candidate.path or not path or path.default == '',
    f'{path_field} names no directory, but {candidate.load} reads weights: '
    f'name theirs, in drafters behind a colon',
  )
  own = f' of the drafter {name}' if candidate.verifiers else ''
  rules = {
    names.RULE.full(r): names.resolve_made(f'verifiers{own}', r, names.RULE)
    for r in candidate.verifiers or verifiers
  }
  return PlannedDrafter(
    name=name,
    field=field,
    path_field=path_field,
    load=candidate.load,
    read=read,
    describe=getattr(module, 'describe', None),
    path=candidate.path,
    options=options,
    stored=result_folders.portable(dataclasses.asdict(candidate)['options']),
    gammas=tuple(gammas) or (candidate.gamma,),
    rules=rules,
  )


def _check_drafters(planned: Plan) -> None:
  """Checks draft lengths and rules.

  Raises:
    UserError: names the field.
  """
  need(planned.drafters, 'candidates is empty: name at least one drafter')
  for one in planned.drafters.values():
    need(one.rules, 'verifiers is empty: name at least one, such as token')
  for field, gamma in planned.draft_lengths():
    need(
      isinstance(gamma, int) and gamma >= 1,
      f'{field} must be integers of at least 1, got {gamma!r}',
    )


def _locate(field: str, path: str) -> str:
  """A path that exists: that of a snapshot, where a model of the Hub is named.

  Raises:
    UserError: there is nothing; names the field.
  """
  if not path or os.path.exists(path):
    return path
  with blame(f'{field}: '):
    return str(checkpoints.locate(path))


def _locate_drafter(one: PlannedDrafter) -> PlannedDrafter:
  """The same with paths that exist, also of what drafts for it."""
  options = {
    name: _locate_drafter(value) if isinstance(value, PlannedDrafter) else value
    for name, value in one.options.items()
  }
  path = _locate(one.path_field, one.path)
  return dataclasses.replace(one, path=path, options=options)


def _check_levels(planned: Plan) -> None:
  """Checks that no model drafts for itself.

  Raises:
    UserError: one does, by way of others; names both fields of its path.
  """
  for drafter in planned.drafters.values():
    holds = {os.path.realpath(planned.target): 'target.path'}
    levels = drafter.levels()
    for one in levels if len(levels) > 1 else ():
      place = os.path.realpath(one.path) if one.path else one
      other = holds.setdefault(place, one.path_field)
      need(
        other == one.path_field,
        f'{one.path_field} and {other} are the same checkpoint, {one.path}: a '
        'model that drafts for itself saves nothing, choose a smaller one',
      )


def freeze(x: Experiment, drafters: Mapping[str, PlannedDrafter]) -> Plan:
  """The plan of a config whose drafters are known; its values as they are."""
  same = {f.name for f in dataclasses.fields(Plan)} & set(vars(x))
  return Plan(
    **{name: copy.deepcopy(getattr(x, name)) for name in same}
    | {
      'target': x.target.path,
      'dtype': x.target.dtype or x.dtype,
      'drafters': drafters,
      'results': x.results or result_folders.default_folder(x),
      'settings': result_folders.settings_of(x),
    }
  )


def plan(x: Experiment) -> Plan:
  """Checks every value that can be checked without weights.

  Raises:
    UserError: names the field, its value and the remedy.
  """
  checks.check(x)
  drafters = {}
  for name, (field, candidate) in choose(x).items():
    own = name == 'lm' and x.draft.path
    path_field = 'draft.path' if own else 'drafters' * (field == 'drafters')
    drafters[name] = plan_drafter(
      name, candidate, field, path_field, x.gammas, x.verifiers
    )
  planned = freeze(x, drafters)
  _check_drafters(planned)
  located = dataclasses.replace(
    planned,
    target=_locate('target.path', planned.target),
    drafters={n: _locate_drafter(d) for n, d in planned.drafters.items()},
  )
  _check_levels(located)
  return located
