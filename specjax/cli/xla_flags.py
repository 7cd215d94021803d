"""Flags with which XLA compiles many tiny programs faster, on a CPU."""

import os
import subprocess
import sys

_FLAGS = 'XLA_FLAGS'
# Loops of tiny models gain nothing from these emitters.
FAST = '--xla_cpu_use_fusion_emitters=false'


def add(flags: str) -> bool:
  """Adds flags to those of XLA, before JAX computes anything; whether it could.

  A version of XLA that does not know a flag ends at its first look, hence a
  process of its own, which takes two seconds.
  """
  wanted = f'{os.environ.get(_FLAGS, "")} {flags}'.strip()
  known = subprocess.run(
    [sys.executable, '-c', 'import jax; jax.devices()'],
    env=os.environ | {_FLAGS: wanted},
    capture_output=True,
    check=False,
  )
  if known.returncode == 0:
    os.environ[_FLAGS] = wanted
  return known.returncode == 0
