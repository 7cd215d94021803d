"""An EAGLE head of version 1 for the embedded target.

  python -m experiments.train --config configs/eagle1.py

Li et al., arXiv:2401.15077: one layer that predicts the next feature of
the target's last layer, trained with noise on what it reads.
The head is runs/eagle1/weights, and what it accepted at each checkpoint is
runs/eagle1/head.jsonl. Half of the windows are the target's own text,
taken from runs/embedded_pair if `configs/embedded_pair.py` left it there, and
written otherwise. `--config.quick` shows that it runs.

Two cores of an AMD EPYC (Zen 4), Python 3.11.7, beside other work: 5 minutes
by the clock, 8 of processor time. At the end, on 12 held-out prompts of
three domains, K = 4, token verification, 48 new tokens: tau 2.68
at T = 0 and 2.58 at T = 1.
"""

from specjax import pair
from specjax.training.recipes import Heads, Optimization


def get_config() -> Heads:
  return Heads(
    folder='runs/eagle1',
    target=pair.path('target'),
    trainable='eagle',
    options={'version': 1},
    optimization=Optimization(
      schedule=((25, 2e-3), (500, 0.0)), batch=8, checkpoint_every=250
    ),
    data='runs/embedded_pair',
  )
