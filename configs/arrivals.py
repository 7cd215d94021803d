"""Requests at random times to a pool of sixteen rows, at four rates.

  python -m experiments.arrivals --config configs/arrivals.py

Plain decoding and draft-128, 16 to 128 new tokens a text. It takes some four
minutes on two idle cores, and with `--config.quick` less than one.
"""

from specjax import pair
from specjax.bench.config import Arrivals, Candidate, Checkpoint, Prompts


def get_config() -> Arrivals:
  return Arrivals(
    name='arrivals',
    target=Checkpoint(pair.path('target')),
    candidates={
      'draft-128': Candidate('lm', 3, pair.path('draft-128')),
    },
    prompts=Prompts(domains=('code', 'documentation'), count=60),
  )
