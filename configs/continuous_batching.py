"""Two hundred prompts through sixteen rows, which are refilled or wait.

  python -m experiments.continuous_batching \\
    --config configs/continuous_batching.py

Plain decoding and draft-128, 16 to 128 new tokens a prompt.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, ManyPrompts, Prompts


def get_config() -> ManyPrompts:
  return ManyPrompts(
    name='continuous_batching',
    target=Checkpoint(pair.path('target')),
    candidates={
      'draft-128': Candidate('lm', 3, pair.path('draft-128')),
    },
    prompts=Prompts(domains=('code', 'documentation'), count=100),
  )
