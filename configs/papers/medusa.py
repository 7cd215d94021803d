"""Medusa, Table 1: tokens per step, cost of a step and speed-up, MT-Bench.

  python -m experiments.run --config configs/papers/medusa.py:vicuna-7b \\
    --config.prompts.path=question.jsonl --config.prompts.chat

Parts: vicuna-7b, vicuna-13b, vicuna-33b, zephyr-7b. The paper trains the target
together with its heads (Medusa-2), and each head has an output layer of its
own; heads here are for a frozen target, and share its output layer. The tree is
the best of 64 nodes for their accuracies; decoding is greedy. The overhead of
the paper is the cost of a step, which is v + gamma c here.
"""

from configs.papers import CHAT, Paper, head, mt_bench
from experiments.papers.published import Metric, Published

_TARGETS = {
  **{name: CHAT[name] for name in ('vicuna-7b', 'vicuna-13b', 'vicuna-33b')},
  'zephyr-7b': ('Zephyr-7B', 'HuggingFaceH4/zephyr-7b-beta'),
}


def table1(part: str) -> Published:
  return mt_bench(
    _TARGETS[part],
    'a GPU (the paper: A100)',
    candidates={
      'medusa': head('medusa', f'heads/{part}/medusa', 4, 'typical', tree=64)
    },
    temperatures=(0.0,),
    table='Table 1',
    compared=(
      Metric('acceleration_rate', 'tau', {'drafter': 'medusa'}),
      Metric('overhead'),
      Metric('S_Medusa', 'speedup', {'drafter': 'medusa'}),
    ),
  )


get_config = Paper('medusa', {'table1': (table1, _TARGETS)})
