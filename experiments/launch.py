"""Starts a program in several processes of this machine.

  python -m experiments.launch --processes 2 --devices 4 -- \\
    python -m experiments.run --config configs/quickstart.py \\
    --config.mesh.data=4 --config.mesh.model=2 --config.batch=4

Each process gets its number and the address of the first, and simulates so
many CPU devices. This is how a run over several hosts is tried at home; on
real hosts, start the program on each with these flags, or, on Cloud TPU, with
--config.mesh.processes=0 alone.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time

from specjax.cli import command
from specjax.errors import need

_GRACE = 15  # seconds for the others once one has failed


def free_port() -> int:
  with socket.socket() as taken:
    taken.bind(('127.0.0.1', 0))
    return taken.getsockname()[1]


def environment(devices: int) -> dict[str, str]:
  """That of a process with so many simulated CPU devices."""
  flags = os.environ.get('XLA_FLAGS', '')
  more = f'--xla_force_host_platform_device_count={devices}'
  return os.environ | {'XLA_FLAGS': f'{flags} {more}', 'JAX_PLATFORMS': 'cpu'}


def launch(program: list[str], processes: int, devices: int) -> int:
  """Runs a command in every process.

  Where one fails it says which, and ends the others soon.

  Returns:
    The exit status of the first that failed, or 0.
  """
  flags = [
    f'--config.mesh.processes={processes}',
    f'--config.mesh.coordinator=127.0.0.1:{free_port()}',
  ]
  started = [
    subprocess.Popen(
      [*program, *flags, f'--config.mesh.process={i}'], env=environment(devices)
    )
    for i in range(processes)
  ]

  def failure() -> int | None:
    return next((i for i, p in enumerate(started) if p.poll()), None)

  try:
    while failure() is None and any(p.poll() is None for p in started):
      time.sleep(0.05)
    first = failure()
    if first is None:
      return 0
    status = started[first].returncode
    print(
      f'error: process {first} (of 0 to {processes - 1}) ended with status '
      f'{status}; the others end too',
      file=sys.stderr,
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
      for p in started:
        p.wait(_GRACE)
    return status
  finally:
    for p in started:
      if p.poll() is None:
        p.kill()  # jax catches SIGTERM, as a notice of preemption.
        p.wait()


def main() -> int:
  parser = command.Parser(__doc__)
  parser.add_argument(
    '--processes', type=int, default=2, help='of them, an integer'
  )
  parser.add_argument(
    '--devices', type=int, default=4, help='of each process, an integer'
  )
  parser.add_argument('command', nargs='+', help='the program, after --')
  options = parser.parse_args()
  for name in ('processes', 'devices'):
    if getattr(options, name) < 1:
      parser.error(f'--{name} must be at least 1')
  program = options.command[0]
  need(
    shutil.which(program),
    f'{program!r} is no program: give what is to be started behind --, such as '
    'python -m experiments.run',
  )
  return launch(options.command, options.processes, options.devices)


if __name__ == '__main__':
  command.guard(main)
