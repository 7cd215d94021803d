"""Leviathan et al., Table 2: T5 drafts for T5-XXL, translation and summaries.

  python -m experiments.run --config configs/papers/leviathan_table2.py:wmt
  python -m experiments.run --config configs/papers/leviathan_table2.py:cnn

The paper ran on one TPU v4, with models fine-tuned on each task; the public T5
v1.1 checkpoints are only pre-trained, so name fine-tuned ones with
`--config.target.path=...`, or take the first T5 (google-t5/t5-11b with its
small, base and large), which was trained on both tasks and gives other numbers.
45 GB of float32 weights; hours on one accelerator (not measured).
"""

from configs.papers import TASKS, lm, task
from experiments.papers.published import Metric, Published
from experiments.settings import Checkpoint

PARTS = ('wmt', 'cnn')


def get_config(part: str = 'wmt') -> Published:
  part = task(part, PARTS)
  dataset = {'wmt': 'WMT EnDe', 'cnn': 'CNN/DM'}[part]
  return Published(
    name=f'leviathan_table2_{part}',
    results=f'results/papers/leviathan_table2_{part}',
    target=Checkpoint('google/t5-v1_1-xxl'),
    candidates={
      size: lm(f'google/t5-v1_1-{size}', 7)
      for size in ('small', 'base', 'large')
    },
    gammas=(3, 5, 7),
    prompts=TASKS[part],
    paper='leviathan',
    table='Tables 2 and 4',
    part={'dataset': dataset},
    axes={'draft': 'drafter', 'temperature': 'temperature', 'gamma': 'gamma'},
    names={
      'draft': {
        'T5-small 77M': 'small',
        'T5-base 250M': 'base',
        'T5-large 800M': 'large',
      }
    },
    compared=(
      Metric('alpha', 'alpha'),
      Metric('c', 'c'),
      Metric('speed_expected', 'predicted_speedup'),
      Metric('speed_empirical', 'speedup'),
    ),
    needs=(
      'T5 v1.1 XXL and its drafts fine-tuned on the task',
      f'the test set of {dataset}',
      'an accelerator with 64 GB of memory or more',
    ),
  )
