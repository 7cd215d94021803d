"""An exit from the first layers of the embedded target, with an adapter.

  for layers in 1 2; do
    python -m experiments.train --config configs/early_exit.py:$layers
  done

The first layers draft, and a norm and a low-rank adapter of their own stand
before the target's output layer (as LayerSkip, arXiv:2404.16710, and Kangaroo,
arXiv:2404.18911; the target stays as it is). The exit after one layer is
runs/early_exit_1/weights, and what it accepted at each checkpoint is
runs/early_exit_1/head.jsonl. Half of the windows are the target's own text,
taken from runs/embedded_pair if `configs/embedded_pair.py` left it there, and
written otherwise. `--config.quick` shows that it runs.

Two cores of an AMD EPYC (Zen 4), Python 3.11.7, beside other work: 1 minute
each. At the end, on 12 held-out prompts of three domains, K = 4, token
verification, 48 new tokens: tau 1.77 at T = 0 and 2.13 at T = 1 after one
layer, 2.22 and 2.36 after two.
"""

from specjax import pair
from specjax.errors import UserError
from specjax.training.recipes import Heads, Optimization


def get_config(layers: str = '1') -> Heads:
  if layers not in ('1', '2'):
    raise UserError(
      f'layers must be 1 or 2 of the three that the target has, got {layers!r}'
    )
  return Heads(
    folder=f'runs/early_exit_{layers}',
    target=pair.path('target'),
    trainable='early_exit',
    options={'layers': int(layers)},
    optimization=Optimization(
      schedule=((25, 2e-3), (150, 0.0)), batch=8, checkpoint_every=75
    ),
    data='runs/embedded_pair',
  )
