"""The processor that this is run on."""

import platform

import numpy as np

# What numpy calls instructions for vectors, the widest first.
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
  """What Linux says of the first one, by name; elsewhere nothing."""
  try:
    with open('/proc/cpuinfo') as file:
      pairs = [line.partition(':')[::2] for line in file if ':' in line]
  except OSError:
    return {}
  return {name.strip(): value.strip() for name, value in reversed(pairs)}


def vectors() -> str:
  """The widest vectors that a program is told of; '' where nobody knows.

  Kernels are chosen by these. Linux may list others, which a virtual machine
  or a user hides from programs.
  """
  simd = np.show_config(mode='dicts').get('SIMD Extensions', {})
  has = {*simd.get('baseline', ()), *simd.get('found', ())}
  return next((name for flag, name in _VECTORS.items() if flag in has), '')


def name() -> str:
  """Its name and its widest vectors."""
  known = platform.processor() or platform.machine()
  widest = vectors()
  return facts().get('model name', known) + (f', {widest}' if widest else '')
