"""Counts in compiled programs, and the estimates that follow from them.

Slow tests compile for devices that are not there, if compilers are installed.
"""

import collections
import dataclasses
import importlib.util
import json
import math
import pathlib
import re
import subprocess
import types

import jax
import numpy as np
import pytest

from specjax import cli
from specjax.bench import load
from specjax.bench.compiled import devices, estimate, hlo, programs, quote
from specjax.bench.config import (
  Compiled,
  Mesh,
  OnDevice,
  SamplingValues,
  Sizes,
)
from specjax.bench.plan import plan
from specjax.checkpoints.parameters import WeightForm
from specjax.cli import fields
from specjax.errors import UserError
from specjax.models import cache_attention, sharding, transformer
from specjax.models.config import Experts, Sharing, TransformerConfig
from specjax.models.devices import FORMS
from specjax.models.sharding import Placement, plan_mesh
from specjax.reports import compiled as report
from specjax.stats import roofline
from specjax.stats.roofline import Chip, Pass, Step
from tests.support import models, processes, rows, tiny

# A weight that is laid out anew, and a loop over steps: in it a product of that
# weight, a fetch of another one, a sum over devices, and a walk.
PROGRAM = """HloModule jit_loop, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%walk_test (p.1: (s32[], bf16[8,512])) -> pred[] {
  %p.1 = (s32[], bf16[8,512]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  ROOT %less.1 = pred[] compare(%i.1, %i.1), direction=LT
}

%walk (p.2: (s32[], bf16[8,512])) -> (s32[], bf16[8,512]) {
  %p.2 = (s32[], bf16[8,512]{1,0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%p.2), index=0
  %x.2 = bf16[8,512]{1,0} get-tuple-element(%p.2), index=1
  %loop_fusion.2 = bf16[8,512]{1,0} fusion(%x.2), kind=kLoop, calls=%inner, \
metadata={op_name="jit(loop)/while/body/score/Transformer/layer1/attention/\
layer1._attention/while/body/add"}, backend_config={"estimated_cycles":"30"}
  ROOT %tuple.2 = (s32[], bf16[8,512]{1,0}) tuple(%i.2, %loop_fusion.2)
}

%test (p.3: (s32[], bf16[512,512])) -> pred[] {
  %p.3 = (s32[], bf16[512,512]{1,0}) parameter(0)
  %i.3 = s32[] get-tuple-element(%p.3), index=0
  ROOT %less.3 = pred[] compare(%i.3, %i.3), direction=LT
}

%step (p.4: (s32[], bf16[512,512], bf16[1024,512])) -> (s32[], bf16[512,512]) {
  %p.4 = (s32[], bf16[512,512]{1,0}, bf16[1024,512]{1,0}) parameter(0)
  %i.4 = s32[] get-tuple-element(%p.4), index=0
  %w.4 = bf16[512,512]{1,0} get-tuple-element(%p.4), index=1
  %d.4 = bf16[1024,512]{1,0} get-tuple-element(%p.4), index=2
  %slice-start.4 = (bf16[1024,512]{1,0}, bf16[256,512]{1,0:T(8,128)S(1)}, \
u32[]{:S(2)}) slice-start(%d.4), slice={[0:256], [0:512]}
  %slice-done.4 = bf16[256,512]{1,0:T(8,128)S(1)} slice-done(%slice-start.4)
  %dot.4 = bf16[8,512]{1,0} dot(%i.4, %w.4), metadata={op_name="jit(loop)/\
while/body/score/Transformer/layer0/mlp/layer0._mlp/up/dot_general"}, \
backend_config={"window_config":{"estimated_cycles":"9000"}}
  %copy.4 = bf16[1024,512]{0,1} copy(%d.4), backend_config=\
{"estimated_cycles":"18446744073709551615"}
  %all-reduce.4 = bf16[8,512]{1,0} all-reduce(%dot.4), to_apply=%add, \
metadata={op_name="jit(loop)/while/body/score/Transformer/layer0/mlp/add"}
  %tuple.4 = (s32[], bf16[8,512]{1,0}) tuple(%i.4, %all-reduce.4)
  %while.4 = (s32[], bf16[8,512]{1,0}) while(%tuple.4), condition=%walk_test, \
body=%walk, metadata={op_name="jit(loop)/while/body/score/Transformer/layer1/\
attention/layer1._attention/while"}
  %while.5 = (s32[], bf16[8,512]{1,0}) while(%while.4), condition=%walk_test, \
body=%walk, metadata={op_name="jit(loop)/while/body/score/Transformer/layer1/\
attention/layer1._attention/while"}
  ROOT %tuple.5 = (s32[], bf16[512,512]{1,0}, bf16[1024,512]{1,0}) tuple(%i.4, \
%w.4, %d.4)
}

ENTRY %main (w: bf16[512,512], d: bf16[1024,512], k: f32[1024,512]) -> s32[] {
  %w = bf16[512,512]{1,0} parameter(0), metadata={op_name="params.target['up']"}
  %d = bf16[1024,512]{1,0} parameter(1), \
metadata={op_name="params.drafter['w']"}
  %k = f32[1024,512]{1,0} parameter(2), metadata={op_name="state.cache[0].k"}
  %zero = s32[] constant(0)
  %copy.0 = bf16[512,512]{0,1} copy(%w)
  %copy.1 = f32[1024,512]{0,1} copy(%k)
  %copy.2 = s32[] copy(%zero)
  %tuple.0 = (s32[], bf16[512,512]{1,0}, bf16[1024,512]{1,0}) tuple(%copy.2, \
%copy.0, %d)
  %while.0 = (s32[], bf16[512,512]{1,0}, bf16[1024,512]{1,0}) while(%tuple.0), \
condition=%test, body=%step, metadata={op_name="jit(loop)/while"}
  ROOT %end = s32[] get-tuple-element(%while.0), index=0
}
"""
THUNKS = """001: kCopy  [source       | next=002 (3)] kCopy
002: kWhile [prev=001 (3) | sink        ]
condition:
    003: kCustomKernel [source | sink] less_3 grid: [1, 1, 1]
  body:
    000: kCommandBuffer [source       | next=006 (1)]
        004: kCustomKernel [source | sink] dot_4 grid: [1, 1, 1]
        005: kCopy         [source | sink] kCopy
    006: kNcclAllReduce [prev=000 (1) | sink] all-reduce_4
    007: kWhile [prev=006 (1) | next=010 (1)]
condition:
        008: kCustomKernel [source | sink] less_1 grid: [1, 1, 1]
      body:
        000: kCommandBuffer [source | sink]
            009: kCustomKernel [source | sink] loop_fusion_2
    010: kCustomKernel [prev=007 (1) | sink] copy_4
011: kCopy  [prev=002 (3) | sink] kCopy
"""
THUNK_NAMES = ''.join(
  f'thunk_metadata {{\n  thunk_info {{\n    profile_annotation: "{name}"\n'
  f'    thunk_id: {number}\n  }}\n}}\n'
  for number, name in (
    *((1, 'copy.0'), (2, 'while.0'), (3, 'less.3'), (4, 'dot.4')),
    *((5, 'copy.4'), (6, 'all-reduce.4'), (7, 'while.4'), (8, 'less.1')),
    *((9, 'loop_fusion.2'), (10, 'copy.4'), (11, 'copy.1')),
  )
)
UP = 'score', 'mlp/up/product'
WALK = 'score', 'attention/walk'
SMALL = TransformerConfig(512, 64, 4, 4, 2, 16, 128, 256)


@pytest.fixture(scope='module')
def module() -> hlo.Module:
  return hlo.Module(PROGRAM)


@pytest.fixture(scope='module')
def turns(module) -> dict[str, float]:
  return hlo.turns_of(module, lambda phase, layer: 1100 + layer, 4)


def test_bytes_of_shapes():
  for text, size in (
    ('bf16[8,512]{1,0:T(8,128)S(1)}', 8192),
    ('(s32[], pred[3], f64[2])', 4 + 3 + 16),
    *(('s4[10]', 5), ('f8e4m3[4]', 4), ('token[]', 0)),
  ):
    assert sum(hlo.sizes_of(text)) == size
  for bits, kinds in (
    *((0, 'token opaque'), (4, 's4 u4'), (8, 'pred s8 u8 f8e5m2')),
    *((16, 's16 u16 bf16 f16'), (32, 's32 u32 f32'), (128, 'c128')),
    (64, 's64 u64 f64 c64'),
  ):
    found = [hlo.sizes_of(f'{kind}[2,4]') for kind in kinds.split()]
    assert found == [[bits]] * len(found)
  with pytest.raises(ValueError, match='q7'):
    hlo.sizes_of('q7[4]')


@pytest.mark.parametrize(
  ('path', 'place'),
  [
    ('jit(loop)/while/body/score/dot_general', ('score', 'product')),
    (
      'jit(loop)/while/body/propose/while/body/Transformer/layer12/attention/'
      'layer12._attention/qkv/dot_general',
      ('propose', 'attention/qkv/product'),
    ),
    (
      'jit(loop)/while/body/score/Transformer/layer0/attention/norm1/mul',
      ('score', 'attention/norm'),
    ),
    (
      'jit(read_prompts)/while/body/Transformer/layer0/mlp/layer0._mlp/up/add',
      ('', 'mlp/up'),
    ),
    ('reduce_sum', ('', '')),
    ('', ('', '')),
  ],
)
def test_the_place_of_an_operation(path, place):
  assert hlo.place_of(path) == place


def test_loops_turn_as_often_as_the_cache_in_use_wants(turns):
  """1101 slots are two large blocks, and one small one of 77."""
  assert turns == {'while.0': 1, 'while.4': 2, 'while.5': 1}
  loop = '%l (p: s32[]) -> s32[] {{\n  %w = s32[] while(%p), {}\n}}'

  def turns_of(path, more='', slots=0):
    line = f'metadata={{op_name="{path}"}}{more}'
    one = hlo.Module(loop.format(line))
    return hlo.turns_of(one, lambda phase, layer: slots, 4, 5)['w']

  known = ', backend_config={"known_trip_count":{"n":"7"}}'
  body = 'jit(loop)/while/body'
  assert turns_of(f'{body}/judge/while', known) == 7
  assert turns_of(f'{body}/propose/while') == 3
  assert turns_of(f'{body}/judge/vmap()/while') == 5
  assert turns_of(f'{body}/tell/while') == 1
  assert turns_of('jit(loop)/while') == 1
  assert turns_of(f'{body}/score/layer0/attention/each3/while') == 3
  for slots, blocks in ((512, 1), (513, 2), (1024, 2)):  # Of a uniform walk.
    path = f'{body}/score/layer0/attention/each3/add/while'
    assert turns_of(path, slots=slots) == blocks


def test_a_step_and_a_call_are_counted(module, turns):
  step, call = hlo.count(module, turns, bytes_per_cycle=10.0)
  walked = 2 + 1
  tests = 2 + 1 + 2
  assert step == {
    ('kernels', *UP): 1,
    ('cycles', *UP): 9000,
    ('read', *UP): 9000 * 10,  # Of 524,288 bytes.
    # Of the draft's weight a quarter is fetched.
    ('prefetched', 'propose', 'fetch'): 256 * 512 * 2,
    ('read', 'propose', 'fetch'): 256 * 512 * 2,
    # The copy has no path, and a cost that is not known.
    ('kernels', 'score', ''): 1 + tests,
    ('weights', 'score', ''): 1024 * 512 * 2,
    ('kernels', 'score', 'mlp'): 1,
    ('all-reduce', 'score', 'mlp'): 1,
    ('exchanged', 'score', 'mlp'): 8 * 512 * 2,
    ('kernels', *WALK): walked,
    ('cycles', *WALK): 30 * walked,
  }
  assert call == {
    ('kernels', '', ''): 3,
    ('weights', '', ''): 512 * 512 * 2,
    ('caches', '', ''): 1024 * 512 * 4,
  }
  # What is no argument comes from none.
  assert module.origin('dot.4') == module.origin('nothing') == ''
  # Where there is time, a weight is read once.
  step, _ = hlo.count(module, turns, bytes_per_cycle=1e3)
  assert step['read', *UP] == 512 * 512 * 2


def test_thunks_are_counted(module, turns):
  """The walk turns twice, so that its condition is tested three times."""
  made = hlo.count_thunks(module, THUNKS, THUNK_NAMES, turns)
  assert made == {
    ('launches', '', ''): 1,  # The condition of the loop over steps,
    ('waits', '', ''): 1,  # for which the host waits at every step.
    ('graphs', '', ''): 1,
    ('nodes', *UP): 1,
    ('nodes', 'score', ''): 1,
    ('launches', 'score', 'mlp'): 1,
    ('waits', *WALK): 3,
    ('launches', 'score', ''): 3 + 1,
    ('graphs', 'score', ''): 2,
    ('nodes', *WALK): 2,
  }
  # Turns that the compiler knows are counted by the host, which tests nothing.
  line = 'layer1._attention/while"}'
  known = PROGRAM.replace(
    line, f'{line}, backend_config={{"known_trip_count":{{"n":"2"}}}}'
  )
  less = hlo.count_thunks(hlo.Module(known), THUNKS, THUNK_NAMES, turns)
  del made['waits', *WALK]
  assert less == {**made, ('launches', 'score', ''): 1}
  # In a graph the host waits for nothing, and starts nothing else.
  inside = '\n'.join(f'    {line}' for line in THUNKS.splitlines())
  inside = inside.replace('    condition:', 'condition:')
  whole = f'000: kCommandBuffer [source | sink]\n{inside}\n'
  made = hlo.count_thunks(module, whole, THUNK_NAMES, turns)
  assert {what for what, *_ in made} == {'nodes', 'graphs'}


def test_what_a_small_program_consists_of():
  """The entry comes first here; nothing that is fetched is a weight.

  The host waits for a condition, unless a graph holds both of its branches.
  """
  module = hlo.Module(
    """ENTRY %main (k: f32[8]) -> f32[8] {
  %k = f32[8]{0} parameter(0), metadata={op_name="state.cache[0].k"}
  %start = (f32[8]{0:S(1)}, f32[8]{0}, u32[]) copy-start(%k)
  %copy.1 = f32[512,512]{0,1} copy(%k)
  %copy.2 = f32[511,512]{0,1} copy(%k)
  %if = f32[8]{0} conditional(%k), metadata={op_name="jit(loop)/body/judge/a"}
}

%other (a: f32[]) -> f32[] {
  %a = f32[] parameter(0)
}
"""
  )
  assert module.entry == 'main'
  step, _ = hlo.count(module, {})
  assert step == {
    ('prefetched', '', 'fetch'): 8 * 4,
    ('kernels', '', ''): 2,
    ('caches', '', ''): 1 << 20,  # The other copy is small.
    ('kernels', 'judge', ''): 1,
  }
  line = '{}001: kConditional [source | sink]\n'
  names = THUNK_NAMES.replace('"copy.0"', '"if"')
  made = hlo.count_thunks(module, line.format(''), names, {})
  assert made == {('waits', 'judge', ''): 1}
  inside = '000: kCommandBuffer [source | sink]\n' + line.format('  ')
  made = hlo.count_thunks(module, inside, names, {})
  assert made == {('graphs', '', ''): 1}


GPU = Chip(bandwidth=1e9, memory=1e9, operations=1e12, exchange=1e9)
TPU = GPU._replace(clock=1e6)


def test_the_roofline_of_a_gpu():
  assert Pass(2e6, 1e6, 1).seconds(GPU) == pytest.approx(2e-3)
  assert Pass(2e6, 1e6, 5000).seconds(GPU) == pytest.approx(10e-3)
  counts = {
    ('nodes', 'propose', ''): 100, ('launches', 'score', 'mlp'): 2,
    ('graphs', 'score', 'mlp'): 3, ('waits', 'tell', ''): 4,
    ('weights', 'score', 'mlp'): 5e5, ('caches', 'judge', ''): 1e5,
    ('cycles', 'judge', ''): 7, ('call weights', '', ''): 9e9,
  }  # fmt: skip
  found = roofline.excess(GPU, counts)
  assert found == pytest.approx(
    {
      ('propose', ''): 100 * 0.75e-6,
      ('score', 'mlp'): 2 * 2.5e-6 + 3 * 4e-6 + 2 * 5e5 / 1e9,
      ('tell', ''): 4 * 10e-6,
      ('judge', ''): 2 * 1e5 / 1e9,
      ('', ''): 0.0,
    }
  )
  step = roofline.step_of(GPU, counts, Step(1e-3, 2e-3))
  assert step.draft == pytest.approx(1e-3 + 75e-6 + 40e-6)
  assert step.rest == pytest.approx(2e-3 + 17e-6 + 1e-3 + 0.2e-3)


def test_the_roofline_of_a_tpu():
  counts = {
    ('cycles', 'propose', 'mlp'): 3000,
    ('read', 'propose', 'mlp'): 1e6,
    ('cycles', 'score', ''): 500,
    ('prefetched', 'score', 'fetch'): 2e6,
    ('read', 'score', 'fetch'): 2e6,
    ('nodes', 'score', ''): 1e9,
  }
  found = roofline.excess(TPU, counts)
  assert found == pytest.approx(
    {
      ('propose', 'mlp'): 3e-3 - 1e-3,
      ('score', ''): 0.5e-3,
      ('score', 'fetch'): 0.0,
    }
  )
  step = roofline.step_of(TPU, counts, Step(7.0, 7.0))
  assert step == pytest.approx(Step(3e-3, 0.5e-3 + 2e-3))
  assert step.seconds == pytest.approx(5.5e-3)


def shapes(
  target=estimate.SIZES['8b'],
  draft=estimate.SIZES['1b'],
  placement=None,
  form=FORMS['gpu'],
  **asked,
) -> programs.Shapes:
  placement = placement or Placement(plan_mesh(1, 1))
  return programs.Shapes(Compiled(**asked), target, draft, placement, form)


def test_bytes_and_products_of_a_pass():
  layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
  weights = 32 * layer + 4096 * 128256
  norms = (2 * 32 + 1) * 4096
  cache = 32 * 2 * 8 * 128 * 1100 * 2
  one = shapes().pass_of(0, 5)
  assert one == (2 * (weights + norms) + cache, weights + norms, 5)
  many = shapes(batch=4, placement=Placement(plan_mesh(2, 4)))
  assert many.pass_of(0, 1) == (
    (weights + norms) / 2 + 2 * cache / 4,
    (weights + norms) / 4,
    2,
  )
  # The draft is whole on every device.
  assert many.pass_of(1, 1).weights == shapes().pass_of(1, 1).weights
  few = shapes(weights='int4').pass_of(0, 1)
  assert few.bytes < 0.32 * one.bytes
  least = shapes().least('chain', roofline.CHIPS['h100'])
  draft = shapes().pass_of(1, 1).bytes
  assert least == pytest.approx((4 * draft / 3352e9, one.bytes / 3352e9))
  assert shapes().least('plain', GPU).draft == 0
  assert shapes().passes('tree') == 3
  # Trees of 4 + 8 + 8 tokens in three passes, and what computing them takes.
  slow, read = GPU._replace(operations=1e6), programs.READ_AT_ONCE
  for name, step in (
    ('tree', (3 * shapes().pass_of(1, 20 / 3).seconds(slow), 21)),
    ('chain', (4 * shapes().pass_of(1, 1).seconds(slow), 5)),
    *(('plain', (0, 1)), ('prefill', (0, read))),
  ):
    found = shapes().least(name, slow)
    assert found == (step[0], shapes().pass_of(0, step[1]).seconds(slow))
  assert [shapes().widest(x) for x in ('chain', 'tree')] == [1, 4]
  # Floats have the bits of their type.
  assert shapes(dtype='float32').pass_of(0, 1).weights == one.weights
  # Without a walk windows save nothing.
  windowed = shapes(target=dataclasses.replace(SMALL, windows=(16, None) * 2))
  whole = shapes(target=SMALL, used=2048)
  assert windowed.unwindowed().pass_of(0, 1) == whole.pass_of(0, 1)


def test_sizes_are_those_of_llama_3():
  """Parameters as they are published, and a head that two models tie."""

  def count(config):
    model = transformer.build(config)
    leaves = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    return sum(x.size for x in leaves)

  for name, parameters in (
    *(('70b', 70_553_706_496), ('8b', 8_030_261_248)),
    ('3b', 3_212_749_824 + 128256 * 3072),
    ('1b', 1_235_814_400 + 128256 * 2048),
  ):
    config = estimate.SIZES[name]
    assert programs.deepened(config, count) == parameters
    assert (config.max_positions, config.rope_theta) == (2**17, 5e5)
    assert config.num_heads * config.head_dim == config.width


def test_chips_are_as_their_data_sheets_say():
  """GB/s and GB of memory, 10**12 operations, GB/s of both directions."""
  units = np.array([1e9, 1e9, 1e12, 1e9 / 2])
  found = {n: [*(chip[:4] / units)] for n, chip in roofline.CHIPS.items()}
  assert found == {
    'h100': [3352, 80, 989, 900],
    'h200': [4800, 141, 989, 900],
    'v5e': [819, 16, 197, 400],
    'v5p': [2765, 95, 459, 1200],
    'v6e': [1638, 32, 918, 800],
  }


def test_experts_that_no_token_chose_are_not_read():
  mixture = dataclasses.replace(SMALL, experts=Experts(8, 2, 32))
  one = shapes(target=mixture, batch=3)
  an_expert = 4 * 3 * 64 * 32  # numbers, of four layers
  few, all_of_them = one.pass_of(0, 1), one.pass_of(0, 4)
  assert all_of_them.bytes - few.bytes == 2 * (8 - 6) * an_expert
  assert all_of_them.weights == few.weights
  alone = shapes(target=mixture).pass_of(0, 1)
  caches = 2 * 4 * 2 * 2 * 16 * 1100 * 2  # of two more rows
  assert few.bytes - alone.bytes == 2 * 4 * an_expert + caches


def test_what_a_device_holds():
  """Weights and norms, an embedding, and the whole cache."""
  target, draft = shapes().held()
  one = shapes().pass_of(0, 1)
  unused = 32 * 2 * 8 * 128 * (2048 - 1100) * 2
  assert target == one.bytes + 128256 * 4096 * 2 + unused
  assert draft == shapes(placement=Placement(plan_mesh(1, 4))).held()[1]
  assert target / 4 == pytest.approx(
    shapes(placement=Placement(plan_mesh(1, 4))).held()[0], rel=1e-3
  )


@pytest.mark.parametrize(
  ('changes', 'depths'),
  [
    ({}, (2, 4)),
    ({'num_layers': 3}, (2, 3)),
    ({'num_layers': 1}, (1, 1)),
    ({'num_layers': 7, 'windows': (16, 16, None) * 2 + (16,)}, (3, 6)),
    ({'num_layers': 3, 'windows': (16, None, None)}, (3, 3)),
    ({'num_layers': 8, 'unturned': (3, 7)}, (4, 8)),
    ({'num_layers': 6, 'sharing': Sharing(3, 8)}, (6, 6)),
  ],
)
def test_two_depths_have_whole_periods(changes, depths):
  config = TransformerConfig(**vars(SMALL) | changes)
  assert programs.small_depths(config) == depths


def test_counts_grow_with_the_layers(monkeypatch):
  asked = []

  def compiled(one, name):
    depths = one.target.num_layers, one.draft.num_layers
    asked.append((name, *depths))
    return hlo.Counts(
      {
        ('nodes', 'score', ''): 5 + 3 * depths[0] + 2 * depths[1],
        ('temporary', '', ''): 10 - depths[0],
      }
    )

  monkeypatch.setattr(estimate, 'compile_program', compiled)
  for name, drafts in (('chain', True), ('plain', False)):
    made = estimate.count_program(shapes(), name)
    assert made['nodes', 'score', ''] == 5 + 3 * 32 + 2 * (16 if drafts else 2)
    assert made['temporary', '', ''] == 0
  assert asked == [
    *(('chain', 2, 2), ('chain', 4, 2), ('chain', 2, 4)),
    *(('plain', 2, 2), ('plain', 4, 2)),
  ]


class Program:
  """A lowered program, for which XLA dumps thunks where a flag says it."""

  def __init__(self, **dumps):
    self.dumps, self.options = dumps, {}

  def compile(self, compiler_options):
    self.options = dict(compiler_options)
    place = self.options.pop('xla_dump_to', None)
    for kind, text in self.dumps.items():
      pathlib.Path(place, f'module_0001.{kind}.txt').write_text(text)
    return self

  def as_text(self):
    return PROGRAM

  def memory_analysis(self):
    return types.SimpleNamespace(temp_size_in_bytes=77)


def test_what_a_compiled_program_consists_of(
  module, turns, monkeypatch, tmp_path
):
  """With the thunks after XLA's passes, if it tells of these."""
  usual = {'thunk_sequence': THUNKS, 'thunk_metadata': THUNK_NAMES}
  after, cycle = THUNKS.splitlines()[0], devices.chip_of('v6e')
  cycle = cycle.bandwidth / cycle.clock
  for device, program, per_cycle, sequence in (
    ('h200', Program(**usual), 0, THUNKS),
    ('h200', Program(**usual, **{estimate._AFTER: after}), 0, after),
    ('v6e', Program(), cycle, ''),
  ):
    monkeypatch.setattr(programs, 'lower', lambda *_, made=program: made)
    one = shapes(device=device, texts=str(tmp_path / device))
    found = estimate.compile_program(one, 'plain')
    step, _ = hlo.count(module, turns, per_cycle)
    step += hlo.count_thunks(module, sequence, THUNK_NAMES, turns)
    step['call weights', '', ''] = 512 * 512 * 2
    step['call caches', '', ''] = 1024 * 512 * 4
    step['temporary', '', ''] = 77
    assert found == step
    assert program.options == devices.flags_of(device)
    for kind, text in ({'hlo': PROGRAM} | program.dumps).items():
      assert (tmp_path / device / f'plain-32-16.{kind}').read_text() == text

  def fail(*_, **__):
    raise jax.errors.JaxRuntimeError('too large\nfor it')

  monkeypatch.setattr(Program, 'compile', fail)
  with pytest.raises(UserError, match=r'^device: v6e .* plain \(too large\)'):
    estimate.compile_program(one, 'plain')


def test_devices_that_are_not_there_are_opened(monkeypatch):
  """Chips of a GPU, and otherwise a topology; no device is looked for."""
  asked, options = [], {}

  def describe(*given, **more):
    asked.append((*given, *more.values()))
    if 'v5e:9x9' in given:
      raise NotImplementedError('no')
    return types.SimpleNamespace(devices=asked[-1])

  monkeypatch.setattr(devices.topologies, 'get_topology_desc', describe)
  for name, words in (
    ('h100', ('h100', 'cuda', '1x1x1', devices._TARGETS['h100'])),
    ('h200:4', ('h200', 'cuda', '1x1x4', devices._TARGETS['h200'])),
    *(('v5e', ('v5e:2x2', 'tpu')), ('v5p:2x2x1', ('v5p:2x2x1', 'tpu'))),
  ):
    assert devices.open_topology(name) == words
  with pytest.raises(UserError, match=r'^device: .* refuses v5e:9x9 \(no\)'):
    devices.open_topology('v5e:9x9')
  monkeypatch.setattr(jax.config, 'update', options.__setitem__)
  monkeypatch.setattr(devices.os, 'environ', said := {'TPU_SKIP_MDS_QUERY': 0})
  devices.stay_on_cpu()
  assert [*options.values()] == ['cpu', False]
  assert [*said.values()] == [0, 'localhost', 'v5litepod-4', '1']


@pytest.fixture
def installed(monkeypatch):
  """Compilers of all devices, as far as anybody looks."""
  monkeypatch.setattr(devices, 'find_spec', lambda name: name)


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'device': 'v9'}, ('device: ', "'v9'", 'h100', 'v6e')),
    ({'device': 'h100:2x2'}, ('device: ', 'h100:4')),
    ({'device': 'v5e:4'}, ('device: ', 'v5e:2x2')),
    ({'device': 'v5e:0x2'}, ('device: ',)),
    ({'mesh': Mesh(1, 2)}, ('mesh.', 'device=h100:2')),
    ({'device': 'v6e:2x2', 'mesh': Mesh(2, 4)}, ('mesh.', 'device=v6e:2x4')),
    ({'device': 'v5p', 'mesh': Mesh(1, 8)}, ('mesh.', 'device=v5p:2x2x2')),
    ({'programs': ()}, ('programs ',)),
    ({'target': Sizes('/nowhere')}, ('target.path: ',)),
    ({'draft': Sizes('2b')}, ('draft.path: ',)),
    ({'used': 2044}, ('used ', 'slots=2049')),
    ({'layers': (2,)}, ('layers ', '(32, 16)')),
    ({'layers': (2, 17)}, ('layers ', '(32, 16)')),
    ({'device': 'h100:2', 'mesh': Mesh(2, 1)}, ('batch ', 'mesh.data')),
    (
      {'device': 'h100:2', 'mesh': Mesh(1, 2), 'weights': 'int8'},
      ('weights ', 'leave it out'),
    ),
    # 141 GB and more of floats; in four bits they fit.
    (
      {'target': Sizes('70b')},
      ('device: ', '64.8 GB more', 'weights=int4', 'h100:2 mesh.model=2'),
    ),
    (
      {'device': 'h100:2', 'mesh': Mesh(1, 2), 'exact': 'bits'},
      ('exact ', 'mesh', 'leave it out'),
    ),
    ({'device': 'v5e'}, ('device: ', 'weights=int8', 'v5e:2x2 mesh.model=2')),
    # On a mesh weights are floats, and split.
    (
      {'device': 'v5e', 'weights': 'int8', 'batch': 36},
      ('device: ', 'v5e:2x2 mesh.model=4'),
    ),
    ({'target': Sizes('70b'), 'batch': 4096}, ('device: ', 'smaller models')),
    # A mesh that key-value heads do not divide holds more than a smaller one.
    (
      {'device': 'h100:16', 'mesh': Mesh(1, 16), 'target': Sizes('70b')}
      | {'batch': 200},
      ('device: ', 'h100:8 mesh.model=8'),
    ),
    ({'sampling': SamplingValues(regex='a+')}, ('sampling',)),
    ({'sampling': SamplingValues(top_p=2.0)}, ('sampling', 'top_p')),
  ],
)
def test_bad_input_is_refused_before_compiling(installed, changes, words):
  with pytest.raises(UserError) as error:
    estimate.plan(Compiled(**changes))
  said = str(error.value)
  assert said.startswith(words[0])
  assert all(word in said for word in words)
  assert '\n' not in said


@pytest.mark.parametrize(
  ('device', 'target', 'asked', 'split'),
  [
    ('v5e:2x2', '8b', None, True),
    ('v5e:2x2', '8b', False, False),
    ('h100:4', '70b', None, False),
    ('h100:4', '70b', True, True),
  ],
)
def test_a_draft_is_split_where_it_would_read_more(
  installed, device, target, asked, split
):
  mesh = Mesh(model=4, split_draft=asked)
  made = estimate.plan(Compiled(device, Sizes(target), mesh=mesh))
  assert made.placement.split_draft is split


def test_a_draft_reads_the_experts_of_one_token(installed, monkeypatch):
  """2.5 GB, less than a fourth of 15 GB; two tokens would read 4.1 GB."""
  experts = Experts(8, 1, 8192)
  config = dataclasses.replace(estimate.SIZES['1b'], experts=experts)
  monkeypatch.setitem(estimate.SIZES, 'mixture', config)
  made = estimate.plan(
    Compiled('h100:4', draft=Sizes('mixture'), gamma=1, mesh=Mesh(model=4))
  )
  assert made.placement.split_draft is False
  one, two = (made.pass_of(1, tokens).bytes for tokens in (1, 2))
  assert one < made.pass_of(0, 1).bytes < two


@pytest.mark.parametrize('exact', ['auto', 'bits'])
def test_attention_is_planned_as_it_is_asked_for(installed, exact):
  made = estimate.plan(Compiled('h100', exact=exact, attention='blocked'))
  assert made.form.attention is cache_attention.blocked


@pytest.mark.parametrize(
  ('device', 'extra'), [('h100', 'aot-gpu'), ('v6e:2x2', 'aot-tpu')]
)
def test_a_missing_compiler_is_named(monkeypatch, device, extra):
  monkeypatch.setattr(devices, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match=rf'^device: .*\[{extra}\]'):
    devices.check(device, Mesh())


def test_chips_of_devices():
  for device, chips in (
    *(('h100', 1), ('h200:8', 8), ('v5e', 1), ('v5e:2x4', 8)),
    ('v5p:2x2x2', 8),
  ):
    assert devices.chips_in(device) == chips
    kind = device.partition(':')[0]
    assert devices.chips_in(devices.with_chips(kind, chips)) >= chips
  # The squarest topology is proposed.
  for device, count, found in (
    *(('v5e', 64, 'v5e:8x8'), ('v6e', 32, 'v6e:4x8'), ('v5e', 2, 'v5e:2x2')),
    *(('v5p', 4, 'v5p:2x2x1'), ('v5p', 16, 'v5p:2x2x4')),
  ):
    assert devices.with_chips(device, count) == found


def test_a_config_is_enough(tmp_path, installed):
  """The only file of a directory that is read is `config.json`."""
  tiny.write_pair(tmp_path)
  for file in tmp_path.glob('*/*'):
    if file.name != 'config.json':
      file.unlink()
  pair = (Sizes(str(tmp_path / name)) for name in ('target', 'draft'))
  made = estimate.plan(Compiled('v6e', *pair, used=100, slots=120))
  assert made.target.num_layers == 2
  assert made.asked.slots == 128


def made_for(device: str, **changes) -> dict:
  """An estimate whose numbers are easy."""
  chain = {
    **dict.fromkeys((*roofline.PRICES, 'kernels', 'cycles'), 1234),
    **{'exchanged': 2e6, 'temporary': 3e6, 'collectives': {'all-reduce': 6}},
    **{'copied_weights': 4e6, 'copied_caches': 5e6},
    **{'seconds': 6e-3, 'least_seconds': 3e-3, 'tau': 3.0},
    'largest': [['score', 'mlp/up', 1.5e-3], ['', '', 1e-4]],
    'estimate': {'v': 1.2, 'c': 0.2, 'speedup': 1.5},
    'limit': {'v': 1.0, 'c': 0.1, 'speedup': 2.14},
  } | changes
  return {
    'device': device,
    'mesh': Mesh().facts(),
    **{'target': '8b', 'draft': '1b', 'layers': [32, 16], 'dtype': 'bfloat16'},
    **{'weights': 'floats', 'batch': 1, 'slots': 2048, 'used': 1100},
    **{'gamma': 4, 'alpha': 0.8},
    'chip': devices.chip_of(device)._asdict(),
    'flags': devices.flags_of(device),
    'held': 79e9,
    'programs': {'chain': chain},
  }


def test_tables():
  gpu, tpu = made_for('h100'), made_for('v6e')
  head, line = rows.cells(report.contents(gpu))
  assert head[1:5] == ['nodes', 'launches', 'graphs', 'waits']
  assert line[1:] == ['1,234'] * 4 + ['6 all-reduce', '2', '3', '4', '5']
  assert rows.cells(report.contents(tpu))[0][1:3] == ['kernels', 'cycles']
  *_, line = rows.cells(report.speeds(gpu))
  assert line == [
    *('chain', '6.00', '3.00', '2.00', '1.20', '0.200', '3.00', '1.50'),
    *('0.100', '2.14'),
  ]
  found = report.largest('chain', gpu['programs']['chain'])
  *_, first, second = rows.cells(found)
  assert first == ['score', 'mlp/up', '1.50', '50%']
  assert second == ['-', '-', '0.10', '3%']
  page = report.summary(gpu)
  assert page.startswith('*Estimates*')
  for price in ('0.75 us a node', '2.5 us a launch', '4 us a graph', '10 us a'):
    assert price in page.replace('\n', ' ')
  assert 'assumed, not measured' in page.replace('\n', ' ')
  assert '1.75 GHz' in report.summary(tpu)
  assert 'xla_tpu_scoped_vmem_limit_kib=98304' in report.summary(tpu)


def test_a_baseline_that_is_badly_compiled_is_no_praise():
  assert report.caveats(made_for('h100')) == ''
  slow = made_for('h100', estimate={'v': 0.17, 'c': 0.1, 'speedup': 4.6})
  assert 'chain is 0.17' in report.caveats(slow)
  assert report.caveats(slow) in report.summary(slow)
  large = made_for('h100', temporary=1.5e9)
  assert '80.5 GB' in report.caveats(large)
  assert 'weights are int4' in report.caveats(
    made_for('h100') | {'weights': 'int4'}
  )


def test_an_estimate_stands_beside_a_measurement():
  row = {'drafter': 'lm', 'gamma': 4, 'tau': 3.0}
  row |= {'v': 1.1, 'c': 0.05, 'speedup': 2.31}
  text = report.beside(made_for('h100'), row)
  assert [line[1:] for line in rows.cells(text)[1:]] == [
    ['1.10', '0.050', '2.31'],
    ['1.20', '0.200', '1.50'],
    ['1.00', '0.100', '2.14'],
  ]
  assert report.quoted(made_for('h100')) == {
    'device': 'h100',
    'on_device': {'v': 1.2, 'c': 0.2, 'speedup': 1.5},
  }
  assert report.quoted(None) == {}


def test_an_estimate_by_hand(installed, monkeypatch):
  """Plain decoding reads all slots of its cache, the chain walks over some."""
  counts = {
    'plain': hlo.Counts({('nodes', 'score', 'mlp'): 1000}),
    'chain': hlo.Counts(
      {('nodes', 'propose', hlo.WALK): 2000, ('nodes', 'judge', ''): 400}
    ),
  }
  monkeypatch.setattr(devices, 'stay_on_cpu', lambda: None)
  monkeypatch.setattr(devices, 'open_topology', lambda name: jax.devices())
  monkeypatch.setattr(estimate, 'count_program', lambda one, name: counts[name])
  made = estimate.estimate(Compiled(tau=3.0))
  target, draft = (shapes().pass_of(i, 1).bytes / 3352e9 for i in (0, 1))
  unused = 32 * 2 * 8 * 128 * (2048 - 1100) * 2 / 3352e9
  plain, chain = made['programs']['plain'], made['programs']['chain']
  assert plain['least_seconds'] == pytest.approx(target)
  assert plain['seconds'] == pytest.approx(target + unused + 0.75e-3)
  assert 'estimate' not in plain
  drafting, rest = 4 * draft + 1.5e-3, target + 0.3e-3
  assert chain['seconds'] == pytest.approx(drafting + rest)
  assert chain['estimate'] == pytest.approx(
    {
      'v': rest / plain['seconds'],
      'c': drafting / plain['seconds'] / 4,
      'speedup': 3.0 * plain['seconds'] / (drafting + rest),
    }
  )
  assert chain['limit'] == pytest.approx(
    {'v': 1.0, 'c': draft / target, 'speedup': 3 / (1 + 4 * draft / target)}
  )
  assert chain['tau'] == 3.0
  assert chain['nodes'] == 2400
  assert chain['largest'] == [
    ['propose', hlo.WALK, pytest.approx(1.5e-3)],
    ['judge', '', pytest.approx(0.3e-3)],
  ]
  assert made['layers'] == [32, 16]
  assert made['alpha'] is None


def test_the_ten_largest_places_are_listed():
  counts = hlo.Counts(
    {('launches', 'score', f'{i}'): 1000 * (i + 1) for i in range(12)}
  )
  step = Step(0.0, 0.0)
  found = estimate._describe(GPU, counts, step, step)['largest']
  assert found == [
    ['score', f'{i}', pytest.approx((i + 1) * 2.5e-3)] for i in range(11, 1, -1)
  ]


def test_blocks_that_a_walk_begins_with_are_whole():
  """A window of 200 sees 199 of 1100 slots: seven blocks are passed over."""
  narrow = dataclasses.replace(SMALL, windows=(200, None, 200, None))
  x = shapes(narrow, SMALL, used=1100)
  span = estimate.spans(x, 'plain')
  assert [span('score', i) for i in (0, 1)] == [1100 - 7 * 128, 1100]
  assert span('propose', 0) == 1100
  # A prompt is read in blocks, behind half of the others on average.
  each = programs.READ_AT_ONCE
  for used, before in ((each, 0), (each + 1, each), (4 * each, 3 * each)):
    span = estimate.spans(x.asking(used=used), 'prefill')
    assert span('propose', 0) == before // 2


@pytest.mark.parametrize(
  ('name', 'tau', 'tokens'),
  [
    ('chain', None, 1 + 0.25 + 0.25**2 + 0.25**3),
    ('chain', 3.0, 3.0),
    # Two siblings, the second of which is reached where the first is not.
    ('tree', None, 1 + 0.4375 * (1 + 0.25)),
    ('tree', 3.0, 1 + 0.4375 * (1 + 0.25)),
  ],
)
def test_tokens_that_an_estimate_is_made_for(name, tau, tokens):
  x = Compiled(alpha=0.25, gamma=3, widths=(2, 1), tau=tau)
  assert estimate._tau(x, name) == pytest.approx(tokens)


def test_a_call_lays_out_weights_and_caches(installed):
  copied = {('call weights', '', ''): 2.4, ('call caches', '', ''): 5.6}
  step = Step(0.0, 0.0)
  found = estimate._describe(GPU, hlo.Counts(copied), step, step)
  assert (found['copied_weights'], found['copied_caches']) == (2, 6)
  # A draft of four tokens and the one before them fill the cache.
  assert estimate.plan(Compiled(used=2043)).asked.used == 2043


def test_another_process_is_asked(folder, installed, monkeypatch):
  """With what it takes to compile the draft that is a language model."""
  x = OnDevice(**vars(tiny.experiment(folder)), device='h100')
  x.sampling.top_p = 0.9
  asks = quote.prepare(x, plan(x))
  ((name, one),) = asks.items()
  paths = one.target.path, one.draft.path
  assert (name, *paths) == ('draft', x.target.path, str(folder / 'draft'))
  assert (one.gamma, one.used, one.temperature) == (2, 16 + 12, 1.0)
  assert (one.dtype, one.weights) == ('float32', 'floats')
  # Three drafted tokens at least, and one more, lie behind those in use.
  for used, slots in ((124, 128), (125, 256)):
    longer = quote.prepare(
      x, plan(dataclasses.replace(x, max_new_tokens=used - 16))
    )
    assert (longer[name].used, longer[name].slots) == (used, slots)
  again = Compiled()
  for word in quote.words_of(one, Compiled()):
    path, _, value = word.removeprefix('--').partition('=')
    fields.assign(again, path, value)
  assert again == one
  words, status = [], [0, 1]

  def run(command, **options):
    words.append(command)
    out = f'a table\n{json.dumps({"programs": {}})}\n'
    return types.SimpleNamespace(returncode=status.pop(0), stdout=out)

  monkeypatch.setattr(subprocess, 'run', run)
  row = {'drafter': 'draft', 'gamma': 3, 'tau': 2.5}
  assert quote.beside(asks, row) == {'programs': {}}
  assert words[0][1:4] == ['-m', 'specjax', 'compiled']
  assert {'--gamma=3', '--tau=2.5', '--sampling.top_p=0.9'} <= {*words[0]}
  with pytest.raises(UserError, match=r'^device: '):
    quote.beside(asks, row)
  assert quote.beside(asks, {'drafter': 'ngram'}) is None
  assert quote.beside(asks, {}) is None
  assert len(words) == 2


def test_a_quote_is_of_the_same_run(folder, installed, monkeypatch):
  """Its mesh is that of the run; other types and forms are refused."""
  x = OnDevice(**vars(tiny.experiment(folder)), device='h100:2')
  x.mesh, x.batch = Mesh(data=2), 2
  (one,) = quote.prepare(x, plan(x)).values()
  assert one.mesh == Mesh(data=2)
  planned = plan(OnDevice(**vars(tiny.experiment(folder))))
  x.mesh = Mesh()
  lookup = plan(tiny.experiment(folder, drafters=('ngram',)))
  with pytest.raises(UserError, match=r'^device: '):
    quote.prepare(x, lookup)
  assert quote.prepare(dataclasses.replace(x, device=''), planned) == {}
  for changes, field in (
    ({'form': WeightForm('stored')}, 'weights '),
    ({'dtype': 'float64'}, 'dtype '),
  ):
    with pytest.raises(UserError, match=f'^{field}'):
      quote.prepare(x, dataclasses.replace(planned, **changes))
  found = load.survey(planned)
  draft = found.described['draft draft']._replace(other=planned)
  found.described['draft draft'] = draft
  monkeypatch.setattr(load, 'survey', lambda plan: found)
  with pytest.raises(UserError, match=r'^path of .* vocabulary'):
    quote.prepare(x, planned)


def test_compilers_alone_start_no_device(monkeypatch):
  here, there = [], set()
  monkeypatch.setattr(cli.glob, 'glob', lambda pattern: here)
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name in there)
  assert not cli._compiles_only()
  there.add('libtpu')
  assert cli._compiles_only()
  here.append('/dev/vfio/0')
  assert not cli._compiles_only()


def small(**changes) -> programs.Shapes:
  """Returns shapes of shallow models, whose programs are lowered here."""
  place = Placement(sharding.make_mesh(1, 1))
  given = {'target': SMALL, 'placement': place, 'slots': 128, 'used': 9}
  return shapes(**given | changes).at_depth((2, 1))


@pytest.mark.parametrize(
  'name',
  models.slow_unless(
    ['chain', 'prefill'], ['plain', 'chain', 'tree', 'pool', 'prefill']
  ),
)
def test_programs_are_lowered_without_weights(name):
  text = programs.lower(small(draft=SMALL), name).as_text(debug_info=True)
  whose = 'weights' if name == 'prefill' else 'params.target'
  arguments = set(re.findall(r"([a-z.]+)\['layer(\d)'\]", text))
  expected = {(whose, '0'), (whose, '1')}
  if name in programs.DRAFTING:
    expected |= {('params.drafter', '0')}
  assert arguments == expected
  assert 'stablehlo.while' in text


@pytest.mark.slow
@pytest.mark.parametrize('exact', ['bits', 'auto'])
def test_passes_of_one_row_and_of_a_draft_have_the_same_products(exact):
  draft = dataclasses.replace(SMALL, width=2 * SMALL.width)
  one = small(draft=draft, exact=exact)

  def products(name):
    text = programs.lower(one, name).as_text()
    lines = re.findall(r'stablehlo\.dot_general (%.*)', text)
    return collections.Counter(re.sub(r'%[\w#]+', '', x) for x in lines)

  shared = products('plain') & products('chain')
  assert (shared == products('plain')) is (exact == 'bits')


def test_a_cache_lies_by_slots_on_a_single_tpu():
  text = programs.lower(small(form=FORMS['tpu']), 'plain').as_text()
  caches = re.findall(
    r'%arg\d+: tensor<1x2x128x16xbf16> {[^{]*layout_mode = "(.*?)"', text
  )
  assert caches == ['{2,3,1,0}'] * 2


def on(device: str, *more):
  """A case of a test that is skipped where a compiler is not installed."""
  compiler = 'libtpu' if device[0] == 'v' else 'jax_cuda13_plugin'
  missing = not importlib.util.find_spec(compiler)
  skip = pytest.mark.skipif(missing, reason=f'no {compiler}')
  return pytest.param(device, *more, marks=skip)


@pytest.mark.slow
@pytest.mark.parametrize('device', [*map(on, ('v6e', 'h100', 'h200'))])
def test_small_shapes_are_compiled(device, folder, tmp_path):
  flags = (
    *('compiled', f'--device={device}', '--programs=plain,chain,prefill'),
    *(f'--{name}.path={folder / name}' for name in ('target', 'draft')),
    *('--slots=1024', '--used=700', f'--texts={tmp_path}', '--gamma=2'),
    '--attention=blocked',
  )
  done = processes.run('specjax', *flags)
  assert done.returncode == 0, done.stderr
  made = json.loads(done.stdout.splitlines()[-1])
  both = [json.loads((folder / name / 'config.json').read_text())
          ['num_hidden_layers'] for name in ('target', 'draft')]  # fmt: skip
  assert made['layers'] == both
  counted = 'cycles' if device == 'v6e' else 'nodes'
  for name, one in made['programs'].items():
    assert one[counted] > 0
    assert one['seconds'] > 0
    assert one['collectives'] == {}
    text = (tmp_path / f'{name}-{both[0]}-{both[1]}.hlo').read_text()
    module = hlo.Module(text)
    assert module.main_loop().path.endswith(')/while')
    walks = [
      op
      for op in module.ops.values()
      if op.kind == 'while' and 'attention' in op.path
    ]
    places = [hlo.place_of(op.path) for op in walks]
    assert {module for _, module in places} == {'attention/walk'}
    # Two loops a layer: over large blocks, and over small ones.
    # Of the last one prefill needs keys and values alone.
    phase, layers = (
      ('', both[0] - 1) if name == 'prefill' else ('score', both[0])
    )
    assert [one for one, _ in places].count(phase) == 2 * layers
    assert ('propose' in dict(places)) == (name in programs.DRAFTING)
  chain = made['programs']['chain']
  assert chain[counted] > made['programs']['plain'][counted]
  found = chain['estimate']
  tau = 1 + 0.8 + 0.8**2
  assert chain['tau'] == pytest.approx(tau)
  assert found['speedup'] == pytest.approx(tau / (found['v'] + 2 * found['c']))
  assert math.isfinite(chain['limit']['speedup'])


def compile_8b(device: str, programs: str, layers: str, *flags) -> dict:
  """Programs of the 8B target and the 1B draft, which are not deep here."""
  flags += f'--device={device}', f'--programs={programs}', f'--layers={layers}'
  done = processes.run('specjax', 'compiled', *flags)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])['programs']


@pytest.mark.slow
@pytest.mark.parametrize(
  ('device', 'most'),
  [
    on('v5e', {'plain': 1.5, 'chain': 1.7}),
    on('v6e', {'plain': 1.2, 'chain': 1.33}),
    on('h100', {}),
  ],
)
def test_no_call_copies_weights_or_caches(device, most, tmp_path):
  made = compile_8b(device, 'plain,chain', '2,2', f'--texts={tmp_path}')
  for name, one in made.items():
    if device == 'h100':  # Nor writes a weight times a row, to sum it up.
      text = (tmp_path / f'{name}-2-2.hlo').read_text()
      written = [
        op.bytes
        for op in hlo.Module(text).ops.values()
        if op.kind == 'fusion' and 'while/body' in op.path
      ]
      assert written
      assert max(written) < 2048**2 * 2
    assert one['copied_weights'] == 0
    assert one['copied_caches'] == 0
    assert one['waits'] <= 1  # Between steps.
    assert one['temporary'] < 50e6
    if name in most:
      assert one['seconds'] < most[name] * one['least_seconds']


@pytest.mark.slow
@pytest.mark.parametrize(
  ('device', 'what', 'most'),
  [on('h100', 'nodes', 16), on('v6e', 'kernels', 22)],
)
def test_a_layer_is_few_operations(device, what, most):
  made = [
    compile_8b(device, 'plain', f'{layers},2')['plain'][what]
    for layers in (2, 4)
  ]
  assert made[1] - made[0] <= 2 * most


@pytest.mark.slow
@pytest.mark.parametrize('device', [*map(on, ('v5e:2x2', 'h100:4'))])
def test_chips_tell_each_other_little_and_copy_nothing(device):
  """Chips tell each other rows and logits, of one token and of several."""
  flags = '--mesh.model=4', '--mesh.split_draft=True'
  for one in compile_8b(device, 'plain,chain', '2,2', *flags).values():
    assert 0 < one['exchanged'] < 16e6
    assert one['copied_weights'] == 0
    assert one['copied_caches'] == 0
