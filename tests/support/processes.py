"""Programs in processes of their own."""

import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def start(*arguments, **environment) -> subprocess.Popen:
  """`python` with some arguments, whose errors can be read."""
  return subprocess.Popen(
    [sys.executable, *map(str, arguments)],
    cwd=ROOT,
    env=os.environ | environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def run(program, *flags, **environment) -> subprocess.CompletedProcess:
  """A module of the project that has ended; whoever calls looks how."""
  process = start('-m', program, *flags, **environment)
  out, err = process.communicate(timeout=900)
  return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def free_port() -> int:
  with socket.socket() as taken:
    taken.bind(('127.0.0.1', 0))
    return taken.getsockname()[1]


def two(program, *flags, **environment) -> list[subprocess.CompletedProcess]:
  """A module of the project in two processes that work together."""
  place = f'--config.mesh.coordinator=127.0.0.1:{free_port()}'
  flags = '-m', program, *flags, '--config.mesh.processes=2', place
  started = [
    start(*flags, f'--config.mesh.process={i}', **environment) for i in range(2)
  ]
  said = [process.communicate(timeout=900) for process in started]
  return [
    subprocess.CompletedProcess(process.args, process.returncode, *output)
    for process, output in zip(started, said, strict=True)
  ]
