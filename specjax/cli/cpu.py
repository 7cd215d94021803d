"""The processor of this machine, and flags of XLA for it."""

import os
import platform
import subprocess
import sys

import numpy as np

_FLAGS = 'XLA_FLAGS'
# With this flag many tiny programs compile faster; their loops gain nothing
# from what it leaves out.
FAST_XLA = '--xla_cpu_use_fusion_emitters=false'
# numpy's names of vector instructions, the widest first.
_VECTORS = {
  'AVX512F': 'AVX-512',
  'X86_V4': 'AVX-512',
  'AVX2': 'AVX2',
  'X86_V3': 'AVX2',
  'AVX': 'AVX',
  'ASIMD': 'NEON',
  'NEON': 'NEON',
}


def facts() -> dict[str, str]:
  """Returns what Linux says about the first one; elsewhere nothing."""
  try:
    with open('/proc/cpuinfo') as file:
      pairs = [line.partition(':')[::2] for line in file if ':' in line]
  except OSError:
    return {}
  return {name.strip(): value.strip() for name, value in reversed(pairs)}


def vectors() -> str:
  """Returns the widest vectors that programs may use, or '' if unknown.

  Kernels are chosen by these. Linux may list others, which a virtual machine
  or a user hides from programs.
  """
  simd = np.show_config(mode='dicts').get('SIMD Extensions', {})
  has = {*simd.get('baseline', ()), *simd.get('found', ())}
  return next((name for flag, name in _VECTORS.items() if flag in has), '')


def name() -> str:
  """Returns its name and its widest vectors."""
  known = platform.processor() or platform.machine()
  widest = vectors()
  return facts().get('model name', known) + (f', {widest}' if widest else '')


def add_xla_flags(flags: str) -> bool:
  """Adds flags to those of XLA; call it before JAX computes anything.

  A version of XLA that does not know a flag ends at its first look, so a
  process of its own tries the flags, which takes two seconds. Flags that are
  set already are not tried.

  Returns:
    Whether XLA knows them; otherwise nothing is changed.
  """
  given = os.environ.get(_FLAGS, '')
  if {*flags.split()} <= {*given.split()}:
    return True
  wanted = f'{given} {flags}'.strip()
  known = subprocess.run(
    [sys.executable, '-c', 'import jax; jax.devices()'],
    env=os.environ | {_FLAGS: wanted},
    capture_output=True,
    check=False,
  )
  if known.returncode == 0:
    os.environ[_FLAGS] = wanted
  return known.returncode == 0
