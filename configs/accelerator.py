"""Llama 3 8B with random weights in bfloat16, for a GPU or TPU of 80 GB.

  python -m experiments.accelerator --config configs/accelerator.py:decoding
  python -m experiments.accelerator --config configs/accelerator.py:scoring
  python -m experiments.accelerator --config configs/accelerator.py:attention

The draft has the sizes of Llama 3.2 1B. Each part is a run of its own, and goes
on where it was cut off:

  decoding   plain steps over the memory's limit, simulated acceptance, what
             the host takes and compiling
  scoring    v by drafted tokens and rows of a batch; sampling and verification
             of 32,000 and 128,256 tokens
  attention  the ways to attend over the cache, with 8,192 slots and 32,768;
             steps by context
"""

from specjax.bench.config import Size, Speed, TargetSize
from specjax.errors import UserError

_SWEEPS = {
  'decoding': (
    'experiments.limits.plain',
    'gamma',
    'simulated',
    'experiments.dispatching.dispatch',
  ),
  'scoring': ('scoring', 'experiments.judging.judge'),
  'attention': ('attention', 'context'),
}


def get_config(part: str = 'decoding') -> Speed:
  if part not in _SWEEPS:
    raise UserError(f'the parts are {", ".join(_SWEEPS)}, got {part!r}')
  return Speed(
    name=f'accelerator_{part}',
    target=TargetSize(4096, 32, 32, 8, 128, 14_336, vocab_size=128_256),
    draft=Size(2048, 16, 32, 8, 64, 8192),
    sweeps=_SWEEPS[part],
    dtype='bfloat16',
    gammas=(1, 4, 8, 16, 31) if part == 'scoring' else (1, 2, 4, 8, 16),
    batches=(1, 4, 16, 64),
    contexts=(512, 2048, 8192, 32_000),
    maxima=(8192, 32_768),
    vocabularies=(32_000, 128_256),
    rates=(0.6, 0.8, 0.9),
    megabytes=2048,
    steps=32,
    repeats=9,
  )
