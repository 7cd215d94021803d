"""Medusa heads for the embedded target: four, each a residual block.

  python -m experiments.train --config configs/medusa.py

Cai et al., arXiv:2401.10774. The target's own output layer reads the heads. How
often their guesses are right is counted in texts that the target writes after
held-out prompts, and stored in config.json for the static tree.
The head is runs/medusa/weights, and what it accepted at each checkpoint is
runs/medusa/head.jsonl. Half of the windows are the target's own text,
taken from runs/embedded_pair if `configs/embedded_pair.py` left it there, and
written otherwise. `--config.quick` shows that it runs.

Two cores of an AMD EPYC (Zen 4), Python 3.11.7, beside other work: 6 minutes
by the clock, 9 of processor time. At the end, on 12 held-out prompts of
three domains, K = 4, token verification, 48 new tokens: tau 1.59
at T = 0 and 1.54 at T = 1.
"""

from specjax import pair
from specjax.training.recipes import Heads, Optimization


def get_config() -> Heads:
  return Heads(
    folder='runs/medusa',
    target=pair.path('target'),
    trainable='medusa',
    options={'count': 4},
    optimization=Optimization(
      schedule=((25, 2e-3), (400, 0.0)), batch=8, checkpoint_every=200
    ),
    data='runs/embedded_pair',
  )
