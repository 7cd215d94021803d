"""Block verification, Table 1: tokens per call, token and block, gamma 8.

  python -m experiments.run \\
    --config configs/papers/block_verification.py:xsum \\
    --config.target.path=TARGET --config.draft.path=DRAFT

Parts: xsum, gsm8k, wmt; the paper has eight sets of prompts, 1000 of each, and
PaLM-2 models that are not published. configs/rules.py measures the same gain on
the embedded pair.
"""

from configs.papers import TASKS, Paper
from experiments.papers.published import Metric, Published

_DATASETS = {'xsum': 'XSum', 'gsm8k': 'GSM8K', 'wmt': 'WMT-DeEn'}


def table1(part: str) -> Published:
  return Published(
    drafters=('lm',),
    gammas=(8,),
    verifiers=('token', 'block'),
    temperatures=(1.0,),
    prompts=TASKS[part],
    table='Table 1',
    part={'dataset': _DATASETS[part]},
    axes={'gamma': 'gamma'},
    compared=tuple(
      Metric(f'{published}_{rule}', ours, {'verifier': rule})
      for published, ours in (('block_eff', 'tau'), ('walltime', 'speedup'))
      for rule in ('token', 'block')
    ),
    needs=('PaLM-2-S and PaLM-2-XXS, which are not published',),
  )


get_config = Paper('block_verification', {'table1': (table1, _DATASETS)})
