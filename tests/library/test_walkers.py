"""What a shape tells a walker: features, rows and ancestors of every node.

The walker here remembers the text of each row as a number and drafts from a
table of such numbers, so that whatever it is told wrongly shows in what is
drawn.
"""

import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.drafters.shapes import chain, dynamic_tree, shape, static_tree
from specjax.drafters.shapes.step_model import Step, Walker
from specjax.loop import generate
from specjax.types import Context, Verdict
from tests.support import papers_in_numpy

VOCAB, ROWS, DEPTH = 3, 16, 3
TEXTS = (VOCAB ** (DEPTH + 1) - 1) // (VOCAB - 1)
TABLE = 2 * np.random.default_rng(0).normal(size=(TEXTS, VOCAB))
PROBS = np.exp(TABLE) / np.exp(TABLE).sum(1, keepdims=True)


def number(path):
  """Of a text from the root: 0 the empty one, then by length and token."""
  code = 0
  for token in path:
    code = code * VOCAB + token + 1
  return code


def _init(params, ctx, hidden, rows):
  del params, hidden  # Unused.
  batch = len(ctx.length)
  return jnp.zeros((batch, 0), jnp.int32), jnp.full((batch, rows), -1)


def _start(params, kept, block, ctx):
  del params, kept  # Unused.
  root = jnp.zeros((len(ctx.length), 1), jnp.int32)
  logits = jnp.asarray(TABLE, jnp.float32)[root]
  return Step(logits, root, block.at[:, 0].set(0))


def _feed(params, kept, block, ctx, row, depth, tokens, features, sees):
  """The text by its features; -2 in a row that descends from others."""
  del params, kept, ctx  # Unused.
  new = features * VOCAB + tokens + 1
  count = tokens.shape[1]
  # Of the rows it sees, itself apart, the deepest is the one above, and there
  # is one of each depth.
  own = jnp.arange(block.shape[1]) == row + jnp.arange(count)[:, None]
  above = jnp.where(sees & ~own, block[:, None], -1)
  right = (sees | ~own).all(-1) & (above.max(-1) == features)
  right &= sees.sum(-1) == depth + 1
  block = jax.lax.dynamic_update_slice_in_dim(
    block, jnp.where(right, new, -2), row, axis=1
  )
  return Step(jnp.asarray(TABLE, jnp.float32)[new], new, block)


def _commit(params, kept, block, ctx, verdict, hidden):
  del params, kept, ctx, hidden  # Unused.
  return jnp.take_along_axis(block, verdict.path, 1)


WALKER = Walker(_init, _start, _feed, _commit)
SHAPES = {
  'chain': chain.make(WALKER, DEPTH),
  'static tree': static_tree.make(WALKER, (0, 0, 1, 1, 2, 3, 5)),
  'one tree of many': static_tree.make(WALKER, (0, 0, 0, 2, 3, 3, 5), True),
  'dynamic tree': dynamic_tree.make(WALKER, DEPTH, 2, 7),
}


# Stages that look at drafted tokens, of every other row, and then cuts.
STAGES = {
  'repetition_penalty': np.resize([1.0, 1.75], ROWS),
  'presence_penalty': np.resize([0.0, 0.5], ROWS),
  'frequency_penalty': np.resize([0.0, 1.25], ROWS),
}
CUTS = np.resize([1.0, 1.0, 0.5, 2.5], ROWS), np.resize([0, 0, 0, 2], ROWS)


def processed(path, row):
  """Logits [V] after a path, of a row."""
  stages = {name: values[row] for name, values in STAGES.items()}
  return papers_in_numpy.process(TABLE[number(path)], (0, 0), path, **stages)


def propose(drafter, values):
  """A drafter, its drafts, its memory of them and their context."""
  rows = len(values.temperature)
  tokens, length = np.zeros((rows, 128), np.int32), np.full(rows, 2, np.int32)
  history = sampling.history(values, tokens, length, VOCAB)
  ctx = Context(tokens, length, (), values, history)
  memory = jax.jit(drafter.init)(None, ctx, None)
  key = generate.row_keys(0, range(rows))
  draft, memory = jax.jit(drafter.propose)(None, memory, ctx, key)
  return drafter, *jax.device_get((draft, memory)), ctx


@pytest.fixture(scope='module', params=SHAPES)
def drafted(request):
  values = sampling.make(ROWS, *CUTS, vocab_size=VOCAB, **STAGES)
  return propose(SHAPES[request.param], values)


def test_every_node_is_drawn_from_the_law_of_its_own_text(drafted):
  _, draft, memory, _ = drafted
  # The walker was told the ancestors of every node.
  block = memory.block[0] if isinstance(memory.block, tuple) else memory.block
  assert (block >= 0).all()
  for row in range(ROWS):
    paths, seen = papers_in_numpy.paths(draft, row), {}
    if draft.probs is None:
      # At temperature 1 and before cuts, whatever they are.
      logits = functools.partial(processed, row=row)
      best = papers_in_numpy.eagle_2(logits, DEPTH, 2, 7)
      assert len({*paths}) == len(paths)  # Siblings differ.
      assert {*paths} == {(), *best}
      continue
    # Equal texts are one: what hangs below either is below the first.
    above = [paths.index(path[:-1]) for path in paths[1:]]
    assert draft.parents[row].tolist() == above
    for node, path in enumerate(paths[1:]):
      above = int(draft.parents[row, node])
      cuts = [x[row] for x in CUTS]
      q = papers_in_numpy.pipeline(processed(path[:-1], row), *cuts)
      if not drafted[0].independent:
        q[seen.setdefault(above, [])] = 0
        seen[above].append(path[-1])
      np.testing.assert_allclose(draft.probs[row, node], q / q.sum(), atol=1e-5)


@pytest.mark.parametrize(
  ('options', 'given'),
  [
    (
      {'widths': (2, 2), 'replacement': True},
      ((0, 0, 1, 1, 2, 2), True, False),
    ),
    ({'parents': (0, 0, 1), 'hub': True}, ((0, 0, 1), False, True)),
  ],
)
def test_a_tree_has_its_options_however_it_is_given(options, given):
  made = shape.build(WALKER, 2, options)
  assert made is static_tree.make(WALKER, *given)  # Equal ones are one.
  assert (made.nodes, made.independent, made.hub) == (len(given[0]), *given[1:])


TOGETHER = {
  'chain': (chain.make(WALKER, 3), (0, 1, 2)),
  'siblings': (static_tree.make(WALKER, (0, 0, 1)), (0, 0, 1)),
  'independent siblings': (
    static_tree.make(WALKER, (0, 0, 1), True),
    (0, 0, 1),
  ),
  'siblings with a hub': (
    static_tree.make(WALKER, (0, 0, 1), hub=True),
    (0, 0, 1),
  ),
}


@pytest.mark.parametrize('name', TOGETHER)
def test_nodes_are_drawn_with_coins_of_their_own(name):
  """All tokens together have their distribution, not only each of them.

  Independent siblings that were one draw would each be drawn from q, and the
  rules for them would be wrong. The false-alarm rate is 1e-4 in all.
  """
  drafter, parents = TOGETHER[name]
  chances = {}
  for tokens in itertools.product(range(VOCAB), repeat=3):
    paths, chance = [()], 1.0
    for node, parent in enumerate(parents):
      q = PROBS[number(paths[parent])].copy()
      earlier = [tokens[i] for i in range(node) if parents[i] == parent]
      if drafter.hub and earlier and earlier != [q.argmax()]:
        q = np.eye(VOCAB)[q.argmax()]
      elif not drafter.independent:
        q[earlier] = 0
      chance *= q[tokens[node]] / q.sum()
      paths.append((*paths[parent], tokens[node]))
    chances[tokens] = chance
  draft = propose(drafter, sampling.make(4096, 1.0))[1]
  drawn = collections.Counter(map(tuple, draft.tokens.tolist()))
  fit = papers_in_numpy.fit(drawn, chances)
  assert fit.freedom >= 8
  assert fit.p_value > 1e-4 / len(TOGETHER)


def test_a_walker_is_told_the_rows_that_it_was_fed(drafted):
  """Whichever path was accepted; what was not fed is of no matter."""
  drafter, draft, memory, ctx = drafted
  commit = jax.jit(drafter.commit)
  for last in range(drafter.nodes + 1):
    path, expected = np.zeros((2, ROWS, drafter.depth + 1), np.int32)
    for row in range(ROWS):
      here, rows = last, [last]
      while here:
        here = int(draft.parents[row, here - 1])
        rows.append(here)
      rows = rows[::-1]
      texts = [number(papers_in_numpy.paths(draft, row)[at]) for at in rows]
      fill = drafter.depth + 1 - len(rows)
      path[row] = [*rows, *rows[-1:] * fill]
      expected[row] = [*texts, *texts[-1:] * fill]
    count = np.zeros(ROWS, np.int32)
    verdict = Verdict(path, count, count)
    kept = np.asarray(commit(None, memory, ctx, verdict, None).state)
    fed = expected < number([0] * drafter.depth)  # The last level never is.
    if drafter.nodes != drafter.depth and draft.probs is None:
      fed = was_fed(memory, path)
    np.testing.assert_array_equal(kept[fed], expected[fed])


def was_fed(memory, path):
  """Rows of a dynamic tree that were expanded, and the root."""
  rows = np.take_along_axis(np.asarray(memory.block[1]), path, 1)
  return (rows > 0) | (path == 0)


@pytest.mark.parametrize(
  ('depth', 'options', 'levels', 'nodes'),
  [
    (3, {}, 3, 3),
    (1, {}, 1, 1),
    # As many children as named, and one each beyond these.
    (1, {'widths': (2,)}, 1, 2),
    (3, {'widths': (2,)}, 3, 6),
    (3, {'widths': (2, 2, 1)}, 3, 10),
    (2, {'widths': (2, 2, 1)}, 2, 6),
    # What is deeper is cut; a tree that is not so deep stays as it is.
    (2, {'parents': (0, 0, 1, 2, 3)}, 2, 4),
    (3, {'parents': (0, 0, 1, 2, 3)}, 3, 5),
    (4, {'parents': (0, 0, 1, 2, 3)}, 3, 5),
    (2, {'beam': 2, 'nodes': 5}, 2, 5),
    (1, {'beam': 2, 'nodes': 1}, 1, 1),
    (2, {'beam': 2, 'nodes': 60}, 2, 6),  # There are no more.
  ],
)
def test_a_shape_is_as_deep_as_it_was_asked_for(depth, options, levels, nodes):
  reads = {'taps': (1,), 'positions': 77}
  drafter = shape.build(WALKER._replace(**reads), depth, options)
  assert (drafter.depth, drafter.nodes) == (levels, nodes)
  assert {name: getattr(drafter, name) for name in reads} == reads


def test_a_node_has_no_more_children_than_there_are_tokens():
  values = sampling.make(1)
  wide = dynamic_tree.make(WALKER, 2, 3, 7)
  assert propose(wide, values)[1].size == 7
  assert propose(static_tree.make(WALKER, (0,) * 3), values)[1].size == 3
  with pytest.raises(ValueError, match=r'beam is 4, but .* 3 tokens'):
    propose(dynamic_tree.make(WALKER, 2, 4, 7), values)
  with pytest.raises(ValueError, match='parents has 4 siblings'):
    propose(static_tree.make(WALKER, (0,) * 4), values)
