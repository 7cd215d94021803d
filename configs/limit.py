"""Plain steps against the limit of the memory, and against transformers.

  python -m experiments.step_costs --config configs/limit.py

The embedded target, and a Llama of 12 layers x 768 with random weights, each
with 300 tokens in use of 512 and of 8,192 slots. Float32, batch 1; two minutes
on two idle cores. Needs the extra `parity`, for transformers.
"""

from specjax import pair
from specjax.bench.config import Size, Speed, TargetSize


def get_config() -> Speed:
  return Speed(
    name='limit',
    target=TargetSize(768, 12, 12, 12, 64, 2048, vocab_size=32_000),
    draft=Size(256, 1, 4, 4, 64, 768),
    sweeps=(
      'experiments.limits.plain',
      'experiments.limits.transformers',
    ),
    path=pair.path('target'),
    steps=40,
    repeats=9,
  )
