"""Are the shipped heads read as they were trained?

  specjax probe

Two minutes on two idle cores; results/probe has the rows. The config `pair`
takes a head of your own.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts


def get_config() -> Experiment:
  return Experiment(
    name='probe',
    target=Checkpoint(pair.path('target')),
    candidates={
      'eagle1': Candidate('eagle', 3, pair.path('eagle1')),
      'eagle3': Candidate('eagle', 3, pair.path('eagle3')),
      'medusa': Candidate('medusa', 3, pair.path('medusa')),
      'dflash': Candidate('dflash', 3, pair.path('dflash')),
    },
    prompts=Prompts(count=11),
    max_new_tokens=32,
  )
