"""SpecTr, main table: k-SEQ with 8 drafts beside one draft, LM1B.

  python -m experiments.run --config configs/papers/spectr.py \\
    --config.target.path=TARGET --config.prompts.path=LM1B.txt

PaLM-2 models are not published. With one draft, k-SEQ is token verification.
The draft is looked for in spectr/draft.
"""

from configs.papers import Paper, tree
from experiments.papers.published import Metric, Published
from specjax.bench.config import Prompts


def main_table() -> Published:
  draft = 'spectr/draft'
  return Published(
    candidates={
      'one': tree(draft, 4, 1, replacement=True),
      'eight': tree(draft, 4, 8, replacement=True),
    },
    gammas=(4, 8),
    verifiers=('k_seq',),
    temperatures=(1.0,),
    prompts=Prompts(count=1000),
    table='main table',
    axes={'K': 'drafter', 'L': 'gamma'},
    names={'K': {'1': 'one', '8': 'eight'}},
    compared=(
      Metric('block_efficiency', 'tau'),
      Metric('speedup', 'speedup'),
    ),
    needs=('PaLM-2-Bison and PaLM-2-Gecko, which are not published', 'LM1B'),
  )


get_config = Paper('spectr', {'': (main_table, ())})
