"""Block beside token verification on the embedded pair, at temperature 1.

  specjax run configs/rules.py

About six minutes on two idle cores. The last table is the change of tau, paired
on prompts; Sun et al. (arXiv:2403.10444, Table 1) report +3.5, +6.2 and +8.5%
at gamma 4, 6 and 8, for other models.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts


def get_config() -> Experiment:
  return Experiment(
    name='rules',
    target=Checkpoint(pair.path('target')),
    candidates={'draft-128': Candidate('lm', 4, pair.path('draft-128'))},
    verifiers=('token', 'block'),
    gammas=(4, 6, 8),
    temperatures=(1.0,),
    prompts=Prompts(domains=('code', 'documentation'), count=100),
  )
