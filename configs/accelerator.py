"""Llama 3 8B with random weights in bfloat16, for a GPU or TPU of 40 GB.

  python -m benchmarks.accelerator --config configs/accelerator.py

The draft has the sizes of Llama 3.2 1B.
"""

from experiments.settings import Size, Speed, TargetSize


def get_config() -> Speed:
  return Speed(
    name='accelerator',
    target=TargetSize(4096, 32, 32, 8, 128, 14_336, vocab_size=128_256),
    draft=Size(2048, 16, 32, 8, 64, 8192),
    sweeps=(
      'benchmarks.limits.plain',
      'gamma',
      'simulated',
      'attention',
    ),
    dtype='bfloat16',
    gammas=(1, 2, 4, 8, 16),
    rates=(0.6, 0.7, 0.8, 0.9),
    megabytes=2048,
    steps=32,
    repeats=9,
  )
