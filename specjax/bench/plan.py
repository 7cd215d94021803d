"""The plan of an experiment: its config, checked and frozen.

A program may change its config until `plan` checks every value that needs no
weights and finds all that it names. What comes after takes the plan.
"""

import contextlib
import copy
import dataclasses
import functools
import hashlib
import importlib
import inspect
import json
import os
import pathlib
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from specjax import checkpoints
from specjax.bench import checks, config, sampling_stages
from specjax.checkpoints import Description, own, parameters, precision
from specjax.checkpoints.parameters import FLOATS, WeightForm
from specjax.cli import names
from specjax.drafters.heads import files
from specjax.errors import UserError, blame, need
from specjax.models import layouts
from specjax.models.config import TransformerConfig
from specjax.types import LoadedDrafter, Rule

_SHORTEST = 16  # new tokens that are chosen beside a long prompts.length


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedDrafter:
  """A drafter to run.

  Attributes:
    name: in rows; one that drafts for another is called `staged.inner`.
    field: the field of the config that named it.
    path_field: the field that its path comes from.
    load: full name of its load function.
    path: of its weights; empty where it has none.
    options: further arguments: one that drafts for this one is planned, too.
    stored: the options as rows have them.
    gammas: draft lengths.
    rules: the rules that judge it, by full name.
  """

  name: str
  field: str
  path_field: str
  load: str
  path: str
  options: Mapping[str, Any]
  stored: Mapping[str, Any]
  gammas: tuple[int, ...]
  rules: Mapping[str, Rule]

  @property
  def read(self) -> Callable[..., LoadedDrafter]:
    """The load function."""
    return names.resolve_function(self.field, self.load)

  def beside(self, name: str) -> Callable | None:
    """A function of the load function's module; None if it has none."""
    module = importlib.import_module(self.load.rpartition('.')[0])
    return getattr(module, name, None)

  @property
  def describe(self) -> Callable[..., Description | None] | None:
    """Describes its model without reading weights; None if it cannot."""
    return self.beside('describe')

  def levels(self) -> list['PlannedDrafter']:
    """This drafter and those that draft for it in turn."""
    inner = (v for v in self.options.values() if isinstance(v, PlannedDrafter))
    return [self, *(level for one in inner for level in one.levels())]

  def remembered(self, target: TransformerConfig) -> int:
    """Bytes a row that all levels keep beside the caches of their models."""
    return sum(
      remembers(target, **one.options)
      for one in self.levels()
      if (remembers := one.beside('remembers'))
    )

  @property
  def draft(self) -> str | None:
    """Names of the models that draft, the largest first; None without any."""
    paths = [one.path for one in self.levels() if one.path]
    return ' + '.join(map(checkpoints.title_of, paths)) or None

  @property
  def draft_revision(self) -> str | None:
    """Commits of these models on the Hub; None if none comes from there."""
    paths = [one.path for one in self.levels() if one.path]
    commits = [checkpoints.revision_of(path) for path in paths]
    return ' + '.join(c or '-' for c in commits) if any(commits) else None


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
  """A checked config; its fields are called as those of `Experiment`.

  Attributes:
    target: directory of the target; for a model of the Hub, its snapshot.
    dtype: of the target, as it was asked for.
    form: of its matrices, see `parameters.WeightForm`.
    exact: whether texts have the bits of plain decoding.
    drafters: by name.
    gammas: asked of every drafter; empty where each has its own.
    batch: the one of `batches` that is decoded now; the largest at first.
    batches: prompts decoded together, each in its turn.
    results: folder of rows and summary.
    settings: that the folder belongs to.
    together: whether all drafters remember a text at once, not in turns.
  """

  name: str
  target: str
  dtype: str
  form: WeightForm
  exact: str
  drafters: Mapping[str, PlannedDrafter]
  gammas: tuple[int, ...]
  temperatures: tuple[float, ...]
  sampling: config.SamplingValues
  prompts: config.Prompts
  prompt: str
  max_new_tokens: int
  batch: int
  batches: tuple[int, ...]
  seed: int
  mesh: config.Mesh
  timed: bool
  results: str
  quick: bool
  settings: Mapping[str, Any]
  together: bool = False

  @property
  def rules(self) -> tuple[str, ...]:
    """The full names of all rules that judge drafters."""
    every = (rule for one in self.drafters.values() for rule in one.rules)
    return tuple(dict.fromkeys(every))

  def levels(self) -> list[PlannedDrafter]:
    """The drafters, and all that draft for them."""
    return [one for each in self.drafters.values() for one in each.levels()]

  def draft_lengths(self) -> Iterator[tuple[str, int]]:
    """Every draft length, with the name that errors give it."""
    for one in self.levels():
      shared = self.gammas and one.name in self.drafters
      field = 'gammas' if shared else f'gamma of the drafter {one.name}'
      yield from ((field, gamma) for gamma in one.gammas)

  def dtypes(self, described: Mapping[str, Description]) -> dict[str, str]:
    """The type that each described model is read and computed in, by name.

    A draft that names none has that of what it drafts for.
    """
    own = described['target'].dtype
    found = {'target': precision.resolve(self.dtype, own)}

    def follow(one: PlannedDrafter, target: str) -> None:
      name, asked = f'draft {one.name}', one.options.get('dtype') or target
      stored = described[name].dtype if name in described else target
      dtype = precision.resolve(asked, stored)
      if name in described:
        found[name] = dtype
      for value in one.options.values():
        if isinstance(value, PlannedDrafter):
          follow(value, dtype)

    for one in self.drafters.values():
      follow(one, found['target'])
    return found


def need_one_device(mesh: config.Mesh, what: str) -> None:
  """Raises a UserError unless the mesh is one device in one process."""
  need(
    mesh.data == mesh.model == mesh.processes == 1,
    f'mesh is {mesh.data} x {mesh.model} in {mesh.processes} processes, but '
    f'{what} on one device: leave mesh as it is',
  )


def choose(x: config.Experiment) -> dict[str, tuple[str, config.Candidate]]:
  """Returns the drafters to run by name, each with the field that named it.

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
      choice = 'drafters', config.Candidate(load, 4, path)
    need(
      label not in chosen,
      f'drafters: {tuple(x.drafters)} has {label!r} twice: leave one out',
    )
    chosen[label] = choice
  return chosen


def plan_drafter(
  name: str,
  candidate: config.Candidate,
  field: str = 'candidates',
  path_field: str = '',
  gammas: tuple[int, ...] = (),
  verifiers: tuple[str, ...] = (),
) -> PlannedDrafter:
  """Finds what a drafter names.

  Args:
    name: of the drafter.
    candidate: what to load.
    field: the field of the config that named it.
    path_field: the field that its path comes from.
    gammas: draft lengths; empty for its own.
    verifiers: rules, where it has none of its own.

  Raises:
    UserError: names what cannot be found, or the option that it does not take.
  """
  candidate = names.complete_candidate(candidate)
  read = names.resolve_function(field, candidate.load)
  options = dict(candidate.options)
  for option, value in options.items():
    if isinstance(value, config.Candidate):
      options[option] = plan_drafter(f'{name}.{option}', value, field)
    elif option == 'policy' and isinstance(value, str):
      options[option] = names.resolve_made(field, value, names.POLICY)
    elif option == 'dtype' and value:
      known = typing.get_args(config.AnyDtype)
      need(
        value in known,
        f'{field}: dtype must be one of {", ".join(known)}, got {value!r}',
      )
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
    taken = [*signature.parameters]
    own = ', '.join(taken[2:]) or 'nothing'
    remedy = f'behind target and path, which are given, its options are {own}'
    if len(taken) < 2:
      remedy = "write it as load(target, path='')"
    raise UserError(f'{field}: {candidate.load}: {error}; {remedy}') from error
  path = signature.parameters.get('path')
  need(
    not (candidate.path and path and path.annotation == Literal['']),
    f'{path_field}: {candidate.load} has no weights, and takes no path: leave '
    f'{candidate.path} out',
  )
  need(
    candidate.path or not path or path.default == '',
    f'{path_field} names no directory, but {candidate.load} reads weights: '
    'name theirs, in drafters behind a colon, such as lm:DIRECTORY',
  )
  own = f' of the drafter {name}' if candidate.verifiers else ''
  return PlannedDrafter(
    name=name,
    field=field,
    path_field=path_field,
    load=candidate.load,
    path=candidate.path,
    options=options,
    stored=portable(dataclasses.asdict(candidate)['options']),
    gammas=tuple(gammas) or (candidate.gamma,),
    rules={
      names.RULE.full(r): names.resolve_made(f'verifiers{own}', r, names.RULE)
      for r in candidate.verifiers or verifiers
    },
  )


def whole_steps(planned: Plan) -> Plan:
  """Checks that acceptance can be counted: only whole steps are.

  Raises:
    UserError: no text has room for a whole step; names the field.
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
  """Returns a path that exists: the snapshot, for a model of the Hub.

  Raises:
    UserError: there is nothing; names the field.
  """
  if not path or os.path.exists(path):
    return path
  if path.startswith(own.PREFIX):
    field = f'{field.removesuffix("path")}load'
  with blame(f'{field}: '):
    return str(checkpoints.locate(path))


def _find(one: PlannedDrafter) -> PlannedDrafter:
  """Locates a drafter's weights, and takes the load function of their kind.

  Raises:
    UserError: there are none, or they are of a head that is damaged or cannot
      be loaded.
  """
  options = {
    name: _find(value) if isinstance(value, PlannedDrafter) else value
    for name, value in one.options.items()
  }
  path = _locate(one.path_field, one.path)
  one = dataclasses.replace(one, path=path, options=options)
  if one.load != names.LOAD.full('lm'):
    return one
  with blame(f'{one.path_field}: '):
    load = names.LOAD.full(files.kind_of(path))
  if load == one.load:
    return one
  one = dataclasses.replace(one, load=load)
  try:
    inspect.signature(one.read).bind(None, path, **options)
  except TypeError as error:
    raise UserError(
      f'{one.field}: {path} holds a head, which {load} loads: {error}'
    ) from error
  return one


def _find_drafters(planned: Plan) -> dict[str, PlannedDrafter]:
  """Finds the weights of all drafters.

  Where `draft` is a head, it is called as its directory is, and not `lm`.
  """
  found = {}
  for name, before in planned.drafters.items():
    one = _find(before)
    if one.path_field == 'draft.path' and one.load != before.load:
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


def _choose_form(x: config.Experiment, target: str) -> WeightForm:
  """Returns the form of the target's matrices.

  Raises:
    UserError: a mesh holds floats alone, or rounds has no effect.
  """
  mesh = x.mesh.data * x.mesh.model > 1
  need(
    not mesh or x.weights in ('auto', parameters.FLOAT),
    f'weights is {x.weights}, but a mesh of devices holds floats: leave it out',
  )
  with blame('target.path: '):
    directory, other = checkpoints.locate(target), own.read(target)
  need(
    x.weights in ('auto', parameters.FLOAT) or not other,
    f'weights is {x.weights}, but a model of other code has floats: leave it '
    'out',
  )
  with blame():
    kernel = not mesh and layouts.has_kernel()
    return parameters.choose_form(x.weights, x.rounds, directory, kernel)


def freeze(
  x: config.Experiment, drafters: Mapping[str, PlannedDrafter]
) -> Plan:
  """Returns the plan of a config whose drafters are known, unchecked."""
  same = {f.name for f in dataclasses.fields(Plan)} & set(vars(x))
  batches = tuple(sorted({*x.batches})) or (x.batch,)
  return Plan(
    **{name: copy.deepcopy(getattr(x, name)) for name in same}
    | {
      'target': x.target.place,
      'dtype': x.target.dtype or x.dtype,
      'form': FLOATS,
      'drafters': drafters,
      'batch': batches[-1],
      'max_new_tokens': x.max_new_tokens or config.NEW_TOKENS,
      'batches': batches,
      'results': x.results or default_folder(x),
      'settings': settings_of(x),
    }
  )


def _new_tokens(x: config.Experiment, located: Plan) -> int:
  """Returns how many tokens are added to prompts, where nobody says it.

  They leave place for `prompts.length`, and for prompts as long as they are. A
  draft with another vocabulary may need two tokens for one of the target. What
  cannot be described is refused later.
  """
  described = [lambda: checkpoints.describe(located.target)]
  described += [
    functools.partial(one.describe, one.path, **one.options)
    for one in located.levels()
    if one.describe is not None
  ]
  configs = []
  for describe in described:
    with contextlib.suppress(ValueError):
      if (found := describe()) is not None:
        configs.append(found.model.config)
  encodes = any(c.encoder is not None for c in configs)
  least = min(
    (
      c.max_positions // (1 + (c.vocab_size != configs[0].vocab_size))
      for c in configs
    ),
    default=2 * config.NEW_TOKENS,
  )
  left = least - (1 if encodes or x.prompt else x.prompts.length or least)
  half = max(1, least // 2)
  return min(config.NEW_TOKENS, half, left if left >= _SHORTEST else half)


def plan(x: config.Experiment, sweeps: bool = False) -> Plan:
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
    'batches empty, as in --batches="()", and choose batch',
  )
  for name in ('vocabulary', 'frequencies', 'policy'):
    value = getattr(x.draft, name)
    need(
      x.draft.place or not value,
      f'draft.{name} is {value}, but there is no draft: give draft.path, or '
      f'leave draft.{name} out',
    )
  drafters = {}
  for name, (field, candidate) in choose(x).items():
    own = name in ('lm', 'lm-int4') and x.draft.place
    if own and field.startswith('candidates'):
      field = 'draft'
    path_field = 'draft.path' if own else 'drafters' * (field == 'drafters')
    drafters[name] = plan_drafter(
      name, candidate, field, path_field, x.gammas, x.verifiers
    )
  planned = freeze(x, drafters)
  need(drafters, 'candidates is empty: name at least one drafter')
  for one in drafters.values():
    need(one.rules, 'verifiers is empty: name at least one, such as token')
  target = _locate('target.path', planned.target)
  located = dataclasses.replace(
    planned,
    target=target,
    form=_choose_form(x, target),
    drafters=_find_drafters(planned),
  )
  new = x.max_new_tokens or _new_tokens(x, located)
  located = dataclasses.replace(
    located,
    max_new_tokens=new,
    sampling=sampling_stages.compile_for(x.sampling, target, new),
  )
  _check_levels(located)
  sampling_stages.check_rules(located)
  return located


def portable(value: Any) -> Any:
  """Returns a value as JSON has it, without the place of this checkout."""
  text = json.dumps(value, sort_keys=True, default=str)
  here = str(pathlib.Path(__file__).parents[2])
  return json.loads(text.replace(here, '.'))


def settings_of(x: Any) -> dict:
  """Returns what decides the results: all of a config but where they go.

  Fields that were added later are left out while they have their default, so
  that folders of before are found again.
  """
  if isinstance(x, config.Experiment):
    x = names.complete(x)
  settings = dataclasses.asdict(x)
  if 'max_new_tokens' in settings:
    settings['max_new_tokens'] = settings['max_new_tokens'] or config.NEW_TOKENS
  for name in ('results', 'compilation_cache', 'probe', 'device'):
    settings.pop(name, None)
  if 'mesh' in settings:
    settings['mesh'] = x.mesh.facts()
    if settings['mesh'] == config.Mesh().facts():
      del settings['mesh']
  if isinstance(x, config.Experiment):
    sampling_stages.shorten(settings['sampling'])
    for name in ('system', 'template_kwargs', 'turns'):
      if settings['prompts'][name] == getattr(config.Prompts(), name):
        del settings['prompts'][name]
    for name in ('target', 'draft'):
      for field in ('load', 'dtype', 'vocabulary', 'frequencies', 'policy'):
        if not settings[name].get(field, True):
          del settings[name][field]
  optional = 'batches', 'rule', 'drafter', 'policy', 'foreign', 'rounds'
  for name in (*optional, 'binaries'):
    if not settings.get(name, True):
      del settings[name]
  for name in ('dtype', 'weights', 'exact'):
    if settings.get(name) == precision.AUTO:
      del settings[name]
  for candidate in settings.get('candidates', {}).values():
    if not candidate['verifiers']:
      del candidate['verifiers']
  # Where the weights lie does not matter, what they are called does.
  return portable(settings)


def default_folder(x: Any) -> str:
  """Returns runs/<name>-<hash>: every change of the settings has a folder.

  Raises:
    UserError: the name is not one that a folder can have.
  """
  need(
    x.name and os.path.basename(x.name) == x.name,
    f'name is {x.name!r}, which names no folder of runs; choose another one',
  )
  text = json.dumps(settings_of(x), sort_keys=True)
  code = hashlib.sha256(text.encode()).hexdigest()[:6]
  return os.path.join('runs', f'{x.name}-{code}')
