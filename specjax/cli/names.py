"""Functions, rules and policies that a config names, in full or in short.

A Python import is the registry. A full name is a module and a name in it; a
short one stands for the full one that its field expects: `token` is
specjax.verify.token, and `lm` is specjax.drafters.lm.load. Numbers may stand
behind a colon.
"""

import dataclasses
import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

from specjax.bench.config import Candidate, Experiment
from specjax.errors import UserError, need


@dataclasses.dataclass(frozen=True)
class Names:
  """The names that a field takes.

  Attributes:
    template: the full name, with {} in place of the short one.
    short: an example. If {} is a module, every module of the package with such
      a function may be chosen; otherwise everything of the example's type, or
      of its return type.
  """

  template: str
  short: str

  @property
  def example(self) -> str:
    return self.template.format(self.short)

  def choices(self) -> list[str]:
    """Returns the short names."""
    place, _, inside = self.template.partition('.{}')
    package = importlib.import_module(place)
    if inside:  # Every file of the package that has such a function.
      files = (file.name for file in pkgutil.iter_modules(package.__path__))
      modules = {n: importlib.import_module(f'{place}.{n}') for n in files}
      return sorted(n for n, m in modules.items() if hasattr(m, inside[1:]))
    values = vars(package)
    wanted = _kind(values[self.short])
    names = (n for n, value in values.items() if _kind(value) == wanted)
    return sorted(name for name in names if not name.startswith('_'))

  def full(self, name: str) -> str:
    """Returns the full name of a short one, and any other name as it is."""
    short, colon, numbers = name.partition(':')
    if short not in self.choices():
      return name
    return self.template.format(short) + colon + numbers

  def brief(self, name: str) -> str:
    """Returns a full name without what the template adds to a short one."""
    before, after = self.template.split('{}')
    return name.removeprefix(before).removesuffix(after)

  def remedy(self, name: str, *others: str) -> str:
    """Returns what may be named instead of `name`; `others` come first."""
    choices = [*others, *self.choices()]
    close = difflib.get_close_matches(
      self.brief(name.partition(':')[0]), choices
    )
    guess = f' (did you mean {close[0]!r}?)' if close else ''
    return (
      f'choose from {", ".join(dict.fromkeys(choices))}{guess}, or give a full '
      f'name, such as {self.example!r}'
    )


LOAD = Names('specjax.drafters.{}.load', 'ngram')
RULE = Names('specjax.verify.{}', 'token')
POLICY = Names('specjax.drafters.shapes.policies.{}', 'heuristic')


def _kind(value: Any) -> Any:
  """Returns the declared return type of a function, or the type of a value."""
  declared = getattr(value, '__annotations__', {})
  return declared['return'] if 'return' in declared else type(value)


def resolve(field: str, name: str, names: Names = LOAD) -> Any:
  """Returns the object of a name.

  Args:
    field: of the config.
    name: full or short, such as 'token'.
    names: that the field takes.

  Raises:
    UserError: there is no such thing.
  """
  path = names.full(name)
  module, _, attribute = path.rpartition('.')
  known = module and all(map(str.isidentifier, path.split('.')))
  need(known, f'{field}: {name!r} is unknown; {names.remedy(name)}')
  try:
    return getattr(importlib.import_module(module), attribute)
  except (ImportError, AttributeError) as error:
    raise UserError(
      f'{field}: {name!r} cannot be imported ({error}); {names.remedy(name)}'
    ) from error


def resolve_function(field: str, name: str, names: Names = LOAD) -> Any:
  """Returns the function of a name; see `resolve`."""
  function = resolve(field, name, names)
  need(
    callable(function),
    f'{field}: {name!r} is no function; give one such as {names.example!r}',
  )
  return function


def resolve_made(field: str, name: str, names: Names) -> Any:
  """Returns a named value, or makes it of the numbers behind a colon."""
  path, _, text = name.partition(':')
  made, wrong = resolve(field, path, names), ''
  kind, shown = _kind(resolve(field, names.short, names)), names.brief(name)
  if isinstance(made, kind):
    wrong = 'it takes no numbers' * bool(text)
  elif callable(made):
    try:
      made = made(*_numbers(text))
    except ValueError as error:
      raise UserError(f'{field}: {shown!r}: {error}') from error
    except TypeError as error:
      wrong = _misfit(made, _numbers(text)) or str(error)
  if wrong or not isinstance(made, kind):
    raise UserError(
      f'{field}: {shown!r} is no {kind.__name__.lower()} '
      f'({wrong or type(made).__name__}); use one such as {names.short}'
    )
  return made


def _numbers(text: str) -> list[float]:
  """Returns the numbers between the commas of a text."""
  try:
    return [float(x) for x in text.split(',') if x]
  except ValueError:
    raise ValueError(f'{text} is no number') from None


def _misfit(function: Callable, numbers: list[float]) -> str:
  """Names the arguments of a function that cannot be called with numbers."""
  try:
    taken = inspect.signature(function)
    taken.bind(*numbers)
  except ValueError:  # Some of Python's own have no signature.
    return ''
  except TypeError:
    known = ', '.join(
      str(x).partition(':')[0] for x in taken.parameters.values()
    )
    return f'it takes {known} behind a colon, as in name:0.5'
  return ''


def complete_candidate(candidate: Candidate) -> Candidate:
  """Returns a candidate with full names, also of those inside it."""
  options = dict(candidate.options)
  for name, value in options.items():
    if isinstance(value, Candidate):
      options[name] = complete_candidate(value)
    elif name == 'policy' and isinstance(value, str):
      options[name] = POLICY.full(value)
  return dataclasses.replace(
    candidate,
    load=LOAD.full(candidate.load),
    options=options,
    verifiers=tuple(map(RULE.full, candidate.verifiers)),
  )


def complete(x: Experiment) -> Experiment:
  """Returns an experiment with full names, as its results store them."""
  candidates = {n: complete_candidate(c) for n, c in x.candidates.items()}
  return dataclasses.replace(
    x,
    candidates=candidates,
    drafters=tuple(n if n in x.known else LOAD.full(n) for n in x.drafters),
    verifiers=tuple(map(RULE.full, x.verifiers)),
  )
