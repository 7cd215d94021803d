"""Chen et al., Figure 1: tokens of a step over K + 1, at K = 7.

  python -m experiments.run --config configs/papers/chen_figure1.py:humaneval \\
    --config.target.path=TARGET --config.draft.path=DRAFT

Parts: humaneval (temperature 0.8, top-p 0.95) and xsum (top-p 0.8). The figure
was read off; the models are not published. The shape, which falls with K, at
the scale of the embedded pair: results/findings.md.
"""

from configs.papers import TASKS, task
from experiments.papers.published import Metric, Published
from experiments.settings import SamplingValues

_SETTINGS = {
  'humaneval': ('HumanEval', 0.8, 0.95, 512),
  'xsum': ('XSum', 1.0, 0.8, 128),
}
PARTS = tuple(_SETTINGS)


def get_config(part: str = 'humaneval') -> Published:
  column, temperature, top_p, tokens = _SETTINGS[task(part, PARTS)]
  return Published(
    name=f'chen_figure1_{part}',
    results=f'results/papers/chen_figure1_{part}',
    drafters=('lm',),
    gammas=(1, 2, 3, 4, 5, 6, 7),
    temperatures=(temperature,),
    sampling=SamplingValues(top_p=top_p),
    prompts=TASKS[part],
    max_new_tokens=tokens,
    paper='chen',
    table='Figure 1',
    part={'K': 7},
    axes={'K': 'gamma'},
    compared=(Metric(column, 'tau', scale=1 / 8),),
    needs=('Chinchilla 70B and its draft, which are not published',),
  )
