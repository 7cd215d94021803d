"""Drafts of DFlash, a head that says all places at once, as chain and trees.

  specjax run configs/trees.py

This compares tau of a chain, the fixed tree that its measured accuracies
choose, whose nodes are drawn, and trees that its laws choose at every step.
With a beam of as many nodes as are kept that tree is the one of DDTree
(arXiv:2604.12989). The config `drafters` and
`configs/embedded_tables.py` compare those of a model.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts

_NODES = 12


def get_config() -> Experiment:
  def dflash(**options):
    return Candidate('dflash', 6, pair.path('dflash'), options)

  return Experiment(
    name='block_trees',
    target=Checkpoint(pair.path('target')),
    candidates={
      'chain': dflash(),
      'fixed tree': dflash(tree=_NODES),
      'beam 3': dflash(beam=3, nodes=_NODES),
      'best first': dflash(beam=_NODES, nodes=_NODES),
    },
    verifiers=('recursive',),
    temperatures=(0.0, 1.0),
    timed=False,
    batch=24,
    prompts=Prompts(domains=('code',), count=24),
    max_new_tokens=48,
  )
