"""Weights as torch.save writes them: what is read, and what is refused."""

import contextlib
import json
import os
import pathlib
import pickle
import re
import zipfile

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from specjax.checkpoints import CheckpointError
from specjax.checkpoints.files import open_tensors
from tests.support import torch_files

RANDOM = np.random.default_rng(0)


def read(folder: pathlib.Path):
  """All tensors of a directory, and what their headers say."""
  with contextlib.ExitStack() as stack:
    tensors = open_tensors(folder, stack, of_head=True)
    whole = {
      name: tensor.read((slice(None),) * len(tensor.shape))
      for name, tensor in tensors.items()
    }
  return whole, {name: (x.shape, x.dtype) for name, x in tensors.items()}


@pytest.mark.parametrize('parameters', [False, True])
@pytest.mark.parametrize('dtype', torch_files.STORAGES, ids=str)
def test_tensors_are_read_as_they_were_written(tmp_path, dtype, parameters):
  array = RANDOM.integers(0, 2 if dtype.name == 'bool' else 100, (5, 3)).astype(
    dtype
  )
  content = {'a.weight': array, 'one': array[1:2, 1].reshape(()).copy()}
  torch_files.save(tmp_path / 'pytorch_model.bin', content, parameters)
  whole, headers = read(tmp_path)
  assert whole['a.weight'].dtype == dtype
  np.testing.assert_array_equal(whole['a.weight'], array)
  np.testing.assert_array_equal(whole['one'], array[1, 1])
  assert headers['a.weight'][0] == (5, 3)
  named = {'float32': 'F32', 'bfloat16': 'BF16', 'int64': 'I64', 'bool': 'BOOL'}
  assert headers['one'] == ((), named.get(dtype.name, headers['one'][1]))


def test_views_of_a_storage_keep_their_strides_and_offset(tmp_path):
  whole = RANDOM.normal(size=(6, 4)).astype(np.float32)
  views = {'turned': whole.T, 'later': whole[2:], 'every': whole[::2, 1:]}
  torch_files.save(tmp_path / 'head.pt', views)
  read_back, _ = read(tmp_path)
  for name, view in views.items():
    np.testing.assert_array_equal(read_back[name], view)


def test_a_part_is_read_alone(tmp_path):
  array = RANDOM.normal(size=(6, 4)).astype(ml_dtypes.bfloat16)
  torch_files.save(tmp_path / 'pytorch_model.bin', {'x': array})
  with contextlib.ExitStack() as stack:
    tensor = open_tensors(tmp_path, stack, of_head=True)['x']
    part = tensor.read((slice(1, 3), slice(None)))
  np.testing.assert_array_equal(part, array[1:3])
  assert part.base is None  # Not a view of the file.


def test_shards_are_read_by_their_index(tmp_path):
  a, b = RANDOM.normal(size=(2, 3, 2)).astype(np.float32)
  torch_files.save(tmp_path / 'one.bin', {'a': a})
  torch_files.save(tmp_path / 'two.bin', {'b': b})
  index = {'weight_map': {'a': 'one.bin', 'b': 'two.bin'}}
  place = tmp_path / 'pytorch_model.bin.index.json'
  place.write_text(json.dumps(index))
  np.testing.assert_array_equal(read(tmp_path)[0]['b'], b)
  (tmp_path / 'two.bin').unlink()
  with pytest.raises(CheckpointError, match=r'two\.bin of pytorch_model\.bin'):
    read(tmp_path)


class Call:
  """Unpickling it calls a function."""

  def __reduce__(self):
    return os.mkdir, ('called',)


def test_code_is_named_and_not_run(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  torch_files.save(tmp_path / 'head.pt', {'x': np.zeros(2), 'y': Call()})
  with pytest.raises(CheckpointError, match=r'names \w+\.mkdir'):
    read(tmp_path)
  assert not (tmp_path / 'called').exists()


@pytest.mark.parametrize('name', ['builtins eval', 'os system', 'torch load'])
def test_every_other_name_is_refused(tmp_path, name):
  module, function = name.split()
  torch_files.save(tmp_path / 'head.pt', {'x': np.zeros(2)})
  code = f'c{module}\n{function}\n(S"1"\ntR.'.encode()
  rewrite(tmp_path / 'head.pt', 'archive/data.pkl', code)
  with pytest.raises(CheckpointError, match=f'names {module}.{function}'):
    read(tmp_path)


def rewrite(path, entry, data):
  """Replaces an entry of a zip."""
  with zipfile.ZipFile(path) as archive:
    rest = {name: archive.read(name) for name in archive.namelist()}
  with zipfile.ZipFile(path, 'w') as archive:
    for name, old in rest.items():
      archive.writestr(name, data if name == entry else old)


def test_a_function_cannot_be_changed_by_a_file(tmp_path):
  """BUILD would set attributes of what a name stands for."""
  path = tmp_path / 'head.pt'
  torch_files.save(path, {'x': np.zeros(2)})
  code = b"ctorch._utils\n_rebuild_tensor_v2\n}S'shape'\nI1\nsb."
  rewrite(path, 'archive/data.pkl', code)
  with pytest.raises(CheckpointError, match='truncated or damaged'):
    read(tmp_path)


@pytest.mark.parametrize('keep', [0, 1, 20, 300, -30])
def test_truncated_files_are_refused(tmp_path, keep):
  path = tmp_path / 'pytorch_model.bin'
  torch_files.save(path, {'x': np.zeros((40, 4), np.float32)})
  path.write_bytes(path.read_bytes()[:keep])
  with pytest.raises(CheckpointError, match=r'truncated|damaged'):
    read(tmp_path)


def test_storages_must_hold_their_tensors(tmp_path):
  path = tmp_path / 'pytorch_model.bin'
  torch_files.save(path, {'x': np.zeros((40, 4), np.float32)})
  rewrite(path, 'archive/data/0', bytes(8))
  with pytest.raises(CheckpointError, match='the storage 0 is too short'):
    read(tmp_path)


@pytest.mark.parametrize(
  ('content', 'options', 'message'),
  [
    ([np.zeros(2)], {}, 'no dictionary of tensors'),
    ({'state_dict': {'x': np.zeros(2)}}, {}, 'more than tensors by name'),
    ({'steps': 3}, {}, 'more than tensors by name'),
    ({'x': np.zeros(2)}, {'order': 'big'}, 'big-endian'),
  ],
)
def test_what_is_no_table_of_tensors_is_refused(
  tmp_path, content, options, message
):
  torch_files.save(tmp_path / 'head.pt', content, **options)
  with pytest.raises(CheckpointError, match=message):
    read(tmp_path)


@pytest.mark.parametrize('data', [pickle.dumps({'x': 1}, 2), b'', b'#!'])
def test_older_and_other_formats_are_refused(tmp_path, data):
  path = tmp_path / 'pytorch_model.bin'
  path.write_bytes(data)
  message = f'^{re.escape(str(path))} is no zip as torch.save'
  with pytest.raises(CheckpointError, match=message):
    read(tmp_path)


def test_models_are_read_from_safetensors_alone(tmp_path):
  torch_files.save(tmp_path / 'pytorch_model.bin', {'x': np.zeros(2)})
  with (
    contextlib.ExitStack() as stack,
    pytest.raises(CheckpointError, match='unpickling can run any code'),
  ):
    open_tensors(tmp_path, stack)


FLOATS = (
  b'(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpu'
)
REBUILD = b'}X\x01\0\0\0xctorch._utils\n_rebuild_tensor_v2\n('


@pytest.mark.parametrize(
  ('code', 'message'),
  [
    # Storage of 4 numbers, offset, shape and strides.
    (FLOATS + b'I4\ntQI3\n(I2\nt(I-1\nt', 'sizes that are no whole numbers'),
    (FLOATS + b'I4\ntQI-1\n(I2\nt(I1\nt', 'sizes that are no whole numbers'),
    (FLOATS + b'I4\ntQI1\n(I4\nt(I1\nt', 'ends behind its storage 0'),
    (FLOATS + b'I-4\ntQI0\n(I0\nt(I1\nt', 'stands for a storage is none'),
    (FLOATS + b'I99\ntQI0\n(I4\nt(I1\nt', 'storage 0 is too short'),
    (FLOATS + b'I4\ntQI0\n(I1048576\nI9\nt(I0\nI0\nt', 'repeats its storage 0'),
  ],
)
def test_tensors_lie_within_their_storage(tmp_path, code, message):
  path = tmp_path / 'head.pt'
  torch_files.save(path, {'x': np.zeros(4, np.float32)})
  rewrite(path, 'archive/data.pkl', REBUILD + code + b'I00\n}tRs.')
  with pytest.raises(CheckpointError, match=message):
    read(tmp_path)


@pytest.mark.parametrize('code', [b'}r\xf0\xff\xff\xff.', b'}p99999999999\n.'])
def test_a_pickle_cannot_ask_for_gigabytes(tmp_path, code):
  torch_files.save(tmp_path / 'head.pt', {'x': np.zeros(2)})
  rewrite(tmp_path / 'head.pt', 'archive/data.pkl', code)
  with pytest.raises(CheckpointError, match='remembers at place'):
    read(tmp_path)


@pytest.mark.parametrize('name', ['data.pkl', 'byteorder'])
def test_nothing_is_decompressed(tmp_path, name):
  path = tmp_path / 'head.pt'
  torch_files.save(path, {'x': np.zeros(2)})
  with zipfile.ZipFile(path) as archive:
    rest = {each: archive.read(each) for each in archive.namelist()}
  with zipfile.ZipFile(path, 'w') as archive:
    for each, data in rest.items():
      small = zipfile.ZIP_DEFLATED if each.endswith(name) else None
      archive.writestr(each, data, small)
  with pytest.raises(CheckpointError, match=f'{name} is compressed'):
    read(tmp_path)


def test_a_name_is_shown_in_one_line(tmp_path):
  torch_files.save(tmp_path / 'head.pt', {'x': np.zeros(2)})
  code = b'\x80\x04X\x05\0\0\0a\nb\x1b[X\x01\0\0\0c\x93.'
  rewrite(tmp_path / 'head.pt', 'archive/data.pkl', code)
  with pytest.raises(CheckpointError, match=r'names a\\nb\\x1b\[\.c, which'):
    read(tmp_path)


def test_safetensors_are_read_where_both_forms_are_there(tmp_path):
  torch_files.save(tmp_path / 'head.pt', {'x': np.zeros(2, np.float32)})
  safetensors.numpy.save_file({'x': np.ones(2)}, tmp_path / 'head.safetensors')
  np.testing.assert_array_equal(read(tmp_path)[0]['x'], np.ones(2))
