"""Sequoia, Table 1: Llama2-7B with a draft of 68M on one A100.

  python -m experiments.run --config configs/papers/sequoia.py:cnn

Parts: cnn, c4, openwebtext, mt_bench; for the last three give the prompts with
`--config.prompts.path=FILE`. Sequoia's own trees are of 128 nodes, laid out for
the measured acceptance; drafters here branch the same way at each depth, so
only the columns of SpecInfer (five chains of eight) can be filled.
"""

from configs.papers import LLAMA_68M, TASKS, Paper, tree
from experiments.papers.published import Metric, Published
from specjax.bench.config import Checkpoint, Prompts

_DATASETS = {
  'cnn': 'CNN Daily',
  'c4': 'C4',
  'openwebtext': 'OpenWebText',
  'mt_bench': 'MT-Bench',
}


def table1(part: str) -> Published:
  return Published(
    target=Checkpoint('meta-llama/Llama-2-7b-hf'),
    candidates={'five chains': tree(LLAMA_68M, 8, 5, replacement=True)},
    verifiers=('recursive',),
    temperatures=(0.0, 0.6),
    prompts=TASKS.get(part, Prompts(count=100)),
    table='Table 1',
    part={'dataset': _DATASETS[part]},
    axes={'temperature': 'temperature'},
    compared=(
      Metric('tokens'),
      Metric('speedup'),
      Metric('SpecInfer5x8_tokens', 'tau'),
      Metric('SpecInfer5x8_speedup', 'speedup'),
    ),
    needs=(
      'Llama2-7B and Llama-68M',
      f'prompts of {_DATASETS[part]}',
      'a GPU with 40 GB (the paper: A100)',
    ),
  )


get_config = Paper('sequoia', {'table1': (table1, _DATASETS)})
