"""Distillation of the embedded draft of width 128: divergences and data.

  python -m experiments.train --config configs/distill.py

Five divergences on three kinds of data (Zhou et al., arXiv:2310.08461, Figure
4), each from the same draft that next-token training made; a control
continues that training for as many steps. Finished drafts and grid.jsonl are in
runs/distill. The target's texts are taken from runs/embedded_pair, if
`configs/embedded_pair.py` left them there, and written otherwise.
`--config.quick` shows that every stage runs.

Two cores of an AMD EPYC (Zen 4), Python 3.11.7: 40 minutes of processor time in
steps, 44 by the clock beside other work. Tokens per target call, K = 4, token
verification, 60 held-out prompts of the three domains, 64 new tokens:

                                T = 0   T = 1
  undistilled, 1500 steps       2.23    2.33
  control, 500 more             2.17    2.32

                   corpus         target_text    own_text
                   T = 0   T = 1  T = 0   T = 1  T = 0   T = 1
  forward_kl       2.50    2.56   2.70    2.50   2.33    2.40
  reverse_kl       2.45    2.53   2.59    2.61   2.25    2.46
  jensen_shannon   2.45    2.53   2.71    2.53   2.30    2.43
  total_variation  2.44    2.55   2.65    2.49   2.31    2.45
  minus_log_alpha  2.44    2.47   2.63    2.59   2.23    2.45

Forward KL on the target's text is shipped as `distilled`. The draft's own text
helps least here. Every number is of one training and has no interval;
`configs/embedded_tables.py:divergences` compares two of them, paired on
prompts.
"""

from specjax import pair
from specjax.training.recipes import Distillation, Optimization


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
    divergences=(
      'forward_kl',
      'reverse_kl',
      'jensen_shannon',
      'total_variation',
      'minus_log_alpha',
    ),
    kinds=('corpus', 'target_text', 'own_text'),
  )
