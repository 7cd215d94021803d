"""The command line of every program: `--config` and overrides of its fields."""

import dataclasses
import difflib
import re
from collections.abc import Callable
from typing import Any

from absl import app, logging
from ml_collections import config_flags

from experiments import recipes, settings


def explain(error: KeyError) -> str:
  """Says which field is unknown, from what `config_flags` says of it."""
  text = str(error.args[0])
  field = re.search(r"Field (\w+) not found|'>\.(\w+) does not exist", text)
  owner = re.search(r"class '[\w.]*?(\w+)'", text)
  if not field or not owner:
    return f'--config: there is no {text!r} in the config'
  name = field[1] or field[2]
  kind = getattr(settings, owner[1], getattr(recipes, owner[1], None))
  if not dataclasses.is_dataclass(kind):
    return f'--config: a value of type {owner[1]} has no field {name!r}'
  known = [f.name for f in dataclasses.fields(kind)]
  close = difflib.get_close_matches(name, known, 1)
  guess = f' (did you mean {close[0]!r}?)' if close else ''
  return (
    f'--config: {owner[1]} has no field {name!r}{guess}; its fields are '
    f'{", ".join(known)}'
  )


def run(
  main: Callable[[Any], None],
  kind: type | tuple[type, ...],
  alone: Callable[[list[str]], None] | None = None,
) -> None:
  """Runs a program.

  Args:
    main: is handed the config.
    kind: what the config must be; one of several.
    alone: what runs without a config, if anything does; it is handed what else
      the command line says.
  """
  flag = config_flags.DEFINE_config_file('config', lock_config=True)

  def parse(args):
    try:
      rest = app.parse_flags_with_usage(args)
      config = flag.value
      # A file that could not be read says so at the first look.
      getattr(config, 'name', None)
    except KeyError as error:
      raise SystemExit(f'error: {explain(error)}') from None
    except OSError as error:
      # It tells every place it looked in, a line each.
      reason = ' '.join(str(error).split())
      raise SystemExit(f'error: --config cannot be read: {reason}') from None
    if config is None and alone:
      return rest
    if not isinstance(config, kind):
      found = type(config).__name__ if config else 'nothing'
      kinds = kind if isinstance(kind, tuple) else (kind,)
      names = ' or '.join(k.__name__ for k in kinds)
      raise SystemExit(
        f'error: --config gives {found} where this program takes '
        f'{names}: name a file of configs/ that returns one'
      )
    return rest

  logging.set_verbosity(logging.WARNING)

  def begin(rest):
    if flag.value is None and alone:
      alone(rest[1:])
    else:
      main(flag.value)

  app.run(begin, flags_parser=parse)
