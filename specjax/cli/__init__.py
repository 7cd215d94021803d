"""The console command `specjax`: one program for each word behind it."""

import contextlib
import difflib
import gc
import glob
import importlib
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

# What each program is for, in the order of `specjax --help`.
COMMANDS = {
  'run': 'measure acceptance and speed of drafters',
  'predict': 'name the best drafter and its draft length',
  'explain': 'say where the time of a step goes, and what would help',
  'certify': "prove that texts have the target's distribution",
  'generate': 'show one text and where each token came from',
  'chat': 'talk to a target in the terminal',
  'serve': 'serve OpenAI clients',
  'train': 'train a draft model or a head',
  'answers': 'let the target answer prompts, as data to train on',
  'export': 'write a trained head in the format of other engines',
  'probe': 'check that a head is read as it was trained',
  'parity': 'explain where greedy texts part',
  'inspect': 'describe a pair of models without reading weights',
  'compiled': 'estimate the speed on a device that is not there',
  'compare': 'compare the results of two runs',
  'report': 'make the page of a run again',
  'new': 'begin a drafter, a rule or a policy of your own',
}
INTERRUPTED = 130  # as a shell has it: 128 and the number of the signal
_PATIENCE = 1.0  # seconds in which an interrupt should end a program
_GARBAGE = 100_000  # objects after which garbage is looked for


def usage() -> str:
  """Returns the text of `specjax --help`."""
  lines = [f'  {name:<9} {purpose}' for name, purpose in COMMANDS.items()]
  return '\n'.join(
    [
      'usage: specjax COMMAND [CONFIG] [--FIELD=VALUE ...]',
      '',
      *lines,
      '',
      'CONFIG is a file, or the name of a shipped one, such as quickstart or',
      'pair. specjax COMMAND --help lists the fields.',
    ]
  )


def stop(more: str = '') -> NoReturn:
  """Ends the process at once with a line that says that it was interrupted."""
  clear = '\r\x1b[K' if sys.stderr.isatty() else ''
  print(f'{clear}interrupted{more}', file=sys.stderr, flush=True)
  with contextlib.suppress(OSError):
    sys.stdout.flush()
  os._exit(INTERRUPTED)


@contextlib.contextmanager
def _stopping() -> Iterator[None]:
  """Ends the process after SIGINT though the main thread waits for a device.

  A KeyboardInterrupt that is lost in a callback, as of garbage collection, is
  raised again. A program that goes on after SIGINT says so by
  `signal.set_wakeup_fd(-1)`.
  """
  heard, wakes = os.pipe()
  os.set_blocking(wakes, False)
  show = sys.unraisablehook

  def watch() -> None:
    while (number := os.read(heard, 1)) and number[0] != signal.SIGINT:
      pass
    if number:
      time.sleep(_PATIENCE)
      stop()

  def interrupt_again(lost) -> None:
    if not issubclass(lost.exc_type, KeyboardInterrupt):
      return show(lost)
    again = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
    again.start()  # It comes when the callback has ended.

  before = signal.set_wakeup_fd(wakes)
  threading.Thread(target=watch, daemon=True).start()
  sys.unraisablehook = interrupt_again
  try:
    yield
  finally:
    sys.unraisablehook = show
    signal.set_wakeup_fd(before)
    os.close(wakes)


def _compiles_only() -> bool:
  """Returns true if only the compilers of accelerators are here.

  JAX would start them, and they complain that there is no device.
  """
  compilers = 'libtpu', 'jax_cuda13_plugin'
  nodes = 'nvidia*', 'dxg', 'kfd', 'accel*', 'vfio/[0-9]*'
  has_device = any(glob.glob(f'/dev/{node}') for node in nodes)
  return not has_device and any(map(importlib.util.find_spec, compilers))


def main(name: str | None = None) -> None:
  """Runs a program on `sys.argv`.

  Args:
    name: of the program; None reads it from the command line.
  """
  if name is None:
    _, *words = sys.argv
    if not words or words[0] in ('--help', '-h', 'help'):
      print(usage())
      raise SystemExit(0 if words else 1)
    name, *rest = words
    if name == '--version':
      from specjax import __version__

      print(f'specjax {__version__}')
      return
    if name not in COMMANDS:
      close = difflib.get_close_matches(name, COMMANDS)
      guess = f' (did you mean {close[0]}?)' if close else ''
      known = ', '.join(COMMANDS)
      print(f'error: no command {name!r}{guess}: {known}', file=sys.stderr)
      raise SystemExit(1)
    sys.argv = [f'specjax {name}', *rest]
    if '' not in sys.path:
      sys.path.insert(0, '')  # Modules of the user lie where it is started.
  # Else transformers says on stderr that there is no torch.
  os.environ.setdefault('TRANSFORMERS_NO_ADVISORY_WARNINGS', '1')
  if _compiles_only():
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  # Tracing makes many objects, and almost all of them stay.
  gc.set_threshold(_GARBAGE)
  from specjax.cli import progress

  before = signal.signal(signal.SIGINT, lambda *_: stop())
  with progress.phase('starting', lasting=False):
    program = importlib.import_module(f'specjax.programs.{name}')
  signal.signal(signal.SIGINT, before)
  with _stopping():
    program.start()
