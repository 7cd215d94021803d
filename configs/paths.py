"""Rules for several independent paths, beside block verification of one.

  python -m experiments.run --config configs/paths.py \\
    --config.results=results/paths

No time is taken, so the machine may be busy; the run takes some twenty minutes
of its cores. Thomas and Pal (arXiv:2602.16961) report that greedy multi-path
block verification, here `multi_path`, raises tokens per target call by over 30%
against block verification of one path, for other models.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts


def get_config() -> Experiment:
  draft = pair.path('draft-128')
  rules = 'naive', 'recursive', 'k_seq', 'traversal', 'multi_path'

  def paths(count: int) -> Candidate:
    options = {'widths': (count,), 'replacement': True}
    return Candidate('lm', 4, draft, options, rules)

  return Experiment(
    name='paths',
    target=Checkpoint(pair.path('target')),
    candidates={
      'one path': Candidate('lm', 4, draft, verifiers=('block',)),
      'two paths': paths(2),
      'four paths': paths(4),
    },
    gammas=(4, 8),
    temperatures=(1.0,),
    prompts=Prompts(domains=('code', 'documentation'), count=48),
    max_new_tokens=64,
    batch=24,
    timed=False,
  )
