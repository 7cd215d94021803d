"""EAGLE on MT-Bench: tokens per step with a chain and with a tree.

  python -m experiments.run --config configs/papers/eagle.py:table2/vicuna-7b \\
    --config.prompts.path=question.jsonl --config.prompts.chat

Parts: vicuna-7b, -13b, -33b, llama2-7b, -13b, -70b. Table 2 has n-alpha too,
the acceptance of a token that was drafted from n features that were drafted
themselves: place n of a chain, of the steps that accepted all before it. Table
5 is greedy. The tree of the paper is not printed there; this one is ours.
"""

from configs.papers import (
  CHAT,
  EAGLE_HEADS,
  EAGLE_WIDTHS,
  Paper,
  head,
  mt_bench,
)
from experiments.papers.published import Metric, Published


def _compared(part: str, **fields) -> Published:
  path = EAGLE_HEADS[part]
  return mt_bench(
    CHAT[part],
    candidates={
      'chain': head('eagle', path, 5),
      'tree': head('eagle', path, 5, 'recursive', widths=EAGLE_WIDTHS),
    },
    axes={'temperature': 'temperature'},
    **fields,
  )


def table2(part: str) -> Published:
  return _compared(
    part,
    table='Table 2',
    compared=(
      Metric('tau', 'tau', {'drafter': 'tree'}),
      *(
        Metric(f'alpha_{n}', 'unit_histogram', {'drafter': 'chain'}, place=n)
        for n in range(5)
      ),
    ),
  )


def table5(part: str) -> Published:
  return _compared(
    part,
    temperatures=(0.0,),
    table='Table 5',
    compared=tuple(
      Metric(f'tau_{kind}', 'tau', {'drafter': kind})
      for kind in ('chain', 'tree')
    ),
  )


get_config = Paper(
  'eagle', {'table2': (table2, CHAT), 'table5': (table5, CHAT)}
)
