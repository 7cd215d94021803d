"""Medusa, Table 1: tokens per step, cost of a step and speed-up, MT-Bench.

  python -m experiments.run \\
    --config configs/papers/medusa_table1.py:vicuna-7b \\
    --config.prompts.path=question.jsonl --config.prompts.chat

Parts: vicuna-7b, vicuna-13b, vicuna-33b, zephyr-7b. The paper trains the target
together with its heads (Medusa-2), and each head has an output layer of its
own; heads here are for a frozen target, and share its output layer. The tree is
the best of 64 nodes for their accuracies; decoding is greedy. The overhead of
the paper is the cost of a step, which is v + gamma c here.
"""

from configs.papers import MT_BENCH, OWN_HEADS, head, task
from experiments.papers.published import Metric, Published
from experiments.settings import Checkpoint, Prompts

_TARGETS = {
  'vicuna-7b': ('Vicuna-7B', 'lmsys/vicuna-7b-v1.3'),
  'vicuna-13b': ('Vicuna-13B', 'lmsys/vicuna-13b-v1.3'),
  'vicuna-33b': ('Vicuna-33B', 'lmsys/vicuna-33b-v1.3'),
  'zephyr-7b': ('Zephyr-7B', 'HuggingFaceH4/zephyr-7b-beta'),
}
PARTS = tuple(_TARGETS)


def get_config(part: str = 'vicuna-7b') -> Published:
  name, path = _TARGETS[task(part, PARTS)]
  return Published(
    name=f'medusa_table1_{part}',
    results=f'results/papers/medusa_table1_{part}',
    target=Checkpoint(path),
    candidates={
      'medusa': head('medusa', f'heads/{part}/medusa', 4, 'typical', tree=64)
    },
    temperatures=(0.0,),
    prompts=Prompts(count=80),
    max_new_tokens=512,
    paper='medusa',
    table='Table 1',
    part={'target': name},
    compared=(
      Metric('acceleration_rate', 'tau', {'drafter': 'medusa'}),
      Metric('overhead'),
      Metric('S_Medusa', 'speedup', {'drafter': 'medusa'}),
    ),
    needs=(name, OWN_HEADS, MT_BENCH, 'a GPU (the paper: A100)'),
  )
