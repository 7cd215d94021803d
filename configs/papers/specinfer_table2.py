"""SpecInfer, Table 2: tokens per step with one and with five branches.

  python -m experiments.run --config configs/papers/specinfer_table2.py \\
    --config.prompts.path=CIP.jsonl

LLaMA-7B with a draft of 68M; drafts of depth 8 that branch at the third token.
The paper's prompts (CIP) are not among the forms known here. 30 GB of float32
weights; not measured.
"""

from configs.papers import tree
from experiments.papers.published import Metric, Published
from experiments.settings import Checkpoint, Prompts


def get_config() -> Published:
  draft = 'JackFram/llama-68m'
  return Published(
    name='specinfer_table2',
    results='results/papers/specinfer_table2',
    target=Checkpoint('huggyllama/llama-7b'),
    candidates={
      f'width {k}': tree(draft, 8, 1, 1, k, replacement=True) for k in (1, 5)
    },
    verifiers=('recursive',),
    prompts=Prompts(count=100),
    timed=False,
    paper='specinfer',
    table='Table 2',
    compared=tuple(
      Metric(
        f'{sampling}_width{k}',
        'tau',
        {'drafter': f'width {k}', 'temperature': temperature},
      )
      for sampling, temperature in (('greedy', 0.0), ('stochastic', 1.0))
      for k in (1, 5)
    ),
    needs=('LLaMA-7B and LLaMA-68M', 'the CIP prompts', '30 GB of memory'),
  )
