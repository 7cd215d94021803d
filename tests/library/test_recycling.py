"""Token recycling against the target's own logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters import recycling
from specjax.loop import generate
from tests.support import models


def by_hand(tokens, k):
  """The table [V, k] after a text, from the logits of all of it at once."""
  padded = np.zeros((1, 128), np.int32)  # One program for all lengths.
  padded[0, : len(tokens)] = tokens
  logits = models.score(models.TARGET, models.target_weights(), padded)
  best = np.argsort(-np.asarray(logits[0]), 1, kind='stable')[:, :k]
  table = np.full((models.VOCAB, k), -1)
  for token, found in zip(tokens[:-1], best, strict=False):
    table[token] = found
  return table


def draft_of(table, token, parents):
  """Texts of a tree that is filled from a table; without what it lacks."""
  texts, found = {0: (token,)}, []
  for row, above in enumerate(parents, 1):
    if above in texts:
      rank = parents[: row - 1].count(above)
      after = table[texts[above][-1]][rank]
      if after >= 0:
        texts[row] = (*texts[above], int(after))
        found.append(texts[row])
  return found


def test_the_table_is_what_the_target_nearly_said():
  """After the prompts, and after every step on top of them."""
  drafter = models.DRAFTERS['recycling, tree'][0]
  parents = recycling.template(3, 3, 7)
  assert len(parents) == 7
  propose = jax.jit(drafter.propose)
  params = models.params_of('recycling, tree')
  # 33 rows are two blocks and one more, which reads a new token.
  prompts = *models.PROMPTS[:5], (*(9, 8) * 16, 5, 6)
  state = models.begin('recycling, tree', prompts=prompts, eos=())
  grown = 0
  for _ in range(4):
    rows = zip(
      np.asarray(state.tokens), state.length, state.drafter.after, strict=True
    )
    expected = []
    for tokens, length, after in rows:
      text = tokens[: int(length)]
      table = by_hand(text, 3)
      np.testing.assert_array_equal(after, table)
      expected.append(draft_of(table, int(text[-1]), parents))
    ctx = generate.context(state)
    draft, _ = propose(params, state.drafter, ctx, state.key)
    for row, paths in enumerate(expected):
      grown = max(grown, len(paths))
      assert int(draft.size[row]) == len(paths)
      texts = {0: (int(ctx.tokens[row, ctx.length[row] - 1]),)}
      for i in range(len(paths)):
        above = texts[int(draft.parents[row, i])]
        texts[i + 1] = (*above, int(draft.tokens[row, i]))
      assert list(texts.values())[1:] == paths
    state = models.go('recycling, tree', state, steps=1, eos=())
  assert grown > 3


def test_of_equal_tokens_the_last_counts():
  after = jnp.full((4, 1), -1)
  tokens, found = jnp.array([2, 1, 2, 2]), jnp.array([[0], [1], [2], [3]])
  exists = jnp.array([True, True, True, False])
  table = recycling._write(after, tokens, found, exists)
  assert table[:, 0].tolist() == [-1, 1, 2, -1]


@pytest.mark.parametrize(
  ('sizes', 'parents'),
  [
    ((4, 8, 4), (0, 1, 2, 3)),  # As many nodes as levels are a chain.
    ((2, 10, 14), (*[0] * 6, *[1] * 4, 2, 2, 3, 4)),
    ((2, 10, 24), (*[0] * 10, *[1] * 6, 2, 2, 2, 3, 3, 4, 5, 6)),
  ],
)
def test_trees_have_the_candidates_that_come_next_most_often(sizes, parents):
  assert recycling.template(*sizes) == parents
