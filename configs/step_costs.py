"""A step against draft length, batch, context and vocabulary; simulated drafts.

  python -m experiments.step_costs --config configs/step_costs.py

A Llama of 4 layers x 1024 with random weights and a draft of one layer x 256,
float32. Seven minutes on two idle cores. On a CPU expect
exponents near 0.2 for context and vocabulary, 0.25 to 0.45 for gamma + 1, and a
batch that costs little up to 4 rows and then linearly.

  python -m experiments.step_costs \\
    --config configs/step_costs.py:own_vocabulary

compares draft steps of that draft in tokens of its own with those in the
target's (`experiments.other_vocabularies`).
"""

from specjax.bench.config import Size, Speed, TargetSize
from specjax.errors import UserError


def get_config(part: str = 'all') -> Speed:
  if part not in ('all', 'own_vocabulary'):
    raise UserError(f'the parts are all and own_vocabulary, got {part!r}')
  x = _all()
  if part == 'own_vocabulary':
    x.name, x.repeats, x.steps = part, 31, 16
    x.sweeps = ('experiments.other_vocabularies.draft_step',)
    x.vocabularies, x.batches = (2048, 32_000, 128_000), (1, 4)
    x.used, x.maxima = 900, (1024, 8192)
  return x


def _all() -> Speed:
  return Speed(
    name='step_costs',
    target=TargetSize(1024, 4, 16, 8, 64, 2816, vocab_size=16_384),
    draft=Size(256, 1, 4, 2, 64, 768),
    sweeps=(
      'gamma',
      'batch',
      'context',
      'vocabulary',
      'simulated',
      'experiments.judging.judge',
      'attention',
    ),
    rates=(0.5, 0.7, 0.9),
    steps=6,
    repeats=5,
  )
