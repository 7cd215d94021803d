"""The embedded pair here and under `generate` of transformers.

  python -m experiments.against_huggingface \\
    --config configs/against_huggingface.py

With `--config.prompts.count=5`, as in results/against_huggingface, four and a
half minutes on two idle cores. Needs the extra `parity`. The same draft may be
listed with several gammas: each method, theirs too, is compared with the draft
that was fastest for it.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment


def get_config() -> Experiment:
  return Experiment(
    name='against_huggingface',
    target=Checkpoint(pair.path('target')),
    candidates={
      'draft-64': Candidate('lm', 3, pair.path('draft-64')),
      'draft-128': Candidate('lm', 3, pair.path('draft-128')),
      'draft-256': Candidate('lm', 3, pair.path('draft-256')),
      'ngram': Candidate('ngram', 4),
    },
  )
