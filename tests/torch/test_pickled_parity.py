"""Files that torch.save wrote, against what torch reads of them."""

import json
import os

import numpy as np
import pytest

from specjax.checkpoints.files import open_tensors
from tests.support.directories import refused

torch = pytest.importorskip('torch')

pytestmark = pytest.mark.parity


def read(folder):
  tensors = open_tensors(folder, of_head=True)
  return {
    name: x.read((slice(None),) * len(x.shape)) for name, x in tensors.items()
  }


def test_a_module_is_read_as_torch_reads_it(tmp_path):
  torch.manual_seed(0)
  module = torch.nn.Sequential(
    torch.nn.Linear(5, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 2)
  )
  module[2].to(torch.bfloat16)
  module.register_buffer('ids', torch.arange(7))
  module.register_buffer('seen', torch.arange(7) > 3)
  content = module.state_dict()
  whole = torch.randn(6, 4)
  content |= {'turned': whole.T, 'part': whole[2:, 1:], 'one': whole[1, 1]}
  content['half'] = torch.nn.Parameter(whole.half())
  torch.save(content, tmp_path / 'pytorch_model.bin')
  found = read(tmp_path)
  assert found.keys() == content.keys()
  for name, tensor in content.items():
    expected = tensor.detach().to(torch.float64).numpy()
    np.testing.assert_array_equal(found[name].astype(np.float64), expected)
    kind = str(tensor.dtype).removeprefix('torch.')
    assert found[name].dtype.name == kind


def test_a_part_is_read_alone(tmp_path):
  whole = torch.randn(6, 4).bfloat16()
  torch.save({'x': whole}, tmp_path / 'head.pt')
  tensor = open_tensors(tmp_path, of_head=True)['x']
  assert (tensor.shape, tensor.dtype) == ((6, 4), 'BF16')
  part = tensor.read((slice(1, 3), slice(None)))
  np.testing.assert_array_equal(part.astype(float), whole[1:3].double())
  assert part.base is None  # Not a view of the file.


def test_shards_are_read_by_their_index(tmp_path):
  torch.save({'a': torch.zeros(2)}, tmp_path / 'one.bin')
  torch.save({'b': torch.ones(3)}, tmp_path / 'two.bin')
  index = {'weight_map': {'a': 'one.bin', 'b': 'two.bin'}}
  place = tmp_path / 'pytorch_model.bin.index.json'
  place.write_text(json.dumps(index))
  np.testing.assert_array_equal(read(tmp_path)['b'], np.ones(3))


class Call:
  """Unpickling it calls a function."""

  def __reduce__(self):
    return os.mkdir, ('called',)


@pytest.mark.parametrize(
  'content',
  [
    torch.nn.Linear(2, 2),
    {'x': torch.zeros(2), 'y': Call()},
    {'steps': 3},
    {'state_dict': {'x': torch.zeros(2)}},
    {'x': torch.zeros(2).to_sparse()},
    [torch.zeros(2)],
    {},
  ],
  ids=['module', 'code', 'number', 'nested', 'sparse', 'list', 'empty'],
)
def test_other_content_is_refused_and_no_code_is_run(
  tmp_path, monkeypatch, content
):
  monkeypatch.chdir(tmp_path)
  torch.save(content, tmp_path / 'head.pt')
  refused(r'head\.pt', read, tmp_path)
  assert not (tmp_path / 'called').exists()


@pytest.mark.parametrize('keep', [0, 1, 20, 300, -30])
def test_truncated_files_are_refused(tmp_path, keep):
  path = tmp_path / 'head.pt'
  torch.save({'x': torch.zeros(40, 4)}, path)
  path.write_bytes(path.read_bytes()[:keep])
  refused('torch does not read', read, tmp_path)


def test_older_formats_are_refused(tmp_path):
  x = {'x': torch.zeros(2)}
  path = tmp_path / 'head.pt'
  torch.save(x, path, _use_new_zipfile_serialization=False)
  refused('torch does not read', read, tmp_path)
