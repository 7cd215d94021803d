"""Rules for several independent paths, beside block verification of one.

  python -m experiments.run --config configs/paths.py \\
    --config.results=results/paths

No time is taken, so the machine may be busy; the run takes some ten minutes of
its cores. Thomas and Pal (arXiv:2602.16961) report that greedy multi-path
block verification, here `multi_path`, raises tokens per target call by over 30%
against block verification of one path. SpecHub (arXiv:2411.05289), here `hub`,
is reported with 0.05 to 0.27 tokens more than recursive rejection, and 0.02 to
0.16 more than that without replacement. Both are for other models.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts


def get_config() -> Experiment:
  def paths(count: int, *rules: str, gamma: int = 4, **options) -> Candidate:
    options = {'widths': (count,)} | options
    return Candidate('lm', gamma, pair.path('draft-128'), options, rules)

  rules = 'naive', 'recursive', 'k_seq', 'importance', 'traversal', 'multi_path'
  drawn = {'replacement': True}
  return Experiment(
    name='paths',
    target=Checkpoint(pair.path('target')),
    candidates={
      'one path': paths(1, 'block'),
      'two paths': paths(2, *rules, **drawn),
      'two without replacement': paths(2, 'recursive'),
      'two with a hub': paths(2, 'hub', hub=True),
      'four paths': paths(4, 'multi_path', **drawn),
      'one path of 8': paths(1, 'block', gamma=8),
      'four paths of 8': paths(4, 'traversal', 'multi_path', gamma=8, **drawn),
    },
    temperatures=(1.0,),
    prompts=Prompts(domains=('code',), count=48),
    max_new_tokens=64,
    batch=24,
    timed=False,
  )
