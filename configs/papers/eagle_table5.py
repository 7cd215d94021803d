"""EAGLE, Table 5: tokens per step, chain and tree, MT-Bench, greedy.

  python -m experiments.run --config configs/papers/eagle_table5.py:vicuna-7b \\
    --config.prompts.path=question.jsonl --config.prompts.chat

Parts and drafters are those of `eagle_table2`, at temperature 0.
"""

from configs.papers import eagle_table2
from experiments.papers.published import Metric, Published

PARTS = eagle_table2.PARTS


def get_config(part: str = 'vicuna-7b') -> Published:
  x = eagle_table2.get_config(part)
  x.name = f'eagle_table5_{part}'
  x.results = f'results/papers/{x.name}'
  x.temperatures = (0.0,)
  x.table = 'Table 5'
  x.compared = (
    Metric('tau_chain', 'tau', {'drafter': 'chain'}),
    Metric('tau_tree', 'tau', {'drafter': 'tree'}),
  )
  return x
