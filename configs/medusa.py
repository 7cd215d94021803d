"""Medusa heads for the embedded target: four, each a residual block.

  python -m experiments.train --config configs/medusa.py

Cai et al., arXiv:2401.10774. The heads are read by the
target's own output layer. How often their guesses are right is measured on
held-out text, and kept in config.json for the static tree.
The head is runs/medusa/weights, and what it accepted at each
checkpoint is runs/medusa/head.jsonl. Half of the windows are the
target's own text: that in runs/embedded_pair where `configs/embedded_pair.py`
left it, written otherwise.
`--config.quick` shows that it runs.
"""

from experiments.recipes import Heads, Optimization
from specjax import pair


def get_config() -> Heads:
  return Heads(
    folder='runs/medusa',
    target=pair.path('target'),
    trainable='specjax.drafters.medusa.trainable',
    options={'count': 4},
    optimization=Optimization(
      schedule=((25, 2e-3), (400, 0.0)), batch=8, checkpoint_every=200
    ),
    data='runs/embedded_pair',
  )
