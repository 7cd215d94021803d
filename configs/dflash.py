"""A DFlash head for the embedded target.

  python -m experiments.train --config configs/dflash.py

Chen et al., arXiv:2602.06036: one layer that fills a block of masks in one
pass, on features of three layers of the target, through the target's own
embedding and output layer. Blocks are of eight tokens, the last committed one
and seven masks; 32 of them are learned from in every window. How often their
guesses are right is counted in texts that the target writes after held-out
prompts, and stored in config.json for the static tree.
The head is runs/dflash/weights, and what it accepted at each checkpoint is
runs/dflash/head.jsonl. Half of the windows are the target's own text,
taken from runs/embedded_pair if `configs/embedded_pair.py` left it there, and
written otherwise. `--config.quick` shows that it runs.
"""

from experiments.recipes import Heads, Optimization
from specjax import pair


def get_config() -> Heads:
  return Heads(
    folder='runs/dflash',
    target=pair.path('target'),
    trainable='dflash',
    options={'block': 8, 'layers': 1},
    optimization=Optimization(
      schedule=((50, 4e-3), (1000, 0.0)),
      batch=8,
      checkpoint_every=250,
      muon=True,
    ),
    data='runs/embedded_pair',
  )
