"""DistillSpec: tau and speed before and after distillation.

  python -m experiments.run --config configs/papers/distillspec.py:table_d1/xsum

Table D.1 (xsum, cnn, wmt, gsm8k, lm1b): the target is T5-XL fine-tuned on the
task, the drafts are T5-small fine-tuned and distilled with the method that the
paper found best; none of these is published. `experiments.train` distils drafts
of its own; put them where the candidates' paths say. For lm1b the models have
234M and 33M parameters.

Figure 4: what tau gains over the undistilled draft, by data and divergence. The
grid is trained for the embedded pair by `configs/distill.py`, without the
mixture of texts of both models; results/findings.md compares it with the claims
of the figure.
"""

from configs.papers import TASKS, Paper, lm
from experiments.papers.published import Metric, Published
from specjax.bench.config import Checkpoint, Prompts

_DATASETS = {
  'xsum': 'XSum',
  'cnn': 'CNN/DM',
  'wmt': 'WMT EnDe',
  'gsm8k': 'GSM8K',
  'lm1b': 'LM1B',
}


def table_d1(part: str) -> Published:
  kinds = ('undistilled', 'distilled')
  return Published(
    target=Checkpoint(f'distillspec/{part}/target'),
    candidates={kind: lm(f'distillspec/{part}/{kind}', 3) for kind in kinds},
    gammas=(3, 5, 7),
    prompts=TASKS.get(part, Prompts(count=100)),
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


def figure4() -> Published:
  return Published(
    table='Figure 4',
    compared=tuple(Metric(x) for x in ('FKL', 'JSD', 'RKL', 'TVD')),
    needs=(
      'T5-XL and sixteen T5-small trained on XSum and GSM8K, which are not '
      'published',
    ),
  )


get_config = Paper(
  'distillspec', {'table_d1': (table_d1, _DATASETS), 'figure4': (figure4, ())}
)
