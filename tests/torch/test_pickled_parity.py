"""Files that torch.save wrote, against what torch reads of them."""

import contextlib

import numpy as np
import pytest

from specjax.checkpoints import CheckpointError
from specjax.checkpoints.files import open_tensors

torch = pytest.importorskip('torch')

pytestmark = pytest.mark.parity


def read(folder):
  with contextlib.ExitStack() as stack:
    tensors = open_tensors(folder, stack, of_head=True)
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


@pytest.mark.parametrize('content', ['module', 'legacy'])
def test_other_content_is_refused(tmp_path, content):
  path = tmp_path / 'head.pt'
  if content == 'module':
    torch.save(torch.nn.Linear(2, 2), path)
    message = r'names torch\.nn\.modules\.linear\.Linear'
  else:
    x = {'x': torch.zeros(2)}
    torch.save(x, path, _use_new_zipfile_serialization=False)
    message = 'is no zip as torch.save has written since torch 1.6'
  with pytest.raises(CheckpointError, match=message):
    read(tmp_path)
