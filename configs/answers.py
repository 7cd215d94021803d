"""Answers of a target, for a drafter of its own to learn from.

  python -m experiments.answers --config configs/answers.py \\
    --config.target.path=TARGET --config.prompts.path=questions.jsonl

Sixteen rows at a time, a thousand prompts (`--config.prompts.count`), sampled
at temperature 1: what a drafter is asked while the target samples. With
`--config.draft.path=DRAFT` the answers come faster and are the same. Without a
file the embedded target goes on with the embedded corpus. The tokens of each
answer go to runs/answers-<hash>/answers.jsonl, and from there into a head:

  python -m experiments.train --config configs/own_head.py \\
    --config.target=TARGET --config.examples.prompts.path=.../answers.jsonl
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts


def get_config() -> Experiment:
  return Experiment(
    name='answers',
    target=Checkpoint(pair.path('target')),
    candidates={'ngram': Candidate('ngram', 4)},
    prompts=Prompts(count=1000),
    temperatures=(1.0,),
    max_new_tokens=256,
    batch=16,
    timed=False,
  )
