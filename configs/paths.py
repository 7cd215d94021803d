"""Rules for several independent paths, beside block verification of one.

  specjax run configs/paths.py \\
    --results=results/paths/embedded

No time is taken, so the machine may be busy; the run takes some ten minutes of
its cores. With the files of `configs/real_pair.py` in FOLDER,

  specjax run configs/paths.py:FOLDER \\
    --prompts.path=HumanEval.jsonl.gz --prompts.chat \\
    --results=results/paths/real_pair

compares `block` and `multi_path` on fewer prompts.

Thomas and Pal (arXiv:2602.16961) report that greedy multi-path block
verification, here `multi_path`, raises tokens per target call by over 30%
against block verification of one path. SpecHub (arXiv:2411.05289), here `hub`,
is reported with 0.05 to 0.27 tokens more than recursive rejection, and 0.02 to
0.16 more than that without replacement. Both are for other models.
"""

import dataclasses

from configs import real_pair
from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts


def get_config(folder: str = '') -> Experiment:
  real = real_pair.get_config(folder)
  draft = real.candidates['sibling'].path if folder else pair.path('draft-128')

  def paths(count: int, *rules: str, gamma: int = 4, **options) -> Candidate:
    options = {'widths': (count,)} | options
    return Candidate('lm', gamma, draft, options, rules)

  every = 'naive', 'recursive', 'k_seq', 'importance', 'traversal', 'multi_path'
  rules = every[-1:] if folder else every
  drawn = {'replacement': True}
  x = Experiment(
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
  if not folder:
    return x
  return dataclasses.replace(
    x,
    target=real.target,
    rounds=real.rounds,
    drafters=('one path', 'two paths'),
    prompts=dataclasses.replace(real.prompts, count=16),
    max_new_tokens=48,
    batch=8,
  )
