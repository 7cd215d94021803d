"""What lies where on a mesh, without devices."""

import flax.traverse_util
import numpy as np
import pytest

from specjax import sharding
from specjax.models import transformer
from specjax.models.families import FAMILIES, conversion
from tests import references


@pytest.mark.parametrize('name', FAMILIES)
def test_parts_of_a_parameter_are_parts_of_its_tensors(name):
  """Every family, split in two along every axis that the table splits."""
  family, config = conversion.read_attributes(
    FAMILIES, references.load(name).config
  )
  shapes = conversion.shape_params(config)
  layout = sharding.Layout(sharding.plan_mesh(1, 2))
  places = transformer.shardings(config, layout)
  places = flax.traverse_util.flatten_dict(places, sep='/')
  found = 0
  for key, source in conversion.list_sources(family, config, shapes).items():
    cutting, names = source
    shape = shapes[key].shape
    x = np.arange(np.prod(shape)).reshape(shape)
    tensors = cutting.cut(x, len(names))
    half = places[key].shard_shape(shape)
    found += half != shape
    for part in range(2):
      cut = tuple(
        slice(part * h, part * h + h) if h < n else slice(None)
        for h, n in zip(half, shape, strict=True)
      )
      filled = np.full(half, -1)
      pieces = cutting.pieces(shape, len(names), cut)
      for i, (tensor, indices) in enumerate(zip(tensors, pieces, strict=True)):
        cutting.fill(filled, len(names), i, [tensor[j] for j in indices])
      np.testing.assert_array_equal(filled, x[cut])
  assert found > 3
