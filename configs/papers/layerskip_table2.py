"""LayerSkip, Table 2: drafts from the first layers of the target itself.

  python -m experiments.run --config configs/papers/layerskip_table2.py:7b-cnn

Parts: 7b and 13b, each with cnn, xsum and humaneval; exits and draft lengths
are those of the table. The targets were trained so that their exits are good,
and are published. The paper's acceptance is accepted over drafted tokens.
"""

from configs.papers import TASKS, head, task
from experiments.papers.published import Metric, Published
from experiments.settings import Checkpoint

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
PARTS = tuple(_CELLS)


def get_config(part: str = '7b-cnn') -> Published:
  layers, gamma = _CELLS[task(part, PARTS)]
  size, data = part.split('-')
  name = f'Llama2-{size.upper()}'
  cell = {'drafter': 'exit'}
  return Published(
    name=f'layerskip_table2_{part}',
    results=f'results/papers/layerskip_table2_{part}',
    target=Checkpoint(f'facebook/layerskip-llama2-{size.upper()}'),
    candidates={'exit': head('early_exit', '', gamma, layers=layers)},
    temperatures=(0.0,),
    prompts=TASKS[data],
    max_new_tokens=512,
    paper='layerskip',
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
