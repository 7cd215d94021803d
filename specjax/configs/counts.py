"""How often tokens occur: a drafter by itself, and what a small head keeps.

  specjax train counts \\
    --target=TARGET --texts=ANSWERS.jsonl

The tables are for the tokens of the target, in runs/counts. They draft by
themselves (`counts`), and `vocabulary` of a draft is chosen by them:

  specjax run pair \\
    --target.path=TARGET --draft.path=DRAFT \\
    --draft.vocabulary=8192 --draft.frequencies=runs/counts

Texts that the target wrote are the best to count, since these are what is
drafted. Without a file the embedded corpus is counted but its held-out part.
"""

from specjax import pair
from specjax.training.recipes import Counts


def get_config() -> Counts:
  return Counts(folder='runs/counts', target=pair.path('target'))
