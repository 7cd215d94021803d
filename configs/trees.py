"""Several candidates for a token: chains and trees of one draft model.

  python -m experiments.run --config configs/trees.py

This compares tau of a chain, of independent chains merged by common prefix, and
of a tree drawn without replacement, by recursive rejection. To add k-SEQ:

  --config.drafters="('two chains', 'four chains')"
  --config.verifiers="('recursive', 'k_seq')"

On a CPU a step that scores a tree costs more than the tree gains: v says so.
A few minutes on two idle cores.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts


def get_config() -> Experiment:
  draft = pair.path('draft-128')

  def chains(count):
    return Candidate('lm', 3, draft, {'widths': (count,), 'replacement': True})

  return Experiment(
    name='trees',
    target=Checkpoint(pair.path('target')),
    candidates={
      'chain': Candidate('lm', 3, draft),
      'two chains': chains(2),
      'four chains': chains(4),
      'tree 2 2 1': Candidate('lm', 3, draft, {'widths': (2, 2)}),
      'tree 4 2 1': Candidate('lm', 3, draft, {'widths': (4, 2)}),
    },
    verifiers=('recursive',),
    temperatures=(0.0, 1.0),
    prompts=Prompts(domains=('code',), count=40),
  )
