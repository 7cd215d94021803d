"""Chen et al., Table 1: Chinchilla 70B with a draft of 4B, K = 4.

  python -m experiments.run \\
    --config configs/papers/chen_table1.py:xsum_greedy \\
    --config.target.path=TARGET --config.draft.path=DRAFT

Parts: xsum_nucleus, xsum_greedy, humaneval. The models are not published;
another large model with a wide and shallow draft of the same tokenizer shows
the same quantities. The paper ran on 16 TPU v4.
"""

from configs.papers import TASKS, task
from experiments.papers.published import Metric, Published
from experiments.settings import SamplingValues

_SETTINGS = {
  'xsum_nucleus': ('xsum', 'SpS nucleus p=0.8', 1.0, 0.8, 128),
  'xsum_greedy': ('xsum', 'SpS greedy', 0.0, None, 128),
  'humaneval': ('humaneval', 'SpS nucleus p=0.95 T=0.8', 0.8, 0.95, 512),
}
PARTS = tuple(_SETTINGS)


def get_config(part: str = 'xsum_greedy') -> Published:
  data, sampling, temperature, top_p, tokens = _SETTINGS[task(part, PARTS)]
  return Published(
    name=f'chen_table1_{part}',
    results=f'results/papers/chen_table1_{part}',
    drafters=('lm',),
    gammas=(4,),
    temperatures=(temperature,),
    sampling=SamplingValues(top_p=top_p),
    prompts=TASKS[data],
    max_new_tokens=tokens,
    paper='chen',
    table='Table 1',
    part={'sampling': sampling},
    axes={'K': 'gamma'},
    compared=(Metric('speedup', 'speedup'),),
    needs=('Chinchilla 70B and its draft, which are not published',),
  )
