"""What lies where on a mesh, and what is refused, without many devices."""

import flax.traverse_util
import jax
import numpy as np
import pytest

from specjax import checkpoints, sampling, verify
from specjax.bench import load, memory, meshes
from specjax.bench.compiled import hlo
from specjax.bench.config import Mesh
from specjax.bench.plan import plan
from specjax.checkpoints.families import conversion
from specjax.drafters import plain
from specjax.drafters.shapes.language_model import Fed
from specjax.drafters.shapes.step_model import Memory
from specjax.errors import UserError
from specjax.loop import generate
from specjax.models import sharding, transformer, variants
from specjax.types import KV, Params, Spec, SpecState
from tests.support import models, own_models, tiny, tiny_families


@pytest.mark.parametrize('name', tiny_families.OPTIONS)
def test_parts_of_a_parameter_are_parts_of_its_tensors(name):
  """Every family, split in two along every axis that the table splits."""
  family, config = conversion.read_attributes(tiny_families.attributes(name))
  shapes = conversion.shape_params(config)
  placement = sharding.Placement(sharding.plan_mesh(1, 2))
  places = transformer.shardings(config, placement)
  places = flax.traverse_util.flatten_dict(places, sep='/')
  found = 0
  for key, source in conversion.fill(family.table(config), shapes).items():
    cutting, names = source
    shape = shapes[key].shape
    x = np.arange(np.prod(shape)).reshape(shape)
    tensors = cutting.cut(x, len(names))
    sizes = tuple(tensor.shape for tensor in tensors)
    assert cutting.shapes(shape, len(names)) == sizes
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


def test_parameters_of_other_choices_are_split_as_what_they_belong_to():
  """Norms over all heads as the heads, biases of logits as the logits."""
  placement = sharding.Placement(sharding.plan_mesh(1, 2))

  def specs(name):
    model = models.tiny(32, 2, num_kv_heads=2, **models.CHOICES[name])
    return transformer.shardings(model.config, placement)

  behind, one = specs('normed behind'), specs('one norm')
  for key in ('q_norm', 'k_norm'):
    assert tuple(behind['layer0'][key]['scale'].spec) == ('model',)
    assert not tuple(one['layer0'][key]['scale'].spec)
  assert tuple(behind['layer0']['sinks'].spec) == ('model',)
  assert tuple(one['unembedding_bias'].spec) == ('model',)


def test_what_a_mesh_does_not_divide_stays_whole():
  placement = sharding.Placement(sharding.plan_mesh(2, 4))

  def spec(axes, *shape):
    return tuple(placement.place(axes, shape).spec)

  assert spec(('batch', 'kv_heads', None), 4, 8, 3) == ('data', 'model')
  assert spec(('batch', 'kv_heads', None), 3, 6, 3) == ()
  # One mesh axis splits one axis of an array.
  assert spec(('mlp', 'vocab'), 8, 8) == ('model',)
  assert not placement.for_draft.place(('vocab', 'width'), (8, 8)).spec
  # Nothing is split over a single device.
  assert spec(('width', 'heads'), 8, 8) == (None, 'model')
  single = sharding.Placement(sharding.plan_mesh(2, 1))
  assert not single.place(('width', 'heads'), (8, 8)).spec


def test_a_state_lies_as_its_models_do():
  """Rows are split over `data`; caches over `model` where their model is."""

  def cache(heads):
    return (KV(*[jax.ShapeDtypeStruct((4, heads, 128, 2), 'float32')] * 2),)

  def rows(*shape):
    return jax.ShapeDtypeStruct((4, *shape), 'int32')

  state = SpecState(*[rows()] * len(SpecState._fields))._replace(
    tokens=rows(128),
    cache=cache(4),
    # A draft's own cache, and what else it remembers.
    drafter=Memory(cache(8), Fed(cache(8), rows(), rows())),
    source=None,
  )
  whole, split = ('data',), ('data', 'model')
  for split_draft, of_draft in ((False, whole), (True, split)):
    placement = sharding.Placement(sharding.plan_mesh(2, 4), True, split_draft)
    found = jax.tree.map(lambda x: tuple(x.spec), placement.of_state(state))
    assert found.cache == (KV(split, split),)
    own = (KV(of_draft, of_draft),)
    assert found.drafter == Memory(own, Fed(own, ('data',), ('data',)))
    assert found.tokens == found.key == found.length == ('data',)
    assert found.counts == ('data',)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('pair')
  tiny.write_pair(path, num_heads=4, num_kv_heads=2, head_dim=8)
  return path


def test_processes_that_were_not_joined_are_refused(folder):
  mesh = Mesh(processes=2, coordinator='a:1')
  with pytest.raises(ValueError, match='this program works in 1: leave it at'):
    load.load_experiment(plan(tiny.experiment(folder, mesh=mesh)))


@pytest.mark.parametrize(
  ('mesh', 'processes', 'devices', 'error'),
  [
    (Mesh(), 1, 1, ''),
    (Mesh(), 1, 4, ''),  # What one process leaves out nobody misses.
    (Mesh(data=2), 1, 4, ''),
    (Mesh(data=2, model=2), 1, 4, ''),
    (Mesh(data=2, model=2, processes=2), 2, 4, ''),
    (Mesh(data=2, model=2, processes=0), 2, 4, ''),
    (Mesh(data=2, model=2), 2, 4, r'mesh\.processes'),
    (Mesh(data=2, model=2, processes=3), 2, 4, r'mesh\.processes'),
    (Mesh(data=2, model=2), 1, 3, r'mesh\.data .* choose less'),
    (Mesh(data=3, processes=2), 2, 4, r'mesh\.data .* use all'),
    (Mesh(processes=2), 2, 2, r'mesh\.data .* use all'),
  ],
)
def test_a_mesh_of_the_devices_that_there_are(
  monkeypatch, mesh, processes, devices, error
):
  monkeypatch.setattr(jax, 'process_count', lambda: processes)
  monkeypatch.setattr(jax, 'device_count', lambda: devices)
  monkeypatch.setattr(sharding, 'make_mesh', sharding.plan_mesh)
  if error:
    with pytest.raises(UserError, match=f'^{error}'):
      meshes.make_placement(mesh)
  elif mesh.data == 1:
    assert meshes.make_placement(mesh) is None
  else:
    assert meshes.make_placement(mesh) == meshes.plan_placement(mesh)


def test_heads_that_are_not_divided_are_refused(folder):
  """But not key-value heads, which stay whole."""
  described = {'target': load.describe('target.path', folder / 'target')}
  meshes.check_heads(Mesh(model=4), described)
  with pytest.raises(
    ValueError, match=r'mesh\.model is 3, .* the 4 heads of the .* of 4$'
  ):
    meshes.check_heads(Mesh(model=3), described)
  described = {'draft lm': described['target']}
  meshes.check_heads(Mesh(model=3), described)
  with pytest.raises(ValueError, match=r'or mesh\.split_draft=F'):
    meshes.check_heads(Mesh(model=3, split_draft=True), described)
  own = checkpoints.Description('own', own_models.adapted(), 0)
  with pytest.raises(ValueError, match=r'mesh has 2 dev.*, a model of other'):
    meshes.check_heads(Mesh(data=2), {'target': own})


def described(layers, **heads):
  """A target of so many layers, and a draft of one."""
  return {
    name: checkpoints.Description('llama', models.tiny(11, n, **heads), 0)
    for name, n in (('target', layers), ('draft lm', 1))
  }


FOUR = {'num_heads': 4, 'num_kv_heads': 4}


@pytest.mark.parametrize(
  ('layers', 'devices', 'asked', 'split'),
  [
    (2, 2, None, True),  # Four passes of half the target: twice all of it.
    (12, 2, None, False),
    (12, 4, None, True),
    (2, 1, None, False),
    (2, 2, False, False),
    (64, 2, True, True),
  ],
)
def test_a_draft_is_split_where_it_would_read_more(
  folder, layers, devices, asked, split
):
  mesh = Mesh(model=devices, split_draft=asked)
  given = plan(tiny.experiment(folder, mesh=mesh, gammas=(4,)))
  assert given.mesh.facts()['split_draft'] is asked
  chosen = memory.choose_split(given, described(layers, **FOUR)).mesh
  assert chosen.split_draft is split
  assert chosen.facts()['split_draft'] is split


@pytest.mark.parametrize(
  ('target', 'cache', 'heads', 'split'),
  [
    (319, 0, 4, True), (320, 0, 4, False), (49, 90, 4, True),
    (50, 90, 4, False), (49, 45, 1, True), (50, 45, 1, False),
  ],
)  # fmt: skip
def test_a_draft_is_read_with_the_rows_of_a_device(
  folder, monkeypatch, target, cache, heads, split
):
  """Three of six rows: four passes of 10 + 3 x 10 bytes, or half the target.

  And half of its caches, where the mesh divides their heads.
  """
  read = {2: (target, cache), 1: (10, 10)}  # weights and a row, by layers

  def count(model, shapes, *sizes):
    assert sizes == (16 + 12, 3)
    assert transformer.dtype_of(shapes) == 'bfloat16'
    return read[model.config.num_layers]

  monkeypatch.setattr(memory, 'bytes_per_token', count)
  x = tiny.experiment(folder, gammas=(2, 4), batch=6, dtype='bfloat16')
  x.mesh = Mesh(data=2, model=2)
  models_of = described(2, num_heads=4, num_kv_heads=heads)
  chosen = memory.choose_split(plan(x), models_of).mesh
  assert chosen.split_draft is split


def test_a_draft_whose_heads_are_not_divided_stays_whole(folder):
  given = plan(tiny.experiment(folder, mesh=Mesh(model=3), gammas=(4,)))
  assert memory.choose_split(given, described(1)).mesh.split_draft is False


def test_what_does_not_fit_is_refused_before_it_is_read(folder, monkeypatch):
  x = tiny.experiment(folder)
  monkeypatch.setattr(memory, 'available', lambda count: 10**6)
  monkeypatch.setattr(load, 'load_drafter', None)
  with pytest.raises(ValueError, match=r'1 x 1: each device would hold .* but'):
    load.load_experiment(plan(x))


PROGRAM = """HloModule jit_generate

%sum (a: f32[], b: f32[]) -> f32[] {
  ROOT %c = f32[] add(%a, %b)
}

%inner_body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %r = f32[4]{0} all-reduce(%x), replica_groups={}, to_apply=%sum
}

%inner_condition (p: (s32[], f32[4])) -> pred[] {
  ROOT %d = pred[] compare(%i, %n), direction=LT
}

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %g = (bf16[2,8]{1,0:T(8,128)}, bf16[8,8]{1,0}) all-gather-start(%y)
  %h = bf16[8,8]{1,0} all-gather-done(%g)
  %w = (s32[], f32[4]) while(%t), condition=%inner_condition, body=%inner_body
  %k = (s32[], f32[4]) while(%t), condition=%inner_condition, body=%inner_body,\
 backend_config={"known_trip_count":{"n":"3"}}
}

%condition (p: (s32[], f32[4])) -> pred[] {
  %e = pred[] all-reduce(%f), to_apply=%and
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %z = f32[1024]{0} all-reduce(%p), to_apply=%sum
  %l = (s32[], f32[4]) while(%t), condition=%condition, body=%body
}
"""


def test_collectives_of_a_step_are_counted():
  assert hlo.loop_collectives(PROGRAM) == {
    'all-gather': {'count': 1, 'bytes': 128, 'turn_count': 0, 'turn_bytes': 0},
    'all-reduce': {
      'count': 1 + 3,
      'bytes': 1 + 3 * 16,
      'turn_count': 1,
      'turn_bytes': 16,
    },
  }
  with pytest.raises(ValueError, match='no loop'):
    hlo.loop_collectives('ENTRY %main (p: f32[]) -> f32[] {\n}')


def test_a_state_on_a_mesh_may_be_made_inside_a_program():
  placement = sharding.Placement(sharding.make_mesh(1, 1))
  target = variants.place(models.TARGET, placement)
  spec = Spec(target, plain.make(), verify.token)

  def texts(weights):
    params, values = Params(weights, None), sampling.make(1, 0.0)
    state = models.run(spec, params, [[1, 2, 3]], values, new_tokens=4)
    return generate.generate(params, state, 4, spec=spec).tokens

  weights = placement.put_whole(models.target_weights())
  found = texts(weights)
  np.testing.assert_array_equal(jax.jit(texts)(weights), found)
  assert found[0, 3:7].any()
