"""Multi-candidate decoding, Table 4: with and without replacement, Alpaca.

  python -m experiments.run --config configs/papers/mcsd_table4.py \\
    --config.prompts.path=alpaca.jsonl --config.prompts.field=instruction

LLaMA-13B with LLaMA-68M at temperature 1. The table does not print the shape of
its trees; (4, 2, 2, 1) is ours. The naive rule and candidates without tree
attention are not in the project.
"""

from configs.papers import tree
from experiments.papers.published import Metric, Published
from experiments.settings import Checkpoint, Prompts


def get_config() -> Published:
  draft = 'JackFram/llama-68m'
  return Published(
    name='mcsd_table4',
    results='results/papers/mcsd_table4',
    target=Checkpoint('huggyllama/llama-13b'),
    candidates={
      'without': tree(draft, 4, 4, 2, 2, 1, replacement=False),
      'with': tree(draft, 4, 4, 2, 2, 1, replacement=True),
    },
    verifiers=('recursive',),
    temperatures=(1.0,),
    prompts=Prompts(count=100),
    paper='mcsd',
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
    needs=(
      'LLaMA-13B and LLaMA-68M',
      'the Alpaca prompts',
      'an accelerator with 64 GB',
    ),
  )
