"""Checkpoints as programs that train write them, and trees of arrays."""

import flax.traverse_util
import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors import numpy as safetensors

import specjax
from specjax import checkpoints
from tests.support import directories, tiny


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  """A directory of Hugging Face, its config and its tensors."""
  folder = tmp_path_factory.mktemp('written')
  tiny.write_pair(folder)
  directory = folder / 'target'
  tensors = safetensors.load_file(directory / directories.WEIGHTS)
  return directory, directories.read_config(directory), tensors


def _same(made, directory) -> None:
  loaded = specjax.load(directory, layout='whole')
  assert made.model == loaded.model
  directories.assert_same(made.params, loaded.params)


@pytest.mark.parametrize('way', ['flat', 'nested', 'restored'])
def test_a_tree_is_the_target_of_its_directory(written, way, tmp_path):
  directory, config, tree = written
  if way != 'flat':
    names = {tuple(name.split('.')): x for name, x in tree.items()}
    tree = flax.traverse_util.unflatten_dict(names)
  if way == 'restored':
    with ocp.StandardCheckpointer() as checkpointer:
      checkpointer.save(tmp_path / 'orbax', tree)
      checkpointer.wait_until_finished()
      tree = checkpointer.restore(tmp_path / 'orbax')
  _same(specjax.from_pytree(config, tree), directory)


@pytest.mark.parametrize(
  ('change', 'named'),
  [
    ({'model.norm.weight': None}, 'model.norm.weight'),
    ({'model.norm.bias': np.zeros(32)}, 'model.norm.bias'),
    ({'model.norm.weight': np.zeros(31)}, 'model.norm.weight'),
    ({'model.norm.weight': np.zeros(32, int)}, 'model.norm.weight'),
    ({'model.norm.weight': 'zeros'}, 'model.norm.weight'),
  ],
)
def test_a_tree_of_another_model_is_refused(written, change, named):
  _, config, tree = written
  with pytest.raises(checkpoints.CheckpointError, match=named):
    specjax.from_pytree(config, tree | change)
