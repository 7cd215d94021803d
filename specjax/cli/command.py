"""The boundary of every program: its command line, and how it ends.

A program takes a config, which is a file or the name of a shipped one, and
fields of it: `quickstart --batch=4`, or with the same meaning
`--config quickstart --config.batch=4`. A program without a config has a
`Parser`. What users cause ends in one line on stderr and exit status 1; a bug
ends in its traceback.
"""

import argparse
import difflib
import errno
import functools
import inspect
import os
import pathlib
import pkgutil
import re
import runpy
import shlex
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from absl import logging

import specjax
from specjax import cli, configs
from specjax.cli import fields, progress
from specjax.errors import UserError, need, remedy

_HELP = '--help', '-h', '-?'
# What takes a config, for those who give it to another program.
_PROGRAMS = {'Experiment': 'run', 'Parity': 'parity', 'Certificate': 'certify'}
_COMMAND = re.compile(rf'\bspecjax ({"|".join(cli.COMMANDS)})\b')


_PROGRAM = rf'(specjax |experiments\.)({"|".join(cli.COMMANDS)})$'


def version() -> str:
  return f'specjax {specjax.__version__}'


def program() -> str:
  """Returns how the running program is started."""
  spec = getattr(sys.modules['__main__'], '__spec__', None)
  if spec is None or spec.name == 'specjax.__main__':
    return ('python -m ' if spec else '') + sys.argv[0]
  return f'python -m {spec.name}'


def given() -> str:
  """Returns the command line; '' of a process that is no such program."""
  known = re.search(_PROGRAM, program())
  return f'{program()} {shlex.join(sys.argv[1:])}'.strip() if known else ''


def spelled(text: str) -> str:
  """Returns a text whose commands are spelled as this process was started."""
  begin = re.sub('[a-z_]+$', '', program())
  known = begin.endswith(('specjax ', 'experiments.'))
  return _COMMAND.sub(lambda word: begin + word[1], text) if known else text


def fail(message: str) -> NoReturn:
  """Ends the program with one line that says why it cannot go on."""
  line = ' '.join(part.strip() for part in message.splitlines())
  print(f'error: {spelled(line)}', file=sys.stderr)
  raise SystemExit(1)


def guard(call: Callable[[], Any], resumes: bool = False) -> None:
  """Runs a program; what users cause ends in one line and exit status 1.

  Args:
    call: the program; it returns the exit status, or None.
    resumes: whether the same command goes on where it was stopped.
  """
  try:
    status = call()
  except UserError as error:
    fail(str(error))
  except BrokenPipeError:
    # The reader of the output has gone: there is nobody to tell.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(1) from None
  except OSError as error:
    if error.errno == errno.ENOSPC and error.filename is None:
      # What is left in the buffer would fail again at the end.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      fail(f'stdout: {error.strerror}; {remedy(error)}')
    if error.filename is None:
      raise
    fail(f'{error.filename}: {error.strerror}; {remedy(error)}')
  except KeyboardInterrupt:
    more = '; the same command goes on where it stopped' if resumes else ''
    cli.stop(more)
  except Exception as error:
    jax = sys.modules.get('jax')
    if jax is None or not jax.distributed.is_initialized():
      raise
    from specjax.cli import hosts

    hosts.leave(error)
  raise SystemExit(status or 0)


class _Format(
  argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter
):
  """Descriptions as they are, and the default of every argument."""


class Parser(argparse.ArgumentParser):
  """The command line of a program without a config.

  Args:
    description: its docstring.
  """

  def __init__(self, description: str):
    super().__init__(
      program(),
      description=spelled(description),
      formatter_class=_Format,
      allow_abbrev=False,
    )
    self.add_argument('--version', action='version', version=version())

  def error(self, message):
    raise UserError(f'{message}; --help lists what there is')


def shipped() -> list[str]:
  """Lists the names of the configs in the package."""
  return [module.name for module in pkgutil.iter_modules(configs.__path__)]


def load_config(given: str) -> Any:
  """Returns the config of a file or of a name.

  Args:
    given: the file or the name; a part of it may stand behind a colon.

  Raises:
    UserError: there is none, or its code fails.
  """
  name, _, part = given.partition(':')
  file = pathlib.Path(name).expanduser()
  if not file.is_file():
    need(name in shipped(), f'--config: {_unknown(name)}')
    file = pathlib.Path(configs.__path__[0], f'{name}.py')
  try:
    make: Any = runpy.run_path(str(file)).get('get_config')
    need(make, f'{file} has no function get_config; name another file')
    return _from_part(make, name, part)
  except UserError as error:
    raise UserError(f'--config: {error}') from error
  except SyntaxError as error:
    raise UserError(f'--config: {error.filename}: {error}') from error
  except Exception as error:
    # The last line of the file that was running, or of what it imports.
    trace = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in trace if frame.filename == str(file)]
    where = (own or trace)[-1]
    raise UserError(
      f'--config: {where.filename}, line {where.lineno}: '
      f'{type(error).__name__}: {error}'
    ) from error


def _from_part(get_config: Callable, name: str, part: str) -> Any:
  """Returns the config of a part; '' is none."""
  takes_part = inspect.signature(get_config).parameters
  need(takes_part or not part, f'{name} has no parts: leave :{part} out')
  return get_config(part) if part else get_config()


def _unknown(name: str) -> str:
  close = difflib.get_close_matches(pathlib.Path(name).stem, shipped(), 1)
  guess = f' (did you mean {close[0]}?)' if close else ''
  return f'{name} is no file and no shipped config{guess}; {_choices()}'


def _choices() -> str:
  return f'name a file, or one of {", ".join(shipped())}'


def parse(
  argv: list[str],
  kinds: tuple[type, ...],
  extends: bool = False,
  get_config: Callable[[], Any] | None = None,
) -> Any:
  """Reads a command line.

  Args:
    argv: its words, without the program.
    kinds: classes of configs that the program takes.
    extends: whether an experiment becomes one of the first kind, with defaults
      in the fields that it lacks.
    get_config: returns the config where no file is named; a part of it may
      stand behind a colon.

  Raises:
    UserError: no config is named, or the file or one of its fields is wrong.
  """
  given, rest, values = None, [], []
  words = iter(argv)
  for word in words:
    name, joined, value = word.partition('=')
    if name in ('--config', '-config'):
      value = value if joined else next(words, '')
      need(value, '--config names no file; --help shows how it is given')
      given = value
    elif word.startswith('-'):
      need(
        word.startswith('--') or len(name) > 2,
        f'{word} is no flag; fields of the config are given as --FIELD=VALUE, '
        'and --help lists them',
      )
      path = re.sub(r'^--?(config\.)?', '', name)
      values.append((path, value if joined else None))
    else:
      rest.append(word)
  if given is None and rest:
    given, *rest = rest
  need(
    not rest,
    f'{" ".join(rest)}: arguments that are no flags; fields of the config are '
    'given as --FIELD=VALUE',
  )
  # A program with a shipped config of its own name needs no other.
  own = re.split(r'[ .]', program())[-1]
  file, _, part = (given or '').partition(':')
  if get_config is not None and (not file or _holds(file, get_config)):
    config = _from_part(get_config, file or own, part)
  else:
    given = given or (own if own in shipped() else '')
    need(given, f'no config is given: {_choices()}')
    config = load_config(given)
  if extends:
    config = _extended(config, kinds[0])
  _check_kind(config, kinds, extends)
  embedded = _is_embedded(config)
  for path, text in values:
    fields.assign(config, path, text)
  fields.check_fields(config)
  config.given = frozenset(dict(values))  # See `fields.lower`.
  named = 'prompts.domains' in config.given
  if embedded and not named and not _is_embedded(config):
    config.prompts.domains = ()  # A file has others than the corpus.
  return config


def _is_embedded(config: Any) -> bool:
  """Returns true if prompts are windows of the embedded corpus."""
  prompts: Any = getattr(config, 'prompts', None)
  return hasattr(prompts, 'domains') and not (prompts.path or prompts.dataset)


def _holds(file: str, function: Callable) -> bool:
  """Returns whether a file is the source of a function."""
  source = inspect.getsourcefile(function) or ''
  return os.path.exists(file) and os.path.samefile(file, source)


def _extended(config: Any, kind: type) -> Any:
  """Returns an experiment as one of a class that extends experiments."""
  base = kind.__mro__[1]
  if not isinstance(config, base) or isinstance(config, kind):
    return config
  return kind(**{name: getattr(config, name) for name in fields.hints(base)})


def _check_kind(config: Any, kinds: tuple[type, ...], extends: bool) -> None:
  if isinstance(config, kinds):
    return
  given = type(config).__name__ if config is not None else 'nothing'
  takes = ' or '.join(kind.__name__ for kind in kinds)
  takes = 'Experiment' if extends else takes
  trains = type(config).__module__.startswith('specjax.training')
  other = 'train' if trains else _PROGRAMS.get(given)
  more = f', or give it to specjax {other}' if other else ''
  raise UserError(
    f'--config gives {given} where this program takes {takes}: name a file '
    f'that returns one, or a part that does (pair:parity is a Parity){more}'
  )


def _help(purpose: str, kinds: tuple[type, ...], config: Any) -> str:
  """Returns the text of --help: the program, and every field of its config."""
  usage = f"""\
usage: {program()} CONFIG [--FIELD=VALUE ...]

  CONFIG           a file, or a shipped config: {', '.join(shipped())};
                   with a colon behind it and a part of the file, where it has
                   parts. `--config CONFIG` is the same
  --FIELD=VALUE    sets a field; tuples, dictionaries and names that are not
                   plain words in quotes, as in --temperatures="(0.0, 0.7)".
                   `--config.FIELD=VALUE` is the same
  --help           this text, with the values of CONFIG where it is given
  --version        the version"""
  parts = [spelled(purpose), usage]
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
    main: takes the config, the small version of it where `quick` is set; the
      same command goes on where it was stopped.
    get_config: returns the config, whose fields --FIELD=VALUE changes.
  """

  @functools.wraps(main)
  def begin(config):
    if config.quick:
      config.shrink()
    return main(config)

  # One module under both of its names: a config of another file imports it.
  here = sys.modules['__main__']
  if here.__spec__:
    sys.modules[here.__spec__.name] = here
  run(begin, type(get_config()), resumes=True, get_config=get_config)


def run(
  main: Callable[[Any], Any],
  kind: type | tuple[type, ...],
  resumes: bool = False,
  extends: bool = False,
  get_config: Callable[[], Any] | None = None,
) -> None:
  """Runs a program, and ends the process.

  Args:
    main: takes the config.
    kind: what the config must be; one of several.
    resumes: whether the same command goes on where it was stopped.
    extends: whether any experiment becomes the one kind, see `parse`.
    get_config: returns the config where no file is named.
  """
  kinds = kind if isinstance(kind, tuple) else (kind,)
  logging.set_verbosity(logging.WARNING)  # Orbax logs by it.

  def begin():
    argv = sys.argv[1:]
    if '--version' in argv:
      return print(version())
    asks = any(word in _HELP for word in argv)
    argv = [word for word in argv if word not in _HELP]
    if asks:
      purpose = inspect.getdoc(inspect.getmodule(main)) or ''
      config = parse(argv, kinds, extends, get_config) if argv else None
      return print(_help(purpose, kinds, config))
    with progress.phase('starting', lasting=False):
      config = parse(argv, kinds, extends, get_config)
      from specjax.bench import meshes
      from specjax.cli import compilation_cache

      meshes.use_cores(config)
      compilation_cache.switch_on(config)
    return main(config)

  guard(begin, resumes)
