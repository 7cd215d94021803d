"""The boundary of every program: its command line, and how it ends.

`--config` names a file and `--config.field=value` overrides its fields;
programs without a config have a `Parser`. What users cause ends in one line on
stderr and exit status 1, and a bug in its traceback.
"""

import argparse
import ast
import dataclasses
import inspect
import os
import pathlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import jax
from absl import flags, logging
from ml_collections import config_flags

import specjax
from specjax.bench import config as settings
from specjax.bench import meshes
from specjax.checkpoints import CheckpointError
from specjax.cli import command_errors, compilation_cache, fields, hosts
from specjax.errors import UserError, need, remedy

INTERRUPTED = 130  # as a shell has it: 128 and the number of the signal
_VERSION, _HELP = '--version', ('--help', '-h', '-?')
# What takes a config, for those who give it to another program.
_TAKES = {
  'Experiment': 'experiments.run',
  'Parity': 'experiments.parity',
  'Certificate': 'experiments.certify',
  **dict.fromkeys(
    ('Recipe', 'Distillation', 'Heads', 'Online', 'Counts'),
    'experiments.train',
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


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
  """Splits off --config=FILE from the other arguments, which come first."""
  rest, file = [], []
  for place, one in enumerate(argv):
    if re.match(r'--?config(=|$)', one):
      file.append(one if '=' in one else f'--config={argv[place + 1]}')
    elif place == 0 or not re.match(r'--?config$', argv[place - 1]):
      rest.append(one)
  return rest, file


def _as_kind(argv: list[str], kind: type) -> tuple[Any, list[str]]:
  """An experiment with the fields that a program adds, and the other flags.

  Args:
    argv: as `parse` takes it, with a checked file.
    kind: a class that extends `Experiment`.

  Returns:
    None instead of a config where no file is named or gives something else.
  """
  rest, file = _split(argv)
  found = parse([argv[0], *file[:1]]).config if file else None
  if not isinstance(found, settings.Experiment) or isinstance(found, kind):
    return None, argv
  names = {field.name for field in dataclasses.fields(settings.Experiment)}
  return kind(**{name: getattr(found, name) for name in names}), rest


def _own_config(
  argv: list[str], get_config: Callable[[], Any]
) -> tuple[Any, list[str]]:
  """A study's own config where --config names no file, or the study's.

  Returns:
    The config, or None where another file is named, and the other flags.
  """
  rest, file = _split(argv)
  study = sys.modules[get_config.__module__].__file__ or ''
  named = file[0].partition('=')[2].partition(':')[0] if file else study
  if not os.path.samefile(named, study):
    return None, argv
  return get_config(), rest


def parse(
  argv: list[str],
  options: Mapping[str, str] | None = None,
  kind: type | None = None,
  get_config: Callable[[], Any] | None = None,
) -> Given:
  """Reads a command line.

  Args:
    argv: it, the program first.
    options: flags besides --config, and their values by default.
    kind: what an experiment is made, with defaults in the fields it lacks.
    get_config: returns the config where no file is named.

  Raises:
    UserError: a flag, or the file that it names, is wrong.
  """
  _check_file(argv)
  known = flags.FlagValues()
  for name, value in (options or {}).items():
    flags.DEFINE_string(name, value, '', flag_values=known)
  made = None
  if kind is not None:
    made, argv = _as_kind(argv, kind)
  elif get_config is not None:
    made, argv = _own_config(argv, get_config)
  here: Any = {'flag_values': known, 'sys_argv': argv}
  try:
    if made is not None:
      flag = config_flags.DEFINE_config_dataclass('config', made, **here)
    else:
      flag = config_flags.DEFINE_config_file('config', lock_config=True, **here)
    rest = known(argv)[1:]
    config = flag.value
    # A file that could not be read says so at the first look.
    getattr(config, 'name', None)
  except flags.Error as error:
    raise command_errors.fault(error) from error
  except (LookupError, TypeError, ValueError) as error:
    if not command_errors.is_of_overrides(error):
      raise
    raise UserError(command_errors.explain(error)) from error
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


def study(main: Callable[[Any], Any], get_config: Callable[[], Any]) -> None:
  """Runs a study, whose file has its config, and ends the process.

  Args:
    main: is handed the config; the same command goes on where it was stopped.
    get_config: returns the config that is changed by --config.FIELD=VALUE.
  """
  # One module under both of its names: a config of another file imports it.
  here = sys.modules['__main__']
  if here.__spec__:
    sys.modules[here.__spec__.name] = here
  run(main, type(get_config()), resumes=True, get_config=get_config)


def run(
  main: Callable[[Any], Any],
  kind: type | tuple[type, ...],
  alone: Alone | None = None,
  resumes: bool = False,
  extends: bool = False,
  get_config: Callable[[], Any] | None = None,
) -> None:
  """Runs a program, and ends the process.

  Args:
    main: is handed the config.
    kind: what the config must be; one of several.
    alone: what runs without a config, if anything does.
    resumes: whether the same command goes on where it was stopped.
    extends: whether any experiment is made the one kind, see `parse`.
    get_config: returns the config where no file is named.
  """
  kinds = kind if isinstance(kind, tuple) else (kind,)
  logging.set_verbosity(logging.WARNING)

  def begin():
    if _VERSION in sys.argv:
      return print(version())
    argv = [a for a in sys.argv if a not in _HELP]
    asked = argv != sys.argv
    config, rest, options = parse(
      argv,
      alone.options if alone else None,
      kinds[0] if extends else None,
      get_config,
    )
    if config is None and asked:
      return print(_help(main, kinds, None, alone))
    if config is None and alone:
      return alone.call(rest, **options)
    given = type(config).__name__ if config else 'nothing'
    names = ' or '.join(k.__name__ for k in kinds)
    names = 'Experiment' if extends else names
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
    compilation_cache.switch_on(config)
    return main(config)

  guard(begin, resumes)
