"""LayerSkip, Table 2: drafts from the first layers of the target itself.

  python -m experiments.run --config configs/papers/layerskip.py:7b-cnn

Parts: 7b and 13b, each with cnn, xsum and humaneval; exits and draft lengths
are those of the table. The targets were trained so that their exits are good,
and are published. The paper's acceptance is accepted over drafted tokens.
"""

from configs.papers import TASKS, Paper, head
from experiments.papers.published import Metric, Published
from specjax.bench.config import Checkpoint

_DATASETS = {'cnn': 'CNN/DM', 'xsum': 'XSum', 'humaneval': 'HumanEval'}
# Exit layer and draft length.
_CELLS = {
  '7b-cnn': (8, 12),
  '7b-xsum': (8, 12),
  '7b-humaneval': (8, 6),
  '13b-cnn': (15, 12),
  '13b-xsum': (15, 4),
  '13b-humaneval': (7, 4),
}


def table2(part: str) -> Published:
  layers, gamma = _CELLS[part]
  size, data = part.split('-')
  name = f'Llama2-{size.upper()}'
  cell = {'drafter': 'exit'}
  return Published(
    target=Checkpoint(f'facebook/layerskip-llama2-{size.upper()}'),
    candidates={'exit': head('early_exit', '', gamma, layers=layers)},
    temperatures=(0.0,),
    prompts=TASKS[data],
    max_new_tokens=512,
    table='Table 2',
    part={'target': name, 'dataset': _DATASETS[data]},
    compared=(
      Metric('acceptance_pct', 'acceptance', cell, scale=100),
      Metric('speedup', 'speedup', cell),
    ),
    needs=(
      f'{name} of LayerSkip',
      f'the prompts of {_DATASETS[data]}',
      'a GPU (the paper: H100)',
    ),
  )


get_config = Paper('layerskip', {'table2': (table2, _CELLS)})
