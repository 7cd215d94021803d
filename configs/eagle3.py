"""An EAGLE head of version 3 for the embedded target.

  python -m experiments.train --config configs/eagle3.py

Li et al., arXiv:2503.01840: one layer over features of three layers of the
target, trained on tokens alone, five steps on its own features.
It begins with the target's own logits, on the 256 directions that these depend
on most (`specjax/drafters/eagle/start.py`): after 160 small steps (4 windows of
128 tokens) alpha was 0.53 and 0.59 at T = 0 and 1, and 0.49 and 0.56 where it
began with random weights.

The head is runs/eagle3/weights, and what it accepted at each checkpoint is
runs/eagle3/head.jsonl. Half of the windows are the target's own text, taken
from runs/embedded_pair if `configs/embedded_pair.py` left it there, and written
otherwise. `--config.quick` shows that it runs.

The head that ships is of this recipe. Two cores of an Intel Xeon (AVX-512),
Python 3.11.7, beside other work: 32 minutes by the clock, 58 of processor time.
At the end, on 12 held-out prompts of three domains, K = 4, token verification,
48 new tokens: alpha 0.79 at T = 0 and 0.77 at T = 1, tau 3.24 and 3.13; after
200, 400 and 1,000 steps tau 2.30, 2.53 and 3.10 at T = 0. The one before it, of
500 steps from random weights, had tau 2.76 and 2.67.
"""

from specjax import pair
from specjax.training.recipes import Heads, Optimization


def get_config() -> Heads:
  return Heads(
    folder='runs/eagle3',
    target=pair.path('target'),
    trainable='eagle',
    options={'version': 3, 'start': 'target'},
    optimization=Optimization(
      schedule=((25, 2e-3), (1200, 0.0)), batch=8, checkpoint_every=200
    ),
    data='runs/embedded_pair',
  )
