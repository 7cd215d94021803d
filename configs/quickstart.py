"""The main job: the embedded pair on held-out text, every drafter.

  python -m experiments.run --config configs/quickstart.py

Four to five minutes on two idle cores of an AMD EPYC (Zen 4), one of them for
compiling; `--config.quick` takes about one. To expect on code with draft-128:
tau 2.4 at both temperatures, 1.5 to 2 times plain decoding: the slower the
memory, the more.
"""

from experiments.settings import Candidate, Checkpoint, Experiment, Prompts
from specjax import pair

_LM = 'specjax.drafters.lm.load'


def get_config() -> Experiment:
  return Experiment(
    name='quickstart',
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
    prompts=Prompts(count=16),
  )
