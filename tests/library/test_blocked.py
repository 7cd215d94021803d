"""Weights in blocks of columns: the same model, the same bits for any row."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.drafters import lm
from specjax.drafters.dflash.module import Head, Sizes
from specjax.drafters.shapes import language_model, shape
from specjax.loop import generate
from specjax.models import linear, variants
from specjax.models.config import Experts
from specjax.types import Params, Spec
from tests.support import models

pytestmark = pytest.mark.usefixtures('optimized')

SIZES = {'width': 64, 'mlp_width': 64, 'head_dim': 32}


@pytest.fixture(scope='module')
def pair():
  model = models.tiny(128, 2, **SIZES)
  params = models.weights(model, 0)
  return (model, params), variants.block(model, params)


def test_weights_are_rearranged_not_changed(pair):
  (_, plain), (_, blocked) = pair
  w = np.asarray(plain['unembedding'])
  found = np.asarray(blocked['unembedding'])
  assert found.shape == (2, 64, 64)
  np.testing.assert_array_equal(found[1], w[:, 64:])
  # Gate and values stay apart, so that devices can split either.
  up, blocks = (x['layer0']['up']['w'] for x in (plain, blocked))
  assert (up.shape, blocks.shape) == ((64, 2, 64), (2, 1, 64, 64))
  np.testing.assert_array_equal(blocks[1, 0], up[:, 1])


@pytest.mark.parametrize('columns', [16, 32])
def test_blocks_may_have_other_columns(pair, columns):
  (model, plain), _ = pair
  fast, blocked = variants.block(model, plain, columns)
  assert blocked['layer0']['out']['w'].shape[-1] == columns
  tokens = jax.random.randint(jax.random.key(1), (1, 5), 0, 128)
  np.testing.assert_allclose(
    models.score(fast, blocked, tokens),
    models.score(model, plain, tokens),
    atol=2e-5,
  )


def test_axes_that_devices_split_stay_apart():
  assert linear.leading_axes(0, (128,)) == ()
  assert linear.leading_axes(64, (128,)) == (2,)
  assert linear.leading_axes(64, (2, 192)) == (2, 3)
  assert linear.leading_axes(64, (4, 3, 64)) == (4, 3)
  # 3 * 32 is no multiple of 64, but 4 * 3 * 32 is.
  assert linear.leading_axes(64, (4, 3, 32)) == (6,)
  assert linear.leading_axes(64, (3, 11)) == ()


@pytest.mark.skipif(jax.default_backend() != 'cpu', reason='of the CPU alone')
@pytest.mark.parametrize('rows', [1, 4, 8])
def test_the_compiler_makes_fast_kernels_of_products_in_blocks(rows):
  """Of every weight in blocks, or scoring costs several times as much.

  XLA hands a product in blocks to a library as one fusion, which multiplies
  and sums without writing products to memory. A version that stopped doing so
  would be seen here, and not first in somebody's figures.
  """
  sizes = dict(width=128, mlp_width=256, head_dim=64)
  model = models.tiny(512, 2, **sizes)
  fast, blocked = variants.block(model, models.weights(model, 0))
  tokens = jnp.zeros((1, rows), jnp.int32)
  score = jax.jit(functools.partial(models.score, fast))
  program = score.lower(blocked, tokens).compile().as_text()
  taken = fused_operands(program, '__ynn_fusion')
  weights = [x.shape for x in jax.tree.leaves(blocked) if x.ndim > 2]
  assert len(weights) == 9  # Four of each layer, and the head.
  for one in set(weights):
    size = math.prod(one)
    assert taken.count(size) >= weights.count(one), one


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != 'cpu', reason='of the CPU alone')
def test_two_products_of_one_input_and_shape_stay_fast_kernels():
  """As the queries and the keys and values of a block that DFlash fills.

  Where two products share the rows repeated for all weights, XLA writes these
  to memory and reads them twice, which is many times slower.
  """
  sizes = dict(mlp_width=256, head_dim=64, num_heads=4, num_kv_heads=2)
  target, rows = models.tiny(512, 1, width=128, **sizes), 5
  fast, blocked = variants.block(target, models.weights(target, 0))
  head = Head(fast, Sizes((0,), **sizes))
  own = head.init(jax.random.key(0))
  weights = [x.shape for x in jax.tree.leaves(own) if x.ndim > 2]
  one = own['layer0']['q']['w'].shape
  assert weights.count(one) > 1
  assert one == own['layer0']['kv']['w'].shape
  zero, used = jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.int32)
  cache = head.read(Params(blocked, own), jnp.zeros((1, 8, 1, 128)), zero[None])
  say = jax.jit(lambda params: head.say(params, zero, used, cache, used, rows))
  program = say.lower(Params(blocked, own)).compile().as_text()
  taken = fused_operands(program, '__ynn_fusion')
  assert taken.count(math.prod(one)) >= weights.count(one)
  assert rows * math.prod(one) not in taken


@pytest.mark.skipif(jax.default_backend() != 'cpu', reason='of the CPU alone')
@pytest.mark.parametrize(
  'tree', [{'parents': (0, 0, 1, 2, 3, 4)}, {'beam': 2, 'nodes': 6}]
)
def test_levels_of_a_tree_stay_fast_kernels(tree):
  """Two levels of as many nodes would share their weights through memory."""
  sizes = dict(width=128, mlp_width=256, head_dim=64)
  model = models.tiny(512, 1, **sizes)
  fast, blocked = variants.block(model, models.weights(model, 0))
  drafter = shape.build(language_model.walk(fast), 3, tree)
  spec = Spec(fast, drafter, verify.recursive)
  params = Params(blocked, blocked)
  state = models.run(spec, params, [[1, 2, 3]], sampling.make(1))

  def propose(params, state):
    ctx = generate.context(state)
    return drafter.propose(params, state.drafter, ctx, state.key)[0]

  program = jax.jit(propose).lower(params, state).compile().as_text()
  taken = fused_operands(program, '__ynn_fusion')
  weights = {math.prod(x.shape) for x in jax.tree.leaves(blocked) if x.ndim > 2}
  assert weights <= {*taken}
  assert max(taken) == max(weights)


def fused_operands(program: str, kind: str) -> list[int]:
  """Entries of every operand of the fusions of a kind, in a program's text."""
  shape = r'%[\w.-]+ = \(?\w+\[([\d,]*)\]'
  sizes = {
    line.split(' = ')[0].split()[-1]: math.prod(map(int, dims.split(',')))
    for line in program.splitlines()
    for dims in re.findall(shape, line)[:1]
    if dims
  }
  lines = [x for x in program.splitlines() if f'"kind":"{kind}"' in x]
  operands = [re.search(r' fusion\((.*?)\)', line)[1] for line in lines]
  return [sizes[x] for each in operands for x in each.split(', ') if x in sizes]


@pytest.mark.parametrize('rows', [1, 2, 5, 8, 9, 20])
def test_logits_agree(pair, rows):
  (model, plain), (fast, blocked) = pair
  tokens = jax.random.randint(jax.random.key(1), (1, rows), 0, 128)
  expected = models.score(model, plain, tokens)
  found = models.score(fast, blocked, tokens)
  np.testing.assert_allclose(found, expected, atol=2e-5)


def test_odd_columns_stay_as_they_are():
  model = models.tiny(11, 1)
  params = models.weights(model, 0)
  fast, blocked = variants.block(model, params)
  assert blocked['unembedding'].shape == params['unembedding'].shape
  tokens = jnp.arange(5)[None]
  np.testing.assert_array_equal(
    models.score(fast, blocked, tokens), models.score(model, params, tokens)
  )


@pytest.mark.slow
def test_speculation_decodes_with_them(pair):
  """A draft that is the target, in the other layout, is accepted always."""
  (model, plain), (fast, blocked) = pair
  spec = Spec(fast, lm.make(model, 3), verify.token)
  params = Params(blocked, plain)
  values = sampling.make(2, [0.0, 1.0])
  state = models.run(spec, params, [[1, 2, 3], [4]], values)
  counts = generate.generate(params, state, 40, spec=spec).counts
  tried = int(counts.tried.sum())
  assert tried >= 50
  assert int(counts.accepted.sum()) >= tried - 1


def test_every_option_works_in_blocks():
  model = models.tiny(
    128,
    2,
    **SIZES,
    windows=(3, None),
    post_norms=True,
    qk_norm=True,
    experts=Experts(count=4, chosen=2, width=64, dense=(0,)),
  )
  random = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: random.normal(size=x.shape).astype(np.float32) / 8,
    jax.eval_shape(model.init, jax.random.key(0)),
  )
  fast, blocked = variants.block(model, params)
  tokens = jax.random.randint(jax.random.key(1), (1, 7), 0, 128)
  np.testing.assert_allclose(
    models.score(fast, blocked, tokens),
    models.score(model, params, tokens),
    atol=2e-5,
  )


@pytest.mark.parametrize('rows', [2, 5, 8])
def test_blocked_products_of_a_row_do_not_depend_on_the_others(rows):
  random = np.random.default_rng(0)
  x = random.normal(size=(rows, 96)).astype(np.float32)
  w = random.normal(size=(3, 96, 64)).astype(np.float32)
  multiply = jax.jit(linear.multiply)
  together = multiply(x, w)
  for row in range(rows):
    np.testing.assert_array_equal(
      multiply(x[row : row + 1], w)[0], together[row]
    )
  flat = w.transpose(1, 0, 2).reshape(96, -1)
  np.testing.assert_allclose(together, x @ flat, rtol=0, atol=1e-4)


@pytest.mark.parametrize('rows', [1, 2, 13])
def test_a_single_block_is_multiplied_as_a_matrix(rows):
  """For one row a sum over it is compiled to a loop a hundred times slower."""
  random = np.random.default_rng(0)
  x, w = random.normal(size=(rows, 192)), random.normal(size=(192, 64))
  blocks = linear.to_blocks(jnp.asarray(w))
  assert len(blocks) == 1
  np.testing.assert_allclose(linear.multiply(x, blocks), x @ w, atol=1e-4)
  assert 'dot_general' in jax.jit(linear.multiply).lower(x, blocks).as_text()
