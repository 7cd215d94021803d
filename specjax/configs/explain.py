"""Why the embedded pair is as fast as it is: draft-128 at gamma 1 to 8.

  specjax explain

About four minutes on two cores, a minute of them for compiling, which a second
start does not repeat. To expect: gamma 2 to 6, 1.3 to 1.8 times plain decoding
(the slower the memory, the more), and measured / predicted near 1 everywhere.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts


def get_config() -> Experiment:
  return Experiment(
    name='pair',
    target=Checkpoint(pair.path('target')),
    candidates={'draft-128': Candidate('lm', 3, pair.path('draft-128'))},
    prompts=Prompts(domains=('code',), count=16),
  )
