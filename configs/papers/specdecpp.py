"""SpecDec++: speed-ups of constant and of predicted draft lengths.

  python -m experiments.tables --config configs/papers/specdecpp.py

A head on the draft, trained for it, says when a rejection is likely. Policies
here look at the draft's probabilities alone: `specjax.drafting.policies`.
"""

from experiments.papers.published import Metric, Published


def get_config() -> Published:
  return Published(
    name='specdecpp',
    results='results/papers/specdecpp',
    paper='specdecpp',
    table="figure of the authors' repository",
    compared=(Metric('specdec'), Metric('specdec_pp')),
    missing='policy of draft lengths with a trained head',
  )
