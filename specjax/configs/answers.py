"""Answers of a target, for a drafter of its own to learn from.

  specjax answers \\
    --target.path=TARGET --prompts.path=questions.jsonl

Sixteen rows at a time, a thousand prompts (`--prompts.count`), sampled at
temperature 1: what a drafter is asked while the target samples. Nothing is
drafted, since sixteen rows share the reading of the weights already: on two
cores lookup (`--drafters=ngram`) makes it slower. With `--draft.path=DRAFT` a
draft is used. Answers have the same distribution. Without a file the embedded
target goes on with the embedded corpus. The tokens of each answer go to
runs/answers-<hash>/answers.jsonl, and from there into a head:

  specjax train own_head \\
    --target=TARGET --examples.prompts.path=.../answers.jsonl
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts


def get_config() -> Experiment:
  return Experiment(
    name='answers',
    target=Checkpoint(pair.path('target')),
    candidates={
      'plain': Candidate('specjax.drafters.plain.load_none', 1),
      'ngram': Candidate('ngram', 4),
    },
    prompts=Prompts(count=1000),
    temperatures=(1.0,),
    max_new_tokens=256,
    batch=16,
    timed=False,
  )
