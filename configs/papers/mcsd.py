"""Multi-candidate decoding: LLaMA-68M drafts trees for LLaMA-13B.

  python -m experiments.run --config configs/papers/mcsd.py:table8/alpaca \\
    --config.prompts.path=alpaca.jsonl --config.prompts.field=instruction

Table 4: candidates with and without replacement on Alpaca, at temperature 1.
The table does not print the shape of its trees; (4, 2, 2, 1) is ours. The naive
rule and candidates without tree attention are not in the project. Table 8
(alpaca, wmt): alpha with one and with four candidates; times play no part.
Another of its pairs is `--config.target.path=...` with the paths in this file
and `part` changed. 55 GB of float32 weights; not measured.
"""

from configs.papers import LLAMA_68M, TASKS, Paper, tree
from experiments.papers.published import Metric, Published
from specjax.bench.config import Checkpoint, Prompts

_COLUMNS = {'alpaca': 'Alpaca', 'wmt': 'WMT'}


def _llama(data: str, **fields) -> Published:
  return Published(
    target=Checkpoint('huggyllama/llama-13b'),
    verifiers=('recursive',),
    needs=(
      'LLaMA-13B and LLaMA-68M',
      f'the {data} prompts',
      'an accelerator with 64 GB',
    ),
    **fields,
  )


def table4() -> Published:
  return _llama(
    'Alpaca',
    candidates={
      'without': tree(LLAMA_68M, 4, 4, 2, 2, 1, replacement=False),
      'with': tree(LLAMA_68M, 4, 4, 2, 2, 1, replacement=True),
    },
    temperatures=(1.0,),
    prompts=Prompts(count=100),
    table='Table 4',
    part={'target': 'LLaMA-13B'},
    axes={'method': 'drafter'},
    names={
      'method': {
        'MCSS w/o replacement, tree attn': 'without',
        'MCSS with replacement, tree attn': 'with',
      }
    },
    compared=(Metric('tau', 'tau'), Metric('speedup', 'speedup')),
  )


def table8(part: str) -> Published:
  column = _COLUMNS[part]
  return _llama(
    column,
    candidates={
      f'k{k}': tree(LLAMA_68M, 1, k, replacement=False) for k in (1, 4)
    },
    prompts=TASKS.get(part, Prompts(count=100)),
    timed=False,
    table='Table 8',
    part={'target': 'LLaMA-13B', 'draft': 'LLaMA-68M'},
    axes={'temperature': 'temperature'},
    compared=tuple(
      Metric(f'{column}_{k}', 'alpha_of_rule', {'drafter': k})
      for k in ('k1', 'k4')
    ),
  )


get_config = Paper(
  'mcsd', {'table4': (table4, ()), 'table8': (table8, _COLUMNS)}
)
