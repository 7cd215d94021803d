"""The plan of an experiment: its config, checked and frozen.

A program may change its config until `plan` checks every value that needs no
weights and finds all that it names. What comes after takes the plan.
"""

import copy
import dataclasses
import importlib
import inspect
import os
from collections.abc import Mapping

from specjax import checkpoints
from specjax.bench.config import Candidate, Experiment
from specjax.bench.loading import checks, constrained, result_folders
from specjax.bench.loading.planned import Plan as Plan
from specjax.bench.loading.planned import PlannedDrafter as PlannedDrafter
from specjax.cli import names
from specjax.drafters.heads import files
from specjax.errors import UserError, blame, need


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
    remembers=getattr(module, 'remembers', None),
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


def whole_steps(planned: Plan) -> Plan:
  """A plan whose acceptance is to be counted, which whole steps alone are.

  Raises:
    UserError: no text has room for one; names the field.
  """
  for one in planned.drafters.values():
    field = 'gammas' if planned.gammas else f'gamma of the drafter {one.name}'
    for gamma in one.gammas:
      need(
        gamma < planned.max_new_tokens,
        f'{field} is {gamma}, but must be below max_new_tokens, which is '
        f'{planned.max_new_tokens}: draft less, or decode more',
      )
  return planned


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


def _recognise(one: PlannedDrafter) -> PlannedDrafter:
  """The same with the load function of what its directory holds.

  Raises:
    UserError: it is a head, and damaged, or of a kind that cannot be loaded.
  """
  options = {
    name: _recognise(value) if isinstance(value, PlannedDrafter) else value
    for name, value in one.options.items()
  }
  one = dataclasses.replace(one, options=options)
  if one.load != names.LOAD.full('lm'):
    return one
  with blame(f'{one.path_field}: '):
    kind = files.kind_of(one.path)
  load = names.LOAD.full(kind)
  if load == one.load:
    return one
  read = names.resolve_function(one.field, load)
  try:
    inspect.signature(read).bind(None, one.path, **options)
  except TypeError as error:
    raise UserError(
      f'{one.field}: {one.path} holds a head, which {load} loads: {error}'
    ) from error
  module = importlib.import_module(load.rpartition('.')[0])
  describe = getattr(module, 'describe', None)
  return dataclasses.replace(one, load=load, read=read, describe=describe)


def _find_drafters(x: Experiment, planned: Plan) -> dict[str, PlannedDrafter]:
  """The drafters with paths that exist, each loaded by what it is.

  Where `draft` is a head, it is called as its directory is, and not `lm`.
  """
  found = {}
  for name, one in planned.drafters.items():
    one = _recognise(_locate_drafter(one))
    if (
      one.path_field == 'draft.path' and one.load != planned.drafters[name].load
    ):
      name = checkpoints.title_of(one.path)
      one = dataclasses.replace(one, name=name)
    need(name not in found, f'drafters has {name!r} twice: leave one out')
    found[name] = one
  return found


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
  batches = tuple(sorted({*x.batches})) or (x.batch,)
  return Plan(
    **{name: copy.deepcopy(getattr(x, name)) for name in same}
    | {
      'target': x.target.path,
      'dtype': x.target.dtype or x.dtype,
      'drafters': drafters,
      'batch': batches[-1],
      'batches': batches,
      'results': x.results or result_folders.default_folder(x),
      'settings': result_folders.settings_of(x),
    }
  )


def plan(x: Experiment, sweeps: bool = False) -> Plan:
  """Checks every value that can be checked without weights.

  Args:
    x: the config.
    sweeps: whether the program takes several batch sizes.

  Raises:
    UserError: names the field, its value and the remedy.
  """
  checks.check(x)
  need(
    sweeps or not x.batches,
    f'batches is {x.batches}, but this program takes one batch size: leave '
    'batches empty, as in --config.batches="()", and choose batch',
  )
  drafters = {}
  for name, (field, candidate) in choose(x).items():
    own = name == 'lm' and x.draft.path
    path_field = 'draft.path' if own else 'drafters' * (field == 'drafters')
    drafters[name] = plan_drafter(
      name, candidate, field, path_field, x.gammas, x.verifiers
    )
  planned = freeze(x, drafters)
  _check_drafters(planned)
  target = _locate('target.path', planned.target)
  located = dataclasses.replace(
    planned,
    target=target,
    drafters=_find_drafters(x, planned),
    sampling=constrained.compile_for(x.sampling, target, x.max_new_tokens),
  )
  _check_levels(located)
  constrained.check_rules(located)
  return located
