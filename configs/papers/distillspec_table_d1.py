"""DistillSpec, Table D.1: tau and speed before and after distillation.

  python -m experiments.run --config configs/papers/distillspec_table_d1.py:xsum

Parts: xsum, cnn, wmt, gsm8k, lm1b. The target is T5-XL fine-tuned on the task,
the drafts are T5-small fine-tuned and distilled with the method that the paper
found best; none of these is published. `experiments.train` distils drafts of
its own; put them where the candidates' paths say. For lm1b the models have 234M
and 33M parameters.
"""

from configs.papers import TASKS, lm, task
from experiments.papers.published import Metric, Published
from experiments.settings import Checkpoint, Prompts

_DATASETS = {
  'xsum': 'XSum',
  'cnn': 'CNN/DM',
  'wmt': 'WMT EnDe',
  'gsm8k': 'GSM8K',
  'lm1b': 'LM1B',
}
PARTS = tuple(_DATASETS)


def get_config(part: str = 'xsum') -> Published:
  part = task(part, PARTS)
  kinds = ('undistilled', 'distilled')
  return Published(
    name=f'distillspec_table_d1_{part}',
    results=f'results/papers/distillspec_table_d1_{part}',
    target=Checkpoint(f'distillspec/{part}/target'),
    candidates={kind: lm(f'distillspec/{part}/{kind}', 3) for kind in kinds},
    gammas=(3, 5, 7),
    prompts=TASKS.get(part, Prompts(count=100)),
    paper='distillspec',
    table='Table D.1',
    part={'dataset': _DATASETS[part]},
    axes={'temperature': 'temperature', 'gamma': 'gamma'},
    compared=tuple(
      Metric(f'{published}_{kind}', ours, {'drafter': kind})
      for published, ours in (('tau', 'tau'), ('speed', 'speedup'))
      for kind in kinds
    ),
    needs=(
      f'a target and drafts trained on {_DATASETS[part]}, which are not '
      'published',
    ),
  )
