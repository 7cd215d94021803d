"""An EAGLE head of version 3 for the embedded target, as others publish theirs.

  python -m experiments.train --config configs/eagle3_pair.py
  python -m experiments.export runs/eagle3_pair/weights exported \\
    --target specjax/pair/target

As `configs/eagle3.py`, but the layer's attention reads token and feature side
by side, and the head is as wide as its target: `experiments.export` writes it
in the form that vLLM and SGLang serve. The head is runs/eagle3_pair/weights.
`--config.quick` shows that it runs; nothing was measured with it so far.
"""

from configs import eagle3
from specjax.drafters.eagle.module import PAIR
from specjax.training.recipes import Heads


def get_config() -> Heads:
  x = eagle3.get_config()
  x.folder = 'runs/eagle3_pair'
  x.options = {'version': 3, 'join': PAIR, 'width': 512, 'mlp_width': 1024}
  return x
