"""Weights that torch.save has pickled, read without torch and without trust.

A file of torch.save is a zip of a pickle, `data.pkl`, and of one file of raw
numbers for each storage, `data/KEY`. The pickle names functions that rebuild
tensors from storages. Here such a name is looked up in one small table, and
nothing is imported or called that is not in it: a file can do no more than
describe tensors. Numbers are mapped, and copied when a part of a tensor is
asked for.
"""

import collections
import dataclasses
import io
import math
import mmap
import os
import pickle
import pickletools
import zipfile
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

# Types of storages, as safetensors and numpy call them.
_STORAGES: dict[str, tuple[str, Any]] = {
  'DoubleStorage': ('F64', np.float64),
  'FloatStorage': ('F32', np.float32),
  'HalfStorage': ('F16', np.float16),
  'BFloat16Storage': ('BF16', ml_dtypes.bfloat16),
  'ByteStorage': ('U8', np.uint8),
  'CharStorage': ('I8', np.int8),
  'IntStorage': ('I32', np.int32),
  'LongStorage': ('I64', np.int64),
  'BoolStorage': ('BOOL', np.bool_),
}
_LONGEST = 100  # characters of a name that are shown
_LOCAL_HEADER = 30  # bytes of it in a zip, before two names of given lengths


class _Kind(NamedTuple):
  """The type of a storage; a pickle cannot call it."""

  name: str


class _Storage(NamedTuple):
  """Numbers of one type, `size` of them in the file `key`."""

  kind: _Kind
  key: str
  size: int


class _Stored(NamedTuple):
  """A tensor: a view of a storage."""

  storage: _Storage
  offset: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]


# What stands for a function of torch has no attributes that a pickle could set.
class _Rebuild:
  """Stands for torch._utils._rebuild_tensor_v2."""

  __slots__ = ()

  def __call__(self, storage, offset, shape, strides, *rest) -> _Stored:
    del rest  # Whether gradients are wanted, and hooks.
    sizes = (offset, *shape, *strides)
    if not isinstance(storage, _Storage) or len(shape) != len(strides):
      raise ValueError('a tensor is no view of a storage')
    if not all(type(x) is int and x >= 0 for x in sizes):
      raise ValueError('a tensor has sizes that are no whole numbers from 0 on')
    ends = ((n - 1) * step for n, step in zip(shape, strides, strict=True))
    size = math.prod(shape)
    if size and offset + sum(ends) >= storage.size:
      raise ValueError(f'a tensor ends behind its storage {storage.key}')
    if size > storage.size:  # A few bytes would fill any memory.
      raise ValueError(f'a tensor repeats its storage {storage.key}')
    return _Stored(storage, offset, tuple(shape), tuple(strides))


class _Parameter:
  """Stands for torch._utils._rebuild_parameter."""

  __slots__ = ()

  def __call__(self, tensor, *rest) -> Any:
    del rest  # Whether gradients are wanted, and hooks.
    return tensor


class _Ordered:
  """Stands for collections.OrderedDict."""

  __slots__ = ()

  def __call__(self, pairs=()) -> dict:
    return collections.OrderedDict(pairs)


_KNOWN: dict[tuple[str, str], Any] = {
  ('torch._utils', '_rebuild_tensor_v2'): _Rebuild(),
  ('torch._utils', '_rebuild_parameter'): _Parameter(),
  ('collections', 'OrderedDict'): _Ordered(),
  **{('torch', name): _Kind(name) for name in _STORAGES},
}


class _Refused(ValueError):
  """A file that is whole, and cannot be read here all the same."""


def _check_places(code: bytes) -> None:
  """Refuses a place in the memory of a pickle that takes gigabytes.

  Places are counted from 0, and each is filled by an instruction.
  """
  for instruction, value, _ in pickletools.genops(code):
    if instruction.name.endswith('PUT') and (value or 0) >= len(code):
      raise ValueError(f'its pickle remembers at place {value}')


class _Reader(pickle.Unpickler):
  """Reads `data.pkl`."""

  def find_class(self, module_name: str, global_name: str) -> Any:
    if (module_name, global_name) not in _KNOWN:
      # A name may be anything, such as lines or codes of a terminal.
      name = ascii(f'{module_name}.{global_name}')[1:-1][:_LONGEST]
      raise _Refused(
        f'names {name}, which is not run: only tensors '
        'and plain containers are read; where you trust the file, load it with '
        'torch and write safetensors'
      )
    return _KNOWN[module_name, global_name]

  def persistent_load(self, pid: Any) -> _Storage:
    what, kind, key, _, size = pid
    good = what == 'storage' and isinstance(kind, _Kind)
    sized = type(size) is int and size >= 0
    if not good or type(key) is not str or not sized:
      raise ValueError('what stands for a storage is none')
    return _Storage(kind, key, size)


@dataclasses.dataclass(frozen=True, eq=False)
class Slice:
  """A tensor that is read where it is indexed, as safetensors have it."""

  view: np.ndarray  # of the mapped file
  dtype: str

  def get_shape(self) -> list[int]:
    return list(self.view.shape)

  def get_dtype(self) -> str:
    return self.dtype

  def __getitem__(self, index) -> np.ndarray:
    return np.array(self.view[index])


class File:
  """An open file of torch.save, used as an open safetensors file is.

  Args:
    path: of the file.

  Raises:
    ValueError: it is truncated, of another format, or holds anything but
      tensors by name; says which, and what helps.
    OSError: it cannot be opened.
  """

  def __init__(self, path: str | os.PathLike):
    with open(path, 'rb') as file:
      if file.read(2) != b'PK':
        raise _Refused(
          'is no zip as torch.save has written since torch 1.6, or damaged: '
          'copy it again, or load it with torch and write safetensors'
        )
      try:
        self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._tensors = self._read(file)
      except (_Refused, OSError):
        raise
      # Damaged pickles raise whatever their bytes happen to mean.
      except Exception as error:
        reason = (str(error) or repr(error)).splitlines()[0]
        raise ValueError(
          f'is truncated or damaged ({reason}); copy it again'
        ) from None

  def keys(self) -> list[str]:
    return list(self._tensors)

  def get_slice(self, name: str) -> Slice:
    """A tensor, of which nothing has been read yet."""
    return self._tensors[name]

  def _read(self, file) -> dict[str, Slice]:
    with zipfile.ZipFile(file) as archive:
      entries = {entry.filename: entry for entry in archive.infolist()}
      place = next(
        (name for name in entries if name.endswith('data.pkl')), None
      )
      if place is None:
        raise _Refused('holds no data.pkl: it was not written by torch.save')
      prefix = place.removesuffix('data.pkl')
      order = prefix + 'byteorder'
      for name in {place, order} & entries.keys():
        if entries[name].compress_type != zipfile.ZIP_STORED:
          raise ValueError(f'{name} is compressed, and may be of any size')
      if order in entries and archive.read(order).strip() != b'little':
        raise _Refused('has its bytes in big-endian order: write it anew')
      code = archive.read(place)
    _check_places(code)
    content = _Reader(io.BytesIO(code)).load()
    if not isinstance(content, dict):
      raise _Refused('holds no dictionary of tensors')
    stored = {n: x for n, x in content.items() if isinstance(x, _Stored)}
    nested = [n for n, x in content.items() if isinstance(x, dict)]
    if not stored or nested or not all(type(n) is str for n in stored):
      raise _Refused(
        'holds more than tensors by name: write those alone with torch.save, '
        'or as safetensors'
      )
    return {
      name: self._slice(
        tensor, entries.get(f'{prefix}data/{tensor.storage.key}')
      )
      for name, tensor in stored.items()
    }

  def _slice(self, tensor: _Stored, entry: zipfile.ZipInfo | None) -> Slice:
    """A view of a storage where it lies in the file, uncompressed."""
    storage = tensor.storage
    kind, dtype = _STORAGES[storage.kind.name]
    size = np.dtype(dtype).itemsize
    if entry is None or entry.compress_type != zipfile.ZIP_STORED:
      raise ValueError(f'the storage {storage.key} is missing or compressed')
    if entry.file_size < storage.size * size:
      raise ValueError(f'the storage {storage.key} is too short')
    start = entry.header_offset + _LOCAL_HEADER
    names = np.frombuffer(self._bytes, '<u2', 2, start - 4)
    start += int(names.sum())
    flat = np.frombuffer(self._bytes, dtype, storage.size, start)
    strides = [size * step for step in tensor.strides]
    view = np.lib.stride_tricks.as_strided(
      flat[tensor.offset :], tensor.shape, strides, writeable=False
    )
    return Slice(view, kind)
