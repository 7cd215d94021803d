"""Rules for two candidates of a place: how they are drawn, how they are judged.

  python -m experiments.run --config configs/pairs.py \\
    --config.results=results/pairs

No time is taken, so the machine may be busy; the run takes some ten minutes of
its cores. Trees have two candidates for the first two places, and one for each
of two more. SpecHub (arXiv:2411.05289, Table 1) reports 0.05 to 0.27 tokens
more for a target call than recursive rejection has, and 0.02 to 0.16 more than
it has without replacement, for other models.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts


def get_config() -> Experiment:
  draft = pair.path('draft-128')

  def pairs(*rules: str, **options) -> Candidate:
    return Candidate('lm', 4, draft, {'widths': (2, 2)} | options, rules)

  return Experiment(
    name='pairs',
    target=Checkpoint(pair.path('target')),
    candidates={
      'with replacement': pairs(
        'recursive', 'k_seq', 'importance', replacement=True
      ),
      'without': pairs('recursive'),
      'with hubs': pairs('hub', hub=True),
    },
    temperatures=(1.0,),
    prompts=Prompts(domains=('code', 'documentation'), count=48),
    max_new_tokens=64,
    batch=24,
    timed=False,
  )
