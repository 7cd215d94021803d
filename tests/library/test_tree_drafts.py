"""A chosen tree, node by node, beside the same tree in plain Python.

What a wrong tree costs is acceptance alone. So trees are compared under the
stages that look at drafted tokens. The model is a transformer, which sees what
each node is told to see; its logits come from full passes without a cache.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.drafters import lm
from specjax.drafters.shapes import dynamic_tree
from specjax.loop import generate, scoring
from specjax.types import Params
from tests.library import test_drafter_promises as promises
from tests.support import models, papers_in_numpy

VOCAB = 6
MODEL = models.tiny(VOCAB, 1)
ENDS = (5,)
# Of every other row; the rest have the first value of each.
STAGES = {
  'repetition_penalty': (1.0, 1.75),
  'presence_penalty': (0.0, 0.5),
  'frequency_penalty': (0.0, 1.25),
  'min_new_tokens': (0, 2),
}
PROMPTS = tuple((1, last) for last in range(4))
# Temperature and top-k, which change nothing.
CUTS = (0.0, 0), (0.5, 0), (1.0, 2), (2.5, 0)
ROWS = [
  (prompt, i, cut) for prompt in PROMPTS for i in range(2) for cut in CUTS
]


@pytest.mark.slow
def test_a_dynamic_tree_keeps_what_is_worth_most(float64):
  """The product of the confidences, at temperature 1, along the path."""
  depth, beam, nodes = 4, 2, 12
  drafter = dynamic_tree.make(lm.walk(MODEL), depth, beam, nodes)
  prompts, stages, cuts = zip(*ROWS, strict=True)
  temperature, top_k = zip(*cuts, strict=True)
  values = sampling.make(
    len(ROWS), temperature, top_k=top_k, vocab_size=VOCAB, eos=ENDS,
    **{name: [both[i] for i in stages] for name, both in STAGES.items()},
  )  # fmt: skip
  tokens = np.zeros((len(ROWS), 128), np.int32)
  tokens[:, :2] = prompts
  weights = models.double(models.weights(MODEL, 0))
  params = Params(None, jax.tree.map(jnp.asarray, weights))
  length = np.full(len(ROWS), 2, np.int32)
  ctx, memory = promises.fresh(drafter, params, tokens, length, values)
  history = sampling.history(values, ctx.tokens, ctx.length, VOCAB)
  ctx = ctx._replace(history=history)
  propose = jax.jit(functools.partial(scoring.propose, drafter))
  keys = generate.row_keys(0, range(len(ROWS)))
  draft = jax.device_get(propose(params, memory, ctx, keys)[0])
  assert (draft.size == nodes).all()
  trees = {}
  for row, (prompt, i, _) in enumerate(ROWS):
    if (prompt, i) not in trees:
      logits = models.without_cache(MODEL, weights, prompt, 3)
      chosen = {name: both[i] for name, both in STAGES.items()}

      def processed(path, logits=logits, prompt=prompt, chosen=chosen):
        return papers_in_numpy.process(
          logits[path], prompt, path, ENDS, **chosen
        )

      best = papers_in_numpy.eagle_2(processed, depth, beam, nodes)
      trees[prompt, i] = {(), *best}
    paths = papers_in_numpy.paths(draft, row)
    assert len({*paths}) == len(paths)  # Siblings differ.
    assert {*paths} == trees[prompt, i]
  # Stages change trees.
  assert all(trees[x, 0] != trees[x, 1] for x in PROMPTS)
