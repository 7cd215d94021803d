"""Trees as parent rows, and the cache that only `commit` writes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import trees
from specjax.models import cache

ancestors = jax.jit(trees.ancestors)
above = jax.jit(trees.above, static_argnums=2)
commit = jax.jit(cache.commit)


def path_to_root(parents, row):
  path = [row]
  while row:
    row = parents[row - 1]
    path.append(row)
  return path


TREES = [
  (),
  (0,),
  (0, 1, 2, 3),
  (0, 0, 1, 1, 2, 2, 6),
  (0, *range(17)),  # so many rows are not unrolled
]


@pytest.mark.parametrize('parents', TREES, ids=str)
def test_what_is_above_a_row_is_its_path_to_the_root(parents):
  rows = len(parents) + 1
  paths = [path_to_root(parents, row) for row in range(rows)]
  given = jnp.array(parents, jnp.int32)
  seen = [[j in path for j in range(rows)] for path in paths]
  known = trees.ancestors(np.array(parents, np.int32))
  for depth, mask in (ancestors(given), known):
    assert depth.tolist() == [len(path) - 1 for path in paths]
    assert mask.tolist() == seen
  assert isinstance(known[0], np.ndarray)
  most = max(map(len, paths))  # one more than any path needs
  tokens = [7 * i % 5 for i in range(len(parents))]
  found = above(given, jnp.array(tokens, jnp.int32), most)
  for row, path in zip(found.tolist(), paths, strict=True):
    texts = [tokens[node - 1] for node in path[-2::-1]]
    assert row == texts + [-1] * (most - len(texts))


@pytest.mark.parametrize(
  ('slots', 'rounded', 'block'),
  [
    (1, 128, 128),
    (128, 128, 128),
    (129, 256, 128),
    (512, 512, 128),
    (513, 1024, 512),
    (1025, 1536, 512),
  ],
)
def test_slots_come_in_whole_blocks(slots, rounded, block):
  assert cache.round_slots(slots) == rounded
  assert cache.block_of(rounded) == block
  assert rounded % block == 0


def numbered(rows, length, first):
  """Keys and values of a head of width 2, of which each names its place."""
  array = first + np.arange(rows)[:, None] * 100 + np.arange(length)
  keys = jnp.asarray(array[:, :, None, None] + np.array([0, 0.5]), jnp.float32)
  return cache.block_of_rows(keys, keys + 1000)


def by_slot(kv):
  """Keys and values [rows, 1, slots, width]."""
  return kv.k.swapaxes(2, 3), kv.v


# Few rows are written one after another, many by one scatter.
@pytest.mark.parametrize('rows', [3, 17])
def test_commit_writes_the_path_and_nothing_else(rows):
  kept = (numbered(rows, 8, 1000),)
  flight = (numbered(rows, 4, 5000),)
  path = jnp.array([[0, 2, 3], [0, 1, 1], [0, 0, 0]])[np.arange(rows) % 3]
  start = jnp.arange(rows) % 6  # 5 + 3 slots are all there are
  written = commit(kept, flight, path, start)
  for old, new, block in zip(
    *(by_slot(kv) for (kv,) in (kept, written, flight)), strict=True
  ):
    expected = np.array(old)
    for row in range(rows):
      at = int(start[row])
      expected[row, :, at : at + 3] = block[row][:, path[row]]
    np.testing.assert_array_equal(new, expected)


@pytest.mark.parametrize('rows', [1, 17])
def test_a_path_beyond_the_block_leaves_numbers(rows):
  """What no one may see must still be a number: attention multiplies it by 0.

  A row of one token drafts without its first row, so its path ends one beyond
  the block.
  """
  kept = (numbered(rows, 8, 0),)
  flight = (numbered(rows, 2, 10),)
  path = jnp.broadcast_to(jnp.array([1, 2]), (rows, 2))
  (written,) = commit(kept, flight, path, jnp.zeros(rows, jnp.int32))
  assert jnp.isfinite(written.k).all()
  assert jnp.isfinite(written.v).all()
  for new, block in zip(by_slot(written), by_slot(flight[0]), strict=True):
    np.testing.assert_array_equal(new[:, :, 0], block[:, :, 1])


@pytest.mark.parametrize('fuses', [False, True])
@pytest.mark.parametrize(('count', 'rows'), [(1, 1), (2, 2), (1, 4), (2, 5)])
def test_rows_are_put_into_a_block_and_nowhere_else(count, rows, fuses):
  """Those of tokens: a pass may have more."""
  block, new = numbered(3, 8, 1000), numbered(3, rows, 5000)
  put = functools.partial(cache.put, fuses=fuses)
  put = jax.jit(put, static_argnums=3)
  made = put(block, new, 5, None if count == rows else count)
  for found, old, fresh in zip(*map(by_slot, (made, block, new)), strict=True):
    expected = np.array(old)
    expected[:, :, 5 : 5 + count] = fresh[:, :, :count]
    np.testing.assert_array_equal(found, expected)
  for found, fresh in zip(
    *map(by_slot, (put(None, new, 0, count), new)), strict=True
  ):
    np.testing.assert_array_equal(found, fresh[:, :, :count])


@pytest.mark.parametrize('fuses', [False, True])
def test_a_block_that_was_read_fills_its_slots(fuses):
  kept, flight = numbered(3, 8, 1000), numbered(3, 4, 5000)
  fill = jax.jit(functools.partial(cache.fill, fuses=fuses))
  (made,) = fill((kept,), (flight,), 3, jnp.array([4, 0, 2]))
  for found, old, fresh in zip(
    *map(by_slot, (made, kept, flight)), strict=True
  ):
    expected = np.array(old)
    expected[:, :, 3:7] = fresh
    np.testing.assert_array_equal(found, expected)


def test_commit_keeps_the_dtype_of_the_cache():
  kept = (cache.block_of_rows(*[jnp.zeros((1, 8, 1, 1), jnp.bfloat16)] * 2),)
  flight = (cache.block_of_rows(*[jnp.ones((1, 2, 1, 1), jnp.float32)] * 2),)
  (written,) = cache.commit(kept, flight, jnp.array([[0, 1]]), jnp.array([3]))
  assert written.k.dtype == jnp.bfloat16
  assert written.k[0, 0, 0].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]


@pytest.mark.parametrize('parents', [(), (0, 0, 0, 1, 1, 2, 5)])
def test_the_masks_of_a_fixed_tree_are_constants(parents):
  known = trees.fixed(2, parents)

  def masks(parents, tokens):
    above = functools.partial(trees.above, depth=3)
    return (
      trees.each(trees.ancestors, parents),
      trees.each(above, parents, tokens),
    )

  tokens = jnp.arange(2 * len(parents)).reshape(2, -1)
  expected = masks(jnp.asarray(known), tokens)
  jax.tree.map(np.testing.assert_array_equal, masks(known, tokens), expected)
  made = jax.make_jaxpr(lambda x: masks(known, x))(tokens)
  assert 'scatter' not in str(made)


def test_rows_of_other_trees_have_their_own_masks():
  parents = np.array([[0, 1], [0, 0]])
  depth, _ = trees.each(trees.ancestors, parents)
  assert depth.tolist() == [[0, 1, 2], [0, 1, 1]]
