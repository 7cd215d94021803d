"""SpecInfer: LLaMA-68M drafts trees of depth 8 for LLaMA-7B.

  python -m experiments.run --config configs/papers/specinfer.py:table2 \\
    --config.prompts.path=CIP.jsonl
  python -m experiments.run --config configs/papers/specinfer.py:table3 \\
    --config.prompts.path=alpaca.jsonl --config.prompts.field=instruction

Table 2: tokens per step with one and with five branches at the third token. The
paper's prompts (CIP) are not among the forms known here. Table 3: naive
sampling beside multi-step verification, Alpaca. Multi-step verification is
`specjax.verify.recursive`; the naive rule, which draws from the target and
looks whether the token was drafted, is not in the project. 30 GB of float32
weights; not measured.
"""

from configs.papers import LLAMA_68M, Paper, tree
from experiments.papers.published import Metric, Published
from specjax.bench.config import Checkpoint, Prompts


def _llama(data: str, widths: dict[str, int], **fields) -> Published:
  return Published(
    target=Checkpoint('huggyllama/llama-7b'),
    candidates={
      name: tree(LLAMA_68M, 8, 1, 1, width, replacement=True)
      for name, width in widths.items()
    },
    verifiers=('recursive',),
    prompts=Prompts(count=100),
    timed=False,
    needs=('LLaMA-7B and LLaMA-68M', f'the {data} prompts', '30 GB of memory'),
    **fields,
  )


def table2() -> Published:
  return _llama(
    'CIP',
    {'width 1': 1, 'width 5': 5},
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
  )


def table3() -> Published:
  return _llama(
    'Alpaca',
    {'tree': 3},
    temperatures=(1.0,),
    table='Table 3',
    compared=(Metric('naive'), Metric('MSS', 'tau', {'drafter': 'tree'})),
  )


get_config = Paper(
  'specinfer', {'table2': (table2, ()), 'table3': (table3, ())}
)
