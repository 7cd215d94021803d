"""Distillation of the embedded draft of width 128: what to learn, and on what.

  python -m experiments.train --config configs/distill.py

Five divergences on three kinds of data (Zhou et al., arXiv:2310.08461, Figure
4), each from the same draft that next-token training made; a control goes on
with that for as many steps. Finished drafts and grid.jsonl are in
runs/distill. The target's texts are those in runs/embedded_pair where
`configs/embedded_pair.py` left them there, and are written otherwise.
`--config.quick` shows in seconds that every stage runs.
"""

from experiments.recipes import Distillation, Optimization
from specjax import pair

_DIVERGENCES = (
  'forward_kl',
  'reverse_kl',
  'jensen_shannon',
  'total_variation',
  'minus_log_alpha',
)
_KINDS = ('corpus', 'target_text', 'own_text')


def get_config() -> Distillation:
  return Distillation(
    folder='runs/distill',
    target=pair.path('target'),
    data='runs/embedded_pair',
    width=128,
    undistilled=Optimization(
      schedule=((50, 4e-3), (600, 3e-3), (1500, 0.0)),
      batch=8,
      checkpoint_every=500,
    ),
    distillation=Optimization(
      schedule=((25, 3e-3), (500, 0.0)), batch=4, checkpoint_every=250
    ),
    divergences=tuple(f'experiments.divergences.{x}' for x in _DIVERGENCES),
    kinds=tuple(f'experiments.kinds.{x}' for x in _KINDS),
  )
