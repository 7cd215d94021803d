"""Greedy texts of the embedded pair beside those of plain decoding.

  specjax parity

This compares 201 prompts at gamma 3 and at gamma 4. Expect no bugs, exit status
0, and with `--exact=bits` or `--dtype=float64` no difference at all. Other
comparisons:

  --drafters=tree
  --against=batch --batch=8
  --against=dtype \\
    --other_dtype=bfloat16
  --against=text --text=FILE

Each line of FILE is a JSON object. `prompt` holds the token ids of a prompt, or
its number: the lines of prompts.jsonl, which every run leaves with its results,
counted from 0. `tokens` holds the ids that another program added to it, or
`text` what they say. Each line has one prompt; every prompt of the config is
needed.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Parity, Prompts


def get_config() -> Parity:
  return Parity(
    name='parity',
    target=Checkpoint(pair.path('target')),
    candidates={
      'draft-128': Candidate('lm', 3, pair.path('draft-128')),
      'tree': Candidate(
        'lm', 3, pair.path('draft-128'), {'widths': (2,)}, ('recursive',)
      ),
      'ngram': Candidate('ngram', 4),
    },
    drafters=('draft-128',),
    gammas=(3, 4),
    prompts=Prompts(count=67),
  )
