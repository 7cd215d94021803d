"""SpecInfer, Table 3: naive sampling beside multi-step verification, Alpaca.

  python -m experiments.run --config configs/papers/specinfer_table3.py \\
    --config.prompts.path=alpaca.jsonl --config.prompts.field=instruction

Multi-step verification is `specjax.verify.recursive`; the naive rule, which
draws from the target and looks whether the token was drafted, is not in the
project.
"""

from configs.papers import tree
from experiments.papers.published import Metric, Published
from experiments.settings import Checkpoint, Prompts


def get_config() -> Published:
  return Published(
    name='specinfer_table3',
    results='results/papers/specinfer_table3',
    target=Checkpoint('huggyllama/llama-7b'),
    candidates={
      'tree': tree('JackFram/llama-68m', 8, 1, 1, 3, replacement=True)
    },
    verifiers=('recursive',),
    temperatures=(1.0,),
    prompts=Prompts(count=100),
    timed=False,
    paper='specinfer',
    table='Table 3',
    compared=(Metric('naive'), Metric('MSS', 'tau', {'drafter': 'tree'})),
    needs=('LLaMA-7B and LLaMA-68M', 'the Alpaca prompts', '30 GB of memory'),
  )
