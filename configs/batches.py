"""Does speculation still help when several prompts are decoded together?

  specjax run configs/batches.py

Plain decoding and drafts of 1 to 8 tokens by draft-128, in batches of 1 to 32:
for each batch the best draft length, and the batch at which the speed-up is 1.
Twelve to twenty minutes on two idle cores, two or three of them for compiling,
which a second start does not repeat; `--quick` takes about two. Expect v
to rise with the batch: a CPU has no arithmetic to spare where it multiplies
many rows.

`--gammas="(1, 2, 3)" --batches="(1, 2, 4)"` is shorter. Intervals
of speed-ups are over batches, of which five are the fewest: the largest batch
needs five times as many prompts.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts


def get_config() -> Experiment:
  return Experiment(
    name='batches',
    target=Checkpoint(pair.path('target')),
    candidates={'draft-128': Candidate('lm', 3, pair.path('draft-128'))},
    gammas=(1, 2, 3, 4, 6, 8),
    prompts=Prompts(domains=('code',), count=160, length=32),
    max_new_tokens=32,
    batches=(1, 2, 4, 8, 16, 32),
  )
