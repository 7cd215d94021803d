"""Several candidates for a token: chains and trees of one draft model.

  python -m experiments.run --config configs/trees.py

This compares tau of a chain, of independent chains merged by common prefix, and
of a tree drawn without replacement, by recursive rejection. To add k-SEQ:

  --config.drafters="('two chains', 'four chains')"
  --config.verifiers="('recursive', 'k_seq')"

On a CPU a step that scores a tree costs more than the tree gains: v says so.
A few minutes on two idle cores.

  python -m experiments.run --config configs/trees.py:blocks

This compares tau of drafts of DFlash, a head that says all places at once: a
chain, the fixed tree that its measured accuracies choose, whose nodes are
drawn, and trees that its laws choose at every step. With a beam of as many
nodes as are kept that tree is the one of DDTree (arXiv:2604.12989).
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts
from specjax.errors import need

_NODES = 12


def _blocks() -> Experiment:
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


def get_config(part: str = 'models') -> Experiment:
  need(
    part in ('models', 'blocks'), f'the parts are models, blocks, got {part}'
  )
  if part == 'blocks':
    return _blocks()
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
