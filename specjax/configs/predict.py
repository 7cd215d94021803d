"""Which draft of the embedded pair, and how long it should draft.

  specjax predict

The candidates are those of the main job. Expect draft-128 at gamma 4 or so, and
at temperature 0 exactly the target calls of the loop.
"""

from specjax.bench.config import Experiment, Prompts
from specjax.configs import quickstart


def get_config() -> Experiment:
  x = quickstart.get_config()
  x.name = 'predict'
  x.gammas = (1, 2, 3, 4, 6)
  x.prompts = Prompts(count=27)
  return x
