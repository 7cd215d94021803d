"""A DFlash head for the embedded target.

  python -m experiments.train --config configs/dflash.py

Chen et al., arXiv:2602.06036: one layer that fills a block of masks in one
pass, on features of three layers of the target, through the target's own
embedding and output layer. Blocks are of eight tokens, the last committed one
and seven masks; 32 of them are learned from in every window. How often their
guesses are right is counted in texts that the target writes after held-out
prompts, and stored in config.json for the static tree.

The head that ships is of this recipe. Two cores of an Intel Xeon (AVX-512),
Python 3.11.7, beside other work: 36 minutes by the clock, 60 of processor time.
At the end, on 12 held-out prompts of three domains, a chain of seven, token
verification, 48 new tokens: alpha 0.73 at T = 0 and 0.67 at T = 1, tau 2.23 and
1.98; after 1,000 steps of a shorter schedule 0.66 and 0.64, 2.01 and 1.88.

The head is runs/dflash/weights, and what it accepted at each checkpoint is
runs/dflash/head.jsonl. Half of the windows are the target's own text,
taken from runs/embedded_pair if `configs/embedded_pair.py` left it there, and
written otherwise. `--config.quick` shows that it runs.
"""

from specjax import pair
from specjax.training.recipes import Heads, Optimization


def get_config() -> Heads:
  return Heads(
    folder='runs/dflash',
    target=pair.path('target'),
    trainable='dflash',
    options={'block': 8, 'layers': 1},
    optimization=Optimization(
      schedule=((50, 4e-3), (3000, 0.0)),
      batch=8,
      checkpoint_every=250,
      muon=True,
    ),
    data='runs/embedded_pair',
  )
