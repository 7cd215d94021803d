"""Checkpoints as programs that train write them, and trees of arrays."""

import json

import flax.traverse_util
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors import numpy as safetensors

import specjax
from specjax import checkpoints
from tests.support import tiny


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  """A directory of Hugging Face, its config and its tensors."""
  folder = tmp_path_factory.mktemp('written')
  tiny.write_pair(folder)
  directory = folder / 'target'
  config = json.loads((directory / 'config.json').read_text())
  return (
    directory,
    config,
    safetensors.load_file(directory / 'model.safetensors'),
  )


def _same(made, directory) -> None:
  loaded = specjax.load(directory, layout='whole')
  assert made.model == loaded.model
  jax.tree.map(np.testing.assert_array_equal, made.params, loaded.params)


def write_shards(folder, config, tensors, most: int) -> list[str]:
  """Writes a checkpoint as MaxText does.

  Tensors are sorted by name, a shard takes as many as it holds, and the index
  has the bytes of all. There is no generation_config.json.
  """
  shards = [{}]
  for name, x in sorted(tensors.items()):
    if (
      shards[-1]
      and sum(y.nbytes for y in shards[-1].values()) + x.nbytes > most
    ):
      shards.append({})
    shards[-1][name] = x
  files = [
    f'model-{i:05d}-of-{len(shards):05d}.safetensors'
    for i in range(1, 1 + len(shards))
  ]
  for file, shard in zip(files, shards, strict=True):
    safetensors.save_file(shard, folder / file, metadata={'format': 'pt'})
  places = {n: f for f, x in zip(files, shards, strict=True) for n in x}
  size = sum(x.nbytes for x in tensors.values())
  index = {'metadata': {'total_size': size}, 'weight_map': places}
  (folder / 'model.safetensors.index.json').write_text(json.dumps(index))
  (folder / 'config.json').write_text(json.dumps(config))
  return files


def test_shards_of_maxtext_are_read(written, tmp_path):
  directory, config, tensors = written
  files = write_shards(tmp_path, config, tensors, most=100_000)
  assert len(files) > 2
  _same(specjax.load(tmp_path, layout='whole'), directory)


def test_a_merged_file_of_tunix_is_read(written, tmp_path):
  """It has no metadata, and the files beside it are those of the base model."""
  directory, config, tensors = written
  narrow = {n: x.astype('bfloat16') for n, x in tensors.items()}
  safetensors.save_file(narrow, tmp_path / 'model.safetensors')
  (tmp_path / 'config.json').write_text(json.dumps(config))
  made = specjax.load(tmp_path, layout='whole')
  for x, y in zip(
    jax.tree.leaves(made.params),
    jax.tree.leaves(specjax.load(directory, layout='whole').params),
    strict=True,
  ):
    np.testing.assert_array_equal(x, np.asarray(y).astype('bfloat16'))


@pytest.mark.parametrize('nested', [False, True])
def test_a_tree_is_the_target_of_its_directory(written, nested):
  directory, config, tree = written
  if nested:
    names = {tuple(name.split('.')): x for name, x in tree.items()}
    tree = flax.traverse_util.unflatten_dict(names)
  _same(specjax.from_pytree(config, tree), directory)


def test_a_tree_that_orbax_restored_is_read(written, tmp_path):
  directory, config, tensors = written
  names = {tuple(name.split('.')): x for name, x in tensors.items()}
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(
      tmp_path / 'orbax', flax.traverse_util.unflatten_dict(names)
    )
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
