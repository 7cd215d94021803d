"""Why the embedded pair is as fast as it is: draft-128 at gamma 1 to 8.

  python -m experiments.explain --config configs/explain.py

About five minutes on two idle cores, half of them for compiling; with
`--config.compilation_cache=FOLDER` the second start compiles nothing.
"""

from experiments.settings import Candidate, Checkpoint, Experiment, Prompts
from specjax import pair


def get_config() -> Experiment:
  return Experiment(
    name='pair',
    target=Checkpoint(pair.path('target')),
    candidates={
      'draft-128': Candidate(
        'specjax.drafters.lm.load', 3, pair.path('draft-128')
      ),
    },
    prompts=Prompts(domains=('code',), count=16),
  )
