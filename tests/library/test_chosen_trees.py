"""Trees whose nodes published heads choose at every step, as in DDTree."""

import jax
import numpy as np
import pytest

from specjax import sampling
from specjax.drafters import dflash, medusa
from specjax.types import Params
from tests.library import test_drafter_promises as promises
from tests.library import test_published_blocks as blocks
from tests.support import models, papers_in_numpy

NODES = 8
HEADS = {
  'dflash': lambda path: blocks.write(
    path, blocks.AUTHORS, blocks.tensors_of('z-lab')
  ),
  'medusa': lambda path: blocks.write_authors(path, blocks.medusa_tensors()),
}


@pytest.fixture(params=models.slow_unless(['dflash'], HEADS))
def loaded(request, tmp_path):
  """The drafters of a head."""
  path = HEADS[request.param](tmp_path / 'head')
  load = {'dflash': dflash, 'medusa': medusa}[request.param].load
  return load(blocks.HOST, path, beam=NODES, nodes=NODES)


def test_a_wide_beam_keeps_the_most_likely_beginnings(loaded):
  drafter = loaded.make(3)
  params = Params(models.target_weights(), loaded.params)
  tokens, length = promises.texts(4)
  values = sampling.make(4, [0.0, 0.5, 1.0, 2.0])
  ctx, memory = promises.fresh(drafter, params, tokens, length, values)
  draft, memory = jax.jit(drafter.propose)(params, memory, ctx, None)
  assert draft.probs is None  # Tokens are chosen.
  deepest = 0
  for row, logits in enumerate(np.asarray(memory.block[0].logits, np.float64)):
    paths = [()]
    for token, parent in zip(
      draft.tokens[row].tolist(), draft.parents[row].tolist(), strict=True
    ):
      paths.append((*paths[parent], token))
    best = papers_in_numpy.best_first(logits[:3], NODES)
    assert {*paths[1:]} == {*best}
    deepest = max(deepest, *map(len, best))
  assert deepest > 1
