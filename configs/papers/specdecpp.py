"""SpecDec++: speed-ups of constant and of predicted draft lengths.

  python -m experiments.tables --config configs/papers/specdecpp.py

A head on the draft, trained for it, says when a rejection is likely. Policies
here look at the probabilities of the draft alone: see
`specjax.drafters.shapes.policies`.
"""

from configs.papers import Paper
from experiments.papers.published import Metric, Published


def figure() -> Published:
  return Published(
    table="figure of the authors' repository",
    compared=(Metric('specdec'), Metric('specdec_pp')),
    missing='policy of draft lengths with a trained head',
  )


get_config = Paper('specdecpp', {'': (figure, ())})
