"""Distillation of the embedded draft of width 128: divergences and data.

  specjax train distill:target_text-forward_kl

Five divergences on three kinds of data (Zhou et al., arXiv:2310.08461, Figure
4), each from the shipped draft that next-token training made, as the part
`undistilled` does. `control` continues that training for as many steps. A
finished draft is runs/distill/PART/weights. The target's texts are taken from
runs/embedded_pair, if `configs/embedded_pair.py` left them there, and written
otherwise. `--quick` shows that a part runs.

Two cores of an AMD EPYC (Zen 4), Python 3.11.7, the five drafts of a column on
the same windows: 40 minutes of processor time in steps, 44 by the clock beside
other work. Tokens per target call, K = 4, token verification, 60 held-out
prompts of the three domains, 64 new tokens:

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
helps least here. Every number is of one training and has no interval.
"""

import copy
import dataclasses

from specjax import pair
from specjax.errors import need
from specjax.training.recipes import Heads, Optimization
from specjax.training.train_pair import draft_size

_SHARES = {
  'corpus': {'share': 0.0},
  'target_text': {'share': 1.0},
  'own_text': {'share': 0.0, 'own_share': 1.0},
}
_LOSSES = (
  'forward_kl', 'reverse_kl', 'jensen_shannon', 'total_variation',
  'minus_log_alpha',
)  # fmt: skip
PARTS = {
  'undistilled': {
    'share': 0.0,
    'options': {
      **dataclasses.asdict(draft_size(128)),
      'max_positions': 512,
      'next_token': True,
    },
    'optimization': Optimization(
      ((50, 4e-3), (600, 3e-3), (1500, 0.0)), batch=8, checkpoint_every=500
    ),
  },
  'control': {
    'share': 0.0,
    'options': {'path': pair.path('undistilled'), 'next_token': True},
  },
  **{
    f'{text}-{loss}': shares | {'divergence': loss}
    for text, shares in _SHARES.items()
    for loss in _LOSSES
  },
}


def get_config(part: str = 'target_text-forward_kl') -> Heads:
  need(part in PARTS, f'the parts are {", ".join(PARTS)}, got {part!r}')
  fields = {
    'options': {'path': pair.path('undistilled')},
    'optimization': Optimization(
      ((25, 3e-3), (500, 0.0)), batch=4, checkpoint_every=250
    ),
  }
  return Heads(
    folder=f'runs/distill/{part}',
    target=pair.path('target'),
    trainable='lm',
    data='runs/embedded_pair',
    **copy.deepcopy(fields | PARTS[part]),
  )
