"""A chosen tree, node by node, beside the same tree in plain Python.

A target accepts whatever tree it is given, and the text stays right: what a
wrong tree costs is acceptance. So trees are compared here, under every stage
that looks at drafted tokens, and at temperatures other than 1. The model is a
transformer, which sees what each node is told to see; its logits after every
text come from full passes without a cache.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.drafters import lm
from specjax.drafters.shapes import dynamic_tree
from specjax.loop import generate, scoring
from specjax.models import prefill, transformer
from specjax.types import Params
from tests.library import test_drafter_promises as promises
from tests.support import models, papers_in_numpy

VOCAB = 6
MODEL = models.tiny(VOCAB, 1)
ENDS = (5,)
PENALTIES = {
  'repetition_penalty': 1.75,
  'presence_penalty': 0.5,
  'frequency_penalty': 1.25,
  'min_new_tokens': 2,
}
NEUTRAL = {
  'repetition_penalty': 1.0,
  'presence_penalty': 0.0,
  'frequency_penalty': 0.0,
  'min_new_tokens': 0,
}
# Prompt, temperature, top-k, stages.
ROWS = tuple(
  ((1, last), temperature, top_k, stages)
  for last, stages in itertools.product(range(4), (NEUTRAL, PENALTIES))
  for temperature, top_k in ((0.0, 0), (0.5, 0), (1.0, 2), (2.5, 0))
)
WALKER = lm.walk(MODEL)


def values_of(rows):
  _, temperature, top_k, stages = zip(*rows, strict=True)
  each = {name: [row[name] for row in stages] for name in NEUTRAL}
  return sampling.make(
    len(rows), temperature, top_k=top_k, vocab_size=VOCAB, eos=ENDS, **each
  )


@functools.cache
def logits_of(prompt):
  """Logits after every text of up to three tokens on top of a prompt."""
  return models.without_cache(MODEL, models.weights(MODEL, 0), prompt, 3)


def step(drafter):
  """Drafts of every row and their verdicts; the target drafts for itself."""
  tokens = np.zeros((len(ROWS), 128), np.int32)
  tokens[:, :2] = [row[0] for row in ROWS]
  length, values = np.full(len(ROWS), 2, np.int32), values_of(ROWS)
  weights = models.double(models.weights(MODEL, 0))
  weights = jax.tree.map(jnp.asarray, weights)
  params = Params(None, weights)
  ctx, memory = promises.fresh(drafter, params, tokens, length, values)
  history = sampling.history(values, ctx.tokens, ctx.length, VOCAB)
  ctx = ctx._replace(history=history)
  # The target reads the text itself, whatever a drafter remembers of it.
  cache = transformer.open_cache(MODEL, weights, *tokens.shape)
  cache, _ = prefill.prefill(MODEL, weights, tokens, length, cache)
  read = ctx._replace(cache=cache)

  @jax.jit
  def run(keys):
    _, to_draft, to_judge = scoring.split(keys)
    draft, _ = scoring.propose(drafter, params, memory, ctx, to_draft)
    _, logits = scoring.feed(MODEL, weights, read, draft)
    _, verdict = scoring.decide(
      to_judge, logits, ctx, draft, rule=verify.recursive, depth=drafter.depth
    )
    return draft, verdict

  return jax.device_get(run(generate.row_keys(0, range(len(ROWS)))))


def processed(row, path):
  """Logits after a drafted path, before the temperature."""
  prompt, _, _, stages = ROWS[row]
  logits = logits_of(prompt)[path]
  return papers_in_numpy.process(logits, prompt, path, ENDS, **stages)


def paths_of(draft, row):
  """The text from the root to each row of one draft."""
  paths = [()]
  size = int(draft.size[row])
  for token, parent in zip(
    draft.tokens[row, :size].tolist(),
    draft.parents[row, :size].tolist(),
    strict=True,
  ):
    paths.append((*paths[parent], token))
  return paths


def greedy(row, count):
  """The target's own text at temperature 0."""
  path: tuple = ()
  while len(path) < count:
    path = (*path, int(processed(row, path).argmax()))
  return path


@pytest.mark.slow
def test_a_dynamic_tree_keeps_what_is_worth_most(float64):
  """The product of the confidences, at temperature 1, along the path."""
  depth, beam, nodes = 4, 2, 12
  drafter = dynamic_tree.make(WALKER, depth, beam, nodes)
  draft, verdict = step(drafter)
  assert (draft.size == nodes).all()
  trees, complete = [], 0
  for row in range(len(ROWS)):
    paths = paths_of(draft, row)
    trees.append({*paths})
    assert len(trees[row]) == 1 + nodes  # Siblings differ.
    logits = functools.partial(processed, row)
    assert trees[row] == {
      (),
      *papers_in_numpy.eagle_2(logits, depth, beam, nodes),
    }
    if not ROWS[row][1]:  # The ceiling: the greedy text, as far as it is there.
      best = max(n for n in range(depth + 1) if greedy(row, n) in paths)
      assert verdict.num_accepted[row] == best
      complete += best == depth
  assert complete >= len(ROWS) // 4 // 2
  # Temperature and cuts change nothing, and penalties do.
  four = [trees[i : i + 4] for i in range(0, len(ROWS), 4)]
  assert all(tree == some[0] for some in four for tree in some)
  assert all(a[0] != b[0] for a, b in zip(four[::2], four[1::2], strict=True))
