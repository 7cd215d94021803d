"""Programs in processes of their own."""

import os
import pathlib
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
