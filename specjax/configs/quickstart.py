"""The main job: the embedded pair on held-out text, every drafter.

  specjax run quickstart

Three and a half to four minutes on two idle cores of an AMD EPYC, one of them
for compiling; `--quick` takes about one. On code with draft-128 expect
tau 2.4 at both temperatures, and 1.6 to 1.7 times plain decoding.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts


def get_config() -> Experiment:
  return Experiment(
    name='quickstart',
    target=Checkpoint(pair.path('target')),
    candidates={
      'draft-128': Candidate('lm', 3, pair.path('draft-128')),
      'ngram': Candidate('ngram', 4),
      'draft-64': Candidate('lm', 3, pair.path('draft-64')),
      'draft-256': Candidate('lm', 3, pair.path('draft-256')),
      'bigram': Candidate('counts', 2, pair.path('bigram')),
    },
    prompts=Prompts(count=16),
  )
