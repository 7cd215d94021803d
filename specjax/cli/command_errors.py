"""What is said of a command line that cannot be read."""

import dataclasses
import difflib
import re
import traceback

from absl import flags

from specjax.bench import config as settings
from specjax.errors import UserError
from specjax.serving import config
from specjax.training import recipes
from specjax.training import recipes as recipe_parts


def explain(error: Exception) -> str:
  """Says which field is unknown, from what `config_flags` says of it."""
  text = str(error.args[0])
  if not isinstance(error, KeyError):
    return (
      f'--config: a field cannot be overridden so: {text}; --help lists fields'
    )
  field = re.search(r"Field (\w+) not found|'>\.(\w+) does not exist", text)
  owner = re.search(r"class '[\w.]*?(\w+)'", text)
  if not field or not owner:
    return (
      f'--config: there is no {text!r} in the config; --help behind it lists '
      'what there is'
    )
  name = field[1] or field[2]
  places = (settings, recipe_parts, recipes, config)
  kind = next(
    (getattr(x, owner[1]) for x in places if hasattr(x, owner[1])), None
  )
  if not dataclasses.is_dataclass(kind):
    return f'--config: a value of type {owner[1]} has no field {name!r}'
  known = [f.name for f in dataclasses.fields(kind)]
  close = difflib.get_close_matches(name, known, 1)
  guess = f' (did you mean {close[0]!r}?)' if close else ''
  return (
    f'--config: {owner[1]} has no field {name!r}{guess}; its fields are '
    f'{", ".join(known)}'
  )


def is_of_overrides(error: Exception) -> bool:
  """Whether `config_flags` raised it, and not the file of a config."""
  *_, (frame, _) = traceback.walk_tb(error.__traceback__)
  return frame.f_globals['__name__'].startswith(('ml_collections.', 'ast'))


def fault(error: flags.Error) -> Exception:
  """What a flag could not be parsed for; a bug of a config file as it was."""
  if 'Error whilst parsing config file' not in str(error):
    return UserError(f'{error}; --help lists what there is')
  cause: BaseException = error
  while cause.__context__ is not None:
    cause = cause.__context__
  if isinstance(cause, TypeError) and 'get_config() ' in str(cause):
    return UserError(
      f'--config: the part behind the colon does not fit: {cause}'
    )
  if isinstance(cause, UserError):
    return UserError(f'--config: {cause}')
  return cause if isinstance(cause, Exception) else error
