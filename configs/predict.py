"""Which draft of the embedded pair, and how long it should draft.

python -m experiments.predict --config configs/predict.py
"""

from experiments.settings import Candidate, Checkpoint, Experiment, Prompts
from specjax import pair

_LM = 'specjax.drafters.lm.load'


def get_config() -> Experiment:
  return Experiment(
    name='predict',
    target=Checkpoint(pair.path('target')),
    candidates={
      'draft-128': Candidate(_LM, 3, pair.path('draft-128')),
      'ngram': Candidate('specjax.drafters.ngram.load', 4),
      'draft-64': Candidate(_LM, 3, pair.path('draft-64')),
      'draft-256': Candidate(_LM, 3, pair.path('draft-256')),
      'bigram': Candidate(
        'specjax.drafters.counts.load', 2, pair.path('bigram')
      ),
    },
    gammas=(1, 2, 3, 4, 6),
    prompts=Prompts(count=27),
  )
