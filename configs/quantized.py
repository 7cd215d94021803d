"""The embedded pair in eight bits: bytes, and what a step costs.

  python -m experiments.quantized --config configs/quantized.py

Float32 against int8, batch 1, 300 tokens in use; one minute on two cores. To
expect: a third of the target's bytes and 0.8 of its step; drafts, which lie in
the caches anyway, half the bytes and 1.2 to 1.4 times the time.
"""

from specjax import pair
from specjax.bench.config import Narrow, Size, TargetSize


def get_config() -> Narrow:
  return Narrow(
    name='quantized',
    target=TargetSize(512, 3, 8, 4, 64, 1536, vocab_size=2048),
    draft=Size(128, 1, 4, 2, 32, 384),
    sweeps=('experiments.quantized.steps',),
    paths=tuple(
      pair.path(name)
      for name in ('draft-64', 'draft-128', 'draft-256', 'target')
    ),
    steps=100,
    repeats=15,
  )
