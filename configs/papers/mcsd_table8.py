"""Multi-candidate decoding, Table 8: alpha with one and with four candidates.

  python -m experiments.run --config configs/papers/mcsd_table8.py:alpaca \\
    --config.prompts.path=alpaca.jsonl --config.prompts.field=instruction

Parts: alpaca, wmt. Of the paper's pairs this is LLaMA-13B with LLaMA-68M;
another one is `--config.target.path=...` with the paths in this file and `part`
changed. Times play no part. 55 GB of float32 weights; not measured.
"""

from configs.papers import TASKS, task, tree
from experiments.papers.published import Metric, Published
from experiments.settings import Checkpoint, Prompts

_COLUMNS = {'alpaca': 'Alpaca', 'wmt': 'WMT'}
PARTS = tuple(_COLUMNS)


def get_config(part: str = 'alpaca') -> Published:
  part = task(part, PARTS)
  draft, column = 'JackFram/llama-68m', _COLUMNS[part]
  return Published(
    name=f'mcsd_table8_{part}',
    results=f'results/papers/mcsd_table8_{part}',
    target=Checkpoint('huggyllama/llama-13b'),
    candidates={
      'k1': tree(draft, 1, 1, replacement=False),
      'k4': tree(draft, 1, 4, replacement=False),
    },
    verifiers=('recursive',),
    prompts=TASKS.get(part, Prompts(count=100)),
    timed=False,
    paper='mcsd',
    table='Table 8',
    part={'target': 'LLaMA-13B', 'draft': 'LLaMA-68M'},
    axes={'temperature': 'temperature'},
    compared=tuple(
      Metric(f'{column}_{k}', 'alpha_of_rule', {'drafter': k})
      for k in ('k1', 'k4')
    ),
    needs=(
      'LLaMA-13B and LLaMA-68M',
      f'the {column} prompts',
      'an accelerator with 64 GB',
    ),
  )
