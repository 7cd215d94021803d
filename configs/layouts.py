"""Layouts of the weights: passes over 1 to 12 tokens in each that there is.

  python -m experiments.step_costs --config configs/layouts.py

Random weights in the embedded target's sizes, float32, 300 tokens in use; two
to four minutes on two idle cores. Expect the kernel (`native`) to be fastest.
It needs a C compiler; without one there are whole weights alone.
"""

from specjax.bench.config import Layouts, Size, TargetSize


def get_config() -> Layouts:
  return Layouts(
    name='layouts',
    target=TargetSize(512, 3, 8, 4, 64, 1536, vocab_size=2048),
    draft=Size(128, 1, 4, 2, 32, 384),
    sweeps=('experiments.passes.rows',),
    repeats=9,
  )
