"""Starts a program in several processes of this machine.

  python -m experiments.launch --processes 2 --devices 4 -- \\
    python -m experiments.run --config configs/quickstart.py \\
    --config.mesh.data=4 --config.mesh.model=2 --config.batch=4

Each process gets its number and the address of the first, and simulates so
many CPU devices. This is how a run over several hosts is tried at home; on
real hosts, start the program on each with these flags, or, on Cloud TPU, with
--config.mesh.processes=0 alone.
"""

import os
import shutil
import socket
import subprocess
import time

from experiments.errors import need
from experiments.setup import command

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
  """Runs a command in every process; returns the first bad exit status."""
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
  try:
    while any(p.poll() is None for p in started):
      if any(p.poll() for p in started):
        for p in started:
          p.wait(_GRACE)
      time.sleep(0.05)
  except subprocess.TimeoutExpired:
    pass
  finally:
    for p in started:
      if p.poll() is None:
        p.terminate()
        p.wait()
  return next((p.returncode for p in started if p.returncode), 0)


def main() -> int:
  parser = command.Parser('Starts a program in several processes.')
  parser.add_argument('--processes', type=int, default=2)
  parser.add_argument('--devices', type=int, default=4, help='of each process')
  parser.add_argument('command', nargs='+', help='after --')
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
