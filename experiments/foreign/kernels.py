"""Runs the source of Triton kernels as plain Python, on arrays of numpy.

A kernel's function is called once for each program of its grid, with pointers
into the arrays. Sizes of blocks are cut, which changes no result.
"""

import functools
import inspect
import itertools
import sys
import types

import numpy as np

_BLOCK = 8  # tokens that a kernel reads at once, at most


class _Values(np.ndarray):
  """An array that is cast as those of Triton are."""

  def to(self, dtype):
    return self.astype(dtype)


def _values(x, dtype=None) -> _Values:
  return np.asarray(x, dtype).view(_Values)


class _Pointer:
  def __init__(self, array, at=0):
    self.array, self.at = array, at
    self.dtype = types.SimpleNamespace(element_ty=array.dtype)

  def __add__(self, more):
    return _Pointer(self.array, self.at + np.asarray(more))

  def __sub__(self, less):
    return self + -np.asarray(less)


def _load(pointer, mask=True, other=0):
  found = pointer.array[np.where(mask, pointer.at, 0)]
  return _values(np.where(mask, found, found.dtype.type(other)))


def _store(pointer, value, mask=True):
  at, value, mask = np.broadcast_arrays(pointer.at, value, mask)
  pointer.array[at[mask]] = value[mask]


def _max(x, axis=0, return_indices=False):
  best = _values(x.max(axis))
  return (best, _values(x.argmax(axis))) if return_indices else best


_program: list[int] = []
language = types.ModuleType('triton.language')
vars(language).update(
  load=_load,
  store=_store,
  max=_max,
  program_id=lambda axis: _program[axis],
  arange=lambda a, b: _values(range(a, b)),
  zeros=lambda shape, dtype: _values(np.zeros(shape), dtype),
  full=lambda shape, value, dtype: _values(np.full(shape, value), dtype),
  sum=lambda x, axis=0: _values(x.sum(axis)),
  cumsum=lambda x, axis=0: _values(x.cumsum(axis)),
  argmax=lambda x, axis=0: _values(x.argmax(axis)),
  where=lambda c, a, b: _values(np.where(c, a, b)),
  minimum=lambda a, b: _values(np.minimum(a, b)),
  maximum=lambda a, b: _values(np.maximum(a, b)),
  static_range=range,
  constexpr=object,
  int32=np.int32,
  float32=np.float32,
  float64=np.float64,
)


class _Kernel:
  def __init__(self, function):
    self.function = function

  def __getitem__(self, grid):
    return functools.partial(self._run, grid)

  def _run(self, grid, *given, num_warps=0, **constants):
    del num_warps  # Unused.
    bound = inspect.signature(self.function).bind(*given, **constants)
    for name, x in bound.arguments.items():
      if hasattr(x, 'numpy'):
        assert x.is_contiguous()
        bound.arguments[name] = _Pointer(x.numpy().reshape(-1))
      elif name.startswith('BLOCK') and not isinstance(x, bool):
        bound.arguments[name] = min(x, _BLOCK)
    for program in itertools.product(*map(range, grid)):
      _program[:] = program
      self.function(*bound.args, **bound.kwargs)


def _jit(function=None, **options):
  del options  # Unused.
  return _Kernel if function is None else _Kernel(function)


triton = types.ModuleType('triton')
vars(triton).update(
  jit=_jit,
  language=language,
  next_power_of_2=lambda n: 1 << (n - 1).bit_length(),
)


def install() -> None:
  """Puts this module in the place of Triton."""
  sys.modules |= {'triton': triton, 'triton.language': language}
