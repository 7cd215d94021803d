"""A small writer of what torch.save writes, without torch."""

import collections
import io
import pathlib
import pickle
import sys
import types
import zipfile
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

STORAGES = {
  np.dtype(np.float64): 'DoubleStorage',
  np.dtype(np.float32): 'FloatStorage',
  np.dtype(np.float16): 'HalfStorage',
  np.dtype(ml_dtypes.bfloat16): 'BFloat16Storage',
  np.dtype(np.uint8): 'ByteStorage',
  np.dtype(np.int8): 'CharStorage',
  np.dtype(np.int32): 'IntStorage',
  np.dtype(np.int64): 'LongStorage',
  np.dtype(np.bool_): 'BoolStorage',
}


def _of_torch(module: str, name: str, kind: type = type) -> Any:
  """What pickle writes as torch's; never called."""
  if kind is type:
    return type(name, (), {'__module__': module})
  made = types.FunctionType((lambda *rest: rest).__code__, {}, name)
  made.__module__, made.__qualname__ = module, name
  return made


_TYPES = {name: _of_torch('torch', name) for name in STORAGES.values()}
_FUNCTIONS = {
  name: _of_torch('torch._utils', name, types.FunctionType)
  for name in ('_rebuild_tensor_v2', '_rebuild_parameter')
}


class _Storage:
  def __init__(self, key, array):
    self.key, self.array = key, array


class _Pickler(pickle.Pickler):
  """Arrays become tensors; views of one array share its storage."""

  def __init__(self, file, storages: dict[str, np.ndarray], parameters: bool):
    super().__init__(file, 2)
    self.storages, self.parameters, self.keys = storages, parameters, {}

  def reducer_override(self, value):
    if not isinstance(value, np.ndarray):
      return NotImplemented
    base = value
    while isinstance(base.base, np.ndarray):
      base = base.base
    key = self.keys.setdefault(id(base), str(len(self.keys)))
    self.storages[key] = base
    offset = value.__array_interface__['data'][0]
    offset -= base.__array_interface__['data'][0]
    strides = tuple(step // value.itemsize for step in value.strides)
    args = (
      _Storage(key, base),
      offset // value.itemsize,
      value.shape,
      strides,
      False,
      collections.OrderedDict(),
    )
    tensor = _Rebuilt(args)
    if not self.parameters:
      return _FUNCTIONS['_rebuild_tensor_v2'], args
    more = True, collections.OrderedDict()
    return _FUNCTIONS['_rebuild_parameter'], (tensor, *more)

  def persistent_id(self, value):
    if not isinstance(value, _Storage):
      return None
    kind = _TYPES[STORAGES[value.array.dtype]]
    return 'storage', kind, value.key, 'cpu', value.array.size


class _Rebuilt:
  """A tensor inside a parameter."""

  def __init__(self, args):
    self.args = args

  def __reduce__(self):
    return _FUNCTIONS['_rebuild_tensor_v2'], self.args


def save(
  path: pathlib.Path,
  content: Any,
  parameters: bool = False,
  order: str = 'little',
) -> None:
  """Writes arrays by name as torch.save writes tensors by name."""
  modules = {name: types.ModuleType(name) for name in ('torch', 'torch._utils')}
  vars(modules['torch']).update(_TYPES, _utils=modules['torch._utils'])
  vars(modules['torch._utils']).update(_FUNCTIONS)
  storages: dict[str, np.ndarray] = {}
  text = io.BytesIO()
  if isinstance(content, dict):
    content = collections.OrderedDict(content)
    content._metadata = collections.OrderedDict({'': {'version': 1}})
  with mock.patch.dict(sys.modules, modules):
    _Pickler(text, storages, parameters).dump(content)
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('archive/data.pkl', text.getvalue())
    archive.writestr('archive/byteorder', order)
    for key, array in storages.items():
      archive.writestr(f'archive/data/{key}', array.tobytes())
    archive.writestr('archive/version', '3\n')
