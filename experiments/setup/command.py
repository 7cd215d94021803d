"""The boundary of every program: its command line, and how it ends.

`--config` names a file and `--config.field=value` overrides its fields;
programs without a config have a `Parser`. What users cause ends in one line on
stderr and exit status 1, and a bug in its traceback.
"""

import argparse
import ast
import dataclasses
import difflib
import inspect
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import jax
from absl import flags, logging
from ml_collections import config_flags

import specjax
from experiments import recipes, settings
from experiments.errors import UserError, need, remedy
from experiments.setup import fields, hosts, kept_programs, meshes
from specjax.checkpoints import CheckpointError

INTERRUPTED = 130  # as a shell has it: 128 and the number of the signal
_VERSION, _HELP = '--version', ('--help', '-h', '-?')
# What takes a config, for those who give it to another program.
_TAKES = {
  'Experiment': 'experiments.run',
  'Parity': 'experiments.parity',
  'Certificate': 'experiments.certify',
  **dict.fromkeys(
    ('Recipe', 'Distillation', 'Heads', 'Counts'), 'experiments.train'
  ),
}


def version() -> str:
  return f'specjax {specjax.__version__}'


def fail(message: str) -> NoReturn:
  """Says why a program cannot go on, in one line, and ends it."""
  line = ' '.join(part.strip() for part in message.splitlines())
  print(f'error: {line}', file=sys.stderr)
  raise SystemExit(1)


def guard(call: Callable[[], Any], resumes: bool = False) -> None:
  """Runs a program; what users cause ends in one line and exit status 1.

  Args:
    call: the program; what it returns is its exit status.
    resumes: whether the same command goes on where it was stopped.
  """
  try:
    status = call()
  except (UserError, CheckpointError) as error:
    fail(str(error))
  except BrokenPipeError:
    # Who read the output has gone: nothing more is to be said.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(1) from None
  except OSError as error:
    if error.filename is None:
      raise
    fail(f'{error.filename}: {error.strerror}; {remedy(error)}')
  except KeyboardInterrupt:
    more = '; the same command goes on where it stopped' if resumes else ''
    print(f'interrupted{more}', file=sys.stderr)
    raise SystemExit(INTERRUPTED) from None
  except Exception as error:
    if not jax.distributed.is_initialized():
      raise
    hosts.leave(error)
  raise SystemExit(status or 0)


def name_of_program() -> str:
  """How the program that runs is started."""
  spec = sys.modules['__main__'].__spec__
  return f'python -m {spec.name}' if spec else sys.argv[0]


class _Format(
  argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter
):
  """Descriptions as they are, and the default of every argument."""


class Parser(argparse.ArgumentParser):
  """The command line of a program without a config.

  Args:
    description: its docstring.
  """

  def __init__(self, description: str | None):
    super().__init__(
      name_of_program(),
      description=description,
      formatter_class=_Format,
      allow_abbrev=False,
    )
    self.add_argument(_VERSION, action='version', version=version())

  def error(self, message):
    raise UserError(f'{message}; --help lists what there is')


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


class _Dictionary(flags.ArgumentParser):
  """Reads a dictionary as Python writes it, such as `Candidate.options`."""

  def parse(self, argument):
    try:
      value = (
        ast.literal_eval(argument) if isinstance(argument, str) else argument
      )
    except (SyntaxError, ValueError):
      value = None
    if not isinstance(value, dict):
      raise UserError('give a dictionary as Python writes it: {"name": 1}')
    return value


config_flags.register_flag_parser_for_type(dict, _Dictionary())


def _check_file(argv: list[str]) -> None:
  """Whether --config names a file of Python, before it is run."""
  given = [a.partition('=') for a in argv if re.match(r'--?config(=|$)', a)]
  if not given:
    return
  _, joined, value = given[0]
  if not joined:
    place = argv.index(given[0][0]) + 1
    need(place < len(argv), '--config names no file: give one of configs/')
    value = argv[place]
  path = pathlib.Path(value.partition(':')[0])
  need(
    path.is_file(),
    f'--config cannot be read: {path} is no file; name one of configs/',
  )
  try:
    compile(path.read_bytes(), path, 'exec')
  except (SyntaxError, ValueError) as error:
    raise UserError(f'--config: {path} is no Python: {error}') from error


def _is_of_overrides(error: Exception) -> bool:
  """Whether `config_flags` raised it, and not the file of a config."""
  *_, (frame, _) = traceback.walk_tb(error.__traceback__)
  return frame.f_globals['__name__'].startswith(('ml_collections.', 'ast'))


def _fault(error: flags.Error) -> Exception:
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


@dataclasses.dataclass(frozen=True)
class Alone:
  """What a program does without a config.

  Attributes:
    call: is handed the arguments that are no flags, and the options by name.
    usage: its arguments, for --help.
    options: values by default, by name.
  """

  call: Callable[..., None]
  usage: str
  options: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Given(NamedTuple):
  """A command line: a config, arguments that are no flags, other options."""

  config: Any
  rest: list[str]
  options: dict[str, str]


def parse(argv: list[str], options: Mapping[str, str] | None = None) -> Given:
  """Reads a command line.

  Args:
    argv: it, the program first.
    options: flags besides --config, and their values by default.

  Raises:
    UserError: a flag, or the file that it names, is wrong.
  """
  _check_file(argv)
  known = flags.FlagValues()
  for name, value in (options or {}).items():
    flags.DEFINE_string(name, value, '', flag_values=known)
  flag = config_flags.DEFINE_config_file(
    'config', lock_config=True, flag_values=known, sys_argv=argv
  )
  try:
    rest = known(argv)[1:]
    config = flag.value
    # A file that could not be read says so at the first look.
    getattr(config, 'name', None)
  except flags.Error as error:
    raise _fault(error) from error
  except (LookupError, TypeError, ValueError) as error:
    if not _is_of_overrides(error):
      raise
    raise UserError(explain(error)) from error
  except AttributeError as error:
    if error.name != 'get_config':
      raise
    raise UserError(
      f'--config: {error.obj.__file__} has no function get_config; name a file '
      'of configs/'
    ) from error
  return Given(
    config, rest, {name: known[name].value for name in options or {}}
  )


def _help(
  main: Callable, kinds: tuple[type, ...], config: Any, alone: Alone | None
) -> str:
  """What --help prints: the program, and every field of its config."""
  purpose = inspect.getdoc(inspect.getmodule(main)) or ''
  other = f'\n       {name_of_program()} {alone.usage}' if alone else ''
  usage = f"""\
usage: {name_of_program()} --config FILE [--config.FIELD=VALUE ...]{other}

  --config FILE           one of configs/; with a colon behind it and a part of
                          the file, where it has parts
  --config.FIELD=VALUE    sets a field; tuples, dictionaries and names that are
                          not plain words in quotes, as in
                          --config.temperatures="(0.0, 0.7)"
  --help                  this text, with the values of FILE where it is given
  {_VERSION}               the version"""
  parts = [purpose, usage]
  for kind in kinds if config is None else (type(config),):
    about = (inspect.getdoc(kind) or '').partition('\n')[0]
    values = 'by default' if config is None else 'as given'
    parts += [
      f'{kind.__name__}: {about}\nIts fields, {values}:',
      fields.describe(kind, config),
    ]
  return '\n\n'.join(parts)


def run(
  main: Callable[[Any], Any],
  kind: type | tuple[type, ...],
  alone: Alone | None = None,
  resumes: bool = False,
) -> None:
  """Runs a program, and ends the process.

  Args:
    main: is handed the config.
    kind: what the config must be; one of several.
    alone: what runs without a config, if anything does.
    resumes: whether the same command goes on where it was stopped.
  """
  kinds = kind if isinstance(kind, tuple) else (kind,)
  logging.set_verbosity(logging.WARNING)

  def begin():
    if _VERSION in sys.argv:
      return print(version())
    argv = [a for a in sys.argv if a not in _HELP]
    asked = argv != sys.argv
    config, rest, options = parse(argv, alone.options if alone else None)
    if config is None and asked:
      return print(_help(main, kinds, None, alone))
    if config is None and alone:
      return alone.call(rest, **options)
    given = type(config).__name__ if config else 'nothing'
    names = ' or '.join(k.__name__ for k in kinds)
    need(
      isinstance(config, kinds),
      f'--config gives {given} where this program takes {names}: name a file '
      'of configs/ that returns one'
      + (f', or give it to {_TAKES[given]}' if given in _TAKES else ''),
    )
    for name, value in options.items():
      need(
        alone and value == alone.options[name],
        f'--{name} goes with {alone and alone.usage}, not with --config: leave '
        'one out',
      )
    need(
      not rest,
      f'{" ".join(rest)}: arguments that are no flags; fields of the config '
      'are given as --config.FIELD=VALUE',
    )
    fields.check(config)
    if asked:
      return print(_help(main, kinds, config, alone))
    meshes.use_cores(config)
    kept_programs.switch_on(config)
    return main(config)

  guard(begin, resumes)
